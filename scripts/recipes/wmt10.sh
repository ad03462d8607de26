#!/usr/bin/env bash
# WMT-10: translation between English and ten languages, both ways, by one model: DeltaLM.
#
# Raw files: {train,valid,test}.X-en.{X,en} of each language X, from WMT's shared tasks (https://www.statmt.org), pairs as
# in Wang et al. (2020); no archive of the whole is published.
# Settings: DeltaLM, sections 3.1 and 3.2: all pairs in one training, drawn by a temperature that rises from 1 to 5, at
# most 256 positions, the average of the last five checkpoints, beam 5. Each direction is scored by itself (BLEU), and
# their means are written to RUN/SET.md.
#
#   --langs LIST        beside English (fr,cs,de,fi,lv,et,ro,hi,tr,gu)
#   --direction NAME    both, to-english or from-english: what is trained and scored (both)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="langs direction" langs=fr,cs,de,fi,lv,et,ro,hi,tr,gu direction=both method=deltalm
max_source=256 max_target=256 longest=255 averaged=5 of_deltalm=()
evaluate=(--task bleu)

settings() {
    local lang
    output=${output:-recipes-out/$task} parts=() kept=(__en__)
    [ "$method" = deltalm ] || fail "--method must be deltalm, but is $method"
    [ -z "$hyp" ] || fail "--hyp is of no use with several directions; s2sft evaluate scores one"
    for lang in ${langs//,/ }; do
        case $direction in
            both) parts+=("$lang-en" "en-$lang") ;;
            to-english) parts+=("$lang-en") ;;
            from-english) parts+=("en-$lang") ;;
            *) fail "--direction must be both, to-english or from-english, but is $direction" ;;
        esac
        kept+=("__${lang}__")
        vocabulary+=("$output/corpus/$lang-en"/train.{src,tgt})
    done
    languages=(--lang-pairs "$(IFS=, && echo "${parts[*]}")" --language-token "__{}__")
    conversion+=(--add-language-tokens "en,$langs")
    prepare=(--langs "$langs")
}

# A corpus a direction. One set of pairs trains both: that of X-en.
prepare_corpus() {
    local lang name partial=$output/corpus.partial
    rm -rf "$partial"
    mkdir -p "$partial"
    for lang in ${langs//,/ }; do
        for name in "$lang-en" "en-$lang"; do
            "$python" -m s2sft_fairseq prepare wmt10 --raw "$raw" --output "$partial/$name" --lang "$lang" \
                $([ "$name" = "$lang-en" ] || echo --from-english) ${limit:+--limit "$limit"} \
                ${skip_malformed:+--skip-malformed}
        done
        rm "$partial/en-$lang"/{train,valid}.{src,tgt}
    done
    mv "$partial" "$output/corpus"
}

tokenize() {
    local lang name partial=$output/tokens.partial
    rm -rf "$partial"
    for lang in ${langs//,/ }; do
        say "tokenize $lang"
        s2sft tokenize --tokenizer-dir "$output/encoder" --output-dir "$partial/$lang" ${workers:+--workers "$workers"} \
            --input "$output/corpus/$lang-en"/{train,valid}.{src,tgt}
        for name in "src.$lang" tgt.en; do
            mv "$partial/$lang/train.${name%.*}" "$partial/train.$lang-en.${name#*.}"
            evenly "$held_out" "$partial/$lang/valid.${name%.*}" >"$partial/valid.$lang-en.${name#*.}"
        done
        rm -r "${partial:?}/$lang"
    done
    mv "$partial" "$output/tokens"
}

binarize() {
    local lang partial=$output/binarized.partial
    rm -rf "$partial"
    for lang in ${langs//,/ }; do
        s2sft preprocess --source-lang "$lang" --target-lang en --srcdict "$output/encoder/dict.txt" \
            --joined-dictionary --trainpref "$output/tokens/train.$lang-en" --validpref "$output/tokens/valid.$lang-en" \
            --destdir "$partial/$lang" --workers "${workers:-$(nproc)}" >>"$output/binarize.log"
        mv -f "$partial/$lang"/* "$partial"
        rmdir "$partial/$lang"
    done
    mv "$partial" "$output/binarized"
}

summarize() {
    "$python" "$recipes/mean_of_directions.py" "$work" --set "$set" --directions "${parts[@]}"
}
run_recipe "$@"
