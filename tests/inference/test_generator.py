"""Beam search and sampling compared with a naive search that runs a full pass at each step."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from naive_search import naive_search, next_log_probs
from tiny import CLS, ENCODERS, MASK, PAD, SEP, UNK, VOCAB_SIZE, padded, tiny_form, tiny_model, words

from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.options import EARLY_STOPS, SearchOptions
from s2sft_fairseq.objectives.objective import OBJECTIVES

pytestmark = pytest.mark.rounding

SPECIALS = (PAD, UNK, CLS, MASK)
BASE = SearchOptions(beam=4, max_len_b=9, never_generated=SPECIALS)
SAMPLED = replace(BASE, sampling=True)
LENGTHS = (7, 0, 2, 12)
CLOSE = 1e-5
"""Scores with smaller differences can be ranked either way: they are of the order of 10, in float32."""


def eager_model(seed, eos=2.5, **sizes):
    """Return a model whose hypotheses end early enough to have many lengths."""
    model = tiny_model(seed, **sizes)
    with torch.no_grad():
        model.lm_head.bias[SEP] += eos
    return model


@pytest.fixture(scope="module")
def models():
    return [eager_model(seed, relative=seed == 1) for seed in range(3)]


@pytest.fixture(scope="module")
def sources():
    rng = np.random.default_rng(21)
    return [words(rng, length) for length in LENGTHS]


def search(models, options, sources, prefixes=None, method="pseudo_masked"):
    form = tiny_form(method)
    sample = {"net_input": {"src_tokens": padded([form.source(source) for source in sources])}}
    prefix_tokens = None if prefixes is None else padded([np.array(prefix, dtype=np.int64) for prefix in prefixes])
    return SequenceGenerator(models, form, options).generate(models, sample, prefix_tokens=prefix_tokens)


def assert_equal(results, expected):
    """Compare hypotheses: the same in the same order, with the same scores."""
    assert len(results) == len(expected)
    for hypotheses, naive in zip(results, expected, strict=True):
        assert [tuple(h["tokens"].tolist()) for h in hypotheses] == [h.tokens for h in naive]
        for ours, theirs in zip(hypotheses, naive, strict=True):
            assert ours["score"].item() == pytest.approx(theirs.score, abs=1e-4)
            np.testing.assert_allclose(ours["positional_scores"].numpy(), theirs.log_probs, atol=1e-4, rtol=0)


def assert_as_naive(models, options, sources, prefixes=None, method="pseudo_masked"):
    results = search(models, options, sources, prefixes, method)
    form = tiny_form(method)
    clear = []
    for source, prefix, found in zip(sources, prefixes or [()] * len(sources), results, strict=True):
        gaps = []
        expected = naive_search(models, form, options, source, prefix, gaps)
        if min(gaps, default=CLOSE) >= CLOSE:
            clear.append((found, expected))
    assert len(clear) >= len(sources) / 2
    assert_equal(*zip(*clear, strict=True))
    return results


OPTIONS = {
    "greedy": {"beam": 1},
    "beam 2": {"beam": 2},
    "beam 4": {},
    "beam 7": {"beam": 7},
    "at least 4 tokens": {"min_len": 4},
    "no least length": {"min_len": 0},
    "at most 3 tokens": {"max_len_b": 3},
    "at most 0 tokens": {"max_len_b": 0},
    "as the source": {"max_len_a": 0.5, "max_len_b": 1},
    "the model's limit": {"max_len_b": 200, "min_len": 13},
    "some words forbidden": {"never_generated": (*SPECIALS, *range(5, 30))},
    "nothing forbidden": {"never_generated": ()},
    "no length penalty": {"lenpen": 0.0},
    "strong length penalty": {"lenpen": 2.5},
    "negative length penalty": {"lenpen": -1.0},
    "gnmt": {"length_penalty": "gnmt", "lenpen": 0.7},
    "hot": {"temperature": 2.0},
    "cold": {"temperature": 0.5},
}


@pytest.mark.parametrize("keep_unfinished", [False, True])
@pytest.mark.parametrize("early_stop", EARLY_STOPS)
@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_as_the_naive_search(models, sources, changes, early_stop, keep_unfinished):
    options = replace(BASE, early_stop=early_stop, keep_unfinished=keep_unfinished, **changes)
    assert_as_naive(models[:1], options, sources)


@pytest.mark.parametrize("keep_unfinished", [False, True])
@pytest.mark.parametrize("lenpen", [0.0, 0.6, 2.0])
def test_ended_hypotheses_that_are_ranked_at_each_step(models, sources, lenpen, keep_unfinished):
    """In ERNIE-GEN's beam, they keep a place until better ones displace them."""
    changes = {"lenpen": lenpen, "length_penalty": "gnmt", "keep_unfinished": keep_unfinished}
    options = replace(BASE, rank_each_step=True, **changes)
    results = assert_as_naive(models[:1], options, sources, method="infilling")
    others = search(models[:1], replace(options, rank_each_step=False), sources, method="infilling")
    assert [[h["tokens"].tolist() for h in each] for each in results] != [
        [h["tokens"].tolist() for h in each] for each in others
    ]


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_every_method(sources, method, encoder):
    results = assert_as_naive([eager_model(6, **encoder)], BASE, sources, method=method)
    assert len({len(h["tokens"]) for hypotheses in results for h in hypotheses}) > 2, (
        "nothing but one length was tested"
    )


@pytest.mark.parametrize("early_stop", EARLY_STOPS)
def test_ensembles_average_probabilities(models, sources, early_stop):
    results = assert_as_naive(models[:2], replace(BASE, early_stop=early_stop), sources)
    single = search(models[:1], replace(BASE, early_stop=early_stop), sources)
    assert [h[0]["tokens"].tolist() for h in results] != [h[0]["tokens"].tolist() for h in single]
    assert_as_naive(models, BASE, sources)


def test_an_ensemble_of_one_model_twice_is_that_model(models, sources):
    for twice, once in zip(search(models[:1] * 2, BASE, sources), search(models[:1], BASE, sources), strict=True):
        assert [h["tokens"].tolist() for h in twice] == [h["tokens"].tolist() for h in once]
        torch.testing.assert_close([h["score"] for h in twice], [h["score"] for h in once])


PREFIXES = {
    "of one length": [(9, 10)] * 4,
    "of several lengths": [(9, 10, 11), (9,), (), (9, 10, 11, 12, 13)],
    "with eos": [(9, SEP), (9,), (SEP,), (9, 10, 11, SEP)],
    "with special symbols": [(UNK, 9), (9,), (MASK,), (CLS, 9)],
    "longer than the limit": [tuple(range(10, 22)), (9,), tuple(range(10, 19)), tuple(range(10, 20))],
}


@pytest.mark.parametrize("keep_unfinished", [False, True])
@pytest.mark.parametrize("early_stop", EARLY_STOPS)
@pytest.mark.parametrize("prefixes", PREFIXES.values(), ids=PREFIXES)
def test_prefixes(models, sources, prefixes, early_stop, keep_unfinished):
    options = replace(BASE, early_stop=early_stop, keep_unfinished=keep_unfinished)
    results = assert_as_naive(models[:1], options, sources, prefixes)
    for source, prefix, hypotheses in zip(sources, prefixes, results, strict=True):
        assert hypotheses, "a sentence without any hypothesis"
        for hypothesis in hypotheses:
            begin = hypothesis["tokens"].tolist()[: len(prefix)]
            expected = list(prefix)[: len(begin)] if len(source) else [SEP]
            if len(prefix) > BASE.max_len_b and not keep_unfinished and len(source):
                expected[BASE.max_len_b :] = [SEP]
            assert begin == expected


@pytest.mark.parametrize("size", [1, 2, 3])
@pytest.mark.parametrize("ignore", [(), (7, 20)])
def test_ngram_blocking(sources, size, ignore):
    # Only a few words, so that hypotheses repeat themselves.
    model = eager_model(6, eos=-1.0)
    options = replace(
        BASE, min_len=6, max_len_b=10, never_generated=(*SPECIALS, *range(10, 20), *range(24, VOCAB_SIZE))
    )
    blocking = replace(options, no_repeat_ngram_size=size, never_blocked=ignore)
    blocked = assert_as_naive([model], blocking, sources)
    free = search([model], options, sources)
    assert [h[0]["tokens"].tolist() for h in blocked] != [h[0]["tokens"].tolist() for h in free]
    for hypothesis in (h["tokens"].tolist() for hypotheses in blocked for h in hypotheses):
        ngrams = [tuple(hypothesis[i : i + size]) for i in range(len(hypothesis) - size + 1)]
        counted = [ngram for ngram in ngrams if not set(ngram) & set(ignore)]
        assert len(counted) == len(set(counted))


def test_an_empty_source_gives_an_empty_output(models, sources):
    for options in (BASE, replace(BASE, min_len=5), replace(BASE, keep_unfinished=True), replace(BASE, beam=1)):
        for method in OBJECTIVES:
            (hypothesis,) = search(models[:1], options, sources, method=method)[1]
            assert hypothesis["tokens"].tolist() == [SEP]
            assert hypothesis["score"].item() == pytest.approx(hypothesis["positional_scores"].item())
    ((alone,),) = search(models[:1], BASE, [sources[1]])
    assert alone["tokens"].tolist() == [SEP]


@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_a_source_of_empty_fields_is_empty(models, method):
    sources = [np.array(ids, dtype=np.int64) for ids in ([SEP], [SEP, SEP, SEP], [SEP, 9], [9, SEP])]
    results = search(models[:1], replace(BASE, min_len=2), sources, method=method)
    lengths = [max(len(h["tokens"]) for h in hypotheses) for hypotheses in results]
    assert lengths[:2] == [1, 1]
    assert min(lengths[2:]) >= 3


@pytest.mark.parametrize("options", [BASE, replace(BASE, early_stop="fairseq")])
def test_the_rest_of_the_batch_does_not_matter(models, sources, options):
    together = search(models[:2], options, sources)
    backwards = search(models[:2], options, sources[::-1])[::-1]
    alone = [search(models[:2], options, [source])[0] for source in sources]
    for results in (backwards, alone):
        for ours, theirs in zip(together, results, strict=True):
            assert [h["tokens"].tolist() for h in ours] == [h["tokens"].tolist() for h in theirs]
            torch.testing.assert_close([h["score"] for h in ours], [h["score"] for h in theirs])


def test_hypotheses_come_in_the_form_of_fairseq(models, sources):
    for hypotheses in search(models[:1], BASE, sources):
        assert 1 <= len(hypotheses) <= BASE.beam
        scores = [h["score"].item() for h in hypotheses]
        assert scores == sorted(scores, reverse=True)
        for hypothesis in hypotheses:
            assert sorted(hypothesis) == ["alignment", "attention", "positional_scores", "score", "tokens"]
            assert hypothesis["tokens"].tolist()[-1] == SEP
            assert hypothesis["tokens"].tolist().count(SEP) == 1
            assert len(hypothesis["tokens"]) == len(hypothesis["positional_scores"])
            assert hypothesis["score"].item() == pytest.approx(hypothesis["positional_scores"].mean().item(), rel=1e-5)


def test_specials_are_never_emitted(sources):
    """Not even by a model that gives high scores to specials only."""
    model = eager_model(7)
    with torch.no_grad():
        model.lm_head.bias[list(SPECIALS)] += 30
    narrowed = ({}, {"sampling_topk": 3}, {"sampling_topp": 0.9})
    for options in (BASE, *(replace(SAMPLED, **changes) for changes in narrowed)):
        torch.manual_seed(0)
        for hypotheses in search([model], options, sources):
            assert hypotheses
            for hypothesis in hypotheses:
                assert not set(hypothesis["tokens"].tolist()) & set(SPECIALS)


def test_training_mode_has_no_effect(sources):
    model = tiny_model(8, dropout=0.5, attention_dropout=0.5)
    expected = search([model], BASE, sources)
    model.train()
    for ours, theirs in zip(search([model], BASE, sources), expected, strict=True):
        torch.testing.assert_close([h["score"] for h in ours], [h["score"] for h in theirs])


# Sampling


def first_tokens(models, source, options, draws):
    """Return the first tokens of many samples: one sentence with this many beams."""
    (hypotheses,) = search(models, replace(options, beam=draws, max_len_b=1, min_len=1), [source])
    assert len(hypotheses) == draws
    return np.array([h["tokens"][0].item() for h in hypotheses])


def allowed_probabilities(models, source):
    """Return the probabilities of the first token, without specials and eos, normalized again."""
    log_probs = next_log_probs(models, tiny_form(), source, [()], 1.0)[0]
    log_probs[[*SPECIALS, SEP]] = -np.inf
    return np.exp(log_probs) / np.exp(log_probs).sum()


def top_k(probabilities, k):
    kept = np.where(probabilities >= np.sort(probabilities)[-k], probabilities, 0)
    return kept / kept.sum()


def top_p(probabilities, p):
    order = np.argsort(-probabilities)
    count = int(np.searchsorted(np.cumsum(probabilities[order]), p)) + 1
    kept = np.zeros_like(probabilities)
    kept[order[:count]] = probabilities[order[:count]]
    return kept / kept.sum()


SAMPLERS = {
    "all": ({}, lambda p: p),
    "top-k 1": ({"sampling_topk": 1}, lambda p: top_k(p, 1)),
    "top-k 4": ({"sampling_topk": 4}, lambda p: top_k(p, 4)),
    "top-p 0.6": ({"sampling_topp": 0.6}, lambda p: top_p(p, 0.6)),
    "top-p 0.01": ({"sampling_topp": 0.01}, lambda p: top_k(p, 1)),
    "top-p 1": ({"sampling_topp": 1.0}, lambda p: p),
    "top-k 3 of top-p 0.7": ({"sampling_topk": 3, "sampling_topp": 0.7}, lambda p: top_k(top_p(p, 0.7), 3)),
}


@pytest.mark.parametrize(("changes", "keep"), SAMPLERS.values(), ids=SAMPLERS)
def test_distribution_of_the_first_token(models, sources, changes, keep):
    torch.manual_seed(3)
    draws = 4000
    expected = keep(allowed_probabilities(models[:1], sources[0]))
    counts = np.bincount(first_tokens(models[:1], sources[0], replace(SAMPLED, **changes), draws), minlength=VOCAB_SIZE)
    assert not counts[expected == 0].any(), "a token was drawn that is not allowed"
    # Pearson's chi-squared over all frequent tokens and all others together: its mean and half its variance are its
    # degrees of freedom.
    often = expected * draws >= 5
    counts = np.append(counts[often], counts[~often].sum())
    means = draws * np.append(expected[often], expected[~often].sum())
    seen = means > 0
    chi_squared, freedom = ((counts - means)[seen] ** 2 / means[seen]).sum(), seen.sum() - 1
    assert abs(chi_squared - freedom) <= 3 * np.sqrt(2 * freedom) + 1e-9


def test_samples_are_those_of_the_seed(models, sources):
    def draw(seed):
        results = search(models[:1], replace(SAMPLED, seed=seed), sources)
        return [[h["tokens"].tolist() for h in hypotheses] for hypotheses in results]

    assert draw(5) == draw(5)
    assert draw(5) != draw(6)


def test_scores_of_samples_are_those_of_the_model(models, sources):
    """They are not those of the narrowed distribution from which the samples were drawn."""
    torch.manual_seed(2)
    narrow = replace(SAMPLED, sampling_topk=3, sampling_topp=0.5)
    for source, hypotheses in zip(sources, search(models[:1], narrow, sources), strict=True):
        for hypothesis in hypotheses:
            tokens = tuple(hypothesis["tokens"].tolist())
            for i, log_prob in enumerate(hypothesis["positional_scores"].tolist()):
                expected = next_log_probs(models[:1], tiny_form(), source, [tokens[:i]], 1.0)[0, tokens[i]]
                assert log_prob == pytest.approx(expected, abs=1e-4)


def test_sampling_after_a_prefix_without_probability(sources):
    """A forced token is drawn even if its probability is too small for a float."""
    model = eager_model(9)
    with torch.no_grad():
        model.lm_head.bias[9] -= 300
    for hypotheses in search([model], SAMPLED, sources, [(9, 10)] * 4):
        assert hypotheses
    assert all(h["tokens"].tolist()[:2] == [9, 10] for h in hypotheses)
