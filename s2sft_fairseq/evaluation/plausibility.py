"""Warnings about scores that say little about the texts: equal texts that score 0, empty texts, dropped letters.

A score of 0 has many reasons besides a bad model: ROUGE's own tokenizer drops every letter but a-z, BLEU takes a
Chinese sentence for one word, and a text in the Unicode form NFD has other characters than the same text in NFC.
"""

import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Statistics

UNCHECKED = ("f1", "matthews", "correlation", "distinct")
"""Metrics that can be 0 for equal texts by their definition, as F1 is if no label is 1."""
EXAMPLES_READ = 1000
"""Number of examples whose letters are counted."""
# First and last characters of scripts without spaces between words: Thai and Lao; Tibetan; Burmese; Khmer; Chinese and
# Japanese; rare Chinese characters.
_WITHOUT_SPACES = (
    ("\u0e00", "\u0eff"),
    ("\u0f00", "\u0fff"),
    ("\u1000", "\u109f"),
    ("\u1780", "\u17ff"),
    ("\u2e80", "\ua4cf"),
    ("\U00020000", "\U0003ffff"),
)


@dataclass(frozen=True)
class Letters:
    """Counts of the letters of a text."""

    all: int
    beyond_ascii: int
    without_spaces: int
    """Letters of scripts that have no spaces between words."""

    @classmethod
    def of(cls, text: str) -> "Letters":
        """Count the letters of a text."""
        letters = [letter for letter in text if letter.isalpha()]
        beyond = [letter for letter in letters if not letter.isascii()]
        unspaced = sum(any(first <= letter <= last for first, last in _WITHOUT_SPACES) for letter in beyond)
        return cls(len(letters), len(beyond), unspaced)

    @property
    def has_no_words(self) -> bool:
        """Whether most letters are of scripts without spaces between words."""
        return 2 * self.without_spaces > self.all

    @property
    def are_dropped(self) -> bool:
        """Whether more than one of 50 letters is none of a-z, which ROUGE's own tokenizer drops."""
        return 50 * self.beyond_ascii > self.all


def text_warnings(examples: Sequence[Example], settings: Settings) -> Iterator[str]:
    """Yield a warning for each property of the texts that makes scores low without a mistake of the model."""
    empty = [number for number, example in enumerate(examples, 1) if not example.hypothesis.strip()]
    if empty:
        yield f"{len(empty):,} of {len(examples):,} hypotheses are empty, first the one of line {empty[0]}"
    other_form = [not all(_is_nfc(example.hypothesis) for example in examples)]
    other_form.append(not all(_is_nfc(text) for example in examples for text in example.references))
    if any(other_form) and not all(other_form):
        which = ("hypotheses", "references")[other_form.index(True)]
        yield f"{which} are not all in the Unicode form NFC, the others are, so equal words differ: {_FORM}"
    if not _drops_letters(settings):
        return
    letters = Letters.of(" ".join(text for example in examples[:EXAMPLES_READ] for text in example.references))
    if letters.are_dropped:
        share = 100 * letters.beyond_ascii / letters.all
        yield f"ROUGE's own tokenizer drops {share:.0f} % of the letters of the references: {_words_of(letters)}"


def zero_warnings(
    metric: str, statistics: Statistics, examples: Sequence[Example], settings: Settings
) -> Iterator[str]:
    """Yield a warning for the texts that equal a reference, but whose score is 0, for each kind of equality."""
    for kind in ("exact", "unicode") if metric not in UNCHECKED else ():
        equal = np.array([number for number, example in enumerate(examples) if example.equality == kind], dtype=int)
        zeros = statistics.zeros(equal) if len(equal) else {}
        names = [name for name, numbers in zeros.items() if len(numbers)]
        if not names:
            continue
        numbers = np.unique(np.concatenate([zeros[name] for name in names]))
        example = examples[numbers[0]]
        yield (
            f"{len(numbers):,} of {len(examples):,} hypotheses equal a reference, but score about 0 in "
            f"{', '.join(names)}, first line {numbers[0] + 1} ({example.references[0]!r:.60}): "
            f"{_advice(metric, example, settings)}"
        )


_FORM = "--unicode-form nfc (or nfkc) makes them the same"


def _advice(metric: str, example: Example, settings: Settings) -> str:
    letters = Letters.of(example.references[0])
    if example.equality == "unicode":
        return _FORM
    if not example.hypothesis.strip():
        return "the steps of the task leave nothing of it (--min-sentence-words, --duplicate-rate)"
    if metric in ("rouge", "perl_rouge") and _drops_letters(settings) and letters.are_dropped:
        return _words_of(letters)
    if letters.has_no_words and metric == "sacrebleu":
        return "it is one word: --bleu-tokenize zh, char or another one for this script makes words of it"
    if letters.has_no_words and not settings.characters:
        return "it is one word: --characters makes a word of each character"
    return "it has too few words"


def _drops_letters(settings: Settings) -> bool:
    uses_ascii = "rouge" in settings.metrics and settings.rouge_tokenizer == "ascii"
    return uses_ascii or "perl_rouge" in settings.metrics


def _words_of(letters: Letters) -> str:
    words = "--characters --rouge-tokenizer space" if letters.has_no_words else "--rouge-tokenizer unicode"
    return f"{words} keeps them (with --metrics rouge)"


def _is_nfc(text: str) -> bool:
    return unicodedata.is_normalized("NFC", text)
