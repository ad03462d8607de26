#!/usr/bin/env bash
# XSum: from a BBC article to its one-sentence summary.
#
# Raw files: bbc-summary-data (or xsum-extracts-from-downloads) and XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json
# (https://github.com/EdinburghNLP/XSum).
# Settings: s2s-ft, Tables 7 and 8.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

max_source=720 max_target=48
search=(--beam 8 --length-penalty gnmt --lenpen 0.7 --min-len 1)
evaluate=(--task xsum --lead 1-sentences)
run_recipe "$@"
