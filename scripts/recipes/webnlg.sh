#!/usr/bin/env bash
# WebNLG 3.0: from triples to a text in English or Russian. With DeltaLM (--method deltalm).
#
# Raw files: {en,ru}/{train,dev,test} of release_v3.0 (https://gitlab.com/shimorina/webnlg-dataset). DeltaLM reports on
# the development set: --set dev.
#
#   --lang L            en or ru (en)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="lang" lang=en
set=dev method=deltalm
max_source=256 max_target=80 of_deltalm=()
settings() {
    prepare=(--lang "$lang")
    evaluate=(--task webnlg)
    [ "$lang" != en ] || return 0
    # The words of the challenge of 2020, whose evaluation splits Russian by razdel. GEM's are letters from a to z.
    evaluate+=(--pretokenize razdel --rouge-tokenizer space --lowercase)
    [ -n "$dry_run" ] || "$python" -c "import razdel" 2>/dev/null ||
        fail "--lang $lang is scored with the package razdel, which is not installed: pip install razdel"
}
run_recipe "$@"
