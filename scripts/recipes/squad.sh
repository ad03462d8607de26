#!/usr/bin/env bash
# SQuAD v1.1 and v2.0: answers to questions, found in passages.
#
# Raw files: train-v1.1.json and dev-v1.1.json, or train-v2.0.json and dev-v2.0.json
# (https://rajpurkar.github.io/SQuAD-explorer). Scored on the development set, for the test sets are not published.
# Settings: UniLMv2, Table 9, the same for both versions; windows of 384 positions, 128 tokens apart, and questions of at
# most 64 tokens as in BERT.
#
#   --version X         1.1 or 2.0 (1.1)
#   --stride N          tokens from the beginning of a window to that of the next (128)
#   --max-query N       tokens of a question (64)
#   --null-threshold X  2.0: odds above which there is no answer (0); the best one is searched in any case
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
. "$(dirname "${BASH_SOURCE[0]}")/understanding.sh"

own="version stride max_query null_threshold" version=1.1 stride=128 max_query=64 null_threshold=0
max_source=384 epochs=4 fairseq_task=unilm_question_answering texts=corpus
settings() {
    output=${output:-recipes-out/squad-v$version}
    case $version in 1.1 | 2.0) ;; *) fail "--version must be 1.1 or 2.0, but is $version" ;; esac
    prepare=(--version "$version" --max-positions "$max_source" --stride "$stride" --max-query "$max_query"
        --tokenizer-dir "$output/encoder")
}

prepare_texts() {
    if [ -z "$encoder" ]; then
        vocabulary=("$output/vocabulary.txt")
        gzip -cdf "$raw/train-v$version.json"* | head -c 1000000 >"${vocabulary[0]}" || true
    fi
    stage "$output/encoder" "convert" convert
    stage "$output/corpus/stats.json" "prepare" prepare_corpus
}

predict_and_score() {
    local of_null=() scoring=(--task squad_v1)
    if [ "$version" = 2.0 ]; then
        # There always is an answer in this file: the threshold is a matter of scoring.
        of_null=(--null-odds "$work/null_odds.json" --null-threshold inf)
        scoring=(--task squad_v2 --null-odds "$work/null_odds.json" --null-threshold "$null_threshold")
    fi
    stage "$work/answers.json" "predict" predict valid "$work/answers.json" ${of_null[@]+"${of_null[@]}"}
    s2sft evaluate "${scoring[@]}" --hyp "$work/answers.json" --ref "$output/corpus/valid.json" \
        --json "$work/valid.json" | tee "$work/valid.scores"
}
run_understanding "$@"
