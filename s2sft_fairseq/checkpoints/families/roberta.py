"""RoBERTa, XLM-RoBERTa, InfoXLM and similar encoders, by Hugging Face's names.

Their position table begins with rows that no token uses, as positions start after the padding id; these rows are
removed. Their only segment embedding is added to every token; it is added to the position table instead. The head has
gelu, whatever the activation of the layers.
"""

from collections.abc import Mapping
from typing import Any

import torch

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, Weights
from s2sft_fairseq.checkpoints.embedding_tables import fold_segment
from s2sft_fairseq.checkpoints.families.bert import EMBEDDINGS, ENCODER, UNUSED, bert_config, bert_sizes, with_base
from s2sft_fairseq.checkpoints.families.settings import head_with_gelu
from s2sft_fairseq.errors import UserError, shown

PAD = 1
"""The padding id of fairseq's dictionaries, and of a configuration that states none."""


ROBERTA_HEAD = {"lm_head.dense": "lm_head.dense", "lm_head.layer_norm": "lm_head.layer_norm"}


def _padding(config: Mapping[str, Any]) -> int:
    """Return the id that counts for no position.

    Raises:
        UserError: it is none, or leaves no positions.
    """
    pad = config.get("pad_token_id", PAD)
    if type(pad) is not int or not 0 <= pad < config["max_position_embeddings"] - 1:
        raise UserError(
            "the configuration's pad_token_id must be a whole number from 0 on, after which positions start, below "
            f"max_position_embeddings - 1, but is {shown(pad)}"
        )
    return pad


def _sizes(config: Mapping[str, Any]) -> Sizes:
    sizes = bert_sizes({"type_vocab_size": 1, **config})
    return {**sizes, "max_positions": sizes["max_positions"] - _padding(config) - 1, **head_with_gelu(sizes)}


def _drop_first_positions(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    drop_first_positions(weights, sizes, _padding(config))


def drop_first_positions(weights: Weights, sizes: Sizes, pad: int) -> None:
    """Remove the rows up to that of the padding, and add a single segment embedding to the others."""
    if "embeddings.positions.weight" in weights:
        weights["embeddings.positions.weight"] = weights["embeddings.positions.weight"][pad + 1 :]
    fold_segment(weights, sizes)


def _restore_first_positions(weights: Weights, sizes: Sizes, config: dict[str, Any]) -> None:
    """Insert the rows before the first position, and add a segment row of zeros if there is no segment table."""
    pad = config.get("pad_token_id", PAD)
    insert_first_positions(weights, pad)
    config["max_position_embeddings"] = sizes["max_positions"] + pad + 1
    positions = weights["embeddings.positions.weight"]
    weights.setdefault("embeddings.segments.weight", positions.new_zeros(1, positions.size(1)))


def insert_first_positions(weights: Weights, pad: int) -> None:
    """Insert rows of zeros up to that of the padding."""
    positions = weights["embeddings.positions.weight"]
    rows = positions.new_zeros(pad + 1, positions.size(1))
    weights["embeddings.positions.weight"] = torch.cat([rows, positions])


def _config(sizes: Sizes) -> dict[str, Any]:
    return {
        **bert_config(sizes),
        "architectures": ["RobertaForMaskedLM"],
        "model_type": "roberta",
        "max_position_embeddings": sizes["max_positions"] + PAD + 1,
        "type_vocab_size": max(1, sizes["num_segments"]),
    }


ROBERTA = Family(
    name="RoBERTa",
    models="RoBERTa, XLM-RoBERTa, XLM-V, InfoXLM",
    model_types=("roberta", "xlm-roberta", "xlm_roberta"),
    base="roberta.",
    signature=r"roberta\.embeddings\.",
    modules={**with_base("roberta.", ENCODER), **ROBERTA_HEAD},
    parameters={**with_base("roberta.", EMBEDDINGS), "lm_head.bias": "lm_head.bias"},
    unused=UNUSED,
    tied=("lm_head.decoder.weight",),
    second_bias="lm_head.decoder.bias",
    sizes=_sizes,
    config=_config,
    adapt=_drop_first_positions,
    restore=_restore_first_positions,
    padding=_padding,
)
