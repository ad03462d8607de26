"""MPNet by Hugging Face's names, which all-mpnet-base-v2 and many other sentence encoders have.

It is BERT without segments, with a relative position bias of 32 bins that all layers share. Its vocabulary is BERT's
behind fairseq's first symbols. As in RoBERTa, positions start after the padding id, and the head has gelu.
"""

from collections.abc import Mapping
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, Weights, must_be
from s2sft_fairseq.checkpoints.families.bert import EMBEDDINGS, UNUSED, bert_config, bert_sizes, with_base
from s2sft_fairseq.checkpoints.families.roberta import PAD, ROBERTA_HEAD, drop_first_positions, insert_first_positions
from s2sft_fairseq.checkpoints.families.settings import head_with_gelu
from s2sft_fairseq.errors import UserError

BINS, MOST_DISTANCE = 32, 128
"""What its program computes the bins with, whatever the configuration says (transformers 5.23)."""
_BIAS = "relative_position.weight"
_ENCODER = {
    "embeddings.LayerNorm": "embeddings.layer_norm",
    "encoder.layer.{}.attention.attn.q": "layers.{}.attention.query",
    "encoder.layer.{}.attention.attn.k": "layers.{}.attention.key",
    "encoder.layer.{}.attention.attn.v": "layers.{}.attention.value",
    "encoder.layer.{}.attention.attn.o": "layers.{}.attention.output",
    "encoder.layer.{}.attention.LayerNorm": "layers.{}.attention_layer_norm",
    "encoder.layer.{}.intermediate.dense": "layers.{}.fc1",
    "encoder.layer.{}.output.dense": "layers.{}.fc2",
    "encoder.layer.{}.output.LayerNorm": "layers.{}.final_layer_norm",
}


def _sizes(config: Mapping[str, Any]) -> Sizes:
    must_be(config, relative_attention_num_buckets=BINS)
    sizes = bert_sizes({**config, "type_vocab_size": 0, "rel_pos_bins": BINS, "max_rel_pos": MOST_DISTANCE})
    positions = sizes["max_positions"] - PAD - 1
    if positions < 1:
        raise UserError(
            f"the configuration's max_position_embeddings must be at least {PAD + 2}, as positions start at {PAD + 1}, "
            f"but is {sizes['max_positions']}"
        )
    return {**sizes, "max_positions": positions, **head_with_gelu(sizes)}


def _adapt(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    """Remove the rows of positions that no token uses, and transpose the bias, (bins, h) -> (h, bins)."""
    drop_first_positions(weights, sizes, PAD)
    if _BIAS in weights:
        weights[_BIAS] = weights[_BIAS].t()


def _restore(weights: Weights, sizes: Sizes, config: dict[str, Any]) -> None:
    insert_first_positions(weights, PAD)
    weights[_BIAS] = weights[_BIAS].t().contiguous()


def _config(sizes: Sizes) -> dict[str, Any]:
    config = {
        **bert_config(sizes),
        "architectures": ["MPNetForMaskedLM"],
        "model_type": "mpnet",
        "max_position_embeddings": sizes["max_positions"] + PAD + 1,
        "relative_attention_num_buckets": BINS,
    }
    del config["type_vocab_size"]
    return config


def is_mpnet(sizes: Mapping[str, Any], padding: int | None) -> bool:
    """Return whether a model with a relative position bias is an MPNet.

    Args:
        sizes: the sizes of the model.
        padding: the id of its padding symbol, which MPNet's program fixes; None: not known.
    """
    bins = sizes["relative_position_bins"], sizes["max_relative_position"]
    return bins == (BINS, MOST_DISTANCE) and not sizes["num_segments"] and padding in (None, PAD)


MPNET = Family(
    name="MPNet",
    models="MPNet, sentence encoders such as all-mpnet-base-v2",
    model_types=("mpnet",),
    base="mpnet.",
    signature=r"mpnet\.embeddings\.|encoder\.relative_attention_bias\.",
    modules={**with_base("mpnet.", _ENCODER), **ROBERTA_HEAD},
    parameters={
        **with_base("mpnet.", {name: ours for name, ours in EMBEDDINGS.items() if "token_type" not in name}),
        "mpnet.encoder.relative_attention_bias.weight": _BIAS,
        "lm_head.bias": "lm_head.bias",
    },
    unused=UNUSED,
    tied=("lm_head.decoder.weight",),
    second_bias="lm_head.decoder.bias",
    sizes=_sizes,
    config=_config,
    adapt=_adapt,
    restore=_restore,
    padding=lambda config: PAD,
)
