#!/usr/bin/env bash
# WikiLingua: from an article in Spanish, Russian, Turkish or Vietnamese to an English summary. With
# DeltaLM (--method deltalm).
#
# Raw files: {es,ru,tr,vi}_en/{train,val,test}.{src,tgt} (https://github.com/esdurmus/Wikilingua, as GEM v1 split it).
# DeltaLM reports on the validation set: --set dev.
#
#   --lang L            es, ru, tr or vi (es)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="lang" lang=es
set=dev method=deltalm
max_source=512 max_target=80 of_deltalm=()
evaluate=(--task wikilingua)
settings() { prepare=(--lang "$lang"); }
run_recipe "$@"
