"""How a score is computed: what is done to the texts, which metrics, and their variants; of each benchmark by its name.

The settings of a benchmark are those of its papers. Hypotheses are split into BERT's words first where a program was
written for these: a detokenized text then has the score of the words that it was made of. The published references of
CNN/DailyMail and XSum are tokenized, those of the raw data are not; both go through the steps of the hypotheses, which
leave tokenized text with the same ROUGE.

Followed are s2s-ft's evaluations/eval_for_{cnndm,xsum,gigaword}.py, ERNIE-GEN's eval/tasks/ and XNLG's xnlg/calc_*.py.
docs/evaluation.md has the same as a table.
"""

from dataclasses import dataclass

# Choices of the options below that have names; the first one is "leave the text as it is".
PRETOKENIZERS = ("none", "nltk", "razdel")
FIX_STYLES = ("none", "cased", "lower", "contractions")
CONTRACTIONS = ("none", "persona_chat", "coqa")
BRACKETS = ("none", "round", "all")
DIGITS = ("keep", "one", "all")
ROUGE_TOKENIZERS = ("ascii", "unicode", "space")
MULTI_REFERENCE = ("best", "jackknife")


@dataclass(frozen=True)
class Settings:
    """Everything that a score depends on beside the texts."""

    metrics: tuple[str, ...] = ("rouge",)
    """Names of `s2sft_fairseq.evaluation.evaluate.METRICS`."""

    hyp_separator: str = ""
    """What stands between the sentences of a hypothesis; empty: a line is one sentence."""
    ref_separator: str = ""
    """The same of a reference."""
    pretokenize: str = "none"
    """Hypotheses and references: `nltk` splits off punctuation as the Penn Treebank does, `razdel` as Russian does."""
    bert_words: bool = False
    """Hypotheses: every punctuation mark is a word, as BERT's tokenizer leaves a text: what the next three act on."""
    contractions: str = "none"
    """Hypotheses: join what a tokenizer split at apostrophes, with the table of one of the original programs."""
    fix_tokenization: str = "none"
    """Hypotheses: from BERT's words to those of the Penn Treebank, see `fix_tokenization`."""
    brackets: str = "none"
    """Hypotheses: round (or all) brackets within words become -LRB- and so on."""
    normalise_references: bool = False
    """References: the four steps before this one are taken with them, too. For references that are plain text."""
    digits: str = "keep"
    """Hypotheses: the digit `1` (or all digits) become #."""
    min_sentence_words: int = 0
    """Hypotheses: sentences with fewer words are dropped."""
    duplicate_rate: float = 1.0
    """Hypotheses: a sentence is dropped where a larger share of its words than this stands in earlier ones."""
    truncate: int = 0
    """Hypotheses: words that are kept; 0 for all."""
    lowercase: bool = False
    """Hypotheses, references and, where examples are grouped by them, sources."""
    strip_accents: bool = False
    """Hypotheses and references: letters without their accents."""
    characters: bool = False
    """Hypotheses and references: every character is a word."""

    group_by_source: bool = False
    """Lines with the same source are one example with several references; its last hypothesis is taken."""
    reference_variant: str = ""
    """A name for the references' split or tokenization, for the signature."""

    stem: bool = True
    """ROUGE: Porter's stemmer."""
    rouge_tokenizer: str = "ascii"
    """ROUGE: `ascii` is its own; `unicode` knows the letters of all scripts; `space` takes words as they are."""
    irregular_forms: bool = False
    """Perl ROUGE: WordNet's irregular forms before the stemmer, see `perl_rouge`."""
    multi_reference: str = "best"
    """ROUGE: with several references, the best F1, or the mean of the best over each choice of all but one."""
    null_threshold: float | None = None
    """SQuAD v2.0: odds of no answer above which nothing is predicted; None: answers are taken as they are."""
    bleu_tokenize: str = "13a"
    """sacreBLEU's tokenizer."""


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
