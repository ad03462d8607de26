#!/usr/bin/env bash
# Persona-Chat: from a persona and a conversation to the next answer. Data and scores; ERNIE-GEN trains on it.
#
# Raw files: {train,valid,test}_self_original.txt (https://github.com/facebookresearch/ParlAI, task personachat).
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

later=ERNIE-GEN
evaluate=(--task persona_chat)
run_recipe "$@"
