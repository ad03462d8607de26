"""The parts of the model: activations and initial weights."""

import numpy as np
import pytest
import torch
from tiny import ENCODERS, PAD, tiny_config

from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_parts import ACTIVATIONS, initial_std


@pytest.mark.parametrize(
    "encoder",
    [{"relative_position_bins": 32}, {"embedding_dim": 32}, ENCODERS["deberta"], ENCODERS["modernbert"]],
    ids=["relative", "electra", "deberta", "modernbert"],
)
@pytest.mark.parametrize(
    ("options", "std"),
    [({}, 0.02 * 12**0.5), ({"initial_std": 0.03}, 0.03), ({"pretrained": "encoder"}, 0.02)],
    ids=["random start", "given", "pretrained"],
)
def test_initial_weights(encoder, options, std):
    """Weights of a standard deviation of 0.02 at a width of 768, as in BERT, and of 0.02 sqrt(768 / 64) at 64."""
    torch.manual_seed(0)
    cfg = tiny_config(**{"encoder_embed_dim": 64, "encoder_ffn_embed_dim": 256, **encoder, **options})
    model = UnilmModel(cfg, vocab_size=500, pad=PAD)
    for name, parameter in model.named_parameters():
        if "layer_norm" in name and name.endswith("weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            expected = 0.02 if name == "relative_position.weight" else std
            assert abs(parameter.std().item() / expected - 1) < 4 / np.sqrt(2 * parameter.numel()) + 0.05, name
    assert (model.embeddings.tokens.weight[PAD] == 0).all()


@pytest.mark.parametrize("width", [768, 1024])
def test_wide_layers_begin_as_in_bert(width):
    assert initial_std(tiny_config(encoder_embed_dim=width)) == 0.02


def test_initial_locality():
    model = UnilmModel(tiny_config(relative_position_bins=8, initial_locality=2.0), vocab_size=20, pad=PAD)
    table = model.relative_position.weight
    assert (table[:, 1] > table[:, 2] + 1.5).all()


def test_activations():
    x = torch.linspace(-3, 3, 13)
    exact = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), exact)
    assert not torch.allclose(ACTIVATIONS["gelu_tanh"](x), exact, atol=1e-5)
    torch.testing.assert_close(ACTIVATIONS["gelu_tanh"](x), exact, atol=1e-3, rtol=0)
    assert ACTIVATIONS["relu"](x).tolist() == x.clamp(min=0).tolist()
