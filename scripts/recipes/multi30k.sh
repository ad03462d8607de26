#!/usr/bin/env bash
# Multi30k: captions of pictures, from one language to another.
#
# Raw files: data/task1/raw of https://github.com/multi30k/dataset; the 2016 test set is `test`, the later ones are
# test_2017_flickr, test_2017_mscoco and test_2018_flickr (--set).
# Settings: none of the four papers has this task; s2s-ft's Table 7, with lengths that fit the data.
#
#   --source-lang L, --target-lang L    en, de, fr, cs (en to de)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="source_lang target_lang" source_lang=en target_lang=de
max_source=64 max_target=64 of_deltalm=()
lr=1e-4 epochs=20
search=(--beam 5 --length-penalty gnmt --lenpen 1.0)
evaluate=(--task bleu)
settings() { prepare=(--source-lang "$source_lang" --target-lang "$target_lang"); }
run_recipe "$@"
