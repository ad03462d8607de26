"""The shapes that conversion expects are those of the model, for every kind of architecture."""

import pytest
import torch
from tiny import PAD, VOCAB_SIZE, tiny_config

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.parameter_shapes import parameter_shapes
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES

MODERN = {"rotary_base": 1e4, "feed_forward": "gated", "layer_norm_position": "pre", "biases": "none"}


@pytest.mark.parametrize(
    "changes", [{}, {"relative_position_bins": 8}, {"num_segments": 0}, {"embedding_dim": 8}, MODERN], ids=str
)
def test_shapes_are_those_of_the_model(changes):
    cfg = tiny_config(**changes)
    shapes = parameter_shapes({name: getattr(cfg, name) for name in SIZES}, VOCAB_SIZE)
    model = UnilmModel(cfg, vocab_size=VOCAB_SIZE, pad=PAD)
    assert shapes == {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_nothing_is_made():
    """Of a model that would not fit into any memory."""
    huge = {"encoder_layers": 2, "encoder_embed_dim": 2**20, "encoder_attention_heads": 2**10}
    assert parameter_shapes(huge, 2**20)["embeddings.tokens.weight"] == (2**20, 2**20)
    assert torch.zeros(1).device.type == "cpu"


def test_sizes_that_contradict_each_other():
    with pytest.raises(UserError, match=r"--encoder-embed-dim must be a multiple of --encoder-attention-heads \(7\)"):
        parameter_shapes({"encoder_attention_heads": 7}, 10)
