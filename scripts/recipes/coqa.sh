#!/usr/bin/env bash
# CoQA as generation: from a passage and a conversation about it to the next answer.
#
# Raw files: coqa-train-v1.0.json and coqa-dev-v1.0.json (https://stanfordnlp.github.io/coqa). Scored on the development
# set, for the test set is not published.
# Settings: ERNIE-GEN, configs/large/coqa_conf, with role and turn embeddings as there, and its noise [NOISE], a token
# that is added to the encoder. As there, what is too long loses its left end: first the beginning of the passage.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

preset=large/coqa
separator=" [SEP] " added_token="[NOISE]"
layout=(--num-roles 3 --num-turns 16 --source-segments dialogue --source-truncation left)
set=dev
evaluate=(--task coqa)
run_recipe "$@"
