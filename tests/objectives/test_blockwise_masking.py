"""Blockwise masking: what always holds, and the statistics of Algorithm 1 of UniLMv2."""

from itertools import groupby

import numpy as np
import pytest

from s2sft_fairseq.objectives.blockwise_masking import BlockwiseMasking
from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.ragged import Ragged

PAPER = BlockwiseMasking()
TEXTS = 10_000


def drawn(lengths, masking=PAPER, seed=1):
    """The steps of texts of these lengths, a list for each."""
    text = Ragged(np.zeros(int(np.sum(lengths)), dtype=np.int64), np.asarray(lengths))
    steps = masking.draw(text, Draws(seed, 1, np.arange(len(lengths))))
    return [row.tolist() for row in np.split(steps, np.cumsum(lengths)[:-1])]


def blocks(steps):
    """Each factorization step of a text by its number: its places."""
    return {
        number: [place for place, step in enumerate(steps) if step == number] for number in sorted(set(steps) - {0})
    }


@pytest.mark.parametrize(
    "masking",
    [PAPER, BlockwiseMasking(block_prob=0.0), BlockwiseMasking(0.9, 1.0, (3, 5)), BlockwiseMasking(0.5, 0.5, (1, 40))],
    ids=["paper", "tokens", "much", "long"],
)
def test_what_always_holds(masking):
    lengths = np.random.default_rng(0).integers(1, 60, 300)
    for length, steps in zip(lengths.tolist(), drawn(lengths, masking), strict=True):
        found = blocks(steps)
        assert list(found) == list(range(1, len(found) + 1))
        for places in found.values():
            assert places == list(range(places[0], places[-1] + 1))
        masked = sum(map(len, found.values()))
        needed = int(masking.least_masked(np.array(length)))
        assert needed == -(-masking.ratio * length // 1)
        # Enough, but only the last step made it so.
        assert masked - len(found[len(found)]) < needed <= masked <= int(masking.most_masked(np.array(length)))
        assert masked <= length
        # All but the last one are as long as they were drawn.
        least, greatest = masking.block_lengths
        for number in range(1, len(found)):
            assert len(found[number]) == 1 or least <= len(found[number]) <= greatest


def test_a_text_does_not_depend_on_the_others():
    whole = drawn([30, 7, 55])
    text = Ragged(np.zeros(7, dtype=np.int64), np.array([7]))
    assert PAPER.draw(text, Draws(1, 1, np.array([1]))).tolist() == whole[1]


def simulated(length, rng):
    """The lengths of the factorization steps of one text, as Algorithm 1 draws them."""
    lengths = []
    while sum(lengths) < 0.15 * length:
        lengths.append(int(rng.integers(2, 7)) if rng.random() < 0.4 else 1)
    return lengths


def test_statistics():
    """Over 10,000 texts of 100 tokens: share masked, share of blocks and their lengths, places and order."""
    length = 100
    texts = [blocks(steps) for steps in drawn([length] * TEXTS)]
    sizes = [[len(places) for places in text.values()] for text in texts]

    # The share that is masked against the algorithm's; a step is not cut, so that both are a little above 15 %.
    masked = np.array([sum(text) for text in sizes])
    rng = np.random.default_rng(1)
    expected = np.array([sum(simulated(length, rng)) for _ in range(TEXTS)])
    error = np.hypot(masked.std(), expected.std()) / TEXTS**0.5
    assert abs(masked.mean() - expected.mean()) <= 3 * error
    assert masked.min() >= 15 and masked.mean() < 17

    # The last step is left out: with a longer one the end comes sooner.
    steps = np.array([size for text in sizes for size in text[:-1]])
    first = np.array([text[0] for text in sizes])
    share = (first > 1).mean()
    assert abs(share - 0.4) <= 3 * (0.4 * 0.6 / TEXTS) ** 0.5
    assert set(steps.tolist()) == {1, 2, 3, 4, 5, 6}
    of_blocks = np.bincount(first[first > 1], minlength=7)[2:] / (first > 1).sum()
    assert np.abs(of_blocks - 0.2).max() <= 3 * (0.2 * 0.8 / (first > 1).sum()) ** 0.5

    # Every place is masked as often as every other, but for those near an end, where fewer blocks fit.
    places = np.zeros(length)
    for text in texts:
        places[[place for block in text.values() for place in block]] += 1
    places /= TEXTS
    rate = places[10:-10].mean()
    assert np.abs(places[10:-10] - rate).max() <= 4 * (rate * (1 - rate) / TEXTS) ** 0.5

    # The order is uniform: of two steps the first is as often left as right of the second, and where a step is in the
    # text tells nothing of its number.
    left = np.mean([text[1][0] < text[2][0] for text in texts])
    assert abs(left - 0.5) <= 3 * 0.5 / TEXTS**0.5
    middles = [np.mean([text[number][0] for text in texts]) for number in (1, 2, 3)]
    errors = np.std([text[1][0] for text in texts]) / TEXTS**0.5
    assert np.abs(np.diff(middles)).max() <= 3 * 2**0.5 * errors


def test_every_arrangement_is_equally_likely():
    """Of six tokens a block of two and one of one, or any other lengths that reach three."""
    masking = BlockwiseMasking(0.5, 1.0, (2, 2))
    found = [tuple(steps) for steps in drawn([6] * TEXTS, masking)]
    # Two blocks of two among four units, in either order.
    kinds = sorted(set(found))
    assert len(kinds) == 12
    shares = np.array([found.count(kind) for kind in kinds]) / TEXTS
    assert np.abs(shares - 1 / 12).max() <= 3.5 * (1 / 12 * 11 / 12 / TEXTS) ** 0.5


def test_runs_are_contiguous_steps():
    steps = drawn([50], BlockwiseMasking(0.3, 1.0, (3, 3)))[0]
    assert {len(list(run)) for step, run in groupby(steps) if step} == {3}


@pytest.mark.parametrize(
    ("masking", "problems"),
    [
        (PAPER, []),
        (
            BlockwiseMasking(1.0, -0.5, (0, 0)),
            [
                "--mask-ratio must be above 0 and below 1, but is 1",
                "--block-prob must be between 0 and 1, but is -0.5",
                "--block-lengths must be a range of at least 1, such as 2-6, but is 0",
            ],
        ),
        (
            BlockwiseMasking(block_lengths=(5, 2)),
            ["--block-lengths must be a range of at least 1, such as 2-6, but is 0"],
        ),
    ],
)
def test_problems(masking, problems):
    assert masking.problems("0") == problems
