#!/usr/bin/env bash
# Gigaword headlines: from the first sentence of a news article to its headline.
#
# Raw files: sumdata (https://github.com/harvardnlp/sent-summary) or UniLM's org_data (https://github.com/microsoft/unilm,
# unilm-v1); the news are the LDC's.
# Settings: ERNIE-GEN, Table 1 (base), lengths and length penalty of its configs/base/gigaword{,-10k}_conf; trained as in
# s2s-ft, without ERNIE-GEN's noise. --preset base/gigaword is ERNIE-GEN as a whole.
#
#   --size NAME         full, or 10k: 10,000 training pairs (UniLM's train.src.10k, or as many drawn)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="size" size=full
max_source=192 max_target=64
lr=3e-5 epochs=10 batch=128 warmup=30000 # a tenth of 10 epochs
search=(--beam 5 --length-penalty gnmt --lenpen 0.6 --max-len-b 32)
evaluate=(--task gigaword --lead 8-words)
settings() {
    prepare=(--size "$size")
    if [ "$size" = 10k ]; then
        given lr || lr=1.25e-5
        given epochs || epochs=30
    fi
}
run_recipe "$@"
