# What the recipes of understanding share, on top of recipe.sh; each of them sets what is its own and ends with
# `run_understanding "$@"`.
#
#   s2sft recipe TASK --raw DIR --encoder DIR [OPTION VALUE ...] [-- further options of s2sft train]
#   s2sft recipe TASK --raw DIR --smoke     everything once on a few hundred examples, in minutes on a CPU
#
# Stages: prepare, convert, tokenize, binarize, train, predict, score; going on as the other recipes do.
#
#   --raw DIR           the data set as it is published: docs/understanding.md tells where, and which files
#   --encoder DIR       a pretrained encoder as it is published, or a folder that s2sft convert wrote
#   --output DIR        where to write (recipes-out/TASK)
#   --run NAME          folder in it of this training (seedSEED); data are shared by the trainings of an output
#   --max-source N      positions of a text, special symbols included
#   --seed N            (1)
#   --lr, --epochs, --batch, --weight-decay    learning rate, epochs, texts an update, weight decay (the paper's)
#   --warmup N          updates of warm-up (a tenth, as in the paper)
#   --updates N         updates, in place of epochs
#   --device-batch N    texts at a time, of which an update adds up several (16)
#   --limit N           the first N examples of each set only
#   --workers N         processes for tokenizing and binarizing (all cores)
#   --skip-malformed    leave malformed records of the raw files out; otherwise they are an error
#   --cpu               train and predict without a GPU, though there is one
#   --dry-run           only print the command of training; without a prepared corpus, with --updates

manual=understanding
values="raw encoder output run max_source seed lr epochs warmup batch weight_decay updates device_batch limit workers"
switches="smoke skip_malformed cpu dry_run"
# UniLMv2, Table 9.
lr=2e-5 batch=32 warmup_share=0.1 weight_decay=0.01
# What a recipe sets: the task and its options, what the best checkpoint is the best by, and where its texts are.
fairseq_task="" metric=accuracy texts=""

# Stages of a recipe's own: from raw files to tokenized texts, and from the model to predictions and scores.
prepare_texts() { fail "a recipe says how"; }
predict_and_score() { fail "a recipe says how"; }

prefixes() { find "$texts" -name "$1*.txt" | LC_ALL=C sort | paste -sd, -; }

binarize_texts() {
    local partial=$output/binarized.partial tests
    tests=$(prefixes test)
    rm -rf "$partial"
    s2sft preprocess --only-source --srcdict "$output/encoder/dict.txt" --destdir "$partial" \
        --trainpref "$texts/train.txt" --validpref "$(prefixes valid)" ${tests:+--testpref "$tests"} \
        --workers "${workers:-$(nproc)}" >"$output/binarize.log"
    find "$output/corpus" \( -name "*.label" -o -name labels.txt -o -name "*.questions.jsonl" \) \
        -exec cp {} "$partial" \;
    mv "$partial" "$output/binarized"
}

plan_understanding() {
    count_updates "$texts/train.txt"
    model=(--pretrained "$output/encoder")
    [ -n "$encoder$dry_run" ] || model=(--arch unilm_tiny --random-init --max-positions "$max_source")
    optimization
    training=(train "$output/binarized" --task "$fairseq_task" "${model[@]}" ${layout[@]+"${layout[@]}"}
        --best-checkpoint-metric "$metric" --maximize-best-checkpoint-metric
        --ignore-unused-valid-subsets "${optimizing[@]}")  # MNLI has two
}

# predict SET OUTPUT OPTION...
predict() {
    local name=$1 file=$2
    shift 2
    s2sft predict "$output/binarized" --path "$work/best.pt" --subset "$name" --output "$file" ${cpu:+--cpu} "$@"
}

run_understanding() {
    parse "$@"
    check
    settings
    export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    command -v "$python" >/dev/null || fail "no Python at $python; bash scripts/setup.sh makes it, or set PYTHON"
    output=${output:-recipes-out/$task} run=${run:-seed$seed}
    work=$output/$run texts=$output/$texts
    if [ -n "$smoke" ]; then
        limit=${limit:-200} updates=${updates:-4} batch=$device_batch
    fi
    if [ -n "$dry_run" ]; then
        [ -n "$updates" ] || [ -f "$texts/train.txt" ] ||
            fail "--dry-run needs --updates, for no corpus is prepared in $output that the epochs could be counted of"
        plan_understanding
        printf 's2sft%s\n' "$(printf ' %q' "${training[@]}")"
        return
    fi
    remember "$output/corpus.settings" "corpus/stats.json tokens binarized" \
        "--raw $(cd "$raw" && pwd)" "--limit ${limit:-none}" "${prepare[*]-}" \
        "--skip-malformed ${skip_malformed:-no}"
    remember "$output/encoder.settings" "encoder ${texts##*/} binarized" "--encoder ${encoder:+$(cd "$encoder" && pwd)}"
    prepare_texts
    plan_understanding
    remember "$work/settings" "checkpoints/checkpoint_last.pt best.pt" \
        "--seed $seed" "--lr $lr" "--updates $updates" "--warmup $warmup" "--batch $batch" \
        "--device-batch $device_batch" "--weight-decay $weight_decay" "--max-source $max_source" \
        "train ${train_options[*]-}"
    stage "$output/binarized" "binarize" binarize_texts
    stage "$work/best.pt" "train, $updates updates" train
    [ ! -e "$work/train.log" ] || stage "$work/loss.png" "plot" plot
    predict_and_score
    say "everything is in $work"
}
