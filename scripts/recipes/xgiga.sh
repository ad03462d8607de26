#!/usr/bin/env bash
# XGiga (Gigaword-fr, Gigaword-zh): headlines in French or Chinese.
#
# Raw files: xgiga.tar.gz (https://github.com/CZWin32768/XNLG), {train,dev,test}.{x,y}.{en,fr,zh}.
# Settings: s2s-ft, Tables 7 and 8, which have French; the same for Chinese. Its encoder is XLM-R.
#
#   --lang L            fr, zh or en (fr)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="lang" lang=fr
max_source=96 max_target=48
search=(--beam 5 --length-penalty gnmt --lenpen 0.9 --min-len 1)
settings() {
    prepare=(--lang "$lang")
    case $lang in
        fr) evaluate=(--task fr) ;;
        zh) evaluate=(--task zh --metrics rouge) ;;
        *) evaluate=(--task rouge --lowercase) ;;
    esac
}
run_recipe "$@"
