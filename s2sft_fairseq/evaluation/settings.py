"""How a score is computed: what is done to the texts, which metrics, and their variants."""

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
    """Names of `s2sft_fairseq.evaluation.metrics.METRICS`."""

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
