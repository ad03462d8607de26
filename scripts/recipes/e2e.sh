#!/usr/bin/env bash
# E2E NLG challenge: from a restaurant's attributes to a sentence about it, scored against all references.
#
# Raw files: trainset.csv, devset.csv and testset_w_refs.csv (https://github.com/tuetschek/e2e-dataset).
# Settings: none of the four papers has this task; s2s-ft's Table 7, with lengths that fit the data.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

max_source=96 max_target=80
lr=1e-4
search=(--beam 5 --length-penalty gnmt --lenpen 1.0)
evaluate=(--task bleu --lowercase --pretokenize nltk --metrics sacrebleu rouge)
run_recipe "$@"
