"""The list of ended hypotheses against sorted Python lists."""

import numpy as np
import torch

from s2sft_fairseq.inference.search import FinishedHypotheses

SENTENCES, KEPT, CANDIDATES, STEPS = 3, 4, 5, 6


def run(seed, leave_at=None):
    """Add random hypotheses of growing length; return the tensors and, per sentence, plain lists of all that ended."""
    rng = np.random.default_rng(seed)
    finished = FinishedHypotheses(SENTENCES, KEPT, STEPS, torch.device("cpu"))
    added = [[] for _ in range(SENTENCES)]
    for length in range(1, STEPS + 1):
        ended = rng.random((len(added), CANDIDATES)) < 0.4
        scores = -rng.random((len(added), CANDIDATES)).astype(np.float32)
        tokens = rng.integers(0, 99, (len(added), CANDIDATES, length))
        log_probs = rng.random((len(added), CANDIDATES, length)).astype(np.float32)
        finished.add(*(torch.from_numpy(array) for array in (ended, scores, tokens, log_probs)))
        for sentence, c in zip(*np.nonzero(ended), strict=True):
            added[sentence].append((scores[sentence, c], tokens[sentence, c].tolist(), log_probs[sentence, c].tolist()))
        if length == leave_at:
            finished.keep_sentences(torch.tensor([0, 2]))
            added = [added[0], added[2]]
    return finished, [sorted(hypotheses, reverse=True) for hypotheses in added]


def test_the_best_are_kept():
    for seed in range(5):
        finished, expected = run(seed)
        assert finished.counts().tolist() == [min(len(hypotheses), KEPT) for hypotheses in expected]
        for sentence, hypotheses in enumerate(expected):
            kept = hypotheses[:KEPT]
            exported = finished.of(sentence, KEPT)
            assert [h["score"].item() for h in exported] == [score for score, _, _ in kept]
            assert [h["tokens"].tolist() for h in exported] == [tokens for _, tokens, _ in kept]
            assert [h["positional_scores"].tolist() for h in exported] == [log_probs for _, _, log_probs in kept]
            for wanted in (1, 2, KEPT):
                assert len(finished.of(sentence, wanted)) == min(wanted, len(kept))
                worst = kept[wanted - 1][0] if len(kept) >= wanted else float("-inf")
                assert finished.worst(wanted)[sentence].item() == worst


def test_sentences_that_leave():
    finished, expected = run(7, leave_at=3)
    assert len(expected) == 2
    for sentence, hypotheses in enumerate(expected):
        assert [h["tokens"].tolist() for h in finished.of(sentence, KEPT)] == [
            tokens for _, tokens, _ in hypotheses[:KEPT]
        ]


def test_nothing_yet():
    finished = FinishedHypotheses(2, 3, 4, torch.device("cpu"))
    assert finished.counts().tolist() == [0, 0]
    assert finished.worst(3).tolist() == [float("-inf")] * 2
    assert finished.of(0, 3) == []
    # A candidate that did not end is not taken in, whatever its score.
    finished.add(
        torch.tensor([[False], [True]]), torch.tensor([[9.0], [-1.0]]), torch.ones(2, 1, 1).long(), torch.ones(2, 1, 1)
    )
    assert finished.counts().tolist() == [0, 1]
