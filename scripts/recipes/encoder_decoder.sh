# What --method deltalm does in another way than the methods for encoders. What it works on are the settings of recipe.sh.

# DeltaLM's settings (section 3.1 of the paper) for what the command line leaves open.
use_deltalm() {
    local name at
    for ((at = 0; at < ${#of_deltalm[@]}; at += 2)); do take "${of_deltalm[at]}" "${of_deltalm[at + 1]}"; done
    take lr 3e-4
    take label_smoothing 0.1
    take weight_decay 0
    search=(--beam 5 --max-len-b "$longest" --early-stop fairseq)  # the program of the paper is fairseq
    [ -z "$fit_head" ] || fail "--fit-head is for encoders that generate themselves, but --method is deltalm"
    for name in noise_prob noise_symbol preset device_batch batch; do
        ! given "$name" || fail "--${name//_/-} is of no use with --method deltalm"
    done
    preset=""
}

# About how many tokens an epoch has, of the longer side, at four bytes a token.
estimate_tokens() {
    local at src tgt bytes=0
    for ((at = 0; at < ${#vocabulary[@]}; at += 2)); do
        src=$(wc -c <"${vocabulary[at]}") tgt=$(wc -c <"${vocabulary[at + 1]}")
        bytes=$((bytes + (src > tgt ? src : tgt)))
    done
    # Pairs may be trained in both directions.
    echo $((bytes / 4 * 2 * ${#parts[@]} / ${#vocabulary[@]}))
}

# An epoch has so many updates as its batches of tokens make: without --updates epochs are what is counted. The paper's
# batches are for tens of millions of pairs. Where an epoch would have less than a hundred of them they are smaller, and
# a training that is a good deal shorter than 4000 warm-up updates is warmed up for a tenth of it.
estimate_updates() {
    local tokens expected=$updates
    if [ -f "${vocabulary[0]}" ]; then
        tokens=$(estimate_tokens)
        if ! given accumulate && [ $((tokens / (100 * device_tokens))) -lt "$accumulate" ]; then
            accumulate=$((tokens / (100 * device_tokens)))
            [ "$accumulate" -gt 0 ] || accumulate=1
        fi
        expected=${updates:-$((epochs * (tokens / (device_tokens * accumulate) + 1)))}
    fi
    accumulate=$(((accumulate + $(devices) - 1) / $(devices)))
    given warmup || warmup=$((16000 > expected ? expected / 10 : 4000))
    # As many checkpoints as there are.
    [ -z "$averaged" ] || [ "$averaged" -le "${updates:-$epochs}" ] || averaged=${updates:-$epochs}
}

deltalm_training() {
    local every=$((updates > 20 ? updates / 20 : updates)) ending
    [ -z "$averaged" ] || [ "$every" != "$updates" ] || every=1
    if [ -n "$updates" ]; then
        ending=(--max-update "$updates" --validate-interval-updates "$every" --save-interval-updates "$every"
            --keep-interval-updates "${averaged:-1}" --validate-interval 1000000)
    else
        ending=(--max-epoch "$epochs")
    fi
    if [ -n "$averaged" ]; then
        ending+=(--keep-last-epochs "$averaged")  # the end of an epoch is not among the checkpoints of updates
    else
        ending+=(--no-epoch-checkpoints ${updates:+--save-interval 1000000})
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
