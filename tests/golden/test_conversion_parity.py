"""Converted checkpoints compared with those that the original program made from the same files."""

import re

import numpy as np
import pytest
import torch
from recorded import load, require

from s2sft_fairseq.checkpoints.conversion import read
from s2sft_fairseq.checkpoints.embedding_tables import resize_positions
from s2sft_fairseq.checkpoints.families import recognize
from s2sft_fairseq.models.convert import parameter_shapes

require("convert")
ARRAYS, SETTINGS = load("convert")
SIZES = SETTINGS["dims"]
RESIZED = [name for name in ARRAYS if re.fullmatch(r"pos_resize/(tile|shrink)_\d+", name)]
FAMILY_OF = {
    "bert": "BERT",
    "bert_gamma_beta": "BERT",
    "bert_modern": "BERT",
    "minilm": "BERT",
    "roberta": "RoBERTa",
    "roberta_modern": "RoBERTa",
    "xlm-roberta": "RoBERTa",
    "electra_discriminator": "ELECTRA",
    "electra_generator_smallemb": "ELECTRA",
    "unilm_v1_plain": "BERT",
    "unilm_fastqkv": "UniLM",
    "unilm_fastqkv_relpos": "UniLM",
    "s2sft_finetuned": "s2s-ft",
}

# Written by hand, independently of the package's tables.
OURS = [
    (r"^bert\.embeddings\.word_embeddings", "embeddings.tokens"),
    (r"^bert\.embeddings\.position_embeddings", "embeddings.positions"),
    (r"^bert\.embeddings\.token_type_embeddings", "embeddings.segments"),
    (r"^bert\.embeddings\.LayerNorm", "embeddings.layer_norm"),
    (r"^bert\.encoder\.layer\.(\d+)\.attention\.output\.dense", r"layers.\1.attention.output"),
    (r"^bert\.encoder\.layer\.(\d+)\.attention\.output\.LayerNorm", r"layers.\1.attention_layer_norm"),
    (r"^bert\.encoder\.layer\.(\d+)\.intermediate\.dense", r"layers.\1.fc1"),
    (r"^bert\.encoder\.layer\.(\d+)\.output\.dense", r"layers.\1.fc2"),
    (r"^bert\.encoder\.layer\.(\d+)\.output\.LayerNorm", r"layers.\1.final_layer_norm"),
    (r"^bert\.rel_pos_bias", "relative_position"),
    (r"^cls\.predictions\.transform\.dense", "lm_head.dense"),
    (r"^cls\.predictions\.transform\.LayerNorm", "lm_head.layer_norm"),
    (r"^cls\.predictions\.bias", "lm_head.bias"),
]


def inputs(case):
    """Return the tensors of a recorded checkpoint and its configuration."""
    described = SETTINGS["cases"][case]
    prefix = f"{case}/in/"
    tensors = {
        name.removeprefix(prefix): torch.from_numpy(value.copy())
        for name, value in ARRAYS.items()
        if name.startswith(prefix)
    }
    if "config_json" in described:
        return tensors, described["config_json"]
    config = {
        **described["seq2seq_config"],
        **{name: value for name, value in SIZES.items() if name != "vocab_size"},
        "max_position_embeddings": next(len(value) for name, value in tensors.items() if "position_emb" in name),
        "model_type": described["model_type"],
    }
    # The recorded configuration is the original's conversion of the encoder's, which dropped RoBERTa's segments.
    config["type_vocab_size"] = next((len(value) for name, value in tensors.items() if "token_type" in name), 0)
    if described["model_type"] == "electra":
        config["embedding_size"] = embedding_width(tensors)
    return tensors, config


def embedding_width(tensors):
    return next(value.shape[1] for name, value in tensors.items() if "word_embeddings" in name)


def convert(case):
    tensors, config = inputs(case)
    family = recognize(tensors, config)
    assert family.name == FAMILY_OF[case]
    return read(family, tensors, config, parameter_shapes)


def recorded_model(case):
    """Return the parameters of the original's model, by our names."""
    prefix = f"{case}/model/"
    theirs = {name.removeprefix(prefix): value for name, value in ARRAYS.items() if name.startswith(prefix)}
    ours = {}
    for layer in range(SIZES["num_hidden_layers"]):
        for kind in ("weight", "bias"):
            parts = [
                theirs.pop(f"bert.encoder.layer.{layer}.attention.self.{p}.{kind}") for p in ("query", "key", "value")
            ]
            ours[f"layers.{layer}.attention.qkv.{kind}"] = np.concatenate(parts)
    assert np.array_equal(
        theirs.pop("cls.predictions.decoder_weight"), theirs["bert.embeddings.word_embeddings.weight"]
    )
    for name, value in theirs.items():
        (renamed,) = [re.sub(pattern, new, name) for pattern, new in OURS if re.match(pattern, name)]
        ours[renamed] = value
    return ours


def test_every_case_is_compared():
    assert set(FAMILY_OF) == set(SETTINGS["cases"])


@pytest.mark.parametrize("case", [case for case, family in FAMILY_OF.items() if family not in ("ELECTRA", "s2s-ft")])
def test_the_model_of_the_original(case):
    conversion = convert(case)
    positions = SETTINGS["cases"][case]["seq2seq_config"]["max_position_embeddings"]
    resize_positions(conversion.weights, conversion.sizes, positions)
    expected = recorded_model(case)
    if FAMILY_OF[case] == "RoBERTa":
        # The original drops the segment that RoBERTa adds to each token; here it is added to the positions.
        segment = ARRAYS[f"{case}/in/roberta.embeddings.token_type_embeddings.weight"][0]
        expected["embeddings.positions.weight"] = expected["embeddings.positions.weight"] + segment
    assert conversion.weights.keys() == expected.keys()
    for name, value in expected.items():
        assert np.array_equal(conversion.weights[name].numpy(), value), name
    assert conversion.sizes["num_segments"] == len(expected.get("embeddings.segments.weight", ()))
    assert conversion.sizes["layer_norm_eps"] == SETTINGS["cases"][case]["seq2seq_config"]["layer_norm_eps"]
    assert not conversion.missing


@pytest.mark.parametrize("case", [case for case, family in FAMILY_OF.items() if family not in ("ELECTRA", "s2s-ft")])
def test_unused_parameters_of_the_original(case):
    """We leave out what the original calls unexpected, and the parts that it removes before."""
    conversion = convert(case)
    before = {name for name, _ in SETTINGS["cases"][case]["in"]}
    unexpected = SETTINGS["cases"][case]["load"]["unexpected_keys"]
    assert {re.sub(r"^roberta\.|^lm_head\.|^bert\.|^cls\.predictions\.", "", name) for name in conversion.unused} == {
        re.sub(r"^bert\.|^cls\.predictions\.", "", name) for name in unexpected
    }
    assert set(conversion.unused) <= before


@pytest.mark.parametrize("case", ["electra_discriminator", "electra_generator_smallemb"])
def test_electra_which_the_original_cannot_load(case):
    assert "error" in SETTINGS["cases"][case]["load"]
    tensors, _ = inputs(case)
    conversion = convert(case)
    for ours, theirs in {
        "embeddings.tokens.weight": "electra.embeddings.word_embeddings.weight",
        "embeddings.positions.weight": "electra.embeddings.position_embeddings.weight",
        "layers.1.fc2.weight": "electra.encoder.layer.1.output.dense.weight",
    }.items():
        assert torch.equal(conversion.weights[ours], tensors[theirs])
    if case == "electra_discriminator":
        assert {name.split(".")[0] for name in conversion.unused} == {"discriminator_predictions"}
        assert {name.split(".")[0] for name in conversion.missing} == {"lm_head"}
    else:
        assert torch.equal(
            conversion.weights["embeddings.projection.weight"], tensors["electra.embeddings_project.weight"]
        )
        assert torch.equal(conversion.weights["lm_head.dense.bias"], tensors["generator_predictions.dense.bias"])
        assert conversion.unused == ["generator_lm_head.weight"] and not conversion.missing
    width = embedding_width(tensors)
    assert conversion.sizes.get("embedding_dim", 0) == (0 if width == SIZES["hidden_size"] else width)


def test_a_fine_tuned_model_of_the_original():
    """It has the epsilon of its decoder, and no copy of the tied matrix and no buffer of the loss."""
    tensors, config = inputs("s2sft_finetuned")
    conversion = convert("s2sft_finetuned")
    assert conversion.finetuned and conversion.sizes["layer_norm_eps"] == 1e-5
    assert sorted(conversion.unused) == ["cls.predictions.decoder_weight", "crit_mask_lm_smoothed.one_hot"]
    assert torch.equal(conversion.weights["relative_position.weight"], tensors["bert.rel_pos_bias.weight"])
    assert conversion.sizes["relative_position_bins"] == config["rel_pos_bins"] > 0
    assert not conversion.missing and not conversion.notes
    assert conversion.layout == {"source_segments": "0", "target_segment": 1}


@pytest.mark.parametrize("name", RESIZED)
def test_resized_positions(name):
    old, rows = torch.from_numpy(ARRAYS["pos_resize/old"].copy()), int(name.rpartition("_")[2])
    weights, sizes = {"embeddings.positions.weight": old}, {"max_positions": len(old)}
    resize_positions(weights, sizes, rows)
    assert np.array_equal(weights["embeddings.positions.weight"].numpy(), ARRAYS[name])
    assert sizes["max_positions"] == rows
