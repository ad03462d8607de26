"""Normalize hypotheses and references before they are compared.

The steps follow the order of the evaluation scripts of s2s-ft and ERNIE-GEN: split into sentences, convert words, drop
short and repeated sentences, truncate, replace digits, lower-case.
"""

import re
import unicodedata
from collections.abc import Iterable
from functools import cache
from typing import Any

from s2sft_fairseq.evaluation.fix_tokenization import STYLES, fix_tokenization
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import optional_module

_BRACKETS = {"(": "-LRB-", ")": "-RRB-", "[": "-LSB-", "]": "-RSB-"}
_REPLACED_BRACKETS = {"none": "", "round": "()", "all": "()[]"}

# Applied in this order. From ERNIE-GEN's eval/tasks/coqa/gen_format.py and eval/tasks/persona_chat/clean.py.
_CONTRACTIONS = {
    "none": (),
    "coqa": ((" ' s ", " 's "), (" ' ll ", " 'll "), (" ' re ", " 're "), ("n ' t ", " n't ")),
    "persona_chat": (
        *((" - ", "-"), (" ' ", "'"), (" n't", "n't"), (" 'm", "'m")),
        *((" do not", " don't"), (" 's", "'s"), (" 've", "'ve"), (" 're", "'re")),
    ),
}
# Special symbols, whose brackets are not punctuation.
_SYMBOL = re.compile(r"(\[[A-Z_]+\]|<unk>)")
_IDEOGRAPH = re.compile("[\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\U00020000-\U0002fa1f]")
_DIGITS = {"keep": None, "one": re.compile("1"), "all": re.compile(r"\d")}


def normalise_hypothesis(text: str, settings: Settings) -> str:
    """Return the sentences of a hypothesis, with a line end between two of them."""
    text = in_unicode_form(text, settings)
    sentences = [_fixed(sentence, settings) for sentence in _sentences(text, settings.hyp_separator, settings)]
    sentences = [sentence for sentence in sentences if len(sentence.split()) >= settings.min_sentence_words]
    if settings.duplicate_rate < 1:
        sentences = _without_duplicates(sentences, settings.duplicate_rate)
    if settings.truncate:
        sentences = _truncated(sentences, settings.truncate)
    if pattern := _DIGITS[settings.digits]:
        sentences = [pattern.sub("#", sentence) for sentence in sentences]
    return "\n".join(_letters(sentence, settings) for sentence in sentences)


def normalise_reference(text: str, settings: Settings) -> str:
    """Return the sentences of a reference, with a line end between two of them."""
    sentences = _sentences(in_unicode_form(text, settings), settings.ref_separator, settings)
    if settings.normalise_references:
        sentences = [_fixed(sentence, settings) for sentence in sentences]
    return "\n".join(_letters(sentence, settings) for sentence in sentences)


def normalise_source(text: str, settings: Settings) -> str:
    """Return the normalized source, by which examples are grouped."""
    text = in_unicode_form(text, settings).strip()
    return text.lower() if settings.lowercase else text


def in_unicode_form(text: str, settings: Settings) -> str:
    """Return a text in the Unicode form of the settings, in which equal texts have equal characters."""
    if settings.unicode_form == "none":
        return text
    form: Any = settings.unicode_form.upper()
    return unicodedata.normalize(form, text)


def equality(text: str, references: Iterable[str]) -> str:
    """Return whether a text equals a reference, but for white space: "exact", "unicode" (but for its form), or ""."""
    words = text.split()
    others = [reference.split() for reference in references]
    if not words:
        return ""
    if words in others:
        return "exact"
    plain = _plain(words)
    return "unicode" if any(_plain(other) == plain for other in others) else ""


def _plain(words: Iterable[str]) -> str:
    return unicodedata.normalize("NFKC", " ".join(words))


def signature(settings: Settings) -> str:
    """Return the signature of the normalization: always case, split and length, other steps only if they apply."""
    split = f"{settings.hyp_separator or 'line'}/{settings.ref_separator or 'line'}"
    told = {
        "case": "lower" if settings.lowercase else "kept",
        "split": "line" if split == "line/line" else split,
        "trunc": settings.truncate or "no",
        "pretok": settings.pretokenize,
        "contractions": settings.contractions,
        "fix": settings.fix_tokenization,
        "brackets": settings.brackets,
        "minwords": settings.min_sentence_words or "none",
        "dup": settings.duplicate_rate if settings.duplicate_rate < 1 else "none",
        "digits": "none" if settings.digits == "keep" else settings.digits,
        "accents": "no" if settings.strip_accents else "none",
        "words": "characters" if settings.characters else "bert" if settings.bert_words else "none",
        "unicode": settings.unicode_form,
        "norm": "both" if settings.normalise_references else "none",
    }
    return "|".join(f"{name}:{value}" for name, value in told.items() if value != "none")


def bert_words(text: str) -> str:
    """Split a text into words as BERT's tokenizer does before it splits words into pieces.

    Every punctuation mark and every Chinese character is a word. This restores the words of a detokenized text, and
    does not change a text that is already split.
    """
    parts = _SYMBOL.split(text)
    parts[::2] = ["".join(f" {letter} " if _is_word(letter) else letter for letter in part) for part in parts[::2]]
    return " ".join(" ".join(parts).split())


@cache
def _is_word(letter: str) -> bool:
    """Return whether a character is a word by itself. For BERT all ASCII signs are punctuation, also $ and ^."""
    sign = letter.isascii() and letter.isprintable() and not letter.isalnum()
    return sign or unicodedata.category(letter).startswith("P") or bool(_IDEOGRAPH.match(letter))


def _sentences(text: str, separator: str, settings: Settings) -> list[str]:
    sentences = text.split(separator) if separator else [text]
    if settings.pretokenize == "razdel":
        razdel = optional_module("razdel", "razdel", "razdel", "--pretokenize")
        sentences = [" ".join(word.text for word in razdel.tokenize(sentence)) for sentence in sentences]
    elif settings.pretokenize == "nltk":
        from nltk.tokenize import word_tokenize

        # preserve_line: do not split into sentences, which needs data that is not part of the package.
        sentences = [" ".join(word_tokenize(sentence, preserve_line=True)) for sentence in sentences]
    return [" ".join(sentence.split()) for sentence in sentences]


def _fixed(sentence: str, settings: Settings) -> str:
    if settings.bert_words:
        sentence = bert_words(sentence)
    for split, joined in _CONTRACTIONS[settings.contractions]:
        sentence = sentence.replace(split, joined)
    if settings.fix_tokenization != "none":
        sentence = fix_tokenization(sentence, STYLES[settings.fix_tokenization])
    for bracket in _REPLACED_BRACKETS[settings.brackets]:
        sentence = sentence.replace(bracket, f" {_BRACKETS[bracket]} ")
    return " ".join(sentence.split())


def _without_duplicates(sentences: Iterable[str], rate: float) -> list[str]:
    """Drop each sentence if the share of its distinct words that occurred in earlier sentences exceeds `rate`.

    Words of dropped sentences count as earlier words, too (s2s-ft's `remove_duplicate`).
    """
    kept, seen = [], set[str]()
    for sentence in sentences:
        words = set(sentence.lower().split())
        if not words or len(words & seen) / len(words) <= rate:
            kept.append(sentence)
        seen |= words
    return kept


def _truncated(sentences: Iterable[str], limit: int) -> list[str]:
    kept = []
    for sentence in sentences:
        words = sentence.split()[:limit]
        kept.append(" ".join(words))
        limit -= len(words)
        if limit <= 0:
            break
    return kept


def _letters(sentence: str, settings: Settings) -> str:
    if settings.lowercase:
        sentence = sentence.lower()
    if settings.strip_accents:
        decomposed = unicodedata.normalize("NFD", sentence)
        sentence = "".join(letter for letter in decomposed if unicodedata.category(letter) != "Mn")
    if settings.characters:
        sentence = " ".join("".join(sentence.split()))
    return sentence
