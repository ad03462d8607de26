"""``--attention``: what it may be, what auto is, and that all of them give the same losses."""

import logging

import numpy as np
import pytest
import torch
from tiny import ENCODERS, PAD, model_inputs, pack_example, tiny_form, tiny_model, words

from s2sft_fairseq.models import unilm
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize("method", OBJECTIVES)
def test_padded_and_loop_are_equal(method, encoder):
    """Scores at the labels, and the gradients of all parameters; sources are longer than the local windows."""
    rng = np.random.default_rng(0)
    form, corruption = tiny_form(method), OBJECTIVES[method].corruption["paper"]
    pairs = [(words(rng, source), words(rng, target)) for source, target in ((9, 5), (20, 3), (2, 9), (1, 1))]
    batch = collate([pack_example(method, source, target, form, corruption, rng) for source, target in pairs])
    found = []
    for attention in ("loop", "padded"):
        model = tiny_model(4, **encoder, attention=attention).double()
        logits = model(**model_inputs(batch), labelled=torch.from_numpy(np.flatnonzero(batch.label != PAD)))
        logits.square().sum().backward()
        found.append([logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    for loop, padded in zip(*found, strict=True):
        torch.testing.assert_close(padded, loop, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize(
    ("asked", "device", "chosen"),
    [
        ("auto", "cpu", "loop"),
        ("auto", "cuda", "padded"),
        ("flex", "cpu", "loop"),
        ("flex", "cuda", "flex"),
        ("padded", "cpu", "padded"),
        ("loop", "cuda", "loop"),
    ],
)
def test_what_is_chosen(asked, device, chosen, caplog):
    """It is logged, once."""
    unilm.log_attention.cache_clear()
    model = tiny_model(attention=asked)
    with caplog.at_level(logging.INFO):
        assert [model._attention(device), model._attention(device)] == [chosen, chosen]
    assert caplog.messages == [f"--attention {asked}: {chosen} on {device}"]


def test_a_checkpoint_may_be_older():
    model = tiny_model()
    del model.cfg.attention
    assert model._attention("cpu") == "loop"
