#!/usr/bin/env bash
# XQG (WebQA-zh): Chinese question generation, from a passage and an answer.
#
# Raw files: xqg.tar.gz (https://github.com/CZWin32768/XNLG), {train,dev,test}.{e,a,q}.{en,zh}.lc.
# Settings: s2s-ft, Tables 7 and 8. Its encoder is XLM-R.
#
#   --lang L            zh or en (zh)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="lang" lang=zh
separator=" [SEP] "
max_source=384 max_target=32
layout=(--source-truncation "right,right")
search=(--beam 8 --length-penalty gnmt --lenpen 1.3 --min-len 5)
settings() {
    prepare=(--lang "$lang")
    evaluate=(--task zh)
    [ "$lang" = zh ] || evaluate=(--task qg --fix-tokenization none --normalise-references)
}
run_recipe "$@"
