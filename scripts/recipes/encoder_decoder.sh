# What --method deltalm does in another way than the methods for encoders. What it works on are the settings of recipe.sh.

# DeltaLM's settings (section 3.1 of the paper) for what the command line leaves open.
use_deltalm() {
    local name at
    for ((at = 0; at < ${#of_deltalm[@]}; at += 2)); do take "${of_deltalm[at]}" "${of_deltalm[at + 1]}"; done
    take lr 3e-4
    take warmup 4000
    take label_smoothing 0.1
    take weight_decay 0
    search=(--beam 5 --max-len-b "$longest")
    [ -z "$fit_head" ] || fail "--fit-head is for encoders that generate themselves, but --method is deltalm"
    for name in noise_prob noise_symbol preset device_batch batch; do
        ! given "$name" || fail "--${name//_/-} is of no use with --method deltalm"
    done
    preset=""
}

# An epoch has so many updates as its batches of tokens make: without --updates epochs are what is counted.
deltalm_training() {
    local every=$((updates > 20 ? updates / 20 : updates)) ending
    [ -z "$averaged" ] || [ "$every" != "$updates" ] || every=1
    if [ -n "$updates" ]; then
        ending=(--max-update "$updates" --validate-interval-updates "$every" --save-interval-updates "$every"
            --keep-interval-updates "${averaged:-1}" --validate-interval 1000000 --save-interval 1000000
            --no-epoch-checkpoints)
    elif [ -n "$averaged" ]; then
        ending=(--max-epoch "$epochs" --keep-last-epochs "$averaged")
    else
        ending=(--max-epoch "$epochs" --no-epoch-checkpoints)
    fi
    training=(train "$output/binarized" --task deltalm_seq2seq "${model[@]}" --seed "$seed" ${languages[@]+"${languages[@]}"}
        --max-source-positions "$max_source" --max-target-positions "$max_target"
        --criterion label_smoothed_cross_entropy --label-smoothing "$label_smoothing" --dropout "$dropout"
        --optimizer fused_adamw --adam-betas "(0.9, 0.98)" --adam-eps 1e-8 --weight-decay "$weight_decay"
        --clip-norm 1.0 --lr "$lr" --lr-scheduler inverse_sqrt --warmup-updates $((warmup > 0 ? warmup : 1)) "${ending[@]}"
        --max-tokens "$device_tokens" --update-freq "$accumulate"
        --save-dir "$work/checkpoints" --log-interval $((updates > 200 ? updates / 200 : 1)) --log-format json
        --log-file "$work/train.log" --no-progress-bar ${cpu:+--cpu} ${train_options[@]+"${train_options[@]}"})
}
