"""Span corruption, the pre-training objective of T5, mT5 and DeltaLM (section 2.3 of DeltaLM's paper, Figure 3).

Each span of a text is replaced by its own sentinel; the target is the spans, each after its sentinel. Numbers and
lengths of spans follow T5's program: the length of the text determines how many tokens are noise, and in how many
spans; random is only how noise and the rest are cut into that number of pieces. A text begins with a piece of the rest
and ends with noise. Translation span corruption (mT6) is the same for a sentence followed by its translation.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.objectives.ragged import Draws, Ragged

SENTINEL = "<extra_id_{}>"
"""Symbol of a span's sentinel, from the index of the span in its text, from 0; as in mT5."""


def sentinel_symbols(number: int) -> list[str]:
    """Return the symbols of the first ``number`` sentinels."""
    return [SENTINEL.format(place) for place in range(number)]


@dataclass(frozen=True)
class SpanCorruption:
    """How much of a text is noise. The defaults are for span corruption; for translations, half of it is noise."""

    density: float = 0.15
    """Share of the tokens that are noise."""
    mean_length: float = 3.0
    """Mean length of a span, in tokens."""

    def problems(self, option: str) -> list[str]:
        """Return error messages for these values; ``option`` is the name of the option for the density."""
        found = []
        if not 0 < self.density < 1:
            found.append(f"{option} must be above 0 and below 1, but is {self.density:g}")
        if self.mean_length < 1:
            found.append(f"--mean-span-length must be at least 1, but is {self.mean_length:g}")
        return found

    def counts(self, lengths: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return the numbers of noise tokens and of spans, from the lengths of the texts, which are at least 2 (B,)."""
        noise = np.clip(np.rint(lengths * self.density).astype(np.int64), 1, lengths - 1)
        spans = np.maximum(1, np.rint(noise / self.mean_length).astype(np.int64))
        return noise, np.minimum(spans, lengths - noise)

    def sizes(self, lengths: np.ndarray, *, target_sentinels: bool = True) -> tuple[np.ndarray, np.ndarray]:
        """Return the lengths of sources and targets, from the lengths of the texts (B,)."""
        noise, spans = self.counts(lengths)
        return lengths - noise + spans, noise + (spans if target_sentinels else 0)

    def draw(self, text: Ragged, draws: Draws) -> np.ndarray:
        """Draw which tokens are noise, bool (N,), in texts of at least two tokens each."""
        noise, spans = self.counts(text.lengths)
        left = _cut(text.lengths - noise, spans, draws)
        taken = _cut(noise, spans, draws)
        runs = np.stack([left, taken], axis=1).ravel()
        return np.repeat(np.tile([False, True], len(left)), runs)

    def corrupt(
        self, text: Ragged, sentinels: Sequence[int] | np.ndarray, draws: Draws, *, target_sentinels: bool = True
    ) -> tuple[Ragged, Ragged]:
        """Return sources and targets, without any other special symbol.

        Args:
            text: ids of the texts, at least two of each.
            sentinels: ids of the sentinels in order, at least as many as a text may have spans.
            draws: random numbers for these texts.
            target_sentinels: whether the targets have sentinels. Without them a model learns, besides another task, to
                write plain text (section 3.3 of the paper).
        """
        is_noise = self.draw(text, draws)
        # No text begins with noise, so the token before a span belongs to the same text.
        begins = is_noise & ~np.roll(is_noise, 1)
        _, spans = self.counts(text.lengths)
        place = np.arange(int(begins.sum())) - np.repeat(np.cumsum(spans) - spans, spans)
        of_span = np.asarray(sentinels)[place]
        source_sizes, target_sizes = self.sizes(text.lengths, target_sentinels=target_sentinels)
        source = text.values.copy()
        source[begins] = of_span
        source = source[~is_noise | begins]
        if not target_sentinels:
            return Ragged(source, source_sizes), Ragged(text.values[is_noise], target_sizes)
        # Repeat the first token of each span, and overwrite the first copy with the sentinel.
        noise_begins = begins[is_noise]
        target = np.repeat(text.values[is_noise], 1 + noise_begins)
        target[np.flatnonzero(noise_begins) + np.arange(len(of_span))] = of_span
        return Ragged(source, source_sizes), Ragged(target, target_sizes)


def _cut(totals: np.ndarray, pieces: np.ndarray, draws: Draws) -> np.ndarray:
    """Cut rows of tokens into non-empty pieces. All ways to do so are equally likely.

    Args:
        totals: number of tokens of each row (B,).
        pieces: number of pieces of each row (B,), from 1 to the number of tokens.
        draws: random numbers for the rows.

    Returns:
        The lengths of all pieces, row after row.
    """
    between = Ragged.of_lengths(totals - 1)  # the places at which a row may be cut
    is_cut = between.with_values(draws.random(between)).rank() < (pieces - 1)[between.row]
    tokens = Ragged.of_lengths(totals)
    begins = tokens.place == 0
    begins[~begins] = is_cut
    return np.bincount(np.cumsum(begins) - 1)
