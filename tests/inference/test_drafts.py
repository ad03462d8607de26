"""Drafts: from the source, compared with plain Python, and from placeholders."""

import numpy as np
import pytest
import torch

from s2sft_fairseq.inference.draft_planner import Plan
from s2sft_fairseq.inference.drafts import LONGEST_MATCH, PlaceholderDrafts, PlannedDrafts, SourceDrafts

PAD = 0
NOTHING = torch.zeros(0)


def naive(source, tokens, count):
    """Return the tokens after the first place in the source that matches most of the last tokens, or None."""
    best, place = 0, None
    for position in range(len(source)):
        length = 0
        while (
            length < min(LONGEST_MATCH, len(tokens), position + 1)
            and source[position - length] == tokens[-1 - length] != PAD
        ):
            length += 1
        if length > best:
            best, place = length, position
    if place is None:
        return None
    following = source[place + 1 : place + 1 + count]
    return following + [PAD] * (count - len(following))


@pytest.mark.parametrize("count", [1, 3, 8])
def test_source_drafts_are_those_of_plain_python(count):
    rng = np.random.default_rng(count)
    found = 0
    for _ in range(60):
        sources = [rng.integers(1, 5, rng.integers(1, 12)).tolist() for _ in range(6)]
        tokens = [rng.integers(1, 6, rng.integers(0, 6)).tolist() for _ in range(6)]
        width, longest = max(map(len, sources)), max(map(len, tokens))
        source = torch.tensor([row + [PAD] * (width - len(row)) for row in sources])
        # Hypotheses are padded on the left.
        history = torch.tensor([[PAD] * (longest - len(row)) + row for row in tokens], dtype=torch.int64)
        drafts = SourceDrafts(count, source, PAD).next(history.view(6, longest), NOTHING, NOTHING)
        expected = [naive(row, end, count) for row, end in zip(sources, tokens, strict=True)]
        if any(expected):
            assert drafts.tolist() == [row or [PAD] * count for row in expected]
            found += sum(row is not None for row in expected)
        else:
            assert drafts.shape == (6, 0)
    assert found > 100


def test_the_longest_match_counts_and_then_the_first():
    drafts = SourceDrafts(2, torch.tensor([[7, 8, 5, 6, 7, 9, 6, 7, 4]]), PAD)
    assert drafts.next(torch.tensor([[6, 7]]), NOTHING, NOTHING).tolist() == [[9, 6]]
    assert drafts.next(torch.tensor([[2, 7]]), NOTHING, NOTHING).tolist() == [[8, 5]]
    assert drafts.next(torch.tensor([[9, 6, 7]]), NOTHING, NOTHING).tolist() == [[4, PAD]]


def test_without_a_match_there_is_no_draft():
    drafts = SourceDrafts(3, torch.tensor([[5, 6, PAD], [7, 8, 9]]), PAD)
    assert drafts.next(torch.tensor([[1], [2]]), NOTHING, NOTHING).shape == (2, 0)
    assert drafts.next(torch.zeros(2, 0, dtype=torch.int64), NOTHING, NOTHING).shape == (2, 0)
    # Padding of a source and of a hypothesis does not match.
    assert drafts.next(torch.tensor([[PAD], [8]]), NOTHING, NOTHING).tolist() == [[PAD] * 3, [9, PAD, PAD]]


def test_sources_leave_with_their_sentences():
    drafts = SourceDrafts(1, torch.tensor([[5, 6], [5, 7], [5, 8]]), PAD)
    drafts.keep_sentences(torch.tensor([0, 2]))
    assert drafts.next(torch.tensor([[5], [5]]), NOTHING, NOTHING).tolist() == [[6], [8]]


def test_placeholders_draft_the_most_probable_allowed_token():
    drafts = PlaceholderDrafts(2, never_generated=torch.tensor([0, 3]))
    assert drafts.ahead == 2
    # Scores after two prefixes. The second prefix is the right one.
    scores = torch.tensor([[[[9.0] * 4] * 2, [[9.0, 1.0, 2.0, 8.0], [0.0, 5.0, 4.0, 6.0]]]])
    assert drafts.next(torch.tensor([[1]]), scores, torch.tensor([1])).tolist() == [[2, 1]]


class Planner:
    """Returns the test's plans, and records its calls."""

    def __init__(self, *plans):
        self.plans, self.told = list(plans), []

    def plan(self, probabilities):
        self.told.append(probabilities.tolist())
        return self.plans.pop(0)

    def observe(self, rows, seconds, probabilities, right):
        self.told.append((rows, probabilities.tolist(), right.tolist()))


def test_planned_drafts():
    """Two sentences: a block follows the prefix of the first one, none that of the second one."""
    planner = Planner(Plan(0, (0,), 1), Plan(1, (1,), 2), Plan(1, (0, 1), 1))
    drafts = PlannedDrafts(planner, never_generated=torch.tensor([0]), pad=PAD, sentences=2)
    assert (drafts.ahead, drafts.behind) == (1, (0,))
    half = torch.tensor([[[[-torch.inf, 0.0, 0.0, -torch.inf]]]] * 2)
    found = drafts.next(torch.zeros(2, 1), half, torch.tensor([0, 0]))
    assert found.tolist() == [[1], [1]]
    assert planner.told[1:] == [(2 * 4, [[], []], [0, 0]), [[0.5], [0.5]]]
    sure = torch.tensor([[[[9.0, -torch.inf, -torch.inf, 0.0], [9.0, -torch.inf, 0.0, -torch.inf]]]] * 2)
    found = drafts.next(torch.zeros(2, 3), sure, torch.tensor([1, 0]))
    assert found.tolist() == [[3], [PAD]]  # as many as planned
    assert planner.told[3:] == [(2 * 7, [[0.5], [0.5]], [1, 0]), [[1.0, 1.0], [0.0, 0.0]]]
    drafts.keep_sentences(torch.tensor([1]))
    assert drafts.probabilities.tolist() == [[0.0]]
