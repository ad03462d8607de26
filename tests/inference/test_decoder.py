"""Incremental decoding equals the full packed pass, step by step, for each method."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny import (
    CLS,
    ENCODERS,
    MASK,
    PAD,
    SEP,
    SWITCHES,
    VOCAB_SIZE,
    model_inputs,
    padded,
    pairs_of_switches,
    reference_example,
    tiny_form,
    tiny_model,
    words,
)

from s2sft_fairseq.inference import decoder as decoders
from s2sft_fairseq.inference.decoder import IncrementalDecoder
from s2sft_fairseq.models import unilm
from s2sft_fairseq.modules import incremental_state
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.sequence_form import SourceFields

LENGTHS = (6, 1, 0, 11)
STEPS = 7
WINDOW_WITH_RELATIVE = {"relative": True, "local_attention_window": 5, "global_attention_every": 2}
WINDOW_WITH_OWN_POSITIONS = {
    **{"disentangled_attention": "both", "disentangled_projections": "own", "max_relative_position": 6},
    **{"local_attention_window": 5, "global_attention_every": 2},
}
TOLERANCE = {"atol": 2e-5, "rtol": 1e-5}


def full_logits(model, form, sources, targets):
    """Return the logits of the packed pass at each label (rows, T + 1, V), for targets (rows, T) of one length."""
    batch = collate([reference_example(s, t, form) for s, t in zip(sources, targets, strict=True)])
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    return model(**model_inputs(batch), labelled=labelled).view(len(sources), -1, VOCAB_SIZE)


def decoder_for(model, form, sources, beams=1):
    source = padded([form.source(ids) for ids in sources])
    return IncrementalDecoder(model, form, source, max_tokens=STEPS + 1, beams=beams)


def next_logits(decoder):
    """Return the scores of the next token, one row per hypothesis (N * K, V)."""
    return decoder.next_logits().flatten(0, 1)


def append(decoder, tokens, parents=None):
    """Append tokens to hypotheses, by default each to its own; at the first step, to the only one."""
    tokens = torch.as_tensor(tokens).view(len(decoder.pending), -1)
    if parents is None:
        parents = torch.arange(tokens.size(1)).expand_as(tokens) % decoder.pending.size(1)
    decoder.append(tokens, torch.as_tensor(parents).view_as(tokens))


# Sources and hypotheses are longer than local layers see on one side.
@pytest.fixture(
    params=[*ENCODERS.values(), WINDOW_WITH_RELATIVE, WINDOW_WITH_OWN_POSITIONS],
    ids=[*ENCODERS, "window with relative positions", "window with disentangled attention"],
)
def model(request):
    return tiny_model(4, **request.param).double()


@pytest.fixture
def sources():
    rng = np.random.default_rng(11)
    return [words(rng, length) for length in LENGTHS]


@pytest.mark.parametrize("method", list(OBJECTIVES))
@pytest.mark.parametrize("beams", [1, 3])
@torch.no_grad()
def test_teacher_forcing(model, sources, method, beams):
    form = tiny_form(method)
    rows = len(sources) * beams
    targets = words(np.random.default_rng(12), (rows, STEPS))
    expected = full_logits(model, form, [s for s in sources for _ in range(beams)], targets)
    decoder = decoder_for(model, form, sources, beams)
    for step in range(STEPS + 1):
        logits = next_logits(decoder)
        # At first all hypotheses are the same: there is one.
        torch.testing.assert_close(logits, expected[:: beams if step == 0 else 1, step], **TOLERANCE)
        if step < STEPS:
            append(decoder, targets[:, step])


@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
@pytest.mark.parametrize("switches", [*SWITCHES.values(), *pairs_of_switches().values()])
@torch.no_grad()
def test_teacher_forcing_with_what_language_models_have(sources, method, switches):
    form, model = tiny_form(method), tiny_model(4, **switches).double()
    targets = words(np.random.default_rng(12), (len(sources), STEPS))
    expected = full_logits(model, form, sources, targets)
    decoder = decoder_for(model, form, sources)
    for step in range(STEPS + 1):
        torch.testing.assert_close(next_logits(decoder), expected[:, step], **TOLERANCE)
        if step < STEPS:
            append(decoder, targets[:, step])


@pytest.mark.parametrize("steps_between", [1, 2, 100])
@pytest.mark.parametrize("method", list(OBJECTIVES))
@torch.no_grad()
def test_beams_that_change_places_and_sentences_that_leave(model, sources, method, steps_between, monkeypatch):
    """Slots that no hypothesis needs are overwritten or not, whatever hypotheses have in common."""
    monkeypatch.setattr(incremental_state, "STEPS_BETWEEN_COMPACTIONS", steps_between)
    form, beams = tiny_form(method), 3
    rng = np.random.default_rng(13)
    decoder = decoder_for(model, form, sources, beams)
    alive = list(sources)
    hypotheses = np.zeros((len(sources), 1, 0), dtype=np.int64)
    for step in range(STEPS):
        rows = hypotheses.reshape(len(alive) * hypotheses.shape[1], step)
        expected = full_logits(model, form, [s for s in alive for _ in range(hypotheses.shape[1])], rows)[:, -1]
        torch.testing.assert_close(next_logits(decoder), expected, **TOLERANCE)
        # Within a sentence, a beam can continue any other, and in some steps all continue one.
        parents = rng.integers(0, 1 if step % 3 == 2 else hypotheses.shape[1], (len(alive), beams))
        tokens = words(rng, (len(alive), beams))
        append(decoder, tokens, parents)
        continued = np.take_along_axis(hypotheses, parents[..., None], axis=1)
        hypotheses = np.concatenate([continued, tokens[..., None]], axis=2)
        if step in (1, 4):
            left = [0, 3, 2] if step == 1 else [1, 2]
            decoder.keep_sentences(torch.tensor(left))
            alive, hypotheses = [alive[index] for index in left], hypotheses[left]
    assert len(alive) == 2


@torch.no_grad()
def test_capacity_for_hypotheses_that_have_nothing_in_common(model, sources, monkeypatch):
    """There are more slots than expected: as many as all hypotheses have tokens."""
    form, beams, steps = tiny_form(), 9, 12
    monkeypatch.setattr(decoders, "STEPS_BETWEEN_COMPACTIONS", 0)  # capacity for this many steps
    targets = words(np.random.default_rng(18), (len(sources) * beams, steps))
    source = padded([form.source(ids) for ids in sources])
    decoder = IncrementalDecoder(model, form, source, max_tokens=1, beams=beams)
    capacity = decoder.state.capacity
    for step in range(steps):
        next_logits(decoder)
        append(decoder, targets[:, step])
    expected = full_logits(model, form, [s for s in sources for _ in range(beams)], targets)
    torch.testing.assert_close(next_logits(decoder), expected[:, -1], **TOLERANCE)
    assert decoder.state.capacity > capacity


@pytest.mark.parametrize("method", list(OBJECTIVES))
@pytest.mark.parametrize("chunks", [(2, 1, 3), (4, 3), (7,)])
@torch.no_grad()
def test_several_new_tokens_at_once(model, sources, method, chunks):
    """One step can read a whole prefix: only the scores after its last token are needed."""
    form = tiny_form(method)
    targets = words(np.random.default_rng(14), (len(sources), sum(chunks)))
    expected = full_logits(model, form, sources, targets)
    decoder = decoder_for(model, form, sources)
    torch.testing.assert_close(next_logits(decoder), expected[:, 0], **TOLERANCE)
    read = 0
    for chunk in chunks:
        decoder.pending = torch.from_numpy(targets[:, None, read : read + chunk])
        read += chunk
        torch.testing.assert_close(next_logits(decoder), expected[:, read], **TOLERANCE)


@pytest.mark.parametrize("method", list(OBJECTIVES))
@torch.no_grad()
def test_the_placeholder_leaves_no_trace(model, sources, method):
    """The state keeps the generated tokens, and the start symbol of the target if there is one."""
    form = tiny_form(method)
    decoder = decoder_for(model, form, sources)
    of_source = decoder.state.used
    for step in range(3):
        next_logits(decoder)
        assert decoder.state.used == of_source + step + len(form.start)
        append(decoder, torch.full((len(sources),), 9))


@torch.no_grad()
def test_scores_do_not_depend_on_padding(model, sources):
    form = tiny_form()
    together = next_logits(decoder_for(model, form, sources))
    alone = torch.cat([next_logits(decoder_for(model, form, [source])) for source in sources])
    torch.testing.assert_close(together, alone, **TOLERANCE)


@pytest.mark.parametrize("most", [1, 9])
@torch.no_grad()
def test_sources_that_are_read_in_parts(model, sources, most, monkeypatch):
    form = tiny_form()
    together = decoder_for(model, form, sources)
    monkeypatch.setitem(unilm.PREFILL_POSITIONS, "cpu", most)
    in_parts = decoder_for(model, form, sources)
    for token in (9, 10):
        torch.testing.assert_close(next_logits(in_parts), next_logits(together), **TOLERANCE)
        for decoder in (in_parts, together):
            append(decoder, torch.full((len(sources),), token))


@torch.no_grad()
def test_given_segments_and_placeholder(sources):
    model = tiny_model(5, num_segments=4)
    form = tiny_form(fields=SourceFields(segments=(3,)), target_segment=2, placeholder=17)
    targets = words(np.random.default_rng(15), (len(sources), 2))
    expected = full_logits(model, form, sources, targets)
    decoder = decoder_for(model, form, sources)
    for step in range(2):
        torch.testing.assert_close(next_logits(decoder), expected[:, step], **TOLERANCE)
        append(decoder, targets[:, step])
    plain = next_logits(decoder_for(model, tiny_form(), sources))
    assert not torch.allclose(plain, expected[:, 0])


@pytest.mark.parametrize("method", list(OBJECTIVES))
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
        torch.testing.assert_close(next_logits(decoder), expected[:, step], **TOLERANCE)
        append(decoder, targets[:, step])
    of_one_segment = tiny_form(method, fields=replace(fields, segments=(0,)), max_source=13)
    plain = next_logits(decoder_for(model, of_one_segment, sources))
    assert not torch.allclose(plain, expected[:, 0], **TOLERANCE)


@torch.no_grad()
def test_start_symbols(model, sources):
    """A causal model starts with [SEP]; for the others it ends the source, and infilling starts with [CLS]."""
    for method in OBJECTIVES:
        form = tiny_form(method)
        source = padded([form.source(ids) for ids in sources])
        assert (source[:, 0] == CLS).all()
        assert (source == SEP).any(dim=1).all() == form.has_placeholders
        pending = decoder_for(model, form, sources).pending
        assert pending.tolist() == [[{"causal": [SEP], "infilling": [CLS]}.get(method, [])]] * 4
    assert form.placeholder == MASK
