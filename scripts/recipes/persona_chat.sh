#!/usr/bin/env bash
# Persona-Chat: from a persona and a conversation to the next answer.
#
# Raw files: {train,valid,test}_self_original.txt (https://github.com/facebookresearch/ParlAI, task personachat).
# Settings: ERNIE-GEN, configs/large/persona-chat_conf, and role and turn embeddings as there; of a conversation that is
# too long the oldest turns go first, and the persona stays.
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

preset=large/persona-chat
separator=" [SEP] "
layout=(--num-roles 3 --num-turns 16 --source-segments dialogue --source-truncation "right,left")
evaluate=(--task persona_chat)
run_recipe "$@"
