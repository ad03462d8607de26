"""Plans of drafts from the cost of passes and the share of right drafts, on machines with given costs."""

import numpy as np
import pytest

from s2sft_fairseq.inference.draft_planner import (
    FIRST_DRAFTS,
    MOST_DRAFTS,
    PASSES_BETWEEN_TRIALS,
    DraftPlanner,
    Plan,
)


class Machine:
    """Passes with a given cost; each draft is right with a chance, and the model states a probability for it."""

    def __init__(self, fixed, per_row, chance, *, said=None, sentences=1):
        self.fixed, self.per_row, self.chance = fixed, per_row, chance
        self.said, self.sentences = chance if said is None else said, sentences
        self.rng = np.random.default_rng(0)

    def run(self, planner, passes):
        """Return the plans of passes, and the tokens per second of their last half."""
        plans, tokens, seconds = [], [], []
        probabilities = np.zeros((self.sentences, 0))
        for _ in range(passes):
            plan = planner.plan(probabilities)
            probabilities = probabilities[:, : plan.drafts]
            rows = self.sentences * plan.rows()
            lucky = (self.rng.random(probabilities.shape) < self.chance) & (probabilities > 0)
            right = np.cumprod(lucky, axis=1).sum(axis=1)
            plans.append(plan)
            tokens.append((right + 1).sum())
            seconds.append(self.fixed + self.per_row * rows)
            planner.observe(rows, seconds[-1], probabilities, right)
            has_block = np.isin(right, plan.behind)
            probabilities = np.where(has_block[:, None], self.said, np.zeros((1, plan.ahead)))
        half = passes // 2
        return plans, sum(tokens[half:]) / sum(seconds[half:])


def speed(drafts, fixed, per_row, chance):
    """Return the tokens per second of one sentence with a fixed number of drafts and a block after each prefix."""
    rows = Plan(drafts, tuple(range(drafts + 1)), drafts).rows()
    return sum(chance**d for d in range(drafts + 1)) / (fixed + per_row * rows)


def test_rows():
    """The newest token and drafts, a placeholder of the next token after each, and a block after each prefix."""
    assert Plan(0, (), 0).rows() == 2
    assert Plan(3, (0, 1, 2, 3), 3).rows() == 4 + 4 + 4 * 4
    assert Plan(3, (0, 3), 2).rows() == 4 + 4 + 2 * 3


def test_before_anything_is_known():
    planner = DraftPlanner()
    assert planner.plan(np.zeros((2, 0))) == Plan(0, (0,), FIRST_DRAFTS)
    planner.observe(10, 1.0, np.zeros((2, 0)), np.array([0, 0]))
    assert planner.plan(np.full((2, 3), 0.5)) == Plan(3, (0, 1, 2, 3), FIRST_DRAFTS)


@pytest.mark.parametrize("chance", [0.1, 0.5, 0.8, 0.95])
@pytest.mark.parametrize(("fixed", "per_row"), [(10.0, 0.01), (10.0, 0.3), (10.0, 0.5), (1.0, 1.0)])
def test_it_is_as_fast_as_the_best_fixed_number(fixed, per_row, chance):
    _, found = Machine(fixed, per_row, chance).run(DraftPlanner(), 2000)
    assert found > 0.93 * max(speed(drafts, fixed, per_row, chance) for drafts in range(MOST_DRAFTS + 1))


def test_blocks_follow_only_likely_prefixes():
    """Nearly all drafts are right: one block after the last is enough, and faster than a block after each."""
    plans, found = Machine(10.0, 0.3, 0.9).run(DraftPlanner(), 1000)
    assert np.mean([len(plan.behind) for plan in plans[500:]]) < 2.5
    assert found > 1.1 * max(speed(drafts, 10.0, 0.3, 0.9) for drafts in range(MOST_DRAFTS + 1))


def test_probabilities_are_calibrated():
    """A confident model that is wrong is not trusted; an unconfident one that is right is."""
    plans, _ = Machine(10.0, 0.5, 0.02, said=0.95).run(DraftPlanner(), 1000)
    assert np.mean([plan.drafts for plan in plans[500:]]) < 0.2
    plans, _ = Machine(10.0, 0.1, 0.95, said=0.15).run(DraftPlanner(), 1000)
    assert np.mean([plan.drafts for plan in plans[500:]]) > 3


def test_larger_batches_draft_less():
    few, many = (Machine(20.0, 0.1, 0.8, sentences=count).run(DraftPlanner(), 400)[0] for count in (1, 64))
    assert np.mean([plan.rows() for plan in many[200:]]) < np.mean([plan.rows() for plan in few[200:]])


def test_it_tries_again():
    """If drafts do not pay, there are none except for one trial every few passes."""
    plans, _ = Machine(0.1, 5.0, 0.2).run(DraftPlanner(), 400)
    ahead = np.array([plan.ahead for plan in plans[2 * PASSES_BETWEEN_TRIALS :]])
    assert ahead.max() == 1
    assert ahead.mean() == pytest.approx(1 / PASSES_BETWEEN_TRIALS, abs=0.02)


def test_another_machine_load_is_noticed():
    """Older passes count less."""
    planner = DraftPlanner()
    plans, _ = Machine(50.0, 0.01, 0.9).run(planner, 400)
    assert np.median([plan.drafts for plan in plans[200:]]) == MOST_DRAFTS
    plans, _ = Machine(0.01, 5.0, 0.9).run(planner, 400)
    assert np.mean([plan.drafts for plan in plans[300:]]) < 1
