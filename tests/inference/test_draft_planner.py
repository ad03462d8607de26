"""How many tokens are drafted, by what passes cost and how often drafts are right."""

import numpy as np
import pytest

from s2sft_fairseq.inference.draft_planner import (
    FIRST_DRAFTS,
    MOST_DRAFTS,
    PASSES_BETWEEN_TRIALS,
    DraftPlanner,
    rows_of,
)


def run(planner, fixed, per_row, accepted, sentences=1, passes=200, seed=0):
    """The drafts of passes on a machine whose passes cost so much, where each draft is right with a probability."""
    rng, chosen, drafted = np.random.default_rng(seed), [], 0
    for _ in range(passes):
        ahead = planner.choose(sentences)
        rows = sentences * rows_of(drafted, ahead)
        right = np.cumprod(rng.random((sentences, max(drafted, 1))) < accepted, axis=1)[:, :drafted].sum(axis=1)
        planner.observe(rows, fixed + per_row * rows, drafted, right)
        chosen.append(drafted := ahead)
    return chosen


def speed(drafts, fixed, per_row, accepted):
    """Tokens a second of one sentence."""
    return sum(accepted**d for d in range(drafts + 1)) / (fixed + per_row * rows_of(drafts, drafts))


def test_rows():
    """Content, a placeholder of the next token behind each prefix, and a block behind each."""
    assert rows_of(0, 0) == 2
    assert rows_of(3, 3) == 4 + 4 + 4 * 4
    assert rows_of(2, 0) == 3 + 3


@pytest.mark.parametrize("accepted", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("fixed", "per_row"), [(10.0, 0.01), (10.0, 0.5), (1.0, 1.0)])
def test_it_finds_the_best_number(fixed, per_row, accepted):
    chosen = run(DraftPlanner(), fixed, per_row, accepted, passes=600)
    assert chosen[0] == FIRST_DRAFTS
    speeds = [speed(drafts, fixed, per_row, accepted) for drafts in range(MOST_DRAFTS + 1)]
    assert speeds[int(np.median(chosen[-100:]))] > 0.93 * max(speeds)


def test_larger_batches_draft_less():
    few, many = (np.median(run(DraftPlanner(), 20.0, 0.1, 0.8, sentences)[-60:]) for sentences in (1, 64))
    assert many < few


def test_it_tries_again():
    """Where drafts do not pay there are none, but for one trial every few passes."""
    chosen = np.array(run(DraftPlanner(), 0.1, 5.0, 0.2))
    assert chosen[PASSES_BETWEEN_TRIALS:].max() == 1
    assert (chosen[PASSES_BETWEEN_TRIALS:] == 1).mean() == pytest.approx(1 / PASSES_BETWEEN_TRIALS, abs=0.02)


def test_another_machine_load_is_noticed():
    """A pass counts less the longer it is over."""
    planner = DraftPlanner()
    run(planner, 50.0, 0.01, 0.9)
    assert planner.choose(1) == MOST_DRAFTS
    assert np.median(run(planner, 0.01, 5.0, 0.9)[-20:]) <= 1
