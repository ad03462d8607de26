"""How each benchmark is scored in the papers: the settings by name.

Hypotheses are split into BERT's words first where a program was written for these: a detokenized text then has the
score of the words that it was made of. The published references of CNN/DailyMail and XSum are tokenized, those of the
raw data are not; both go through the steps of the hypotheses, which leave tokenized text with the same ROUGE.

Followed are s2s-ft's evaluations/eval_for_{cnndm,xsum,gigaword}.py, ERNIE-GEN's eval/tasks/ and XNLG's xnlg/calc_*.py.
docs/evaluation.md has the same as a table.
"""

from s2sft_fairseq.evaluation.settings import Settings

# GEM's ROUGE, which DeltaLM follows
_GEM = Settings(pretokenize="nltk", multi_reference="jackknife")

TASKS = {
    "rouge": Settings(),
    # s2s-ft; --truncate 70 as UniLM v1, 100 as ERNIE-GEN
    "cnndm": Settings(
        hyp_separator="[X_SEP]",
        ref_separator="<S_SEP>",
        bert_words=True,
        fix_tokenization="cased",
        brackets="all",
        normalise_references=True,
        min_sentence_words=5,
        duplicate_rate=0.7,
        truncate=160,
    ),
    "xsum": Settings(bert_words=True, fix_tokenization="contractions", brackets="round", normalise_references=True),
    "gigaword": Settings(bert_words=True, fix_tokenization="lower", digits="one"),
    # Against the references of Du et al. (2017). Against those that UniLM tokenized: --fix-tokenization none; these are
    # BERT's words, and SQuAD's own questions become such with --normalise-references
    "qg": Settings(
        metrics=("coco_bleu", "meteor", "coco_rouge"),
        bert_words=True,
        fix_tokenization="lower",
        lowercase=True,
        group_by_source=True,
    ),
    "bleu": Settings(metrics=("sacrebleu",)),
    "persona_chat": Settings(
        metrics=("dialogue_bleu", "distinct"), bert_words=True, contractions="persona_chat", normalise_references=True
    ),
    # Not BERT's words: the metric takes 5,000 for one word and 5 , 000 for two
    "coqa": Settings(metrics=("coqa",), contractions="coqa"),
    "wikilingua": _GEM,
    "webnlg": _GEM,
    # GLUE's, as its server and the tables of the papers have them
    "cola": Settings(metrics=("matthews", "accuracy")),
    "sst-2": Settings(metrics=("accuracy",)),
    "mrpc": Settings(metrics=("f1", "accuracy")),
    "sts-b": Settings(metrics=("correlation",)),
    "qqp": Settings(metrics=("f1", "accuracy")),
    "mnli": Settings(metrics=("accuracy",)),
    "qnli": Settings(metrics=("accuracy",)),
    "rte": Settings(metrics=("accuracy",)),
    "wnli": Settings(metrics=("accuracy",)),
    # Of answers in JSON, against SQuAD's own files
    "squad_v1": Settings(metrics=("squad_v1",)),
    "squad_v2": Settings(metrics=("squad_v2",)),
    # XNLG's, for XQG-zh (BLEU, METEOR, ROUGE-L) and XGiga-zh (ROUGE)
    "zh": Settings(metrics=("coco_bleu", "meteor", "rouge"), lowercase=True, characters=True, rouge_tokenizer="space"),
    # XNLG's, for XGiga-fr: without accents, ROUGE's own tokenizer and stemmer, which are English
    "fr": Settings(lowercase=True, strip_accents=True),
}
