#!/usr/bin/env bash
# CoQA as generation: from a conversation about a passage to the next answer. Data and scores; ERNIE-GEN trains on it.
#
# Raw files: coqa-train-v1.0.json and coqa-dev-v1.0.json (https://stanfordnlp.github.io/coqa). Scored on the development
# set, for the test set is not published.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

later=ERNIE-GEN
set=dev
evaluate=(--task coqa)
run_recipe "$@"
