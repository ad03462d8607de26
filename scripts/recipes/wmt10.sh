#!/usr/bin/env bash
# WMT-10: translation between English and one of ten languages. Data and scores of a pair; DeltaLM trains on all.
#
# Raw files: {train,valid,test}.X-en.{X,en} from WMT's shared tasks (https://www.statmt.org), pairs as in Wang et al.
# (2020); no archive of the whole is published.
#
#   --lang L            fr, cs, de, fi, lv, et, ro, hi, tr or gu (fr)
#   --direction NAME    to-english or from-english (to-english)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

later=DeltaLM
own="lang direction" lang=fr direction=to-english
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
