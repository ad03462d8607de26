"""Write a DeltaLM for CTranslate2, as an equivalent BART with twice as many decoder layers."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.deltalm_as_bart import bart_config, bart_weights
from s2sft_fairseq.checkpoints.model_folder import CARD, CONFIG, ENGINES, configuration, write_config
from s2sft_fairseq.data.bounded_files import read_json_object
from s2sft_fairseq.errors import UserError, package
from s2sft_fairseq.exports.deltalm import DeltaLM, copy_tokenizer
from s2sft_fairseq.files import check_replaceable, new_folder
from s2sft_fairseq.inference.ctranslate2_engine import NAME
from s2sft_fairseq.inference.ctranslate2_folder import settings
from s2sft_fairseq.models.model_card import model_card
from s2sft_fairseq.progress import step

_ACTIVATIONS = {"gelu": "GELU", "gelu_tanh": "GELUTanh", "relu": "RELU"}


def export_to_ctranslate2(model: DeltaLM, destination: Path, quantize: str = "float32") -> None:
    """Write a model folder whose weights are in CTranslate2's format.

    Its ``config.json`` holds the keys of CTranslate2 and of this package; each program reads its own.

    Args:
        model: the model to export.
        destination: the folder to write.
        quantize: type of the weights, by CTranslate2's name.

    Raises:
        UserError: something is missing or does not fit, or CTranslate2 is not installed.
    """
    check_replaceable(destination, "--to")
    package(NAME, f"--format {NAME}")
    if len(set(model.dictionary.symbols)) < len(model.dictionary):
        raise UserError(f"{model.tokenizer} has several ids of one symbol, which {NAME} cannot tell apart")
    with step(f"make the weights for {NAME}, {quantize}"):
        spec = make_spec(model)
        spec.validate()
        spec.optimize(quantization=quantize)
    state = model.state
    with new_folder(destination, "--to") as staging:
        with step(f"write {ENGINES[NAME]}"):
            spec.save(str(staging))
        config = configuration(state, state.get("search") or {}, {}, NAME)
        write_config({**read_json_object(staging / CONFIG), **config}, staging)
        copy_tokenizer(model, staging)
        parameters = sum(value.numel() for value in model.weights.values())
        (staging / CARD).write_text(_card(config, parameters, quantize), encoding="utf-8")
    print(f"wrote {destination}: for {NAME}, {quantize}, {len(model.dictionary)} symbols")


def make_spec(model: DeltaLM) -> Any:
    """Return a ``ctranslate2.specs.TransformerSpec`` with all weights in float32."""
    from ctranslate2.specs import TransformerSpec, common_spec

    config = bart_config(model.sizes)
    weights = bart_weights(model.weights, model.sizes, model.dictionary.pad())
    spec = TransformerSpec.from_config(
        (config["encoder_layers"], config["decoder_layers"]),
        config["encoder_attention_heads"],
        pre_norm=False,
        activation=common_spec.Activation[_ACTIVATIONS[str(model.sizes["activation_fn"])]],
        layernorm_embedding=config["model_type"] == "bart",
    )
    offset = 2 if config["model_type"] == "bart" else 0
    for side, part in (("encoder", spec.encoder), ("decoder", spec.decoder)):
        prefix = f"model.{side}."
        part.scale_embeddings = 1.0
        (part.embeddings[0] if side == "encoder" else part.embeddings).weight = weights["model.shared.weight"]
        part.position_encodings.encodings = weights[f"{prefix}embed_positions.weight"][offset:].contiguous()
        if hasattr(part, "layernorm_embedding"):
            _set_norm(part.layernorm_embedding, weights, f"{prefix}layernorm_embedding")
        for number, layer in enumerate(part.layer):
            name = f"{prefix}layers.{number}"
            attention = layer.self_attention
            _set_linear(attention.linear[0], weights, *(f"{name}.self_attn.{kind}_proj" for kind in "qkv"))
            _set_linear(attention.linear[1], weights, f"{name}.self_attn.out_proj")
            _set_norm(attention.layer_norm, weights, f"{name}.self_attn_layer_norm")
            if side == "decoder":
                attention = layer.attention
                _set_linear(attention.linear[0], weights, f"{name}.encoder_attn.q_proj")
                _set_linear(attention.linear[1], weights, *(f"{name}.encoder_attn.{kind}_proj" for kind in "kv"))
                _set_linear(attention.linear[2], weights, f"{name}.encoder_attn.out_proj")
                _set_norm(attention.layer_norm, weights, f"{name}.encoder_attn_layer_norm")
            _set_linear(layer.ffn.linear_0, weights, f"{name}.fc1")
            _set_linear(layer.ffn.linear_1, weights, f"{name}.fc2")
            _set_norm(layer.ffn.layer_norm, weights, f"{name}.final_layer_norm")
    spec.decoder.projection.weight = weights["model.shared.weight"]
    dictionary = model.dictionary
    spec.register_source_vocabulary(list(dictionary.symbols))
    spec.register_target_vocabulary(list(dictionary.symbols))
    for name, value in settings(dictionary).items():
        setattr(spec.config, name, value)
    return spec


def _set_linear(spec: Any, weights: Mapping[str, Tensor], *names: str) -> None:
    """Set a linear layer to the concatenation of one or several."""
    spec.weight = torch.cat([weights[f"{name}.weight"] for name in names])
    spec.bias = torch.cat([weights[f"{name}.bias"] for name in names])


def _set_norm(spec: Any, weights: Mapping[str, Tensor], name: str) -> None:
    spec.gamma, spec.beta = weights[f"{name}.weight"], weights[f"{name}.bias"]


def _card(config: Mapping[str, Any], parameters: int, quantize: str) -> str:
    told = (
        f"Its weights are in the format of CTranslate2, {quantize}: it runs on CPUs with `pip install ctranslate2`.\n"
    )
    return f"{model_card(config, parameters)}\n## CTranslate2\n\n{told}"
