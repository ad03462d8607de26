"""Decoding in blocks compared with a search that reads everything again in each pass, with all options."""

from dataclasses import replace

import numpy as np
import pytest
import searches
import torch
from naive_block_search import naive_block_search, repeats
from searches import eager_model
from tiny import CLS, ENCODERS, MASK, PAD, UNK, VOCAB_SIZE, padded, tiny_form, words

from s2sft_fairseq.inference.block_search import BlockSearch
from s2sft_fairseq.inference.options import SearchOptions

pytestmark = pytest.mark.rounding

SPECIALS = (PAD, UNK, CLS, MASK)
BLOCKS = SearchOptions(beam=1, max_len_b=11, never_generated=SPECIALS, decode_blocks=4, confidence=0.6)
LENGTHS = (7, 0, 2, 12, 5, 3)


@pytest.fixture(scope="module")
def sources():
    rng = np.random.default_rng(31)
    return [words(rng, length) for length in LENGTHS]


def search(models, options, sources, method="blocks", prefixes=None):
    return searches.search(models, options, sources, method, prefixes)


def assert_naive(models, options, sources, method="blocks", prefixes=None):
    form, passes = tiny_form(method), 0
    found = search(models, options, sources, method, prefixes)
    for index, (source, ours) in enumerate(zip(sources, found, strict=True)):
        prefix = () if prefixes is None else prefixes[index]
        tokens, scores, of_sentence = naive_block_search(models, form, options, source, prefix)
        assert ours[0]["tokens"].tolist() == tokens
        torch.testing.assert_close(ours[0]["positional_scores"], torch.tensor(scores).float(), atol=1e-4, rtol=1e-4)
        total = sum(scores) / float(options.normalizer(torch.tensor(len(tokens))))
        assert float(ours[0]["score"]) == pytest.approx(total, abs=1e-4)
        passes += of_sentence
    return passes, sum(len(each[0]["tokens"]) for each in found)


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize("method", ["blocks", "infilling"])
def test_every_encoder(sources, encoder, method):
    """Also if the content of a target has a start symbol."""
    assert_naive([eager_model(5, **encoder)], BLOCKS, sources, method)


OPTIONS = {
    "a token": {"decode_blocks": 1},
    "two tokens": {"decode_blocks": 2},
    "the whole target": {"decode_blocks": 99},
    "the surest alone": {"confidence": 1.0},
    "all at once": {"confidence": 0.0},
    "two passes": {"decode_blocks": 6, "confidence": 1.0, "max_passes": 2},
    "one pass": {"decode_blocks": 6, "confidence": 1.0, "max_passes": 1},
    "at least 4 tokens": {"min_len": 4},
    "no least length": {"min_len": 0},
    "at most 3 tokens": {"max_len_b": 3},
    "as the source": {"max_len_a": 0.5, "max_len_b": 1},
    "as many as may be": {"max_len_b": 200, "decode_blocks": 5, "min_len": 15},
    "nothing forbidden but the placeholder": {"never_generated": (MASK,)},
    "gnmt": {"length_penalty": "gnmt", "lenpen": 0.7},
    "revised": {"revise": 0.5, "confidence": 0.3, "min_len": 6},
    "the whole target, revised": {"revise": 0.5, "confidence": 0.3, "min_len": 6, "decode_blocks": 99},
}


@pytest.mark.parametrize("changes", OPTIONS.values(), ids=OPTIONS)
def test_every_option(sources, changes):
    assert_naive([eager_model(6)], replace(BLOCKS, **changes), sources)


def test_confidence_saves_passes(sources):
    """At 1, each pass gives one token; without a threshold, each block takes one pass."""
    models = [eager_model(6, eos=-1.0)]
    passes, tokens = assert_naive(models, replace(BLOCKS, confidence=1.0), sources)
    few, of_few = assert_naive(models, replace(BLOCKS, confidence=0.0), sources)
    assert passes >= tokens * 0.9
    assert few <= of_few / 4 + len(sources)


def test_prefixes_and_ensembles(sources):
    models = [eager_model(7, eos=-1.0), eager_model(8, eos=-1.0)]
    prefixes = [(9, 10, 11), (9,), (), (9, 10, 12, 7, 6), (7, 7), (10,)]
    assert_naive(models, BLOCKS, sources, prefixes=prefixes)
    assert_naive(models, replace(BLOCKS, no_repeat_ngram_size=1, min_len=4), sources, prefixes=prefixes)


@pytest.mark.parametrize("size", [1, 2, 3])
def test_no_ngram_twice(sources, size):
    """Only few words are allowed, so they would repeat, also across tokens that were fixed further ahead."""
    few = {"min_len": 8, "never_generated": (*SPECIALS, *range(9 if size == 2 else 8 if size == 3 else 30, VOCAB_SIZE))}
    options = replace(BLOCKS, **few, no_repeat_ngram_size=size, never_blocked=(6,), decode_blocks=6, confidence=0.2)
    models = [eager_model(9)]
    assert_naive(models, options, sources)
    for hypotheses in search(models, options, sources):
        text = hypotheses[0]["tokens"].tolist()
        assert not any(repeats(text, place, token, size, {6}) for place, token in enumerate(text))


def test_sampling(sources):
    """Samples have the model's probabilities; with one candidate they are those of greedy search."""
    models = [eager_model(5)]
    torch.manual_seed(1)
    cold = search(models, replace(BLOCKS, sampling=True, temperature=1e-3), sources)
    greedy = search(models, replace(BLOCKS, confidence=1.0, temperature=1e-3), sources)
    assert [each[0]["tokens"].tolist() for each in cold if each] != []
    one = replace(BLOCKS, sampling=True, sampling_topk=1)
    assert [x[0]["tokens"].tolist() for x in search(models, one, sources)] == [
        x[0]["tokens"].tolist() for x in search(models, BLOCKS, sources)
    ]
    assert len(greedy) == len(cold)
    first = replace(BLOCKS, sampling=True, max_len_b=1, min_len=1, decode_blocks=1)
    count = 3000
    drawn = search(models, first, [sources[0]] * count)
    tokens = np.bincount([each[0]["tokens"][0] for each in drawn], minlength=VOCAB_SIZE) / count
    scores = {int(each[0]["tokens"][0]): float(each[0]["positional_scores"][0]) for each in drawn}
    left = sum(np.exp(score) for score in scores.values())
    for token, score in scores.items():
        p = np.exp(score) / max(left, np.exp(score))
        if p > 0.01:
            assert abs(tokens[token] - p) < 4 * np.sqrt(p * (1 - p) / count) + 0.02


def test_nothing_may_follow(sources):
    options = replace(BLOCKS, never_generated=tuple(range(VOCAB_SIZE)))
    found = search([eager_model(5)], options, sources)
    assert found[0] == []


def test_keys_and_values_are_those_of_content(sources):
    """The state holds the source and the text: no placeholder is kept, and each block is read once."""
    form = tiny_form("blocks")
    model = eager_model(6, eos=-9.0)
    source = padded([form.source(sources[0])])
    with torch.inference_mode():
        running = BlockSearch([model], form, BLOCKS, source)
        for _ in range(6):
            running.step()
        state = running.decoders[0].state
        written = int(running.lengths[0]) - int(running.decoders[0].counts[0])
        assert int(state.lengths[0]) == source.size(1) + written
        assert int(state.seen[0, 0].sum()) == source.size(1) + written
