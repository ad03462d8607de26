"""The settings of a score: normalization, metrics and their variants, and the presets of benchmarks.

A preset follows the papers of its benchmark. Where their scripts expect BERT's words, hypotheses are first split into
them, so that a detokenized text scores as its original words do. The published references of CNN/DailyMail and XSum are
tokenized, those of the raw data are not. Both are normalized as the hypotheses are, which does not change the ROUGE of
tokenized text.

The presets follow s2s-ft's evaluations/eval_for_{cnndm,xsum,gigaword}.py, ERNIE-GEN's eval/tasks/ and XNLG's
xnlg/calc_*.py. docs/evaluation.md lists them in a table.
"""

from dataclasses import dataclass

# The choices of the options below. The first one is the default.
PRETOKENIZERS = ("none", "nltk", "razdel")
FIX_STYLES = ("none", "cased", "lower", "contractions")
CONTRACTIONS = ("none", "persona_chat", "coqa")
BRACKETS = ("none", "round", "all")
DIGITS = ("keep", "one", "all")
ROUGE_TOKENIZERS = ("ascii", "unicode", "space")
MULTI_REFERENCE = ("best", "jackknife")
UNICODE_FORMS = ("none", "nfc", "nfkc")


@dataclass(frozen=True)
class Settings:
    """All that a score depends on, except the texts."""

    metrics: tuple[str, ...] = ("rouge",)
    """Names of `s2sft_fairseq.evaluation.evaluate.METRICS`."""

    hyp_separator: str = ""
    """The separator between the sentences of a hypothesis; empty: a line is one sentence."""
    ref_separator: str = ""
    """The separator between the sentences of a reference; empty: a line is one sentence."""
    pretokenize: str = "none"
    """Hypotheses and references: `nltk` splits off punctuation as the Penn Treebank does; `razdel` is for Russian."""
    bert_words: bool = False
    """Hypotheses: make every punctuation mark a word, as BERT's tokenizer does. The next three options expect this."""
    contractions: str = "none"
    """Hypotheses: join words that were split at apostrophes, with the table of one of the original scripts."""
    fix_tokenization: str = "none"
    """Hypotheses: convert BERT's words to those of the Penn Treebank, see `fix_tokenization`."""
    brackets: str = "none"
    """Hypotheses: replace round (or all) brackets by -LRB- and so on."""
    normalise_references: bool = False
    """Apply the four steps above to the references, too. For references that are plain text."""
    digits: str = "keep"
    """Hypotheses: replace the digit `1` (or all digits) by #."""
    min_sentence_words: int = 0
    """Hypotheses: drop sentences with fewer words."""
    duplicate_rate: float = 1.0
    """Hypotheses: drop a sentence if a larger share of its words occurred in earlier sentences."""
    truncate: int = 0
    """Hypotheses: keep this many words; 0: all."""
    lowercase: bool = False
    """Lower-case hypotheses and references, and the sources by which examples are grouped."""
    strip_accents: bool = False
    """Hypotheses and references: remove accents from letters."""
    characters: bool = False
    """Hypotheses and references: make every character a word."""

    unicode_form: str = "none"
    """Hypotheses, references and sources: the Unicode normalization form to convert to before all other steps."""

    group_by_source: bool = False
    """Merge lines with the same source into one example with several references and the last hypothesis."""
    reference_variant: str = ""
    """A name for the split or tokenization of the references, for the signature."""

    stem: bool = True
    """ROUGE: Porter's stemmer."""
    rouge_tokenizer: str = "ascii"
    """ROUGE: `ascii` is ROUGE's own; `unicode` keeps the letters of all scripts; `space` splits at spaces only."""
    irregular_forms: bool = False
    """Perl ROUGE: look up WordNet's irregular forms before stemming, see the module `rouge`."""
    multi_reference: str = "best"
    """ROUGE with several references: `best` F1, or `jackknife`: the mean of the best F1, leaving out one at a time."""
    null_threshold: float | None = None
    """SQuAD v2.0: odds of no answer above which the answer is taken to be empty; None: use the answers as they are."""
    bleu_tokenize: str = "13a"
    """sacreBLEU's tokenizer."""


# GEM's ROUGE, which DeltaLM follows
_GEM = Settings(pretokenize="nltk", multi_reference="jackknife")

TASKS = {
    "rouge": Settings(),
    # s2s-ft; UniLM v1 has --truncate 70, ERNIE-GEN 100
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
    # For the references of Du et al. (2017). The references that UniLM tokenized are BERT's words and need
    # --fix-tokenization none; --normalise-references makes BERT's words of SQuAD's own questions.
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
    # Not BERT's words: for the metric, 5,000 is one word and 5 , 000 is two
    "coqa": Settings(metrics=("coqa",), contractions="coqa"),
    "wikilingua": _GEM,
    "webnlg": _GEM,
    # GLUE, with the metrics of its server and of the papers' tables
    "cola": Settings(metrics=("matthews", "accuracy")),
    "sst-2": Settings(metrics=("accuracy",)),
    "mrpc": Settings(metrics=("f1", "accuracy")),
    "sts-b": Settings(metrics=("correlation",)),
    "qqp": Settings(metrics=("f1", "accuracy")),
    "mnli": Settings(metrics=("accuracy",)),
    "qnli": Settings(metrics=("accuracy",)),
    "rte": Settings(metrics=("accuracy",)),
    "wnli": Settings(metrics=("accuracy",)),
    # Answers in JSON, with SQuAD's own files as references
    "squad_v1": Settings(metrics=("squad_v1",)),
    "squad_v2": Settings(metrics=("squad_v2",)),
    # XNLG, for XQG-zh (BLEU, METEOR, ROUGE-L) and XGiga-zh (ROUGE)
    "zh": Settings(metrics=("coco_bleu", "meteor", "rouge"), lowercase=True, characters=True, rouge_tokenizer="space"),
    # XNLG, for XGiga-fr: without accents, with ROUGE's own English tokenizer and stemmer
    "fr": Settings(lowercase=True, strip_accents=True),
}
