"""Conversion from BERT's names, against live Hugging Face models with tiny random weights."""

import numpy as np
import pytest
import torch
from tiny import PAD, model_inputs, words

from s2sft_fairseq.checkpoints.bert import convert_bert
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.packing import Block, collate

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": 32,
    "type_vocab_size": 2,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


def their_model(kind="BertForMaskedLM", **changes):
    """A Hugging Face model with weights of such a size that its states depend on each of them."""
    torch.manual_seed(0)
    model = getattr(transformers, kind)(transformers.BertConfig(**{**SIZES, **changes})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            scale = "LayerNorm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.2 * torch.randn_like(parameter) if scale else 0.3 * torch.randn_like(parameter))
    return model


def our_model(states, config):
    conversion = convert_bert(states, config)
    cfg = UnilmConfig(**conversion.sizes, dropout=0.0, attention_dropout=0.0)
    model = UnilmModel(cfg, vocab_size=config["vocab_size"], pad=PAD).eval()
    model.load_state_dict({**model.state_dict(), **conversion.weights})
    return model


def sentences():
    """Pairs of texts with two segments each, as blocks of given tokens."""
    rng = np.random.default_rng(0)
    examples = []
    for first, second in ((5, 3), (9, 1), (2, 8)):
        ids = words(rng, first + second)
        block = Block.of(ids, first_position=0, segment=0, label=PAD)
        examples.append((block._replace(segment=(np.arange(first + second) >= first).astype(np.int64)),))
    return collate(examples, PAD)


def assert_same_logits(theirs, states):
    config = theirs.config.to_dict()
    batch = sentences()
    inputs = model_inputs(batch)
    real = inputs["groups"] == 0
    with torch.no_grad():
        ours = our_model(states, config)(**inputs)
        expected = theirs(
            input_ids=inputs["tokens"], attention_mask=real.long(), token_type_ids=inputs["segments"]
        ).logits
    assert expected[real].std() > 0.1
    torch.testing.assert_close(ours[real], expected[real], atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize(
    "changes",
    [{}, {"hidden_act": "gelu_new"}, {"hidden_act": "relu"}, {"layer_norm_eps": 1e-3}, {"type_vocab_size": 5}],
    ids=str,
)
def test_logits_of_bert(changes):
    theirs = their_model(**changes)
    assert_same_logits(theirs, theirs.state_dict())


def test_old_names():
    """gamma and beta, as TensorFlow and the first PyTorch checkpoints call them."""
    theirs = their_model()
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value
        for name, value in theirs.state_dict().items()
    }
    assert sum(name.endswith((".gamma", ".beta")) for name in old) == 2 * (1 + 2 * 2 + 1)
    assert_same_logits(theirs, old)


def test_half_precision_weights_become_float32_of_their_own():
    states = {name: value.half() for name, value in their_model().state_dict().items()}
    weights = convert_bert(states, SIZES).weights
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert all(value.untyped_storage().nbytes() == 4 * value.numel() for value in weights.values())


@pytest.mark.parametrize(
    ("kind", "unused", "missing"),
    [
        ("BertForMaskedLM", ["cls.predictions.decoder.bias", "cls.predictions.decoder.weight"], []),
        (
            "BertForPreTraining",
            [
                "bert.pooler.dense.bias",
                "bert.pooler.dense.weight",
                "cls.predictions.decoder.bias",
                "cls.predictions.decoder.weight",
                "cls.seq_relationship.bias",
                "cls.seq_relationship.weight",
            ],
            [],
        ),
        (
            "BertModel",
            ["pooler.dense.bias", "pooler.dense.weight"],
            [
                "lm_head.bias",
                "lm_head.dense.bias",
                "lm_head.dense.weight",
                "lm_head.layer_norm.bias",
                "lm_head.layer_norm.weight",
            ],
        ),
    ],
)
def test_what_is_left_out_and_what_is_missing(kind, unused, missing):
    states = their_model(kind).state_dict()
    conversion = convert_bert(states, SIZES)
    assert sorted(conversion.unused) == unused
    assert conversion.missing == missing
    # Query, key and value of each layer are one parameter here.
    assert len(conversion.weights) == len(states) - len(unused) - 2 * 2 * 2
    assert len(conversion.weights) + len(missing) == len(our_model(states, SIZES).state_dict())


def test_sizes():
    config = {**SIZES, "rel_pos_bins": 32, "hidden_act": "gelu_pytorch_tanh", "layer_norm_eps": 1e-5}
    states = {**their_model().state_dict(), "bert.rel_pos_bias.weight": torch.zeros(2, 32)}
    assert convert_bert(states, config).sizes == {
        "encoder_layers": 2,
        "encoder_embed_dim": 16,
        "encoder_ffn_embed_dim": 24,
        "encoder_attention_heads": 2,
        "max_positions": 32,
        "num_segments": 2,
        "relative_position_bins": 32,
        "max_relative_position": 128,
        "layer_norm_eps": 1e-5,
        "activation_fn": "gelu_tanh",
    }


def test_no_segments():
    states = {name: value for name, value in their_model().state_dict().items() if "token_type" not in name}
    conversion = convert_bert(states, {**SIZES, "type_vocab_size": 0})
    assert conversion.sizes["num_segments"] == 0
    assert "embeddings.segments.weight" not in conversion.weights


def test_everything_that_does_not_fit_is_reported():
    states = their_model().state_dict()
    del states["bert.embeddings.token_type_embeddings.weight"], states["bert.encoder.layer.0.attention.self.key.bias"]
    states["bert.embeddings.word_embeddings.weight"] = torch.zeros(50, 12)
    states["bert.rel_pos_bias.weight"] = torch.zeros(2, 32)
    states["bert.encoder.layer.7.output.dense.weight"] = torch.zeros(16, 24)
    states["decoder.layers.0.fc1.weight"] = torch.zeros(3)
    with pytest.raises(UserError) as raised:
        convert_bert(states, SIZES)
    assert str(raised.value).splitlines() == [
        "this is not the BERT checkpoint that its config.json describes:",
        "  - decoder.layers.0.fc1.weight is no parameter of BERT",
        "  - encoder.layer.0.attention.self: query, key or value has no bias",
        "  - embeddings.segments.weight is missing",
        "  - layers.7.fc2.weight is unexpected: config.json has no such part",
        "  - relative_position.weight is unexpected: config.json has no such part",
        "  - embeddings.tokens.weight must have the shape (50, 16), but has (50, 12)",
    ]


def test_a_relative_bias_that_the_file_lacks():
    """The original starts with a random one and says nothing."""
    with pytest.raises(UserError, match=r"relative_position\.weight is missing"):
        convert_bert(their_model().state_dict(), {**SIZES, "rel_pos_bins": 32})


@pytest.mark.parametrize("name", ["hidden_size", "num_hidden_layers", "vocab_size", "max_position_embeddings"])
def test_an_incomplete_configuration(name):
    config = {key: value for key, value in SIZES.items() if key != name}
    with pytest.raises(UserError, match=rf"^config\.json must have '{name}', but has only .*intermediate_size"):
        convert_bert({}, config)


def test_an_unknown_activation():
    message = r"^config\.json: hidden_act must be one of gelu, gelu_new, gelu_pytorch_tanh, relu, but is 'swish'$"
    with pytest.raises(UserError, match=message):
        convert_bert({}, {**SIZES, "hidden_act": "swish"})
