"""RoBERTa, XLM-RoBERTa, InfoXLM and similar encoders, by Hugging Face's names.

Their position table begins with two rows that no token uses, as positions start after the padding id; these rows are
removed. Their only segment embedding is added to every token; it is added to the position table instead.
"""

from collections.abc import Mapping
from typing import Any

import torch

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, Weights
from s2sft_fairseq.checkpoints.embedding_tables import fold_segment
from s2sft_fairseq.checkpoints.families.bert import EMBEDDINGS, ENCODER, UNUSED, bert_config, bert_sizes, with_base

FIRST_POSITION = 2


def _sizes(config: Mapping[str, Any]) -> Sizes:
    sizes = bert_sizes(config)
    return {
        **sizes,
        "max_positions": sizes["max_positions"] - FIRST_POSITION,
        "num_segments": config.get("type_vocab_size", 1),
        "layer_norm_eps": config.get("layer_norm_eps", 1e-5),
    }


def drop_first_positions(weights: Weights, sizes: Sizes) -> None:
    """Remove the rows before that of the first token, and add a single segment embedding to the others."""
    if "embeddings.positions.weight" in weights:
        weights["embeddings.positions.weight"] = weights["embeddings.positions.weight"][FIRST_POSITION:]
    fold_segment(weights, sizes)


def _restore_first_positions(weights: Weights, sizes: Sizes) -> None:
    """Insert rows of zeros before the first position, and add a segment row of zeros if there is no segment table."""
    positions = weights["embeddings.positions.weight"]
    weights["embeddings.positions.weight"] = torch.cat(
        [positions.new_zeros(FIRST_POSITION, positions.size(1)), positions]
    )
    weights.setdefault("embeddings.segments.weight", positions.new_zeros(1, positions.size(1)))


def _config(sizes: Sizes) -> dict[str, Any]:
    return {
        **bert_config(sizes),
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "max_position_embeddings": sizes["max_positions"] + FIRST_POSITION,
        "type_vocab_size": max(1, sizes["num_segments"]),
    }


ROBERTA = Family(
    name="RoBERTa",
    models="RoBERTa, XLM-RoBERTa, XLM-V, InfoXLM",
    model_types=("roberta", "xlm-roberta", "xlm_roberta"),
    base="roberta.",
    signature=r"roberta\.embeddings\.",
    modules={
        **with_base("roberta.", ENCODER),
        "lm_head.dense": "lm_head.dense",
        "lm_head.layer_norm": "lm_head.layer_norm",
    },
    parameters={**with_base("roberta.", EMBEDDINGS), "lm_head.bias": "lm_head.bias"},
    unused=UNUSED,
    tied=("lm_head.decoder.weight",),
    sizes=_sizes,
    config=_config,
    adapt=drop_first_positions,
    restore=_restore_first_positions,
)
