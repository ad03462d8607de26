#!/usr/bin/env bash
# XGiga (Gigaword-fr, Gigaword-zh): headlines in French or Chinese.
#
# Raw files: xgiga.tar.gz (https://github.com/CZWin32768/XNLG), {train,dev,test}.{x,y}.{en,fr,zh}.
# Settings: s2s-ft, Tables 7 and 8, which have French; the same for Chinese. Its encoder is XLM-R. Zero-shot: DeltaLM,
# section 3.3, with the articles of all languages, without their headlines, as its plain text.
#
#   --lang L            fr, zh or en (fr)
#   --train-lang L      with --method deltalm: train on pairs of this language alone, en in the paper (that of --lang)
#   --text-langs LIST   ... and on plain text of these (en,fr,zh)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="lang train_lang text_langs" lang=fr train_lang="" text_langs=en,fr,zh
max_source=96 max_target=48
search=(--beam 5 --length-penalty gnmt --lenpen 0.9 --min-len 1)
settings() {
    prepare=(--lang "$lang")
    case $lang in
        fr) evaluate=(--task fr) ;;
        zh) evaluate=(--task zh --metrics rouge) ;;
        *) evaluate=(--task rouge --lowercase) ;;
    esac
    [ -z "$train_lang" ] || [ "$train_lang" = "$lang" ] || zero_shot
}

zero_shot() {
    [ "$method" = deltalm ] || fail "--train-lang needs --method deltalm, but --method is $method"
    prepare+=(--train-lang "$train_lang")
    languages=(--lang-pairs "src-tgt:$train_lang" --text-languages "$text_langs" --language-token "__{}__"
        --tokens-per-sample "$max_source")
    search+=(--target-lang "$lang")
    local all name
    all=$(tr ',' '\n' <<<"$train_lang,$lang,$text_langs" | awk '!seen[$0]++' | paste -sd, -)
    for name in ${all//,/ }; do kept+=("__${name}__"); done
    conversion+=(--add-language-tokens "$all" --sentinels 100)
    kept+=($(printf '<extra_id_%d> ' {0..29}))
}

# An article is a document of its own.
binarize_text() {
    [ ${#languages[@]} != 0 ] || return 0
    local language texts=()
    for language in ${text_langs//,/ }; do
        [ -f "$output/corpus/text-$language.src" ] ||
            fail "--text-langs is $text_langs, but $raw lacks train.x.$language or train.y.$language"
        sed G "$output/corpus/text-$language.src" >"$output/corpus/$language.txt"
        texts+=("$output/corpus/$language.txt")
    done
    s2sft tokenize --tokenizer-dir "$output/encoder" --output-dir "$output/tokens/text" \
        ${workers:+--workers "$workers"} --input "${texts[@]}"
    for language in ${text_langs//,/ }; do
        s2sft preprocess --only-source --srcdict "$output/encoder/dict.txt" \
            --trainpref "$output/tokens/text/$language.txt" --destdir "$1/$language" \
            --workers "${workers:-$(nproc)}" >>"$output/binarize.log"
    done
}
run_recipe "$@"
