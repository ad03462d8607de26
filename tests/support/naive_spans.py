"""Words, n-grams, t-statistics and spans in the plainest way, a symbol at a time: a reference for the tests.

Text consists of WordPiece symbols: `##` continues a word, and brackets are special symbols.
"""

import math
from collections import Counter
from fractions import Fraction

Word = tuple[str, ...]


def is_special(symbol: str) -> bool:
    return symbol.startswith("[")


def naive_words(symbols: list[str]) -> list[Word]:
    """Group symbols into words; each special symbol is a word of its own."""
    words: list[Word] = []
    for symbol in symbols:
        if symbol.startswith("##") and words and not is_special(words[-1][0]):
            words[-1] += (symbol,)
        else:
            words.append((symbol,))
    return words


def naive_counts(lines: list[str]) -> dict[int, Counter[tuple[Word, ...]]]:
    """Count the n-grams of each order, 1 to 3, without special symbols."""
    counts: dict[int, Counter[tuple[Word, ...]]] = {order: Counter() for order in (1, 2, 3)}
    for line in lines:
        words = naive_words(line.split())
        for order, counter in counts.items():
            for at in range(len(words) - order + 1):
                ngram = tuple(words[at : at + order])
                if not any(is_special(word[0]) for word in ngram):
                    counter[ngram] += 1
    return counts


def naive_t(counts: dict[int, Counter[tuple[Word, ...]]], totals: dict[int, int], ngram: tuple[Word, ...]) -> float:
    """Return the t-statistic in floating point; the totals are those of the counts of each order."""
    total, words = totals[len(ngram)], totals[1]
    p = counts[len(ngram)][ngram] / total
    chance = math.prod(counts[1][(word,)] / words for word in ngram)
    return (p - chance) / math.sqrt(p * (1 - p) / total)


def exact_t(counts: dict[int, Counter[tuple[Word, ...]]], totals: dict[int, int], ngram: tuple[Word, ...]) -> float:
    """Return the t-statistic, computed in fractions except for the square root."""
    total, words = totals[len(ngram)], totals[1]
    p = Fraction(counts[len(ngram)][ngram], total)
    chance = math.prod(Fraction(counts[1][(word,)], words) for word in ngram)
    return float(p - chance) / math.sqrt(p * (1 - p) / total)


def naive_spans(symbols: list[str], ngrams: set[tuple[Word, ...]]) -> list[int]:
    """Return the place of the first symbol of each symbol's span."""
    words = naive_words(symbols)
    places: list[int] = []
    at = 0
    while at < len(words):
        order = next((n for n in (3, 2) if tuple(words[at : at + n]) in ngrams), 1)
        places += [len(places)] * sum(map(len, words[at : at + order]))
        at += order
    return places
