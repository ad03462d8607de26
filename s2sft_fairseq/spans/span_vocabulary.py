"""The spans of target texts: trigrams, bigrams and single words, found greedily (ERNIE-GEN, section 3.3)."""

import numpy as np

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.spans.ngram_keys import bigram_keys, trigram_keys
from s2sft_fairseq.spans.words import WordNumbers, WordRule

_NO_NGRAMS = Ragged(np.empty(0, np.int64), np.empty(0, np.int64))


class SpanVocabulary:
    """The bigrams and trigrams that are predicted as one span; every other word is a span by itself.

    Shape:
        N: tokens, W: words, of all rows together.
    """

    def __init__(self, rule: WordRule, ngrams: Ragged = _NO_NGRAMS) -> None:
        """Take the n-grams as rows of token ids.

        Raises:
            ValueError: if one has not two or three words, or holds a special symbol.
        """
        self.rule = rule
        words = rule.split_rows(ngrams)
        row = ngrams.row[words.first]
        order = np.bincount(row, minlength=len(ngrams.lengths))
        if words.special.any() or not np.isin(order, (2, 3)).all():
            raise ValueError("the n-grams of a span vocabulary need two or three words, none of them special")
        self._numbers = WordNumbers(sorted(set(words.spellings())), len(rule.continues))
        bigrams, trigrams = _keys(self._numbers.of(words), row)
        begins = np.diff(row, prepend=-1) > 0  # each n-gram is what its first word begins
        self._bigrams = np.sort(bigrams[begins[:-1] & (order[row[:-1]] == 2)])
        self._trigrams = np.sort(trigrams[begins[:-2] & (order[row[:-2]] == 3)])

    @classmethod
    def of_single_tokens(cls, dictionary: PretrainedDictionary) -> "SpanVocabulary":
        """Return the vocabulary that makes each token a span: with it, the span flow is the word flow."""
        return cls(WordRule.of(dictionary, ()))

    def boundaries(self, tokens: Ragged) -> np.ndarray:
        """Find the spans of each row: from the left the longest one that the vocabulary has, in whole words.

        Special symbols, words that the vocabulary lacks and what is left of a cut word are spans of their own.

        Args:
            tokens: ids of all rows.

        Returns:
            For each token the place in its row of the first token of its span, int64 (N,).
        """
        words = self.rule.split_rows(tokens)
        spans = self._spans(self._numbers.of(words), tokens.row[words.first])
        first = words.first[spans]
        return np.repeat(tokens.place[first], np.diff(first, append=len(tokens.values)))

    def _spans(self, numbers: np.ndarray, row: np.ndarray) -> list[int]:
        """Return the indices of the words that begin a span."""
        bigrams, trigrams = _keys(numbers, row)
        longest = np.ones(len(numbers), np.int64)
        longest[:-1][_is_in(bigrams, self._bigrams)] = 2
        longest[:-2][_is_in(trigrams, self._trigrams)] = 3
        # No span leaves its row, so that one walk through all words comes by the first word of each row.
        words = longest.tolist()
        spans = []
        at = 0
        while at < len(words):
            spans.append(at)
            at += words[at]
        return spans


def _keys(numbers: np.ndarray, row: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Return the keys of the bigrams (W - 1,) and trigrams (W - 2,) that begin at each word, negative across rows."""
    bigrams = np.where(np.diff(row) == 0, bigram_keys(numbers), -1)
    return bigrams, trigram_keys(bigrams, numbers)


def _is_in(keys: np.ndarray, table: np.ndarray) -> np.ndarray:
    """Tell which keys a sorted table holds, boolean."""
    if not len(table):
        return np.zeros(len(keys), bool)
    return table[np.minimum(np.searchsorted(table, keys), len(table) - 1)] == keys
