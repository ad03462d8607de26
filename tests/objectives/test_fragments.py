"""Target fragments: hand-made examples, what always holds, and the statistics of ERNIE-GEN, section 3.1."""

from itertools import groupby

import numpy as np
import pytest
from tiny import CLS, MASK, PAD, SEP, tiny_form, words

from s2sft_fairseq.objectives.corruption import NO_CORRUPTION
from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.fragments import Fragments, infilled_fragments, split
from s2sft_fairseq.objectives.ragged import Ragged

PAPER = Fragments()
TEXTS = 10_000


def texts(length, count=TEXTS):
    return Ragged(np.zeros(length * count, dtype=np.int64), np.full(count, length))


def runs(taken):
    """Lengths of the fragments of a text, in order."""
    return [len(list(run)) for is_target, run in groupby(taken) if is_target]


def drawn(length, fragments=PAPER, seed=1, count=TEXTS):
    """Which tokens are taken out of texts of one length (texts, length)."""
    return fragments.draw(texts(length, count), Draws(seed, 1, np.arange(count))).reshape(count, length)


def test_split():
    text = Ragged.of([np.arange(10, 16), np.arange(20, 23)])
    source, target = split(text, np.array([0, 1, 1, 0, 0, 1, 1, 0, 0], dtype=bool))
    assert source.values.tolist() == [10, 13, 14, 21, 22]
    assert source.lengths.tolist() == [3, 2]
    assert target.values.tolist() == [11, 12, 15, 20]
    assert target.lengths.tolist() == [3, 1]


# Figure 1(e): fragments leave the source and stand one behind the other in the target.
def test_what_is_trained_on():
    rng, form = np.random.default_rng(0), tiny_form("infilling")
    text = Ragged.of([words(rng, 12), words(rng, 9)])
    draws = [Draws(3, 1, np.array([5, 8])) for _ in range(2)]
    context, content, flow = infilled_fragments(text, PAPER, form, NO_CORRUPTION, draws[0])
    source, target = split(text, PAPER.draw(text, draws[1]))
    first, second = source.values[: source.lengths[0]], source.values[source.lengths[0] :]
    assert context.token.tolist() == [CLS, *first, SEP, CLS, *second, SEP]
    assert target.lengths.tolist() == [3, 2]
    assert content.token.tolist() == [CLS, *target.values[:3], CLS, *target.values[3:]]
    assert flow.label.tolist() == [*target.values[:3], SEP, *target.values[3:], SEP]
    assert set(flow.token.tolist()) == {MASK}
    # The target's positions go on from its source.
    assert content.position.tolist() == [11, 12, 13, 14, 9, 10, 11]
    assert (content.label == PAD).all()


@pytest.mark.parametrize("length", [2, 3, 7, 16, 61, 200])
def test_budget_and_distance(length):
    """The budget is met exactly, and at least a token stands between two fragments."""
    taken = drawn(length, count=500)
    budget = max(1, int(0.25 * length + 0.5))
    assert (taken.sum(axis=1) == budget).all()
    assert all(sum(runs(text)) == budget for text in taken.tolist())


def test_lengths_of_fragments():
    """The two distributions with their shares, within 3 standard errors.

    A text of 400 tokens has a budget of 100, which a fragment of up to 32 never spends at once; only the last one is
    cut. So texts of the first distribution are those without a fragment above 4.
    """
    of_text = [runs(text) for text in drawn(400).tolist()]
    is_short = np.array([max(lengths) <= 4 for lengths in of_text])
    error = (0.4 * 0.6 / TEXTS) ** 0.5
    assert abs(is_short.mean() - 0.4) <= 3 * error
    for least, greatest, short in ((1, 4, True), (4, 32, False)):
        lengths = [lengths for lengths, is_of_kind in zip(of_text, is_short, strict=True) if is_of_kind == short]
        flat = np.concatenate(lengths)
        assert flat.min() >= 1 and flat.max() <= greatest
        assert set(range(least, greatest + 1)) <= set(flat.tolist())


@pytest.mark.parametrize(("kind", "least", "greatest"), [(0, 1, 4), (1, 4, 32)])
def test_mean_length(kind, least, greatest):
    """The lengths as they are drawn, before the last one is cut: uniform, mean within 3 standard errors."""
    shares = tuple(float(kind == index) for index in range(2))
    fragments = Fragments(shares=shares)
    budgets = np.full(TEXTS, 64)
    lengths = fragments._draw_lengths(budgets, Draws(7, 1, np.arange(TEXTS)))
    assert (np.add.reduceat(lengths.values, np.cumsum(lengths.lengths) - lengths.lengths) == 64).all()
    first = lengths.values[lengths.place == 0]  # of a budget of 64 never cut
    count = greatest - least + 1
    variance = (count**2 - 1) / 12
    assert abs(first.mean() - (least + greatest) / 2) <= 3 * (variance / TEXTS) ** 0.5
    shares_found = np.bincount(first, minlength=greatest + 1)[least:] / TEXTS
    # Up to 29 shares under one bound.
    assert np.abs(shares_found - 1 / count).max() <= 4 * (1 / count * (1 - 1 / count) / TEXTS) ** 0.5


def test_fragments_lie_anywhere():
    """Every token of a text is as likely to be taken out, but for those near its ends, which fewer fragments reach."""
    shares = drawn(200).mean(axis=0)
    assert abs(shares.mean() - 0.25) < 1e-9
    middle = shares[40:160]
    assert np.abs(middle - middle.mean()).max() <= 4.5 * (0.25 * 0.75 / TEXTS) ** 0.5
    assert abs(shares[:40].mean() - shares[160:].mean()) <= 4 * (0.25 * 0.75 / TEXTS) ** 0.5


def test_one_text_does_not_depend_on_the_others():
    rng = np.random.default_rng(0)
    rows = [words(rng, length) for length in (30, 5, 64)]
    together = PAPER.draw(Ragged.of(rows), Draws(1, 2, np.array([4, 9, 2])))
    alone = [PAPER.draw(Ragged.of([row]), Draws(1, 2, np.array([n]))) for row, n in zip(rows, (4, 9, 2), strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"budget": 0.0}, "--fragment-budget must be above 0 and at most 0.5, but is 0"),
        ({"budget": 0.6}, "--fragment-budget must be above 0 and at most 0.5, but is 0.6"),
        (
            {"lengths": ((0, 4), (4, 2))},
            "--fragment-lengths must be ranges of at least 1, such as 1-4, but is 0-4,4-2",
        ),
        ({"shares": (1.0,)}, "--fragment-shares must be 2 numbers, one for each range of --fragment-lengths, but is 1"),
        ({"shares": (0.5, 0.6)}, "--fragment-shares must not be negative and add up to 1, but is 0.5, 0.6"),
        ({"shares": (-0.5, 1.5)}, "--fragment-shares must not be negative and add up to 1, but is -0.5, 1.5"),
    ],
)
def test_problems(settings, problem):
    assert Fragments(**settings).problems("0-4,4-2") == [problem]
    assert PAPER.problems("1-4,4-32") == []
