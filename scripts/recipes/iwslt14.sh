#!/usr/bin/env bash
# IWSLT'14: translation of talks from German to English, with DeltaLM (--method deltalm).
#
# Raw files: the folder de-en of de-en.tgz (https://wit3.fbk.eu, 2014-01), split as fairseq's prepare-iwslt14.sh does.
# Settings: DeltaLM's examples/train_iwslt14.sh, of one GPU: learning rate 1e-4, 1024 tokens an update.
#
#   --direction NAME    to-english or from-english (to-english)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="direction" direction=to-english method=deltalm
max_source=256 max_target=256 longest=255
of_deltalm=(lr 1e-4 device_tokens 1024 accumulate 1)
evaluate=(--task bleu)
settings() {
    case $direction in
        to-english) ;;
        from-english) prepare=(--from-english) ;;
        *) fail "--direction must be to-english or from-english, but is $direction" ;;
    esac
}
run_recipe "$@"
