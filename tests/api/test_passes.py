"""What a model computes in one pass: attention weights are exactly those that a layer attends with."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from tiny import ENCODERS, tiny_form, tiny_model, words

from s2sft_fairseq.api.passes import EncoderPass
from s2sft_fairseq.objectives.objective import OBJECTIVES


@pytest.mark.parametrize("method", ["causal", "pseudo_masked", "infilling"])
@pytest.mark.parametrize("kind", ENCODERS)
def test_weights_times_values_are_what_the_layer_attends_to(kind, method):
    """In every layer, of every head: with sliding windows, rotary positions, biases and shared keys too."""
    model, form, rng = tiny_model(3, **ENCODERS[kind]), tiny_form(method), np.random.default_rng(1)
    one_pass = EncoderPass(model, SimpleNamespace(objective=OBJECTIVES[method]), form, "cpu")
    batch = one_pass.packed(form.source(words(rng, 9)), form.target(words(rng, 5)))
    columns = one_pass.columns(batch)
    for number, layer in enumerate(model.layers):
        seen = []
        hook = layer.attention.register_forward_hook(lambda _, given, output, seen=seen: seen.append((*given, output)))
        with torch.no_grad():
            model.encode(columns)
            hook.remove()
            ((x, plan, output),) = seen
            weights = one_pass.weights(columns, number)
            # (T, h, d) -> (h, T, d)
            value = layer.attention.project(x, plan.rotation)[:, 2].transpose(0, 1)
            attended = (weights @ value).transpose(0, 1).flatten(1)
            torch.testing.assert_close(layer.attention.output(attended), output, atol=1e-5, rtol=1e-5)
        torch.testing.assert_close(weights.sum(-1), torch.ones(weights.shape[:-1]), atol=1e-5, rtol=0)
