#!/usr/bin/env bash
# SQuAD question generation: from a passage and an answer to the question.
#
# Raw files: train-v1.1.json and dev-v1.1.json (https://rajpurkar.github.io/SQuAD-explorer), and doclist-test.txt, the
# 44 articles that Du et al. (2017) test on (https://github.com/xinyadu/nqg, data/). For --set tgt-test their tokenized
# questions too, tgt-test.txt (data/processed/).
# Settings: s2s-ft, Tables 7 and 8. A long passage loses its end, and the answer behind it stays whole.
# References: of --set test SQuAD's questions, of which, as of the hypotheses, every punctuation mark is a word, as UniLM
# tokenized them; of --set tgt-test those of Du et al., the other published comparison. The questions are the same: what
# was generated for one set is scored as the other by --hyp RUN/test.out --set tgt-test.
#
#   --split NAME        official: tested on these articles (Du et al.); reversed: on the development file (Zhao et al.)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="split" split=official
separator=" [SEP] "
max_source=384 max_target=32
search=(--beam 8 --length-penalty gnmt --lenpen 1.3 --min-len 5)
layout=(--source-truncation "right,right")
settings() {
    prepare=(--split "$split")
    if [ "$set" = tgt-test ]; then
        evaluate=(--task qg --reference-variant nqg-tgt-test)
    else
        evaluate=(--task qg --fix-tokenization none --normalise-references --reference-variant "squad-raw-$split")
    fi
}
run_recipe "$@"
