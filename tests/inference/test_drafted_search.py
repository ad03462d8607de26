"""Greedy search with drafts finds the hypotheses of the search without them, whatever is drafted."""

from dataclasses import replace

import numpy as np
import pytest
import searches
import torch
from searches import eager_model
from tiny import CLS, ENCODERS, MASK, PAD, SEP, UNK, VOCAB_SIZE, padded, tiny_form, words

from s2sft_fairseq.inference.drafted_search import DraftedSearch
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.objectives.objective import OBJECTIVES

pytestmark = pytest.mark.rounding

SPECIALS = (PAD, UNK, CLS, MASK)
GREEDY = SearchOptions(beam=1, max_len_b=12, never_generated=SPECIALS)
LENGTHS = (7, 0, 2, 12, 5, 3)


@pytest.fixture(scope="module")
def sources():
    rng = np.random.default_rng(31)
    return [words(rng, length) for length in LENGTHS]


def search(models, options, sources, method="pseudo_masked", prefixes=None):
    return searches.search(models, options, sources, method, prefixes)


def assert_equal(drafted, plain):
    for ours, theirs in zip(drafted, plain, strict=True):
        assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
        for one, other in zip(ours, theirs, strict=True):
            torch.testing.assert_close(one["score"], other["score"], atol=1e-4, rtol=0)
            torch.testing.assert_close(one["positional_scores"], other["positional_scores"], atol=1e-4, rtol=0)


class Oracle:
    """Drafts the hypotheses of the search without drafts, with mistakes at chosen places."""

    ahead, behind, in_block = 0, None, False

    def __init__(self, hypotheses, count, mistakes=0.0):
        self.hypotheses, self.count, self.mistakes = list(hypotheses), count, mistakes
        self.rng = np.random.default_rng(3)

    def next(self, tokens, further, right):
        rows = []
        for hypothesis, row in zip(self.hypotheses, tokens.tolist(), strict=True):
            done = len([token for token in row if token != PAD])
            draft = [*hypothesis[done : done + self.count], *[9] * self.count][: self.count]
            rows.append([5 if self.rng.random() < self.mistakes else token for token in draft])
        return torch.tensor(rows, dtype=torch.int64).view(len(tokens), self.count)

    def keep_sentences(self, left):
        self.hypotheses = [self.hypotheses[index] for index in left.tolist()]


def follow(model, sources, drafts, method="pseudo_masked", options=GREEDY):
    """Return the hypotheses of a search with given drafts, and the number of its steps."""
    form = tiny_form(method)
    source = padded([form.source(ids) for ids in sources])
    with torch.inference_mode():
        drafted = DraftedSearch([model], form, options, source)
        drafts.keep_sentences(drafted.sentences)
        drafted.drafts = drafts
        steps = 1
        while drafted.step():
            steps += 1
    return drafted.results, steps


KINDS = {
    "placeholders": {"draft_placeholders": 1},
    "more placeholders": {"draft_placeholders": 3},
    "source": {"draft_source": 1},
    "more of the source": {"draft_source": 4},
    "block": {"draft_blocks": 1},
    "a longer block": {"draft_blocks": 3},
    "blocks as they pay": {"draft_blocks": -1},
}


# A causal model has no placeholders to draft at.
CASES = [
    (method, kind) for method in OBJECTIVES for kind in KINDS if method != "causal" or "draft_source" in KINDS[kind]
]


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize(("method", "kind"), CASES)
def test_the_same_hypotheses(sources, method, kind, encoder):
    models = [eager_model(5, **encoder)]
    assert_equal(
        search(models, replace(GREEDY, **KINDS[kind]), sources, method), search(models, GREEDY, sources, method)
    )


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_beyond_the_last_position(sources, kind):
    """A model whose positions are just enough for the longest source and hypothesis has none for drafts after them."""
    models = [eager_model(5, max_positions=max(LENGTHS) + 2 + GREEDY.max_len_b + 1, eos=-9.0)]
    plain = search(models, GREEDY, sources)
    assert_equal(search(models, replace(GREEDY, **kind), sources), plain)
    assert max(len(best["tokens"]) for best, *_ in plain) == GREEDY.max_len_b + 1


OPTIONS = {
    "at least 4 tokens": {"min_len": 4},
    "no least length": {"min_len": 0},
    "at most 3 tokens": {"max_len_b": 3},
    "as the source": {"max_len_a": 0.5, "max_len_b": 1},
    "nothing forbidden": {"never_generated": ()},
    "gnmt": {"length_penalty": "gnmt", "lenpen": 0.7},
    "hot": {"temperature": 2.0},
    "unfinished kept": {"keep_unfinished": True, "max_len_b": 4},
}


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_every_option(sources, kind, changes):
    models, options = [eager_model(6)], replace(GREEDY, **changes)
    assert_equal(search(models, replace(options, **kind), sources), search(models, options, sources))


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS)
def test_prefixes_ngrams_and_ensembles(sources, kind):
    models = [eager_model(7, eos=-1.0), eager_model(8, eos=-1.0)]
    prefixes = [(9, 10, 11), (9,), (), (9, 10, SEP), (UNK, 7, 7), tuple(range(10, 24))]
    drafted = replace(GREEDY, **kind)
    assert_equal(
        search(models, drafted, sources, prefixes=prefixes), search(models, GREEDY, sources, prefixes=prefixes)
    )
    # Only a few words, so that hypotheses repeat themselves.
    few = {"min_len": 6, "never_generated": (*SPECIALS, *range(8, VOCAB_SIZE))}
    for size in (1, 2, 3):
        blocked = {**few, "no_repeat_ngram_size": size, "never_blocked": (6,)}
        with_drafts = search(models, replace(drafted, **blocked), sources)
        assert_equal(with_drafts, search(models, replace(GREEDY, **blocked), sources))


@pytest.mark.parametrize("method", list(OBJECTIVES))
@pytest.mark.parametrize("mistakes", [0.0, 0.3, 1.0])
def test_right_and_wrong_drafts(sources, method, mistakes):
    """Any drafts give the same hypotheses; right ones save steps, wrong ones cost none."""
    model = eager_model(9, eos=-0.5)
    plain = search([model], GREEDY, sources, method)
    truth = [hypotheses[0]["tokens"].tolist() for hypotheses in plain]
    longest = max(map(len, truth))
    assert longest > 6
    for count in (1, 2, 5):
        results, steps = follow(model, sources, Oracle(truth, count, mistakes), method)
        assert_equal(results, plain)
        if mistakes == 0:
            # The first step has no drafts.
            assert steps == 1 + -(-(longest - 1) // (count + 1))
        else:
            assert steps <= longest
    if mistakes == 1:
        assert steps == longest


@pytest.mark.parametrize("changes", [{"draft_placeholders": 2}, {"draft_source": 2}])
def test_nothing_may_follow(sources, changes):
    """Every token is forbidden: there is no hypothesis, as without drafts."""
    options = replace(GREEDY, never_generated=tuple(range(VOCAB_SIZE)))
    models = [eager_model(5)]
    found = search(models, replace(options, **changes), sources)
    assert_equal(found, search(models, options, sources))
    assert found[0] == []
