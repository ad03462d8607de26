"""When a search ends: comparison with the naive search, which never stops early, on thousands of scripted models."""

from dataclasses import replace
from typing import NamedTuple

import naive_search
import numpy as np
import pytest
import torch
from scripted import RandomScript, Script, ScriptedDecoder, assert_same_hypotheses, scripted_log_probs
from tiny import CLS, FIRST_WORD, MASK, PAD, SEP, UNK, padded, tiny_form

from s2sft_fairseq.inference import search as searches
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.options import EARLY_STOPS, LENGTH_PENALTIES, SearchOptions

pytestmark = pytest.mark.rounding

VOCAB_SIZE, SENTENCES, BATCHES = 11, 25, 100
SPECIALS = (PAD, UNK, CLS, MASK)
CLOSE = 1e-4
"""Scores with smaller differences can be ranked either way: float32 loses about 1e-6 in these few additions."""


class Case(NamedTuple):
    """A batch and its search options."""

    options: SearchOptions
    models: list
    sources: list
    prefixes: list


@pytest.fixture
def scripted(monkeypatch):
    """Let searches read scripts in place of models."""
    monkeypatch.setattr(searches, "IncrementalDecoder", ScriptedDecoder)
    monkeypatch.setattr(naive_search, "next_log_probs", scripted_log_probs)


def random_case(seed):
    """Return random settings of everything that affects a score, a length, or the end of a search."""
    rng = np.random.default_rng(seed)

    def one_of(*values):
        return values[rng.integers(len(values))]

    beam = one_of(1, 2, 3, 4, 5)
    options = SearchOptions(
        beam=beam,
        nbest=one_of(None, 1, int(rng.integers(1, beam + 1))),
        max_len_a=one_of(0.0, 0.5),
        max_len_b=int(rng.integers(2, 11)),
        min_len=int(rng.integers(4)),
        length_penalty=one_of(*LENGTH_PENALTIES),
        lenpen=one_of(0.0, 0.6, 1.0, 1.3, 2.5, -0.4, -1.5),
        temperature=one_of(1.0, 0.6, 1.8),
        never_generated=SPECIALS,
        keep_unfinished=one_of(False, True),
        rank_each_step=one_of(False, False, True),
    )
    longest_prefix = one_of(1, 1, 4)
    case = Case(
        options,
        [RandomScript(int(seed), VOCAB_SIZE) for seed in rng.integers(1 << 30, size=one_of(1, 2, 3))],
        [rng.integers(FIRST_WORD, VOCAB_SIZE, size=rng.integers(8)) for _ in range(SENTENCES)],
        [rng.integers(FIRST_WORD, VOCAB_SIZE, size=rng.integers(longest_prefix)) for _ in range(SENTENCES)],
    )
    options = replace(options, no_repeat_ngram_size=one_of(0, 0, 1, 2))
    return case._replace(options=replace(options, count_ended=not options.rank_each_step and one_of(False, True)))


def search(case, **changes):
    """Return the results of a case, and the number of steps."""
    form = tiny_form()
    generator = SequenceGenerator(case.models, form, replace(case.options, **changes))
    sample = {"net_input": {"src_tokens": padded([form.source(source) for source in case.sources])}}
    prefixes = padded(case.prefixes)
    before = ScriptedDecoder.steps
    results = generator.generate([], sample, prefix_tokens=prefixes if prefixes.size(1) else None)
    return results, (ScriptedDecoder.steps - before) // len(case.models)


def compare_with_naive(case, results):
    """Compare each sentence that does not depend on rounding; return the number of these."""
    compared = 0
    for source, prefix, found in zip(case.sources, case.prefixes, results, strict=True):
        gaps = []
        expected = naive_search.naive_search(case.models, tiny_form(), case.options, source, prefix.tolist(), gaps=gaps)
        if min(gaps, default=1.0) > CLOSE:
            compared += 1
            assert_same_hypotheses(found, expected, (case.options, source, prefix))
    return compared


@pytest.mark.parametrize("part", range(4))
def test_the_exact_rule_finds_the_hypotheses_of_a_full_search(scripted, part):
    cases = [random_case(seed) for seed in range(part, BATCHES, 4)]
    compared = sum(compare_with_naive(case, search(case)[0]) for case in cases)
    assert compared > 0.9 * SENTENCES * len(cases)


class MemorisedTexts(Script):
    """Knows a text for each source: its next token has a probability of 0.9, all others share the rest.

    A prefix that differs from the text ends there, with the same probability.
    """

    def __init__(self, texts):
        self.texts = texts
        self.rest = np.random.default_rng(1).dirichlet(np.full(VOCAB_SIZE, 9.0)) / 10

    def __call__(self, source, prefix):
        text = self.texts[tuple(source)]
        probabilities = self.rest.copy()
        probabilities[text[len(prefix)] if tuple(prefix) == text[: len(prefix)] else SEP] += 0.9
        return np.log(probabilities)


def test_memorised_texts(scripted):
    """Fairseq's rule stops when five hypotheses have ended, long before the source's text is written."""
    rng = np.random.default_rng(3)
    sources = [np.array([FIRST_WORD + i % 6, FIRST_WORD + i // 6]) for i in range(20)]
    texts = [(*rng.integers(FIRST_WORD, VOCAB_SIZE, size=rng.integers(8, 15)).tolist(), SEP) for _ in sources]
    model = MemorisedTexts({(CLS, *source.tolist(), SEP): text for source, text in zip(sources, texts, strict=True)})
    case = Case(SearchOptions(never_generated=SPECIALS), [model], sources, [sources[0][:0]] * 20)

    def written(**changes):
        results, steps = search(case, **changes)
        found = [tuple(hypotheses[0]["tokens"].tolist()) for hypotheses in results]
        return sum(one == text for one, text in zip(found, texts, strict=True)), steps

    assert written()[0] == written(beam=1)[0] == written(early_stop="never")[0] == 20
    assert written(early_stop="fairseq")[0] < 5
    # If one hypothesis is wanted, the search ends as soon as the best is known, that is with the text.
    longest = max(map(len, texts))
    assert written(nbest=1) == (20, longest)
    assert longest < written()[1] <= written(early_stop="never")[1] == 16


@pytest.mark.parametrize("early_stop", EARLY_STOPS)
def test_as_many_hypotheses_as_wanted(scripted, early_stop):
    case = next(case for case in map(random_case, range(99)) if case.options.beam == 5)
    everything, most = search(case, nbest=None, early_stop=early_stop)
    for nbest in (5, 2, 1):
        results, steps = search(case, nbest=nbest, early_stop=early_stop)
        assert [[h["tokens"].tolist() for h in found] for found in results] == [
            [h["tokens"].tolist() for h in found[:nbest]] for found in everything
        ]
        assert steps <= most


def test_equal_scores_do_not_end_the_exact_search(scripted):
    """One text is certain, and all others are equally improbable, so any of them can be second."""
    options = SearchOptions(beam=3, max_len_b=6, lenpen=0.0, never_generated=SPECIALS)

    class Certain(RandomScript):
        def __call__(self, source, prefix):
            scores = np.full(VOCAB_SIZE, -1e4)
            scores[SEP if len(prefix) > 2 else FIRST_WORD] = 0.0
            return scores

    case = Case(options, [Certain(1, VOCAB_SIZE)], [np.array([7])], [np.array([], dtype=np.int64)])
    (exact,), (never,) = (search(case, early_stop=rule)[0] for rule in ("exact", "never"))
    assert [h["tokens"].tolist() for h in exact] == [h["tokens"].tolist() for h in never]


@pytest.mark.parametrize("early_stop", EARLY_STOPS)
def test_samples_do_not_depend_on_the_rule(scripted, early_stop):
    case = random_case(4)
    changes = {"no_repeat_ngram_size": 0, "rank_each_step": False, "keep_unfinished": False}
    options = replace(case.options, beam=4, nbest=None, sampling=True, **changes)

    def draw(rule):
        torch.manual_seed(3)
        results, _ = search(case._replace(options=options), early_stop=rule)
        return [[h["tokens"].tolist() for h in found] for found in results]

    assert draw(early_stop) == draw("never")
    assert max(len(found) for found in draw(early_stop)) == 4
