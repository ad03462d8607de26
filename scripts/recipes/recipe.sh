# What the recipes of this folder share; each of them sets what is its own and ends with `run_recipe "$@"`.
#
#   bash scripts/recipes/TASK.sh --raw DIR --encoder DIR [OPTION VALUE ...] [-- further options of s2sft train]
#   bash scripts/recipes/TASK.sh --raw DIR --smoke     everything once on a few hundred lines, in minutes on a CPU
#
# Stages: prepare, convert, tokenize, binarize, train, generate, score. One that is done is not done again: stopped and
# started again, a recipe goes on where it was. What was made with other settings is not gone on with.
#
#   --raw DIR           the data set as it is published: docs/recipes.md tells where, and which files
#   --encoder DIR       a pretrained encoder as it is published, or a folder that s2sft convert wrote
#   --output DIR        where to write (recipes-out/TASK)
#   --run NAME          folder in it of this training (METHOD-seedSEED); data are shared by the trainings of an output
#   --method NAME       causal, masked or pseudo_masked (pseudo_masked)
#   --seed N            (1)
#   --lr, --epochs, --warmup, --batch    learning rate, epochs, warm-up updates, pairs an update (the paper's)
#   --updates N         updates, in place of epochs
#   --device-batch N    pairs at a time, of which an update adds up several (16)
#   --set NAME          which set to generate from and to score (mostly test; dev is the validation set)
#   --sources N         so many sources of that set, evenly spaced, in place of all
#   --hyp FILE          score this file, and train nothing
#   --scoring "WORDS"   further options of s2sft evaluate, such as "--lowercase" for an encoder without capitals
#   --held-out N        pairs of the validation set, evenly spaced, that the held-out loss is computed on (1000)
#   --limit N           the first N examples of each set only
#   --workers N         processes for tokenizing and binarizing (all cores)
#   --skip-malformed    leave malformed records of the raw files out; otherwise they are an error
#   --fit-head          compute the language model head of an encoder that has none (docs/s2s-ft.md)
#   --cpu               train and generate without a GPU, though there is one

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)
task=$(basename "$0" .sh)
python=${PYTHON:-$root/.venv/bin/python}

# What a recipe may set; s2s-ft's Tables 7 and 8 where they say something.
script=$task prepare=()                         # preprocess/SCRIPT.py and its options
own=""                                          # the names of further options
separator="" added_token=""                     # between the fields of a source; a token that the encoder lacks
max_source=384 max_target=32 max_positions=""   # positions, and what to make the encoder's table
lr=7e-5 epochs=10 warmup=1000 batch=64
search=(--beam 5) evaluate=(--task rouge)       # options of s2sft generate and s2sft evaluate
later=""                                        # the system whose training step is still to come
# What only the command line sets.
raw="" encoder="" output="" run="" method=pseudo_masked seed=1 updates="" device_batch=16 set=test sources="" hyp=""
scoring="" held_out=1000 limit="" workers="" smoke="" skip_malformed="" fit_head="" cpu="" train_options=()
values="raw encoder output run method seed lr epochs warmup batch updates device_batch set sources hyp scoring held_out"
values+=" limit workers"
switches="smoke skip_malformed fit_head cpu"

# What depends on the command line; a recipe may have its own.
settings() { :; }

say() { echo "$task: $*"; }
fail() { echo "$task: error: $*" >&2; exit 2; }

# given NAME: whether the command line has the option.
on_command_line=""
given() { [[ $on_command_line == *" $1 "* ]]; }

# The comment at the head of a file.
head_of() { sed -n '/^[^#]/q; /^#!/d; s/^#\( \|$\)//p' "$1"; }

parse() {
    local name
    while [ $# -gt 0 ]; do
        name=${1#--} name=${name//-/_}
        case $1 in
            --) shift; train_options=("$@"); return ;;
            -h | --help) head_of "$0"; echo; head_of "$root/scripts/recipes/recipe.sh"; exit 0 ;;
            --?*) ;;
            *) fail "unknown word $1; --help tells the options" ;;
        esac
        case " $switches " in *" $name "*) printf -v "$name" yes; shift; continue ;; esac
        case " $values $own " in
            *" $name "*)
                [ $# -ge 2 ] || fail "$1 needs a value"
                printf -v "$name" %s "$2"
                on_command_line+=" $name "
                shift 2
                ;;
            *) fail "unknown option $1; --help tells the options" ;;
        esac
    done
}

check() {
    local problems=()
    [ -n "$raw" ] || problems+=("--raw is needed: the folder of the raw files (docs/recipes.md)")
    [ -z "$raw" ] || [ -d "$raw" ] || problems+=("--raw must be a folder, but $raw is none")
    [ -n "$encoder$smoke$hyp$later" ] || problems+=("--encoder is needed: a folder with a pretrained encoder")
    [ -z "$encoder" ] || [ -d "$encoder" ] || problems+=("--encoder must be a folder, but $encoder is none")
    [ -z "$hyp" ] || [ -f "$hyp" ] || problems+=("--hyp must be a file, but $hyp is none")
    local name
    for name in seed warmup; do
        [[ ${!name} =~ ^[0-9]+$ ]] || problems+=("--$name must be a whole number, but is ${!name}")
    done
    for name in epochs batch device_batch updates sources held_out limit workers; do
        [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] ||
            problems+=("--${name//_/-} must be a whole number of at least 1, but is ${!name}")
    done
    case $method in
        causal | masked | pseudo_masked) ;;
        *) problems+=("--method must be causal, masked or pseudo_masked, but is $method") ;;
    esac
    [ ${#problems[@]} = 0 ] || fail "$(printf '%s\n' "${problems[@]}")"
}

# stage FILE WHAT COMMAND...: run the command unless the file, which it makes last, is there.
stage() {
    local made=$1 what=$2 start=$SECONDS
    shift 2
    if [ -e "$made" ]; then say "$what: done before ($made)"; return; fi
    say "$what ..."
    "$@"
    say "$what: $((SECONDS - start)) s"
}

# remember FILE LINE...: what the files beside this one are made with, which may not change.
remember() {
    local file=$1 changed
    shift
    mkdir -p "$(dirname "$file")"
    if [ -e "$file" ]; then
        changed=$(printf '%s\n' "$@" | diff "$file" - | sed -n 's/^</ before:/p; s/^>/ now:   /p') || true
        [ -z "$changed" ] || fail "$(dirname "$file") holds files of other settings; name another folder, or remove it
$changed"
    else
        printf '%s\n' "$@" >"$file"
    fi
}

# s2sft COMMAND...: each command with its seconds and its memory goes to commands.jsonl of the run.
s2sft() { "$python" "$root/scripts/recipes/measured.py" "$work/commands.jsonl" "$python" -m s2sft_fairseq "$@"; }

prepare_corpus() {
    "$python" "$root/preprocess/$script.py" --raw "$raw" --output "$output/corpus" ${prepare[@]+"${prepare[@]}"} \
        ${limit:+--limit "$limit"} ${skip_malformed:+--skip-malformed}
}

convert() {
    rm -rf "$output/encoder.partial"
    if [ -z "$encoder" ]; then
        "$python" "$root/scripts/recipes/tiny_vocabulary.py" --output "$output/encoder.partial" \
            --input "$output"/corpus/train.{src,tgt} --keep ${added_token:+"$added_token"}
    elif [ -e "$encoder/model.pt" ] && [ -e "$encoder/config.json" ]; then
        ln -s "$(cd "$encoder" && pwd)" "$output/encoder.partial"
    else
        s2sft convert "$encoder" --to "$output/encoder.partial" ${max_positions:+--max-positions "$max_positions"} \
            ${added_token:+--add-token "$added_token"}
    fi
    mv "$output/encoder.partial" "$output/encoder"
}

# evenly N FILE: so many lines of the file, evenly spaced, or all where it has no more.
evenly() {
    awk -v kept="$1" -v all="$(wc -l <"$2")" 'all <= kept || int(NR * kept / all) > int((NR - 1) * kept / all)' "$2"
}

# The set to score becomes one of fewer sources, beside the whole.
choose_sources() {
    local all=$output/corpus/$set kind
    set=$set-$sources
    for kind in src refs.jsonl; do
        evenly "$sources" "$all.$kind" >"$output/corpus/$set.$kind"
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
    s2sft convert "$encoder" --to "$output/fitted.partial" ${max_positions:+--max-positions "$max_positions"} \
        ${added_token:+--add-token "$added_token"} \
        --fit-head "$output/tokens/train.src" --output-prior "$output/tokens/train.tgt"
    mv "$output/fitted.partial" "$output/fitted"
}

binarize() {
    rm -rf "$output/binarized.partial"
    s2sft preprocess --source-lang src --target-lang tgt --srcdict "$output/encoder/dict.txt" --joined-dictionary \
        --trainpref "$output/tokens/train" --validpref "$output/tokens/valid" --destdir "$output/binarized.partial" \
        --workers "${workers:-$(nproc)}" >"$output/binarize.log"
    mv "$output/binarized.partial" "$output/binarized"
}

# 20 times in a training the held-out loss is computed and the state is saved.
train() {
    local every=$((updates > 20 ? updates / 20 : updates))
    s2sft train "$output/binarized" "${model[@]}" --finetune-method "$method" --seed "$seed" \
        --max-source-positions "$max_source" --max-target-positions "$max_target" \
        --criterion mask_attention --label-smoothing 0.1 --dropout 0.1 --attention-dropout 0.1 \
        --optimizer fused_adamw --adam-betas "(0.9, 0.999)" --adam-eps 1e-6 --weight-decay 0.01 --clip-norm 1.0 \
        --lr "$lr" --lr-scheduler polynomial_decay --warmup-updates "$warmup" --max-update "$updates" \
        --batch-size "$device_batch" --update-freq $(((batch + device_batch - 1) / device_batch)) \
        --validate-interval-updates $every --save-interval-updates $every --keep-interval-updates 1 \
        --validate-interval 1000000 --save-interval 1000000 --no-epoch-checkpoints --save-dir "$work/checkpoints" \
        --log-interval $((updates > 200 ? updates / 200 : 1)) --log-format json --log-file "$work/train.log" \
        --no-progress-bar ${cpu:+--cpu} ${train_options[@]+"${train_options[@]}"} |
        "$python" "$root/scripts/training_log.py" "$updates"
    mv "$work/checkpoints/checkpoint_best.pt" "$work/best.pt"
    rm -rf "$work/checkpoints"
}

generate() {
    s2sft generate --path "$work/best.pt" --tokenizer-dir "$output/encoder" "${search[@]}" \
        ${separator:+--separator "$separator"} --input "$output/corpus/$set.src" --output "$work/$set.out" \
        --no-progress-bar ${cpu:+--cpu}
}

score() {
    s2sft evaluate "${evaluate[@]}" $scoring --hyp "$hyp" \
        --src "$output/corpus/$set.src" --ref "$output/corpus/$set.refs.jsonl" --json "$work/$set.json"
}

run_recipe() {
    parse "$@"
    check
    settings
    export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    command -v "$python" >/dev/null || fail "no Python at $python; bash scripts/setup.sh makes it, or set PYTHON"
    output=${output:-recipes-out/$task} run=${run:-$method-seed$seed}
    [ -z "$hyp" ] || run=scored-$(basename "$hyp")
    work=$output/$run
    if [ -n "$smoke" ]; then
        limit=${limit:-200} updates=${updates:-4} batch=$device_batch
    fi
    remember "$output/corpus.settings" "--raw $(cd "$raw" && pwd)" "--limit ${limit:-none}" "${prepare[*]-}" \
        "--skip-malformed ${skip_malformed:-no}"
    stage "$output/corpus/stats.json" "prepare" prepare_corpus
    [ -f "$output/corpus/$set.src" ] || fail "--set must be one of the sets that are scored, but $set is none: $(
        cd "$output/corpus" && ls -- *.refs.jsonl | sed 's/\.refs\.jsonl//' | xargs)"
    [ -z "$sources" ] || choose_sources
    if [ -n "$later" ] && [ -z "$hyp" ]; then
        say "training and generation come with $later; --hyp FILE scores what any system wrote for $output/corpus/$set.src"
        # A copy of the source goes through the scoring.
        [ -n "$smoke" ] || return 0
        hyp=$output/corpus/$set.src work=$output/scored-source
    fi
    if [ -z "$hyp" ]; then
        local pairs
        pairs=$(wc -l <"$output/corpus/train.src")
        updates=${updates:-$((epochs * ((pairs + batch - 1) / batch)))}
        # A training that is a good deal shorter than the paper's is warmed up for a tenth of it.
        given warmup || [ $((4 * warmup)) -le "$updates" ] || warmup=$((updates / 10))
        remember "$work/settings" "--method $method" "--seed $seed" "--lr $lr" "--updates $updates" \
            "--warmup $warmup" "--batch $batch" "--device-batch $device_batch" "search ${search[*]}" \
            "train ${train_options[*]-}" "--fit-head ${fit_head:-no}"
        remember "$output/encoder.settings" "--encoder ${encoder:+$(cd "$encoder" && pwd)}" "--held-out $held_out"
        stage "$output/encoder" "convert" convert
        stage "$output/tokens" "tokenize" tokenize
        [ -z "$fit_head" ] || stage "$output/fitted" "compute the head" fit
        stage "$output/binarized" "binarize" binarize
        model=(--pretrained "$output/encoder")
        [ -z "$fit_head" ] || model=(--pretrained "$output/fitted")
        [ -n "$encoder" ] || model=(--arch unilm_tiny --max-positions $((max_source + max_target)))
        stage "$work/best.pt" "train, $updates updates" train
        [ ! -e "$work/train.log" ] || stage "$work/loss.png" "plot" \
            "$python" "$root/scripts/loss_curves.py" "$work/train.log" "$work/loss.png"
        stage "$work/$set.out" "generate" generate
        hyp=$work/$set.out
    fi
    mkdir -p "$work"
    # Never passed over: its options are what one changes last.
    score | tee "$work/$set.scores"
    say "everything is in $work"
}
