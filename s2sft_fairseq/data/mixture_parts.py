"""The parts of a mixture: pairs of one direction, or texts of one language to corrupt; and their shares.

The lengths of sources and targets are known before they are made. How often a language is sampled depends on its share
of the data, flattened by a temperature that may rise over the epochs. L: examples of a part; B: examples of a batch.
"""

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm
from s2sft_fairseq.objectives.span_corruption import SpanCorruption

Item = tuple[np.ndarray, ...]
"""The ids of an example: a source and a target, or a text."""


class MixturePart(ABC):
    """Examples of one kind and language."""

    name: str
    source_sizes: np.ndarray
    """Positions of each source (L,)."""
    target_sizes: np.ndarray
    """Positions of each target (L,); 0 if there are no targets."""

    def __len__(self) -> int:
        return len(self.source_sizes)

    @abstractmethod
    def __getitem__(self, index: int) -> Item:
        """Return an example, without any randomness."""

    @abstractmethod
    def make(self, items: Sequence[Item], draws: Draws) -> tuple[Ragged, Ragged | None]:
        """Return the sources and targets of B examples, each with its final eos; None if there are no targets."""


class PairPart(MixturePart):
    """Pairs of a source and its target."""

    def __init__(self, name: str, source: Any, target: Any | None, form: EncoderDecoderForm) -> None:
        """Wrap two indexed data sets.

        Args:
            name: name of the part in messages.
            source: ids of the sources, each with a final eos; indexable, with ``sizes``.
            target: ids of the targets in the same form, or None for generation without targets.
            form: the layout.
        """
        self.name, self.source, self.target, self.form = name, source, target, form
        sizes = np.asarray(source.sizes) - 1 + form.source_specials
        self.num_cut_sources = int((sizes > form.max_source).sum())
        self.source_sizes = np.minimum(sizes, form.max_source)
        sizes = np.zeros_like(sizes) if target is None else np.asarray(target.sizes)
        self.num_cut_targets = int((sizes > form.max_target).sum())
        self.target_sizes = np.minimum(sizes, form.max_target)

    def __getitem__(self, index: int) -> Item:
        """Return the laid-out source and target; only the source if there are no targets."""
        source = self.form.source(np.asarray(self.source[index], dtype=np.int64)[:-1])
        if self.target is None:
            return (source,)
        return source, self.form.target(np.asarray(self.target[index], dtype=np.int64)[:-1])

    def make(self, items: Sequence[Item], draws: Draws) -> tuple[Ragged, Ragged | None]:
        """Return the sources and targets unchanged."""
        sides = [Ragged.of(side) for side in zip(*items, strict=True)]
        return sides[0], sides[1] if len(sides) > 1 else None


class SpanPart(MixturePart):
    """Texts with span corruption."""

    def __init__(
        self,
        name: str,
        texts: Any,
        corruption: SpanCorruption,
        sentinels: Sequence[int],
        *,
        prefix: Sequence[int] = (),
        eos: int,
        target_sentinels: bool = True,
    ) -> None:
        """Wrap texts.

        Args:
            name: name of the part in messages.
            texts: ids without special symbols, at least two in each text; indexable, with ``sizes``.
            corruption: the span corruption.
            sentinels: ids of the sentinels.
            prefix: first ids of all sources.
            eos: id of the eos.
            target_sentinels: whether the targets have sentinels.
        """
        self.name, self.texts, self.corruption, self.sentinels = name, texts, corruption, np.asarray(sentinels)
        self.prefix, self.eos, self.target_sentinels = list(prefix), eos, target_sentinels
        source, target = corruption.sizes(np.asarray(texts.sizes), target_sentinels=target_sentinels)
        self.source_sizes, self.target_sizes = source + 1 + len(self.prefix), target + 1

    def __getitem__(self, index: int) -> Item:
        """Return the ids of a text."""
        return (self.texts[index],)

    def make(self, items: Sequence[Item], draws: Draws) -> tuple[Ragged, Ragged]:
        """Return ``prefix x eos`` with sentinels in place of spans, and the spans with their sentinels and eos."""
        text = Ragged.of([ids for (ids,) in items])
        source, target = self.corruption.corrupt(text, self.sentinels, draws, target_sentinels=self.target_sentinels)
        return source.between(self.prefix, [self.eos]), target.between([], [self.eos])


class ConcatenatedPairs:
    """Texts that are a source followed by its target (mT6, section 3.1), each cut to half of the maximum length."""

    def __init__(self, source: Any, target: Any, most: int) -> None:
        """Wrap two indexed data sets, whose lines end in eos; ``most``: maximum number of tokens of a text."""
        self.half = most // 2
        lengths = [np.minimum(np.asarray(side.sizes) - 1, self.half) for side in (source, target)]
        # Drop pairs with an empty side: span corruption needs tokens to keep and tokens to remove.
        self._kept = np.flatnonzero((lengths[0] > 0) & (lengths[1] > 0))
        self.source, self.target = source, target
        self.num_empty = len(lengths[0]) - len(self._kept)
        is_cut = [np.asarray(side.sizes) - 1 > self.half for side in (source, target)]
        self.num_cut = int((is_cut[0] | is_cut[1])[self._kept].sum())
        self.sizes = (lengths[0] + lengths[1])[self._kept]

    def __len__(self) -> int:
        return len(self.sizes)

    def __getitem__(self, index: int) -> np.ndarray:
        """Return the ids of a text, without special symbols."""
        line = int(self._kept[index])
        sides = [np.asarray(side[line], dtype=np.int64)[:-1][: self.half] for side in (self.source, self.target)]
        return np.concatenate(sides)


@dataclass(frozen=True)
class TemperatureSchedule:
    """The temperature of each epoch, T_i = min(T, T0 + i / N * (T - T0)); i counts epochs from 0 (XLM-T, section 3).

    At temperature 1 languages are sampled as they are in the data, at higher ones more evenly.
    """

    first: float = 1.0
    """T0, the temperature of the first epoch."""
    last: float = 5.0
    """T, at least T0; equal to T0 for a constant temperature."""
    epochs: int = 5
    """N, the number of epochs from T0 to T."""

    def problems(self) -> list[str]:
        """Return the errors in these values, a sentence each."""
        found = []
        if self.first <= 0:
            found.append(f"--first-temperature must be positive, but is {self.first:g}")
        if self.last < self.first:
            found.append(f"--temperature must be at least --first-temperature ({self.first:g}), but is {self.last:g}")
        if self.epochs < 1:
            found.append(f"--temperature-epochs must be at least 1, but is {self.epochs}")
        return found

    def temperature(self, epoch: int) -> float:
        """Return the temperature of an epoch; as in fairseq, the first epoch is 1."""
        return min(self.last, self.first + (epoch - 1) / self.epochs * (self.last - self.first))

    def shares(self, sizes: np.ndarray, epoch: int) -> np.ndarray:
        """Return the share of each language in an epoch, (D_l / sum D)^(1/T_i), normalized to sum 1 (languages,).

        Args:
            sizes: number of examples of each language, D (languages,).
            epoch: number of the epoch, from 1.
        """
        flattened = (sizes / sizes.sum()) ** (1 / self.temperature(epoch))
        return flattened / flattened.sum()


def whole_counts(shares: np.ndarray, total: int) -> np.ndarray:
    """Return whole numbers that sum to ``total``, as near as possible to their shares of it (largest remainder method).

    Args:
        shares: shares that sum to 1 (languages,).
        total: the number of examples to distribute.
    """
    exact = shares * total
    counts = np.floor(exact).astype(np.int64)
    largest_remainders = np.argsort(counts - exact, kind="stable")
    counts[largest_remainders[: total - int(counts.sum())]] += 1
    return counts
