"""UniLM v2 as Microsoft published it: Fast QKV, and a relative position bias that all layers share.

Fast QKV is one matrix for query, key and value, with biases for query and value only. A bias of the key adds the same
value to all scores of a query, which the softmax cancels (convert_state_dict.py of s2s-ft).
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from s2sft_fairseq.checkpoints.conversion import Sizes, Weights
from s2sft_fairseq.checkpoints.families.bert import BERT, bert_config

_FAST = {
    "bert.encoder.layer.{}.attention.self.qkv_linear.weight": "layers.{}.attention.qkv.weight",
    "bert.encoder.layer.{}.attention.self.q_bias": "layers.{}.attention.q_bias",
    "bert.encoder.layer.{}.attention.self.v_bias": "layers.{}.attention.v_bias",
}


def _join_biases(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    """Concatenate Fast QKV's biases of query and value, (1, 1, H) each, to the fused bias; that of the key is 0."""
    for layer in range(sizes["encoder_layers"]):
        prefix = f"layers.{layer}.attention"
        if f"{prefix}.q_bias" in weights and f"{prefix}.v_bias" in weights:
            query, value = (weights.pop(f"{prefix}.{part}_bias").flatten() for part in "qv")
            weights[f"{prefix}.qkv.bias"] = torch.cat([query, torch.zeros_like(query), value])


def _config(sizes: Sizes) -> dict[str, Any]:
    """Return UniLM's ``config.json``: Hugging Face has no model with this bias."""
    return {
        **bert_config(sizes),
        "architectures": ["BertForSequenceToSequence"],
        "model_type": "unilm",
        "rel_pos_bins": sizes["relative_position_bins"],
        "max_rel_pos": sizes["max_relative_position"],
    }


UNILM = replace(
    BERT,
    name="UniLM",
    models="UniLM v2 (unilm2-base, unilm2-large)",
    model_types=(),  # UniLM v1 and 1.2 are BERT
    signature=r".*(qkv_linear\.|rel_pos_bias\.)",
    parameters={**BERT.parameters, **_FAST, "bert.rel_pos_bias.weight": "relative_position.weight"},
    spelling=(*BERT.spelling, (r"encoder\.rel_pos_bias\.", "rel_pos_bias.")),
    adapt=_join_biases,
    config=_config,
)
