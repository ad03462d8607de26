#!/usr/bin/env bash
# WMT-10: translation between English and one of ten languages, with DeltaLM (--method deltalm). The paper trains one
# model on all twenty directions: docs/deltalm.md has the commands.
#
# Raw files: {train,valid,test}.X-en.{X,en} from WMT's shared tasks (https://www.statmt.org), pairs as in Wang et al.
# (2020); no archive of the whole is published.
#
#   --lang L            fr, cs, de, fi, lv, et, ro, hi, tr or gu (fr)
#   --direction NAME    to-english or from-english (to-english)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="lang direction" lang=fr direction=to-english method=deltalm
max_source=256 max_target=256 longest=255
evaluate=(--task bleu)
settings() {
    prepare=(--lang "$lang")
    case $direction in
        to-english) ;;
        from-english) prepare+=(--from-english) ;;
        *) fail "--direction must be to-english or from-english, but is $direction" ;;
    esac
}
run_recipe "$@"
