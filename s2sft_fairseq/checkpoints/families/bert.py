"""BERT by Hugging Face's names, and other encoders with these names: MiniLM, UniLM v1 and 1.2.

Cased, uncased, Chinese and multilingual checkpoints differ only in their vocabulary. ``gamma`` and ``beta`` in old
files are ``weight`` and ``bias``. UniLM's configuration may name the segments of its training.
"""

from collections.abc import Mapping
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, must_be
from s2sft_fairseq.checkpoints.families.settings import (
    HUGGING_FACE_SIZES,
    activation,
    activation_name,
    required,
)

# Shared with the other families that Hugging Face built on its BERT.
EMBEDDINGS = {
    "embeddings.word_embeddings.weight": "embeddings.tokens.weight",
    "embeddings.position_embeddings.weight": "embeddings.positions.weight",
    "embeddings.token_type_embeddings.weight": "embeddings.segments.weight",
}
ENCODER = {
    "embeddings.LayerNorm": "embeddings.layer_norm",
    "encoder.layer.{}.attention.self.query": "layers.{}.attention.query",
    "encoder.layer.{}.attention.self.key": "layers.{}.attention.key",
    "encoder.layer.{}.attention.self.value": "layers.{}.attention.value",
    "encoder.layer.{}.attention.output.dense": "layers.{}.attention.output",
    "encoder.layer.{}.attention.output.LayerNorm": "layers.{}.attention_layer_norm",
    "encoder.layer.{}.intermediate.dense": "layers.{}.fc1",
    "encoder.layer.{}.output.dense": "layers.{}.fc2",
    "encoder.layer.{}.output.LayerNorm": "layers.{}.final_layer_norm",
}
HEAD = {
    "cls.predictions.transform.dense": "lm_head.dense",
    "cls.predictions.transform.LayerNorm": "lm_head.layer_norm",
}
UNUSED = r"pooler\.|embeddings\.(position_ids|token_type_ids)$"
OLD_LAYER_NORMS = ((r"\.gamma$", ".weight"), (r"\.beta$", ".bias"))


def with_base(base: str, names: Mapping[str, str]) -> dict[str, str]:
    """Return names with the prefix of a family added."""
    return {base + theirs: ours for theirs, ours in names.items()}


def bert_sizes(config: Mapping[str, Any]) -> Sizes:
    """Return the sizes in a ``config.json``.

    Raises:
        UserError: naming the settings that are missing or that the model does not support.
    """
    must_be(config, position_embedding_type="absolute", is_decoder=False, add_cross_attention=False)
    # Options of UniLM's own program.
    must_be(config, relax_projection=0, ffn_type=0, num_qkv=0, seg_emb=False, new_pos_ids=False)
    return {
        **required(config, **HUGGING_FACE_SIZES),
        "num_segments": config.get("type_vocab_size", 2),
        "relative_position_bins": config.get("rel_pos_bins") or 0,
        "max_relative_position": config.get("max_rel_pos") or 128,
        "layer_norm_eps": config.get("layer_norm_eps", 1e-12),
        "activation_fn": activation(config, "hidden_act"),
    }


def bert_config(sizes: Sizes) -> dict[str, Any]:
    """Return the ``config.json`` for these sizes."""
    return {
        "architectures": ["BertForMaskedLM"],
        "model_type": "bert",
        **{theirs: sizes[ours] for ours, theirs in HUGGING_FACE_SIZES.items()},
        "type_vocab_size": sizes["num_segments"],
        "layer_norm_eps": sizes["layer_norm_eps"],
        "hidden_act": activation_name(sizes),
    }


def segments_of_unilm(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the segments that a UniLM or s2s-ft configuration names."""
    suggested = {}
    if "source_type_id" in config:
        suggested["source_segments"] = str(config["source_type_id"])
    if "target_type_id" in config:
        suggested["target_segment"] = config["target_type_id"]
    return suggested


BERT = Family(
    name="BERT",
    models="BERT, MiniLM, UniLM v1 and 1.2, multilingual BERT",
    model_types=("bert", "minilm", "unilm"),
    base="bert.",
    signature=r"bert\.embeddings\.",
    modules={**with_base("bert.", ENCODER), **HEAD},
    parameters={**with_base("bert.", EMBEDDINGS), "cls.predictions.bias": "lm_head.bias"},
    spelling=OLD_LAYER_NORMS,
    unused=UNUSED,
    tied=("cls.predictions.decoder.weight",),
    second_bias="cls.predictions.decoder.bias",
    sizes=bert_sizes,
    config=bert_config,
    layout=segments_of_unilm,
)
