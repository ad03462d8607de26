# What the recipes of this folder share; each of them sets what is its own and ends with `run_recipe "$@"`.
#
#   s2sft recipe TASK --raw DIR --encoder DIR [OPTION VALUE ...] [-- further options of s2sft train]
#   s2sft recipe TASK --raw DIR --smoke     everything once on a few hundred lines, in minutes on a CPU
#
# Stages: prepare, convert, tokenize, binarize, train, generate, score. One that is done is not done again: stopped and
# started again, a recipe goes on where it was. What was made with other settings is not gone on with.
#
#   --raw DIR           the data set as it is published: docs/recipes.md tells where, and which files
#   --encoder DIR       a pretrained encoder as it is published, or a folder that s2sft convert wrote
#   --output DIR        where to write (recipes-out/TASK)
#   --run NAME          folder in it of this training (METHOD-seedSEED); data are shared by the trainings of an output
#   --preset NAME       all settings of ERNIE-GEN or UniLMv2 for this task, docs/ernie-gen.md and unilmv2.md; other options win
#   --method NAME       causal, masked, pseudo_masked or infilling (pseudo_masked, or the preset's), or deltalm:
#                       the encoder-decoder, with DeltaLM's settings in place of the recipe's (docs/deltalm.md)
#   --target-mask-prob P    masked and pseudo_masked: share of the target tokens that are masked (the recipe's, mostly 0.5)
#   --noise-prob P      infilling: share of the target tokens that are noise (0)
#   --noise-symbol X    ... which is this symbol of the encoder (random tokens)
#   --max-source N, --max-target N           positions, special symbols included
#   --decoding "WORDS"  options of s2sft generate, in place of those of the recipe or the preset
#   --seed N            (1)
#   --lr, --epochs, --warmup, --batch    learning rate, epochs, warm-up updates, pairs an update, of all GPUs (the paper's)
#   --updates N         updates, in place of epochs
#   --device-batch N    pairs at a time, of which an update adds up several (16)
#   --device-tokens N, --accumulate N        deltalm: tokens at a time, how often of it an update of all GPUs is (4096, 128, or
#                       fewer where an epoch would have less than a hundred updates)
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
#   --dry-run           only print the commands of training and generation; without a prepared corpus, with --updates

recipes=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$recipes/../.." && pwd)  # where the package is
task=$(basename "$0" .sh)
python=${PYTHON:-$root/.venv/bin/python}
. "$recipes/encoder_decoder.sh"
. "$recipes/stages.sh"

# What a recipe may set; s2s-ft's Tables 7 and 8 where they say something.
script=$task prepare=()                         # s2sft prepare SCRIPT and its options
own=""                                          # the names of further options
separator="" added_token="" kept=()             # between the fields of a source; a token that encoders lack; further ones
max_source=384 max_target=32 layout=()          # positions; further options of s2sft train, of model and layout
lr=7e-5 epochs=10 warmup=1000 batch=64 dropout=0.1 label_smoothing=0.1 weight_decay=0.01
target_mask_prob=0.5                            # Appendix A: 0.4 to 0.7, searched for each task
search=(--beam 5) evaluate=(--task rouge)       # options of s2sft generate and s2sft evaluate
device_tokens=4096 accumulate=128 longest=80    # deltalm: tokens at a time, how often of it at most, longest output
averaged=""                                     # deltalm: the model is the average of so many last checkpoints
of_deltalm=(max_source 512 max_target 512)      # deltalm: settings of the recipe's own, names and values: all positions
languages=()                                    # deltalm: options of several languages
parts=("") part=""                              # folders of corpus/ that are generated from and scored; that in turn
preset=""                                       # the one where the command line names none
manual=recipe                                   # the file whose head tells the options
# What only the command line sets.
raw="" encoder="" output="" run="" method=pseudo_masked seed=1 updates="" device_batch=16 set=test sources="" hyp=""
scoring="" held_out=1000 limit="" workers="" smoke="" skip_malformed="" fit_head="" cpu="" train_options=()
vocabulary=() noise_prob="" noise_symbol="" decoding="" dry_run="" warmup_share="" conversion=()
values="raw encoder output run method seed lr epochs warmup batch updates device_batch set sources hyp scoring held_out"
values+=" limit workers target_mask_prob device_tokens accumulate preset noise_prob noise_symbol max_source max_target decoding"
switches="smoke skip_malformed fit_head cpu dry_run"

# What depends on the command line; what is binarized beside the pairs, into a folder; what is made of all scores. A
# recipe may have its own.
settings() { :; }
binarize_text() { :; }
summarize() { :; }

say() { echo "$task: $*"; }
fail() { echo "$task: error: $*" >&2; exit 2; }

# given NAME: whether the command line has the option, or the preset.
all_given=""
given() { [[ $all_given == *" $1 "* ]]; }

# The comment at the head of a file.
head_of() { sed -n '/^[^#]/q; /^#!/d; s/^#\( \|$\)//p' "$1"; }

parse() {
    local name
    while [ $# -gt 0 ]; do
        name=${1#--} name=${name//-/_}
        case $1 in
            --) shift; train_options=("$@"); break ;;
            -h | --help) head_of "$0"; echo; head_of "$recipes/$manual.sh"; exit 0 ;;
            --?*) ;;
            *) fail "unknown word $1; --help tells the options" ;;
        esac
        case " $switches " in *" $name "*) printf -v "$name" yes; shift; continue ;; esac
        case " $values $own " in
            *" $name "*)
                [ $# -ge 2 ] || fail "$1 needs a value"
                printf -v "$name" %s "$2"
                all_given+=" $name "
                shift 2
                ;;
            *) fail "unknown option $1; --help tells the options" ;;
        esac
    done
}

# take NAME VALUE: what a preset says, unless the command line says something else; - stands for nothing.
take() {
    if ! given "$1" && [ "$2" != - ]; then
        printf -v "$1" %s "$2"
        all_given+=" $1 "
    fi
}

# A line of presets.tsv becomes the settings. Batches are those of all GPUs; the lengths of targets count a [CLS] at the
# beginning there, and not here; generated are so many tokens, [SEP] included.
use_preset() {
    local file=$recipes/presets.tsv line of_size src tgt dec share prob symbol beam penalty
    local of_batch of_epochs of_lr of_dropout smoothing decay of_method
    line=$(awk -F '\t' -v preset="$preset" -v task="$task" '$1 == preset && $2 == task' "$file")
    [ -n "$line" ] || fail "--preset must be one of this recipe's, but is $preset: $(
        awk -F '\t' -v task="$task" '$2 == task { print $1; found = 1 } END { if (!found) print "none" }' "$file" | xargs)"
    IFS=$'\t' read -r _ _ of_size _ src tgt dec of_batch of_epochs of_lr share prob symbol of_dropout smoothing decay \
        beam penalty of_method <<<"$line"
    take method "$of_method"
    local own_start=0
    [ "$of_method" != infilling ] || own_start=1
    take size "$of_size"
    take max_source "$src"
    take max_target $((tgt - own_start))
    take batch "$of_batch"
    take epochs "$of_epochs"
    take lr "$of_lr"
    warmup_share=$share
    if [ "$method" = infilling ]; then
        take noise_prob "$prob"
        take noise_symbol "$symbol"
    fi
    take dropout "$of_dropout"
    take label_smoothing "$smoothing"
    take weight_decay "$decay"
    if [ "$of_method" = infilling ]; then
        search=(--beam "$beam" --length-penalty gnmt --lenpen "$penalty" --max-len-b $((dec - 1)) --rank-each-step
            --keep-unfinished)
    else
        search+=(--beam "$beam" --lenpen "$penalty")  # the last ones count
    fi
}

# The papers train large encoders at lower rates: s2s-ft's Appendix A has 1e-5 to 3e-5 where it has 5e-5 to 1e-4 for base.
choose_lr() {
    local width
    if given lr || [ "$method" = deltalm ] || [ ! -f "$encoder/config.json" ]; then return; fi
    width=$(tr ',{' '\n' <"$encoder/config.json" | sed -n 's/.*"\(hidden_size\|encoder_embed_dim\)" *: *\([0-9]*\).*/\2/p')
    if [ "${width:-0}" -ge 1024 ] && awk "BEGIN { exit !($lr > 3e-5) }"; then
        say "--encoder is a large one: the learning rate is 2e-5 in place of $lr (--lr takes another)" >&2
        lr=2e-5
    fi
}

check() {
    local problems=()
    [ -n "$raw$dry_run" ] || problems+=("--raw is needed: the folder of the raw files (docs/recipes.md)")
    [ -z "$raw" ] || [ -d "$raw" ] || problems+=("--raw must be a folder, but $raw is none")
    [ -n "$encoder$smoke$hyp$dry_run" ] || problems+=("--encoder is needed: a folder with a pretrained encoder")
    [ -z "$encoder" ] || [ -d "$encoder" ] || problems+=("--encoder must be a folder, but $encoder is none")
    [ -z "$hyp" ] || [ -f "$hyp" ] || problems+=("--hyp must be a file, but $hyp is none")
    local name
    for name in seed warmup; do
        [[ ${!name} =~ ^[0-9]+$ ]] || problems+=("--$name must be a whole number, but is ${!name}")
    done
    for name in epochs batch device_batch device_tokens accumulate updates sources held_out limit workers max_source \
        max_target; do
        [[ ${!name:-1} =~ ^[1-9][0-9]*$ ]] ||
            problems+=("--${name//_/-} must be a whole number of at least 1, but is ${!name}")
    done
    case $method in
        causal | masked | pseudo_masked | infilling | deltalm) ;;
        *) problems+=("--method must be causal, masked, pseudo_masked, infilling or deltalm, but is $method") ;;
    esac
    [ ${#problems[@]} = 0 ] || fail "$(printf '%s\n' "${problems[@]}")"
}

# How many GPUs fairseq trains on.
devices() {
    local visible=${CUDA_VISIBLE_DEVICES-all} count=0
    if [ -n "$cpu" ]; then
        count=1
    elif [ "$visible" = all ]; then
        count=$(nvidia-smi --list-gpus 2>/dev/null | wc -l) || true
    elif [ -n "$visible" ]; then
        count=$(tr ',' '\n' <<<"$visible" | wc -l)
    fi
    echo $((count > 0 ? count : 1))
}

# The batch is that of all GPUs, each of which adds up several of at most so many at a time.
share_batch() {
    local count share
    count=$(devices)
    share=$(((batch + count - 1) / count))
    while [ "$device_batch" -gt "$share" ] || [ $((share % device_batch)) != 0 ]; do device_batch=$((device_batch - 1)); done
    update_freq=$((share / device_batch))
}

# The words of a training command that all recipes share. 20 times in a training the held-out loss is computed and the
# state is saved.
optimization() {
    local every=$((updates > 20 ? updates / 20 : updates)) update_freq
    share_batch
    optimizing=(--seed "$seed" --dropout "$dropout" --attention-dropout 0.1
        --optimizer fused_adamw --adam-betas "(0.9, 0.999)" --adam-eps 1e-6 --weight-decay "$weight_decay"
        --clip-norm 1.0 --lr "$lr" --lr-scheduler polynomial_decay --warmup-updates "$warmup" --max-update "$updates"
        --batch-size "$device_batch" --update-freq $update_freq
        --validate-interval-updates $every --save-interval-updates $every --keep-interval-updates 1
        --validate-interval 1000000 --save-interval 1000000 --no-epoch-checkpoints --save-dir "$work/checkpoints"
        --log-interval $((updates > 200 ? updates / 200 : 1)) --log-format json --log-file "$work/train.log"
        --no-progress-bar ${cpu:+--cpu} ${train_options[@]+"${train_options[@]}"})
}

# The words of the commands of training and generation.
commands() {
    generation=(generate --path "$work/best.pt" --tokenizer-dir "$output/encoder" "${search[@]}"
        ${separator:+--separator "$separator"} ${part:+--target-lang "${part#*-}"}
        --input "$output/corpus/${part:+$part/}$set.src" --output "$work/${part:+$part/}$set.out" --no-progress-bar ${cpu:+--cpu})
    if [ "$method" = deltalm ]; then deltalm_training; return; fi
    optimization
    local masking=()
    case $method in masked | pseudo_masked) masking=(--target-mask-prob "$target_mask_prob") ;; esac
    training=(train "$output/binarized" "${model[@]}" --finetune-method "$method" ${masking[@]+"${masking[@]}"}
        --max-source-positions "$max_source" --max-target-positions "$max_target" ${layout[@]+"${layout[@]}"}
        ${noise_prob:+--noise-prob "$noise_prob"} ${noise_symbol:+--noise-symbol "$noise_symbol"}
        --criterion mask_attention --label-smoothing "$label_smoothing" "${optimizing[@]}")
}

# count_updates FILE: how many updates a training has, and how many of them warm it up; the file has its examples.
count_updates() {
    local examples
    [ -n "$updates" ] || examples=$(wc -l <"$1")
    updates=${updates:-$((epochs * ((examples + batch - 1) / batch)))}
    if ! given warmup && [ -n "$warmup_share" ]; then
        warmup=$(awk "BEGIN { print int($warmup_share * $updates + 0.5) }")
    # A training that is a good deal shorter than the paper's is warmed up for a tenth of it.
    elif ! given warmup && [ $((4 * warmup)) -gt "$updates" ]; then
        warmup=$((updates / 10))
    fi
}

# What follows from settings and corpus.
plan() {
    local needed
    if [ "$method" = deltalm ]; then estimate_updates; else count_updates "${vocabulary[0]}"; fi
    # Most encoders have 512 positions. One more is for the start symbol of infilling: all methods share an encoder.
    needed=$((max_source + max_target + 1))
    [ "$method" != deltalm ] || needed=$((max_source > max_target ? max_source : max_target))
    [ "$needed" -le 512 ] || conversion+=(--max-positions "$needed")
    [ -z "$added_token" ] || conversion+=(--add-token "$added_token")
    model=(--pretrained "$output/encoder")
    [ -z "$fit_head" ] || model=(--pretrained "$output/fitted")
    [ -n "$encoder$dry_run" ] || model=(--arch unilm_tiny --random-init --max-positions "$needed")
    if [ "$method" = deltalm ]; then
        model=(--arch deltalm --pretrained "$output/encoder")
        [ -n "$encoder$dry_run" ] || model=(--arch deltalm_tiny --random-init --max-positions "$needed")
    fi
    commands
}

run_recipe() {
    parse "$@"
    [ "$method" != deltalm ] || use_deltalm
    [ -z "$preset" ] || use_preset
    check
    settings
    choose_lr
    [ -z "$decoding" ] || read -r -a search <<<"$decoding"
    export PYTHONPATH=$root${PYTHONPATH:+:$PYTHONPATH}
    command -v "$python" >/dev/null || fail "no Python at $python; bash scripts/setup.sh makes it, or set PYTHON"
    output=${output:-recipes-out/$task} run=${run:-$method-seed$seed}
    [ -z "$hyp" ] || run=scored-$(basename "$hyp")
    work=$output/$run
    if [ -n "$smoke" ]; then
        limit=${limit:-200} updates=${updates:-4} batch=$device_batch accumulate=1 all_given+=" accumulate "
    fi
    [ ${#vocabulary[@]} != 0 ] || vocabulary=("$output"/corpus/train.{src,tgt})
    if [ -n "$dry_run" ]; then
        [ -n "$updates" ] || [ -f "${vocabulary[0]}" ] ||
            fail "--dry-run needs --updates, for no corpus is prepared in $output that the epochs could be counted of"
        plan
        printf 's2sft%s\n' "$(printf ' %q' "${training[@]}")"
        for part in "${parts[@]}"; do
            commands
            printf 's2sft%s\n' "$(printf ' %q' "${generation[@]}")"
        done
        return
    fi
    remember "$output/corpus.settings" "corpus tokens binarized" \
        "--raw $(cd "$raw" && pwd)" "--limit ${limit:-none}" "${prepare[*]-}" \
        "--skip-malformed ${skip_malformed:-no}"
    stage "$output/corpus" "prepare" prepare_corpus
    choose_set
    if [ -z "$hyp" ]; then
        plan
        local name others=()
        [ "$method" != deltalm ] || others+=("--device-tokens $device_tokens" "--accumulate $accumulate"
            "--epochs $epochs" "${languages[*]-}")
        case $method in masked | pseudo_masked) others+=("--target-mask-prob $target_mask_prob") ;; esac
        for name in max_source max_target noise_prob noise_symbol dropout label_smoothing weight_decay; do
            ! given "$name" || others+=("--${name//_/-} ${!name}")
        done
        remember "$work/settings" "checkpoints/checkpoint_last.pt best.pt" \
            "--method $method" "--seed $seed" "--lr $lr" "--updates $updates" \
            "--warmup $warmup" "--batch $batch" "--device-batch $device_batch" \
            "train ${train_options[*]-}" "--fit-head ${fit_head:-no}" ${others[@]+"${others[@]}"}
        remember "$work/$set.settings" "${parts[*]/%//$set.out}" "search ${search[*]}"
        remember "$output/encoder.settings" "encoder tokens fitted binarized" \
            "--encoder ${encoder:+$(cd "$encoder" && pwd)}" "--held-out $held_out" \
            ${conversion[@]+"${conversion[*]}"}
        stage "$output/encoder" "convert" convert
        stage "$output/tokens" "tokenize" tokenize
        [ -z "$fit_head" ] || stage "$output/fitted" "compute the head" fit
        stage "$output/binarized" "binarize" binarize
        stage "$work/best.pt" "train, ${updates:-$epochs}$([ -n "$updates" ] && echo " updates" || echo " epochs")" train
        [ ! -e "$work/train.log" ] || stage "$work/loss.png" "plot" plot
        for part in "${parts[@]}"; do
            commands
            mkdir -p "$work/$part"
            stage "$work/${part:+$part/}$set.out" "generate${part:+ $part}" s2sft "${generation[@]}"
        done
    fi
    # Never passed over: its options are what one changes last.
    for part in "${parts[@]}"; do
        mkdir -p "$work/$part"
        score | tee "$work/${part:+$part/}$set.scores"
    done
    summarize
    say "everything is in $work"
}
