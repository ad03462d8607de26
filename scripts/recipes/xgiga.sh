#!/usr/bin/env bash
# XGiga (Gigaword-fr, Gigaword-zh): headlines in French or Chinese.
#
# Raw files: xgiga.tar.gz (https://github.com/CZWin32768/XNLG), {train,dev,test}.{x,y}.{en,fr,zh}.
# Settings: s2s-ft, Tables 7 and 8, which have French; the same for Chinese. Its encoder is XLM-R. Zero-shot: DeltaLM,
# section 3.3, with the articles of --lang, without their headlines, as its plain text.
#
#   --lang L            fr, zh or en (fr)
#   --train-lang L      with --method deltalm: train on pairs of this language alone, en in the paper (that of --lang)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"

own="lang train_lang" lang=fr train_lang=""
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
    languages=(--lang-pairs "src-tgt:$train_lang" --text-languages "$lang" --language-token "__{}__"
        --tokens-per-sample $((max_source - 6)))
    search+=(--target-lang "$lang")
    kept=("__${train_lang}__" "__${lang}__")
    conversion+=("${kept[@]/#/--add-token=}" --sentinels 100)
    kept+=($(printf '<extra_id_%d> ' {0..29}))
}

# An article is a document of its own.
binarize_text() {
    [ ${#languages[@]} != 0 ] || return 0
    local text=$output/tokens/$lang.txt
    sed G "$output/corpus/text.src" >"$output/corpus/$lang.txt"
    s2sft tokenize --tokenizer-dir "$output/encoder" --output-dir "$output/tokens/text" \
        ${workers:+--workers "$workers"} --input "$output/corpus/$lang.txt"
    mv "$output/tokens/text/$lang.txt" "$text"
    rm -r "$output/tokens/text"
    s2sft preprocess --only-source --srcdict "$output/encoder/dict.txt" --trainpref "$text" --destdir "$1/$lang" \
        --workers "${workers:-$(nproc)}" >>"$output/binarize.log"
}
run_recipe "$@"
