#!/usr/bin/env bash
# GLUE: classification of sentences and of pairs of sentences, one of nine tasks at a time.
#
# Raw files: a folder for each task, CoLA, SST-2, MRPC, STS-B, QQP, MNLI, QNLI, RTE, WNLI, with train.tsv, dev.tsv and
# test.tsv (https://gluebenchmark.com). MNLI is scored on both of its development sets, and predicts the diagnostic set
# too, if diagnostic/diagnostic.tsv is there.
# Settings: UniLMv2, Table 9, which gives the ranges that were searched for each task: of the batch 16 or 32, of the
# learning rate 5e-6 to 3e-5, of the epochs 10 or 15, of the warm-up 0.1 or 0.2, of the weight decay 0.01 or 0.1. Which
# value was the best of a task it does not say: 32, 2e-5, 10, 0.1 and 0.01 are taken. 128 positions as in BERT.
#
#   --glue-task NAME    cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte or wnli (mrpc)
set -euo pipefail
. "$(dirname "${BASH_SOURCE[0]}")/recipe.sh"
. "$(dirname "${BASH_SOURCE[0]}")/understanding.sh"

own="glue_task" glue_task=mrpc
max_source=128 epochs=10 fairseq_task=unilm_classification texts=tokens
settings() {
    output=${output:-recipes-out/glue-$glue_task}
    prepare=(--task "$glue_task")
    layout=(--max-source-positions "$max_source")
    case $glue_task in
        cola) metric=mcc ;;
        sts-b) metric=pearson layout+=(--regression) ;;
        sst-2 | mrpc | qqp | mnli | qnli | rte | wnli) ;;
        *) fail "--glue-task must be cola, sst-2, mrpc, sts-b, qqp, mnli, qnli, rte or wnli, but is $glue_task" ;;
    esac
}

tokenize_texts() {
    rm -rf "$texts.partial"
    s2sft tokenize --tokenizer-dir "$output/encoder" --output-dir "$texts.partial" --separator " [SEP] " \
        ${workers:+--workers "$workers"} --input $(find "$output/corpus" -name "*.txt" ! -name labels.txt | LC_ALL=C sort)
    mv "$texts.partial" "$texts"
}

prepare_texts() {
    stage "$output/corpus/stats.json" "prepare" prepare_corpus
    vocabulary=("$output/corpus/train.txt")
    stage "$output/encoder" "convert" convert
    stage "$texts" "tokenize" tokenize_texts
}

# What the server of GLUE calls the predictions of a test set.
server_name() {
    case $glue_task-$1 in
        cola-*) echo CoLA ;;
        mnli-test) echo MNLI-m ;;
        mnli-test1) echo MNLI-mm ;;
        mnli-test2) echo AX ;;
        *) echo "${glue_task^^}" ;;
    esac
}

predict_and_score() {
    local path name clip=()
    [ "$glue_task" != sts-b ] || clip=(--clip 0 5)
    for path in "$texts"/{valid,test}*.txt; do
        [ -e "$path" ] || continue
        name=$(basename "$path" .txt)
        case $name in
            valid*) stage "$work/$name.tsv" "predict $name" predict "$name" "$work/$name.tsv" ${clip[@]+"${clip[@]}"} ;;
            test*)
                path=$work/$(server_name "$name").tsv
                stage "$path" "predict $name" predict "$name" "$path" ${clip[@]+"${clip[@]}"}
                ;;
        esac
    done
    for path in "$work"/valid*.tsv; do
        name=$(basename "$path" .tsv)
        s2sft evaluate --task "$glue_task" --hyp "$path" --ref "$output/corpus/$name.label" \
            --json "$work/$name.json" | tee "$work/$name.scores"
    done
}
run_understanding "$@"
