"""Parts that conversion refuses, leaves out and lists; test_live_models.py compares the weights themselves."""

import pytest
import torch
from hugging_face import SIZES, their_model

from s2sft_fairseq.checkpoints.conversion import read
from s2sft_fairseq.checkpoints.embedding_tables import resize_positions
from s2sft_fairseq.checkpoints.families import FAMILIES, family_of, recognize
from s2sft_fairseq.checkpoints.families.bert import BERT
from s2sft_fairseq.checkpoints.families.modernbert import MODERNBERT
from s2sft_fairseq.checkpoints.families.roberta import ROBERTA
from s2sft_fairseq.checkpoints.families.unilm import UNILM
from s2sft_fairseq.commands.convert import main as convert_command
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.models.unilm_config import SIZES as OUR_SIZES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


def convert(states, config=None, family=BERT):
    return read(family, dict(states), config or SIZES, parameter_shapes)


@pytest.fixture
def states():
    return their_model("bert").state_dict()


@pytest.mark.parametrize(
    ("name", "unused", "missing"),
    [
        ("bert", ["cls.predictions.decoder.bias", "cls.predictions.decoder.weight"], []),
        (
            "bert-pretraining",
            [
                *("bert.pooler.dense.bias", "bert.pooler.dense.weight"),
                *("cls.predictions.decoder.bias", "cls.predictions.decoder.weight"),
                *("cls.seq_relationship.bias", "cls.seq_relationship.weight"),
            ],
            [],
        ),
        (
            "bert-no-head",
            ["pooler.dense.bias", "pooler.dense.weight"],
            [
                *("lm_head.bias", "lm_head.dense.bias", "lm_head.dense.weight"),
                *("lm_head.layer_norm.bias", "lm_head.layer_norm.weight"),
            ],
        ),
    ],
)
def test_what_is_left_out_and_what_is_missing(name, unused, missing):
    states = their_model(name).state_dict()
    conversion = convert(states, {**SIZES, "hidden_act": "gelu_new"})
    assert sorted(conversion.unused) == unused
    assert conversion.missing == missing
    # Query, key and value of each layer are one parameter here.
    assert len(conversion.weights) == len(states) - len(unused) - 2 * 2 * SIZES["num_hidden_layers"]
    assert not conversion.notes


def test_a_head_of_another_task_is_left_out(states):
    head = {"classifier.weight": torch.zeros(3, 16), "classifier.bias": torch.zeros(3)}
    assert {"classifier.weight", "classifier.bias"} <= set(convert({**states, **head}).unused)


def test_no_tensor_is_held_twice(states):
    source = dict(states)
    conversion = read(BERT, source, SIZES, parameter_shapes)
    assert source == {}
    untouched = conversion.weights["embeddings.tokens.weight"]
    assert untouched.data_ptr() == states["bert.embeddings.word_embeddings.weight"].data_ptr()


def test_an_output_matrix_of_its_own(states):
    """Our output matrix is tied to the embedding: conversion warns if the source's is not."""
    states["cls.predictions.decoder.weight"] = states["cls.predictions.decoder.weight"] + 1
    conversion = convert(states)
    assert conversion.notes == [
        "cls.predictions.decoder.weight differs from the token embedding, to which the output matrix is tied here: "
        "logits will differ"
    ]


def test_everything_that_does_not_fit_is_reported(states):
    del states["bert.embeddings.token_type_embeddings.weight"]
    del states["bert.encoder.layer.0.attention.self.key.bias"]
    states["bert.embeddings.word_embeddings.weight"] = torch.zeros(50, 12)
    states["bert.encoder.layer.7.output.dense.weight"] = torch.zeros(16, 24)
    with pytest.raises(UserError) as raised:
        convert(states)
    assert str(raised.value).splitlines() == [
        "this is not the BERT checkpoint that its configuration describes:",
        "  - bert.encoder.layer.7.output.dense.weight is no parameter of BERT",
        "  - bert.encoder.layer.0.attention.self.key.bias is missing",
        "  - bert.embeddings.word_embeddings.weight must have the shape (50, 16), but has (50, 12)",
    ]
    del states["bert.encoder.layer.7.output.dense.weight"]
    for part in ("query", "value"):
        del states[f"bert.encoder.layer.0.attention.self.{part}.bias"]
    with pytest.raises(UserError) as raised:
        convert(states, {**SIZES, "vocab_size": 51, "max_position_embeddings": 30})
    assert str(raised.value).splitlines() == [
        "this is not the BERT checkpoint that its configuration describes:",
        "  - the configuration's vocab_size is 51, but the token embedding has 50 rows",
        "  - bert.embeddings.token_type_embeddings.weight is missing",
        "  - bert.encoder.layer.0.attention.self.query.bias is missing",
        "  - bert.encoder.layer.0.attention.self.key.bias is missing",
        "  - bert.encoder.layer.0.attention.self.value.bias is missing",
        "  - bert.embeddings.position_embeddings.weight must have the shape (30, 16), but has (40, 16)",
        "  - bert.embeddings.word_embeddings.weight must have the shape (50, 16), but has (50, 12)",
    ]


def test_tensors_to_be_joined_that_do_not_fit(states):
    """The error is found where they are joined, without a traceback."""
    heading = r"^this is not the \w+ checkpoint .*\n  - tensors that belong together are of different sizes: "
    states["bert.encoder.layer.0.attention.self.key.weight"] = torch.zeros(16, 12)
    with pytest.raises(UserError, match=heading):
        convert(states)
    roberta = their_model("roberta")
    states = {**roberta.state_dict(), "roberta.embeddings.token_type_embeddings.weight": torch.zeros(1, 12)}
    with pytest.raises(UserError, match=heading):
        convert(states, roberta.config.to_dict(), ROBERTA)


def test_a_missing_position_table():
    """The tables that are folded into the positions must not hide that these are missing."""
    roberta = their_model("roberta")
    states = {name: value for name, value in roberta.state_dict().items() if "position_embeddings" not in name}
    with pytest.raises(UserError, match=r"\n  - roberta\.embeddings\.position_embeddings\.weight is missing$"):
        convert(states, roberta.config.to_dict(), ROBERTA)


def test_a_position_table_without_rows():
    with pytest.raises(UserError, match=r"^--max-positions must be between 1 and 1,000,000, but is 0$"):
        resize_positions({}, {"max_positions": 5}, 0)


def test_the_relative_position_bias_is_neither_dropped_nor_made_up(states):
    """The original silently does one or the other."""
    with pytest.raises(UserError, match=r"bert\.rel_pos_bias\.weight is missing"):
        convert(states, {**SIZES, "rel_pos_bins": 32}, UNILM)
    states["bert.rel_pos_bias.weight"] = torch.zeros(2, 32)
    assert recognize(states, {"model_type": "bert"}) is UNILM
    with pytest.raises(
        UserError, match=r"bert\.rel_pos_bias\.weight is unexpected: the configuration has no such part"
    ):
        convert(states, family=UNILM)


def test_the_segments_that_unilm_was_trained_with(states):
    segments = {"source_type_id": 4, "target_type_id": 5}
    assert convert(states, {**SIZES, **segments}).layout == {"source_segments": "4", "target_segment": 5}
    assert convert(states).layout == {}


def test_incomplete_and_impossible_configurations():
    with pytest.raises(UserError) as raised:
        convert({}, {"hidden_size": 16, "vocab_size": 50})
    assert str(raised.value) == (
        "the configuration must have num_hidden_layers, intermediate_size, num_attention_heads, "
        "max_position_embeddings, but has only: hidden_size, vocab_size"
    )
    with pytest.raises(UserError) as raised:
        convert({}, {**SIZES, "hidden_size": "16", "num_hidden_layers": 0})
    assert raised.value.problems == [
        "the configuration's num_hidden_layers must be a whole number above 0, but is 0",
        "the configuration's hidden_size must be a whole number above 0, but is '16'",
    ]
    with pytest.raises(UserError, match=r"hidden_act must be one of gelu, gelu_new, .*, relu, .* but is 'tanh'$"):
        convert({}, {**SIZES, "hidden_act": "tanh"})
    with pytest.raises(UserError, match=r"position_embedding_type must be 'absolute' .* but is 'relative_key'$"):
        convert({}, {**SIZES, "position_embedding_type": "relative_key"})


def test_unsupported_settings_of_modernbert():
    config = their_model("modernbert").config.to_dict()
    with pytest.raises(UserError) as raised:
        convert({}, {**config, "mlp_bias": True, "norm_bias": True}, MODERNBERT)
    assert raised.value.problems == [
        "the configuration's mlp_bias must be False for this model, but is True",
        "the configuration's norm_bias must be False for this model, but is True",
    ]
    kinds = ["sliding_attention", "full_attention"]
    with pytest.raises(
        UserError, match=r"layer_types must have 'full_attention' in layers 0, n, 2n, .* but is \['slid"
    ):
        convert({}, {**config, "layer_types": kinds}, MODERNBERT)
    scaled = {"full_attention": {"rope_type": "yarn", "rope_theta": 1e4}}
    with pytest.raises(
        UserError, match=r"rope_type must be 'default' for this model, but is 'yarn' for full_attention"
    ):
        convert({}, {**config, "rope_parameters": scaled}, MODERNBERT)


@pytest.mark.parametrize(
    ("kind", "names", "nearest"),
    [
        ("gpt2", ["wte.weight", "h.0.attn.c_attn.weight"], None),
        # The first version of DeBERTa.
        ("deberta", ["deberta.embeddings.LayerNorm.weight"], "DeBERTa v3 (deberta-v2)"),
        # RoBERTa's names, but other ids: a converted model would read every text wrongly.
        ("camembert", ["roberta.embeddings.LayerNorm.weight"], "RoBERTa (roberta, xlm-roberta, xlm_roberta)"),
        ("my_bert", ["bert.embeddings.LayerNorm.weight", "bert.gate"], "BERT (bert, minilm, unilm), without bert.gate"),
        (None, ["h.0.attn.c_attn.weight"], None),
    ],
)
def test_an_unknown_family(kind, names, nearest):
    with pytest.raises(UserError) as raised:
        recognize(names, {} if kind is None else {"model_type": kind})
    message = str(raised.value)
    assert "model_type must be one of bert, deberta-v2, electra, ernie, eurobert, gemma3_text, gte, " in message
    assert f"but is {kind!r}; its parameters: {', '.join(sorted(names))}, ..." in message
    assert (f"; the nearest is {nearest}" in message) if nearest else "nearest" not in message


def test_the_list_of_families(capsys):
    with pytest.raises(SystemExit) as done:
        convert_command(["--list"])
    assert done.value.code == 0
    rows = [line.split("  ")[0] for line in capsys.readouterr().out.splitlines()[1:]]
    assert rows == [family.name for family in FAMILIES] + ["DeltaLM"]


def test_families_are_told_apart():
    """By their names if they have a head; an encoder alone by its configuration."""
    assert recognize(["embeddings.word_embeddings.weight"], {"model_type": "roberta"}).name == "RoBERTa"
    assert recognize(["bert.embeddings.LayerNorm.gamma"], {}).name == "BERT"
    assert recognize(["bert.a", "cls.predictions.decoder_weight"], {"model_type": "bert"}).name == "s2s-ft"
    assert len({family.name for family in FAMILIES}) == len(FAMILIES)
    sizes = OUR_SIZES
    assert family_of(sizes).name == "BERT"
    assert family_of({**sizes, "num_segments": 0}).name == "RoBERTa"
    assert recognize(["encoder.relative_attention_bias.weight"], {}).name == "MPNet"
    biased = {**sizes, "relative_position_bins": 32}
    assert family_of(biased).name == "UniLM"
    without_segments = {**biased, "num_segments": 0}
    assert family_of(without_segments, padding=1).name == family_of(without_segments).name == "MPNet"
    for others in ({"relative_position_bins": 16}, {"max_relative_position": 64}, {"num_segments": 1}):
        assert family_of({**without_segments, **others}).name == "UniLM"
    assert family_of(without_segments, padding=0).name == "UniLM"
    assert family_of({**sizes, "embedding_dim": 8}).name == "ELECTRA"
    assert family_of({**sizes, "disentangled_attention": "c2p", "num_segments": 0}).name == "DeBERTa"
    modern = {"num_segments": 0, "layer_norm_position": "pre", "feed_forward": "gated", "biases": "none"}
    modern |= {"local_attention_window": 8}
    assert family_of({**sizes, **modern, "rotary_base": 1e4}).name == "ModernBERT"
    with pytest.raises(UserError, match="--local-attention-window is 8, but 0 in BERT"):
        family_of({**sizes, "local_attention_window": 8}, sizes)
    with pytest.raises(UserError) as raised:
        family_of({**sizes, "norm": "rms", "key_value_heads": 4, "lm_head": "plain"}, sizes)
    assert "--layer-norm-position is post, but pre in " in str(raised.value)
    assert "--output-matrix is tied, but own in " in str(raised.value)
