"""Named sizes of both models, for ``--arch``."""

from argparse import Namespace
from functools import partial
from typing import Any

from fairseq.models import register_model_architecture

from s2sft_fairseq.models import deltalm, unilm  # noqa: F401, they register the models


def _sizes(layers: int, width: int, ffn_width: int, heads: int, **others: Any) -> dict[str, Any]:
    """Return the sizes of an architecture by option name, without sizes that all share with BERT."""
    return {
        "encoder_layers": layers,
        "encoder_embed_dim": width,
        "encoder_ffn_embed_dim": ffn_width,
        "encoder_attention_heads": heads,
        **others,
    }


ROBERTA: dict[str, Any] = {"num_segments": 0, "layer_norm_eps": 1e-5}

MODERNBERT: dict[str, Any] = {
    "max_positions": 8192,
    "num_segments": 0,
    "layer_norm_eps": 1e-5,
    "layer_norm_position": "pre",
    "feed_forward": "gated",
    "biases": "none",
    "rotary_base": 160000.0,
    "local_rotary_base": 10000.0,
    "local_attention_window": 128,
    "global_attention_every": 3,
}

DEBERTA: dict[str, Any] = {
    "num_segments": 0,
    "layer_norm_eps": 1e-7,
    "disentangled_attention": "both",
    "disentangled_buckets": 256,
    "max_relative_position": 512,
}

ARCHITECTURES = {
    "unilm_tiny": _sizes(2, 128, 512, 2),
    "unilm_small": _sizes(4, 512, 2048, 8),
    "unilm_base": _sizes(12, 768, 3072, 12),
    "unilm_large": _sizes(24, 1024, 4096, 16),
    "minilm_l6_h384": _sizes(6, 384, 1536, 12),
    "minilm_l12_h384": _sizes(12, 384, 1536, 12),
    # Not "roberta_base" and "roberta_large": fairseq has models of these names.
    "unilm_roberta_base": _sizes(12, 768, 3072, 12, **ROBERTA),
    "unilm_roberta_large": _sizes(24, 1024, 4096, 16, **ROBERTA),
    "electra_small": _sizes(12, 256, 1024, 4, embedding_dim=128),
    "modernbert_base": _sizes(22, 768, 1152, 12, **MODERNBERT),
    "modernbert_large": _sizes(28, 1024, 2624, 16, **MODERNBERT),
    "deberta_v3_base": _sizes(12, 768, 3072, 12, **DEBERTA),
    "deberta_v3_large": _sizes(24, 1024, 4096, 16, **DEBERTA),
}


def _deltalm_sizes(layers: int, width: int, heads: int, layernorm_embedding: str = "yes") -> dict[str, Any]:
    return {
        **_sizes(layers, width, 4 * width, heads),
        "decoder_layers": layers // 2,
        "layernorm_embedding": layernorm_embedding,
    }


DELTALM_ARCHITECTURES = {
    "deltalm_tiny": _deltalm_sizes(4, 128, 2),
    "deltalm_base": _deltalm_sizes(12, 768, 12),
    "deltalm_large": _deltalm_sizes(24, 1024, 16, "no"),
}


def _set_sizes(args: Namespace, sizes: dict[str, Any]) -> None:
    for name, size in sizes.items():
        if getattr(args, name, None) is None:
            setattr(args, name, size)


for _model, _presets in (("unilm", ARCHITECTURES), ("deltalm", DELTALM_ARCHITECTURES)):
    for _name, _preset in _presets.items():
        register_model_architecture(_model, _name)(partial(_set_sizes, sizes=_preset))
