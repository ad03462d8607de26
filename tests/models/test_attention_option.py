"""``--attention``: its values, the choice of auto, and equal losses for all of them."""

import logging
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import ENCODERS, PAD, model_inputs, pack_example, tiny_form, tiny_model, words

from s2sft_fairseq.models import unilm
from s2sft_fairseq.modules import flash_attention
from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate

PAIRS = ((9, 5), (20, 3), (2, 9), (1, 1))
"""Lengths of sources, which are longer and shorter than the local windows, and of targets."""


def batch_of(method):
    rng = np.random.default_rng(0)
    form, corruption = tiny_form(method), OBJECTIVES[method].corruption["paper"]
    pairs = [(words(rng, source), words(rng, target)) for source, target in PAIRS]
    return collate([pack_example(method, source, target, form, corruption, rng) for source, target in pairs])


def found_by(attention, encoder, batch):
    """Return scores at the labels, and the gradients of all parameters."""
    model = tiny_model(4, **encoder, attention=attention).double()
    logits = model(**model_inputs(batch), labelled=torch.from_numpy(np.flatnonzero(batch.label != PAD)))
    logits.square().sum().backward()
    return [logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)]


@pytest.mark.parametrize("encoder", [kind for kind in ENCODERS if kind != "deberta"])  # deberta is refused
@pytest.mark.parametrize("method", OBJECTIVES)
def test_padded_and_loop_are_equal(method, encoder):
    batch = batch_of(method)
    loop, padded = (found_by(attention, ENCODERS[encoder], batch) for attention in ("loop", "padded"))
    assert len(loop) == len(padded)
    for theirs, ours in zip(loop, padded, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-9)


def asked_twice(model, device, **changes):
    """Return the model's choice for a batch on a device, which need not exist."""
    columns = PackedColumns(**model_inputs(batch_of("causal")))
    columns = columns._replace(positions=SimpleNamespace(device=torch.device(device)), **changes)
    return [model._attention(columns, model.patterns[0], torch.bfloat16) for _ in range(2)]


@pytest.mark.parametrize(
    ("asked", "device", "chosen"),
    [
        ("auto", "cpu", "loop"),
        ("auto", "cuda", "flash"),
        ("flash", "cpu", "loop"),
        ("flash", "cuda", "flash"),
        ("flex", "cpu", "loop"),
        ("flex", "cuda", "flex"),
        ("padded", "cpu", "padded"),
        ("padded", "cuda", "padded"),
        ("loop", "cuda", "loop"),
    ],
)
def test_choice_of_attention(asked, device, chosen, caplog, monkeypatch):
    """It is logged once."""
    monkeypatch.setattr(flash_attention, "is_available", lambda device: True)
    monkeypatch.setattr(unilm, "flash_failure", lambda device, **settings: None)
    unilm.log_attention.cache_clear()
    model = tiny_model(attention=asked)
    with caplog.at_level(logging.INFO):
        assert asked_twice(model, device) == [chosen, chosen]
    assert caplog.messages == [f"--attention {asked}: {chosen} on {device}"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
@pytest.mark.parametrize("asked", ["auto", "loop"])
def test_disentangled_attention_works_example_by_example(asked, device):
    model = tiny_model(attention=asked, **ENCODERS["deberta"])
    assert asked_twice(model, device) == ["loop", "loop"]


@pytest.mark.parametrize("asked", ["auto", "flash"])
def test_reasons_against_flash_attention(asked, caplog, monkeypatch):
    """Each reason is logged, and the batch is padded."""
    unilm.log_attention.cache_clear()
    model, relative = tiny_model(attention=asked), tiny_model(attention=asked, relative=True)
    with caplog.at_level(logging.INFO):
        assert asked_twice(model, "cuda") == ["padded", "padded"]
        monkeypatch.setattr(flash_attention, "is_available", lambda device: True)
        assert asked_twice(model, "cuda", first_step=None) == ["padded", "padded"]
        assert asked_twice(relative, "cuda") == ["padded", "padded"]
        for failure in ("a trial", None):
            monkeypatch.setattr(unilm, "flash_failure", lambda device, failure=failure, **settings: failure)
            assert asked_twice(model, "cuda") == ["padded" if failure else "flash"] * 2
    reasons = ["NVIDIA GPU", "from left to right", "relative position bias", "a trial"]
    reasons += [f"--attention {asked}: flash on cuda"]
    assert len(caplog.messages) == len(reasons)
    assert all(reason in message for reason, message in zip(reasons, caplog.messages, strict=True))


def test_a_checkpoint_may_be_older():
    model = tiny_model()
    del model.cfg.attention
    assert asked_twice(model, "cpu") == ["loop", "loop"]
