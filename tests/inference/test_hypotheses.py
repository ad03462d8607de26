"""The list of ended hypotheses compared with sorted Python lists; scores of references equal those of generation."""

import numpy as np
import pytest
import torch
from naive_search import next_log_probs
from tiny import CLS, MASK, PAD, SEP, UNK, objective_of, padded, tiny_form, tiny_model, words

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.hypotheses import FinishedHypotheses, ReferenceScorer
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.sequence_form import SourceFields

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
            (exported,) = finished.of(torch.tensor([sentence]), KEPT)
            assert [h["score"].item() for h in exported] == [score for score, _, _ in kept]
            assert [h["tokens"].tolist() for h in exported] == [tokens for _, tokens, _ in kept]
            assert [h["positional_scores"].tolist() for h in exported] == [log_probs for _, _, log_probs in kept]
            for wanted in (1, 2, KEPT):
                assert len(finished.of(torch.tensor([sentence]), wanted)[0]) == min(wanted, len(kept))
                worst = kept[wanted - 1][0] if len(kept) >= wanted else float("-inf")
                assert finished.worst(wanted)[sentence].item() == worst


def test_sentences_that_leave():
    finished, expected = run(7, leave_at=3)
    assert len(expected) == 2
    for exported, hypotheses in zip(finished.of(torch.tensor([0, 1]), KEPT), expected, strict=True):
        assert [h["tokens"].tolist() for h in exported] == [tokens for _, tokens, _ in hypotheses[:KEPT]]


def test_nothing_yet():
    finished = FinishedHypotheses(2, 3, 4, torch.device("cpu"))
    assert finished.counts().tolist() == [0, 0]
    assert finished.worst(3).tolist() == [float("-inf")] * 2
    assert finished.of(torch.tensor([1, 0]), 3) == [[], []]
    # A candidate that did not end is not added, whatever its score.
    finished.add(
        torch.tensor([[False], [True]]), torch.tensor([[9.0], [-1.0]]), torch.ones(2, 1, 1).long(), torch.ones(2, 1, 1)
    )
    assert finished.counts().tolist() == [0, 1]


SOURCE_LENGTHS, TARGET_LENGTHS = (6, 0, 3, 11), (4, 2, 0, 8)


@pytest.fixture
def pairs():
    rng = np.random.default_rng(31)
    return [(words(rng, s), words(rng, t)) for s, t in zip(SOURCE_LENGTHS, TARGET_LENGTHS, strict=True)]


def sample_of(form, pairs):
    return {
        "net_input": {"src_tokens": padded([form.source(source) for source, _ in pairs])},
        "target": padded([form.target(target) for _, target in pairs]),
    }


@pytest.mark.parametrize("count", [1, 2])
@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_step_by_step(pairs, method, count):
    form = tiny_form(method)
    models = [tiny_model(seed, relative=seed == 1) for seed in range(count)]
    results = ReferenceScorer(models, form, objective_of(form)).generate(models, sample_of(form, pairs))
    for (source, target), (hypothesis,) in zip(pairs, results, strict=True):
        clean = form.target(target)
        assert hypothesis["tokens"].tolist() == clean.tolist()
        expected = [
            next_log_probs(models, form, source, [tuple(clean[:i])], 1.0)[0, token] for i, token in enumerate(clean)
        ]
        np.testing.assert_allclose(hypothesis["positional_scores"].numpy(), expected, atol=1e-4, rtol=0)
        assert hypothesis["score"].item() == pytest.approx(np.mean(expected), abs=1e-4)


@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_generated_targets_get_their_own_scores_back(pairs, method):
    form = tiny_form(method)
    models = [tiny_model(2), tiny_model(3)]
    options = SearchOptions(beam=3, max_len_b=9, never_generated=(PAD, UNK, CLS, MASK))
    sample = sample_of(form, pairs)
    best = [hypotheses[0] for hypotheses in SequenceGenerator(models, form, options).generate(models, sample)]
    scored = ReferenceScorer(models, form, objective_of(form)).generate(
        models, {**sample, "target": padded([hypothesis["tokens"].numpy() for hypothesis in best])}
    )
    for generated, (again,) in zip(best, scored, strict=True):
        assert again["tokens"].tolist() == generated["tokens"].tolist()
        torch.testing.assert_close(again["positional_scores"], generated["positional_scores"], atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(again["score"], generated["score"], atol=1e-5, rtol=1e-5)


def test_cut_references(pairs):
    form = tiny_form(max_source=6, max_target=4)
    models = [tiny_model(4)]
    results = ReferenceScorer(models, form, objective_of(form)).generate(models, sample_of(form, pairs))
    assert [len(hypothesis["tokens"]) for (hypothesis,) in results] == [4, 3, 1, 4]
    assert all(hypothesis["tokens"][-1] == SEP for (hypothesis,) in results)


@pytest.mark.parametrize("limits", [(0,), (3, 6), (0, 4)])
@pytest.mark.parametrize("truncation", [("right",), ("left",), ("right", "left")])
@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_cut_sources_of_several_fields_get_their_own_scores_back(method, truncation, limits):
    """The source of a batch is laid out and cut; the scorer must not cut it or count its fields again."""
    rules = SourceFields(segments=(0, 1, 2), truncation=truncation, limits=limits)
    form = tiny_form(method, fields=rules, max_source=11)
    rng = np.random.default_rng(32)
    fields = [
        [words(rng, length) for length in lengths] for lengths in ((2, 7), (8, 1, 7), (0, 3), (4, 3, 0, 5), (12,))
    ]
    pairs = [(np.concatenate([np.append(field, SEP) for field in each])[:-1], words(rng, 3)) for each in fields]
    models = [tiny_model(5, num_segments=3)]
    sample = sample_of(form, pairs)
    options = SearchOptions(beam=2, max_len_b=6, never_generated=(PAD, UNK, CLS, MASK))
    best = [hypotheses[0] for hypotheses in SequenceGenerator(models, form, options).generate(models, sample)]
    scored = ReferenceScorer(models, form, objective_of(form)).generate(
        models, {**sample, "target": padded([hypothesis["tokens"].numpy() for hypothesis in best])}
    )
    for (source, _), generated, (again,) in zip(pairs, best, scored, strict=True):
        torch.testing.assert_close(again["positional_scores"], generated["positional_scores"], atol=1e-5, rtol=1e-5)
        expected = next_log_probs(models, form, source, [()], 1.0)[0, generated["tokens"][0]]
        assert generated["positional_scores"][0].item() == pytest.approx(expected, abs=1e-4)


def test_sources_alone_cannot_be_scored(pairs):
    form = tiny_form()
    with pytest.raises(UserError, match=r"^--score-reference needs targets, but the data has sources alone$"):
        ReferenceScorer([], form, objective_of(form)).generate([], {**sample_of(form, pairs), "target": None})
