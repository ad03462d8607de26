"""Incremental decoding equals the full packed pass, step by step, for every method."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import CLS, ENCODERS, MASK, PAD, SEP, VOCAB_SIZE, model_inputs, padded, tiny_form, tiny_model, words

from s2sft_fairseq.generation.incremental_decoder import IncrementalDecoder
from s2sft_fairseq.objectives.finetuning import METHODS, reference
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.source_fields import SourceFields

LENGTHS = (6, 1, 0, 11)
STEPS = 7
WINDOW_WITH_RELATIVE = {"relative": True, "local_attention_window": 5, "global_attention_every": 2}
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}


def full_logits(model, form, sources, targets):
    """The logits of the packed pass at every label (rows, T + 1, V), for targets (rows, T) of one length."""
    batch = collate([reference(s, t, form) for s, t in zip(sources, targets, strict=True)], PAD)
    labelled = torch.from_numpy(batch.label != PAD)
    return model(**model_inputs(batch), labelled=labelled).view(len(sources), -1, VOCAB_SIZE)


def decoder_for(model, form, sources, beams=1):
    source = padded([form.source(ids) for ids in sources])
    return IncrementalDecoder(model, form, source, beams=beams, max_tokens=STEPS + 1)


# Sources and hypotheses are longer than local layers see to one side.
@pytest.fixture(params=[*ENCODERS.values(), WINDOW_WITH_RELATIVE], ids=[*ENCODERS, "window with relative positions"])
def model(request):
    return tiny_model(4, **request.param).double()


@pytest.fixture
def sources():
    rng = np.random.default_rng(11)
    return [words(rng, length) for length in LENGTHS]


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_teacher_forcing(model, sources, method, beams):
    form = tiny_form(method)
    rows = len(sources) * beams
    targets = words(np.random.default_rng(12), (rows, STEPS))
    expected = full_logits(model, form, [s for s in sources for _ in range(beams)], targets)
    decoder = decoder_for(model, form, sources, beams)
    same = torch.arange(rows)
    for step in range(STEPS + 1):
        torch.testing.assert_close(decoder.next_logits(), expected[:, step], **TOLERANCE)
        if step < STEPS:
            decoder.append(torch.from_numpy(targets[:, step]), same)


@pytest.mark.parametrize("method", list(METHODS))
@torch.no_grad()
def test_beams_that_change_places_and_sentences_that_leave(model, sources, method):
    form, beams = tiny_form(method), 3
    rng = np.random.default_rng(13)
    decoder = decoder_for(model, form, sources, beams)
    alive = list(sources)
    hypotheses = np.zeros((len(sources) * beams, 0), dtype=np.int64)
    for step in range(STEPS):
        expected = full_logits(model, form, [s for s in alive for _ in range(beams)], hypotheses)[:, -1]
        torch.testing.assert_close(decoder.next_logits(), expected, **TOLERANCE)
        # Within a sentence any beam may go on from any other.
        parents = rng.integers(0, beams, (len(alive), beams)) + beams * np.arange(len(alive))[:, None]
        tokens = words(rng, parents.size)
        decoder.append(torch.from_numpy(tokens), torch.from_numpy(parents.flatten()))
        hypotheses = np.concatenate([hypotheses[parents.flatten()], tokens[:, None]], axis=1)
        if step in (1, 4):
            left = np.array([0, 2, 3] if step == 1 else [1, 2])
            rows = (left[:, None] * beams + np.arange(beams)).flatten()
            decoder.keep_sentences(torch.from_numpy(left), torch.from_numpy(rows))
            alive = [alive[index] for index in left]
            hypotheses = hypotheses[rows]
    assert len(alive) == 2


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize("chunks", [(2, 1, 3), (4, 3), (7,)])
@torch.no_grad()
def test_several_new_tokens_at_once(model, sources, method, chunks):
    """A whole prefix can be read in one step: only the scores behind its last token are asked for."""
    form = tiny_form(method)
    targets = words(np.random.default_rng(14), (len(sources), sum(chunks)))
    expected = full_logits(model, form, sources, targets)
    decoder = decoder_for(model, form, sources)
    torch.testing.assert_close(decoder.next_logits(), expected[:, 0], **TOLERANCE)
    read = 0
    for chunk in chunks:
        decoder.pending = torch.from_numpy(targets[:, read : read + chunk])
        read += chunk
        torch.testing.assert_close(decoder.next_logits(), expected[:, read], **TOLERANCE)


@pytest.mark.parametrize("method", list(METHODS))
@torch.no_grad()
def test_the_placeholder_leaves_no_trace(model, sources, method):
    """As many tokens are kept as were generated, and a causal model keeps the [SEP] that it begins with."""
    form = tiny_form(method)
    decoder = decoder_for(model, form, sources)
    rows = torch.arange(len(sources))
    for step in range(3):
        decoder.next_logits()
        assert decoder.state.num_cached == step + form.shifted
        decoder.append(torch.full((len(sources),), 9), rows)


@torch.no_grad()
def test_scores_do_not_depend_on_padding(model, sources):
    form = tiny_form()
    together = decoder_for(model, form, sources).next_logits()
    alone = torch.cat([decoder_for(model, form, [source]).next_logits() for source in sources])
    torch.testing.assert_close(together, alone, **TOLERANCE)


@torch.no_grad()
def test_given_segments_and_placeholder(sources):
    model = tiny_model(5, num_segments=4)
    form = tiny_form(fields=SourceFields(segments=(3,)), target_segment=2, placeholder=17)
    targets = words(np.random.default_rng(15), (len(sources), 2))
    expected = full_logits(model, form, sources, targets)
    decoder = decoder_for(model, form, sources)
    for step in range(2):
        torch.testing.assert_close(decoder.next_logits(), expected[:, step], **TOLERANCE)
        decoder.append(torch.from_numpy(targets[:, step]), torch.arange(len(sources)))
    plain = decoder_for(model, tiny_form(), sources).next_logits()
    assert not torch.allclose(plain, expected[:, 0])


@pytest.mark.parametrize("method", list(METHODS))
@pytest.mark.parametrize(
    "fields",
    [
        SourceFields(segments=(0, 3)),
        SourceFields(segments=(0, 3), alternate=True, truncation=("left",)),
        SourceFields(segments=(1, 0, 3), truncation=("right", "left"), limits=(6, 4)),
    ],
)
@torch.no_grad()
def test_several_fields(method, fields):
    """Sources of one to four fields, some of them empty, some of them cut."""
    model, form = tiny_model(6, num_segments=4), tiny_form(method, fields=fields, max_source=13)
    rng = np.random.default_rng(16)
    sources = [
        np.concatenate([np.append(words(rng, length), SEP) for length in lengths])[:-1]
        for lengths in ((3, 2), (9, 0, 7), (5,), (1, 4, 2, 6), (0, 0), (2, 2, 2))
    ]
    targets = words(np.random.default_rng(17), (len(sources), 3))
    expected = full_logits(model, form, sources, targets)
    decoder = decoder_for(model, form, sources)
    for step in range(3):
        torch.testing.assert_close(decoder.next_logits(), expected[:, step], **TOLERANCE)
        decoder.append(torch.from_numpy(targets[:, step]), torch.arange(len(sources)))
    of_one_segment = tiny_form(method, fields=replace(fields, segments=(0,)), max_source=13)
    plain = decoder_for(model, of_one_segment, sources).next_logits()
    assert not torch.allclose(plain, expected[:, 0], **TOLERANCE)


@torch.no_grad()
def test_what_is_read_first(model, sources):
    """A causal model starts at [SEP]; the others at a placeholder, with [SEP] at the end of the source."""
    for method in METHODS:
        form = tiny_form(method)
        source = padded([form.source(ids) for ids in sources])
        assert (source[:, 0] == CLS).all()
        assert (source == SEP).any(dim=1).all() == (not form.shifted)
        pending = decoder_for(model, form, sources).pending
        assert pending.tolist() == [[SEP]] * 4 if form.shifted else pending.shape == (4, 0)
    assert form.placeholder == MASK
