"""Span corruption: hand-written examples, counts, lengths, and that no token is lost."""

import numpy as np
import pytest

from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.span_corruption import SpanCorruption, sentinel_symbols

SENTINELS = np.arange(1000, 1200)
MONOLINGUAL, TRANSLATION = SpanCorruption(), SpanCorruption(density=0.5)


def draws(number: int, epoch: int = 1) -> Draws:
    return Draws(3, epoch, np.arange(number))


def texts(lengths) -> Ragged:
    return Ragged.of([np.arange(length) + 10 for length in lengths])


def rows(ragged: Ragged) -> list[list[int]]:
    return [row.tolist() for row in np.split(ragged.values, np.cumsum(ragged.lengths)[:-1])]


def joined_back(source: list[int], target: list[int]) -> list[int]:
    """Put the spans in the places of their sentinels."""
    spans: dict[int, list[int]] = {}
    for token in target:
        if token >= SENTINELS[0]:
            spans[token] = current = []
        else:
            current.append(token)
    return [token for place in source for token in spans.get(place, [place])]


def drawn(corruption, noise: list[str]):
    """Return `corruption` with given spans of texts: x is noise."""

    class Fixed(SpanCorruption):
        def draw(self, text, draws):
            return np.array([mark == "x" for row in noise for mark in row])

    return Fixed(corruption.density, corruption.mean_length)


def test_an_example_by_hand():
    """T5, Figure 2: "Thank you <X> me to your party <Y> week", "<X> for inviting <Y> last"."""
    words = ["Thank", "you", "for", "inviting", "me", "to", "your", "party", "last", "week"]
    text = Ragged.of([np.arange(len(words))])
    source, target = drawn(SpanCorruption(0.3, 1.5), ["..xx....x."]).corrupt(text, SENTINELS, draws(1))
    names = {1000: "<X>", 1001: "<Y>", **dict(enumerate(words))}
    assert " ".join(names[token] for token in source.values) == "Thank you <X> me to your party <Y> week"
    assert " ".join(names[token] for token in target.values) == "<X> for inviting <Y> last"


def test_a_translation_by_hand():
    """The texts of a pair one after the other, half of it noise; a span may cross the border."""
    text = Ragged.of([np.array([11, 12, 13, 14, 21, 22, 23, 24])])
    source, target = drawn(SpanCorruption(0.5, 2.0), [".xx..xx."]).corrupt(text, SENTINELS, draws(1))
    assert rows(source) == [[11, 1000, 14, 21, 1001, 24]]
    assert rows(target) == [[1000, 12, 13, 1001, 22, 23]]


def test_two_texts_and_no_sentinels_in_targets():
    text = Ragged.of([np.array([11, 12, 13, 14]), np.array([21, 22, 23])])
    corruption = drawn(SpanCorruption(0.4, 1.0), [".x.x", "..x"])
    source, target = corruption.corrupt(text, SENTINELS, draws(2))
    assert rows(source) == [[11, 1000, 13, 1001], [21, 22, 1000]]
    assert rows(target) == [[1000, 12, 1001, 14], [1000, 23]]
    source, target = corruption.corrupt(text, SENTINELS, draws(2), target_sentinels=False)
    assert rows(source) == [[11, 1000, 13, 1001], [21, 22, 1000]]
    assert rows(target) == [[12, 14], [23]]


def test_counts_by_hand():
    """T5's rule, half to even: noise = round(0.15 L), spans = round(noise / 3)."""
    noise, spans = MONOLINGUAL.counts(np.array([2, 3, 10, 20, 30, 100, 512]))
    assert noise.tolist() == [1, 1, 2, 3, 4, 15, 77]
    assert spans.tolist() == [1, 1, 1, 1, 1, 5, 26]
    noise, spans = TRANSLATION.counts(np.array([2, 3, 10, 21, 512]))
    assert noise.tolist() == [1, 2, 5, 10, 256]
    assert spans.tolist() == [1, 1, 2, 3, 85]
    noise, spans = SpanCorruption(0.9, 1.0).counts(np.array([10]))
    assert (noise.tolist(), spans.tolist()) == ([9], [1])  # at most as many spans as tokens between them


@pytest.mark.parametrize("corruption", [MONOLINGUAL, TRANSLATION, SpanCorruption(0.4, 1.0)])
@pytest.mark.parametrize("target_sentinels", [True, False])
def test_nothing_is_lost(corruption, target_sentinels):
    rng = np.random.default_rng(1)
    text = texts(rng.integers(2, 120, size=500))
    source, target = corruption.corrupt(text, SENTINELS, draws(500), target_sentinels=target_sentinels)
    sizes = corruption.sizes(text.lengths, target_sentinels=target_sentinels)
    assert source.lengths.tolist() == sizes[0].tolist() and target.lengths.tolist() == sizes[1].tolist()
    assert source.lengths.sum() == len(source.values) and target.lengths.sum() == len(target.values)
    for whole, left, taken in zip(rows(text), rows(source), rows(target), strict=True):
        assert left[0] == whole[0] and left[-1] >= SENTINELS[0]  # begins with given tokens, ends with noise
        numbers = [token for token in left if token >= SENTINELS[0]]
        assert numbers == list(range(1000, 1000 + len(numbers)))
        if target_sentinels:
            assert [token for token in taken if token >= SENTINELS[0]] == numbers
            assert joined_back(left, taken) == whole
        else:
            assert sorted([*taken, *(token for token in left if token < SENTINELS[0])]) == whole


@pytest.mark.parametrize(("corruption", "length"), [(MONOLINGUAL, 100), (TRANSLATION, 60)])
def test_densities_and_lengths_of_10000_examples(corruption, length):
    """All cuts into non-empty pieces are equally likely: their means are within 3 standard errors."""
    number = 10_000
    is_noise = corruption.draw(texts([length] * number), draws(number)).reshape(number, length)
    (noise,), (spans,) = corruption.counts(np.array([length]))
    assert (is_noise.sum(axis=1) == noise).all()
    assert noise / length == pytest.approx(corruption.density, abs=0.5 / length)
    begins = is_noise & ~np.roll(is_noise, 1, axis=1)
    assert (begins.sum(axis=1) == spans).all()
    assert noise / spans == pytest.approx(corruption.mean_length, rel=0.2)
    for pieces, total in ((is_noise, noise), (~is_noise, length - noise)):
        # The number of cuts with a first piece of m tokens is the number of cuts of the rest.
        firsts = np.array(
            [np.flatnonzero(np.diff(row[np.argmax(row) :].astype(int), append=0) == -1)[0] + 1 for row in pieces]
        )
        longest = total - spans + 1
        shares = np.array([_ways(total - m, spans - 1) for m in range(1, longest + 1)]) / _ways(total, spans)
        lengths = np.arange(1, longest + 1)
        mean = (shares * lengths).sum()
        assert mean == pytest.approx(total / spans)
        error = np.sqrt((shares * (lengths - mean) ** 2).sum() / number)
        assert abs(firsts.mean() - mean) < 3 * error
        ones = shares[0]
        assert abs((firsts == 1).mean() - ones) < 3 * np.sqrt(ones * (1 - ones) / number)


def _ways(tokens: int, pieces: int) -> int:
    """Return the number of ways to cut a row of tokens into non-empty pieces."""
    from math import comb

    return comb(tokens - 1, pieces - 1)


def test_draws_belong_to_the_example():
    """The order of the examples and the other examples do not change the draws; the epoch does."""
    text = texts([40, 50, 60])
    whole = MONOLINGUAL.draw(text, Draws(1, 2, np.array([7, 8, 9])))
    alone = MONOLINGUAL.draw(texts([50]), Draws(1, 2, np.array([8])))
    assert np.array_equal(whole[40:90], alone)
    assert not np.array_equal(alone, MONOLINGUAL.draw(texts([50]), Draws(1, 3, np.array([8]))))


def test_problems():
    assert MONOLINGUAL.problems("--span-density") == []
    assert SpanCorruption(0.0, 0.5).problems("--span-density") == [
        "--span-density must be above 0 and below 1, but is 0",
        "--mean-span-length must be at least 1, but is 0.5",
    ]


def test_names_of_sentinels():
    assert sentinel_symbols(2) == ["<extra_id_0>", "<extra_id_1>"]
