#!/usr/bin/env bash
# CNN/DailyMail: from a news article to its highlights.
#
# Raw files: cnn/stories and dailymail/stories (https://cs.nyu.edu/~kcho/DMQA), and all_{train,val,test}.txt
# (https://github.com/abisee/cnn-dailymail, url_lists). 114 stories have no article: --skip-malformed.
# Settings: s2s-ft, Tables 7 and 8; repeated trigrams are blocked, as the program's instructions say. Highlights are
# separated by [X_SEP], a token that is added to the encoder.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

added_token="[X_SEP]"
max_source=608 max_target=160
target_mask_prob=0.7  # the program's instructions: 0.7 to 0.8; the paper's range ends at 0.7
search=(--beam 5 --length-penalty gnmt --lenpen 0.9 --min-len 48 --no-repeat-ngram-size 3 --no-repeat-ngram-ignore .)
evaluate=(--task cnndm --ref-separator "[X_SEP]" --lead 3-sentences)
settings() {
    # ERNIE-GEN's evaluation keeps 100 words, that of s2s-ft 160.
    case $preset in base/* | large/* | large_430g/* | paper/*) evaluate+=(--truncate 100) ;; esac
}
run_recipe "$@"
