#!/usr/bin/env bash
# SQuAD question generation: from a passage and an answer to the question.
#
# Raw files: train-v1.1.json and dev-v1.1.json (https://rajpurkar.github.io/SQuAD-explorer), and doclist-test.txt, the
# 44 articles that Du et al. (2017) test on (https://github.com/xinyadu/nqg, data/).
# Settings: s2s-ft, Tables 7 and 8. The references are SQuAD's questions as they are, not those that Du et al. tokenized:
# NLTK splits off punctuation, of references and hypotheses alike.
#
#   --split NAME        official: tested on these articles (Du et al.); reversed: on the development file (Zhao et al.)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="split" split=official
separator=" [SEP] "
max_source=384 max_target=32
search=(--beam 8 --length-penalty gnmt --lenpen 1.3 --min-len 5)
settings() {
    prepare=(--split "$split")
    evaluate=(--task qg --pretokenize nltk --fix-tokenization none --reference-variant "squad-raw-$split")
}
run_recipe "$@"
