"""Synthetic pairs of random symbols, whose targets can only be predicted by looking at their sources.

Wu et al. (2022, arXiv 2206.10139) and Krishna et al. (2021, arXiv 2109.04953) pre-train on such tasks. The first symbol
of a source names the task:

==================  ==================================================================================================
``copy``            the target is the source
``reverse``         the source backwards
``set``             the symbols of the source without repetitions, in the order of their first occurrence
``delete``          the source begins with a symbol; the target is the rest, without this symbol
``first_sentence``  the source is several sentences, after a copy of one of them with half of its symbols masked; the
                    target is the copied sentence
==================  ==================================================================================================
"""

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError

Symbols = list[str]
LONGEST_NGRAM = 4
"""Maximum length of the random n-grams that a source repeats."""
SHORTEST = 12
"""Minimum number of symbols of a source; those of ``first_sentence`` can be a little shorter."""


class Pair(NamedTuple):
    """The symbols of a source, with that of the task, and of its target."""

    source: Symbols
    target: Symbols


class Maker:
    """Makes pairs from the symbols of a dictionary."""

    def __init__(self, dictionary: PretrainedDictionary, seed: int) -> None:
        """Select the symbols.

        Raises:
            UserError: if the dictionary has fewer ordinary symbols than this needs.
        """
        self.random = random.Random(seed)
        ordinary = [symbol for symbol in dict.fromkeys(dictionary.symbols) if not _is_special(symbol)]
        tasks = (self.copy, self.reverse, self.set, self.delete, self.first_sentence)
        if len(ordinary) < 2 * len(tasks) + 1:
            raise UserError(
                f"synthetic pairs need a dictionary of {2 * len(tasks) + 1} symbols that are not special, but there "
                f"are {len(ordinary)}"
            )
        # The same marks for every seed.
        self.boundary, *names = ordinary[: len(tasks) + 1]
        self.tasks: dict[str, Callable[[int], Pair]] = dict(zip(names, tasks, strict=True))
        self.symbols = ordinary[len(tasks) + 1 :]
        self.mask = dictionary.symbols[dictionary.mask_index]

    def pairs(self, count: int, longest: int) -> Iterator[Pair]:
        """Yield pairs of random tasks, with sources of at most ``longest`` symbols."""
        for _ in range(count):
            name = self.random.choice(list(self.tasks))
            source, target = self.tasks[name](self.random.randint(SHORTEST, longest) - 1)
            yield Pair([name, *source], target)

    def copy(self, length: int) -> Pair:
        """Make a pair: the target is the source."""
        source = self.sequence(length)
        return Pair(source, source)

    def reverse(self, length: int) -> Pair:
        """Make a pair: the target is the source backwards."""
        source = self.sequence(length)
        return Pair(source, source[::-1])

    def set(self, length: int) -> Pair:
        """Make a pair: the target is the source without repeated symbols."""
        source = self.sequence(length)
        return Pair(source, list(dict.fromkeys(source)))

    def delete(self, length: int) -> Pair:
        """Make a pair: the source is a symbol and a text; the target is the text without the symbol, never empty."""
        text = self.sequence(length - 1)
        deleted = self.random.choice(text)
        left = [symbol for symbol in text if symbol != deleted]
        return Pair([deleted, *text], left) if left else self.delete(length)

    def first_sentence(self, length: int) -> Pair:
        """Make a pair: the source is a sentence, half masked, and several sentences; the target is that sentence."""
        number = self.random.randint(2, 4)
        words = max(1, length // (number + 1) - 1)
        sentences = [self.sequence(words) for _ in range(number)]
        target = sentences[0]
        hidden = set(self.random.sample(range(words), words // 2))
        masked = [self.mask if place in hidden else symbol for place, symbol in enumerate(target)]
        self.random.shuffle(sentences)
        return Pair([symbol for sentence in [masked, *sentences] for symbol in [*sentence, self.boundary]], target)

    def sequence(self, length: int) -> Symbols:
        """Draw a few random n-grams, and join them in random order, with repetitions."""
        ngrams = [
            self.random.choices(self.symbols, k=self.random.randint(1, LONGEST_NGRAM))
            for _ in range(max(1, length // LONGEST_NGRAM))
        ]
        made: Symbols = []
        while len(made) < length:
            made += self.random.choice(ngrams)
        return made[:length]


def _is_special(symbol: str) -> bool:
    return (symbol[:1] + symbol[-1:]) in ("[]", "<>") or symbol.startswith("madeupword")
