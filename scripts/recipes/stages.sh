# The stages of a recipe, and what runs and remembers them. What they work on are the settings of recipe.sh.

# stage FILE WHAT COMMAND...: run the command unless the file, which it makes last, is there. Another recipe that makes the
# same file at the same time is refused; the lock ends with this process, however it ends.
stage() {
    local made=$1 what=$2 start=$SECONDS lock
    shift 2
    lock=${made#"$output"/} lock=$output/.stage-${lock//\//-}.lock
    mkdir -p "$output"
    exec 9>"$lock"
    if command -v flock >/dev/null && ! flock -n 9; then
        fail "$made is being made by another recipe: wait for its end, or name another --output"
    fi
    if [ -e "$made" ]; then
        say "$what: done before ($made)"
    else
        say "$what ..."
        "$@"
        say "$what: $((SECONDS - start)) s"
    fi
    rm -f "$lock"
    exec 9>&-
}

# remember FILE "NAME ..." LINE...: what files of these names beside it are made with. It may not change once one of them
# is there; settings that nothing was made with are forgotten.
remember() {
    local file=$1 names=$2 name changed bound=""
    shift 2
    mkdir -p "$(dirname "$file")"
    for name in $names; do [ ! -e "$(dirname "$file")/$name" ] || bound=yes; done
    if [ -n "$bound" ] && [ -e "$file" ]; then
        changed=$(printf '%s\n' "$@" | diff "$file" - | sed -n 's/^</ before:/p; s/^>/ now:   /p') || true
        [ -z "$changed" ] || fail "$(dirname "$file") holds files of other settings; name another folder, or remove it
$changed"
    else
        printf '%s\n' "$@" >"$file"
    fi
}

# s2sft COMMAND...: each command with its seconds and its memory goes to commands.jsonl of the run.
s2sft() { "$python" "$recipes/measured.py" "$work/commands.jsonl" "$python" -m s2sft_fairseq "$@"; }

prepare_corpus() {
    "$python" -m s2sft_fairseq prepare "$script" --raw "$raw" --output "$output/corpus" \
        ${prepare[@]+"${prepare[@]}"} ${limit:+--limit "$limit"} ${skip_malformed:+--skip-malformed}
}

convert() {
    rm -rf "$output/encoder.partial"
    if [ -z "$encoder" ]; then
        "$python" "$recipes/tiny_vocabulary.py" --output "$output/encoder.partial" \
            --input "${vocabulary[@]}" --keep ${added_token:+"$added_token"} ${kept[@]+"${kept[@]}"}
    elif [ -e "$encoder/model.pt" ] && [ -e "$encoder/config.json" ]; then
        local token lacking=()
        for token in ${added_token:+"$added_token"} ${kept[@]+"${kept[@]}"}; do
            cut -d " " -f 1 "$encoder/dict.txt" | grep -xF -e "$token" >/dev/null || lacking+=("$token")
        done
        [ ${#lacking[@]} = 0 ] || fail "--encoder $encoder is converted, but without ${lacking[*]}: give the one that it" \
            "was converted from, or convert that with s2sft convert ${conversion[*]}"
        ln -s "$(cd "$encoder" && pwd)" "$output/encoder.partial"
    else
        s2sft convert "$encoder" --to "$output/encoder.partial" ${conversion[@]+"${conversion[@]}"}
    fi
    mv "$output/encoder.partial" "$output/encoder"
}

# evenly N FILE: so many lines of the file, evenly spaced, or all where it has no more.
evenly() {
    awk -v kept="$1" -v all="$(wc -l <"$2")" 'all <= kept || int(NR * kept / all) > int((NR - 1) * kept / all)' "$2"
}

# The set to score must be one; with --sources it becomes one of fewer sources, beside the whole.
choose_set() {
    local folder of=$set kind
    for part in "${parts[@]}"; do
        folder=$output/corpus/$part
        [ -f "$folder/$of.src" ] || fail "--set must be one of the sets that are scored, but $of is none: $(
            cd "$folder" && ls -- *.refs.jsonl | sed 's/\.refs\.jsonl//' | xargs)"
        [ -n "$sources" ] || continue
        set=$of-$sources
        for kind in src refs.jsonl; do
            evenly "$sources" "$folder/$of.$kind" >"$folder/$set.$kind"
        done
    done
}

tokenize() {
    rm -rf "$output/tokens.partial"
    s2sft tokenize --tokenizer-dir "$output/encoder" --output-dir "$output/tokens.partial" \
        ${separator:+--separator "$separator"} ${workers:+--workers "$workers"} \
        --input "$output"/corpus/{train,valid}.{src,tgt}
    local side
    for side in src tgt; do
        evenly "$held_out" "$output/tokens.partial/valid.$side" >"$output/tokens.partial/some.$side"
        mv "$output/tokens.partial/some.$side" "$output/tokens.partial/valid.$side"
    done
    mv "$output/tokens.partial" "$output/tokens"
}

fit() {
    rm -rf "$output/fitted.partial"
    s2sft convert "$encoder" --to "$output/fitted.partial" ${conversion[@]+"${conversion[@]}"} \
        --fit-head "$output/tokens/train.src" --output-prior "$output/tokens/train.tgt"
    mv "$output/fitted.partial" "$output/fitted"
}

binarize() {
    rm -rf "$output/binarized.partial"
    s2sft preprocess --source-lang src --target-lang tgt --srcdict "$output/encoder/dict.txt" --joined-dictionary \
        --trainpref "$output/tokens/train" --validpref "$output/tokens/valid" --destdir "$output/binarized.partial" \
        --workers "${workers:-$(nproc)}" >"$output/binarize.log"
    binarize_text "$output/binarized.partial"
    mv "$output/binarized.partial" "$output/binarized"
}

train() {
    [ -e "$work/checkpoints/checkpoint_last.pt" ] || rm -f "$work/train.log"  # of a training that saved nothing
    s2sft "${training[@]}" | "$python" "$recipes/training_log.py" "${updates:-0}"
    if [ -n "$averaged" ]; then
        "$python" -m s2sft_fairseq average "$work/checkpoints" --last "$averaged" --output "$work/best.pt"
    else
        mv "$work/checkpoints/checkpoint_best.pt" "$work/best.pt"
    fi
    rm -rf "$work/checkpoints"
}

# Without matplotlib there is no picture, and nothing else is missing.
plot() {
    "$python" "$recipes/loss_curves.py" "$work/train.log" "$work/loss.png" || say "no plot of the loss, see above"
}

score() {
    local of=$output/corpus/${part:+$part/}$set out=$work/${part:+$part/}$set
    s2sft evaluate "${evaluate[@]}" $scoring --hyp "${hyp:-$out.out}" --src "$of.src" --ref "$of.refs.jsonl" \
        --json "$out.json"
}
