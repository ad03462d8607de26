"""ERNIE and ERNIE-GEN (arXiv 2001.11314): by Hugging Face's names, and as Baidu's own program saved them.

Baidu's file (``*.pdparams``) stores the matrices of linear layers as (in, out). ``[ATTN]`` and ``[NOISE]`` of ERNIE-GEN
are ordinary entries of its vocabulary. ERNIE 2 and 3 add a task embedding; that of task 0, the default of their
programs, is added to the position table.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, Weights
from s2sft_fairseq.checkpoints.embedding_tables import fold_row
from s2sft_fairseq.checkpoints.families.bert import BERT, EMBEDDINGS, ENCODER, HEAD, bert_config, bert_sizes, with_base

_BLOCK = "encoder_stack.block.{}."
_PADDLE_MODULES = {
    "ln": "embeddings.layer_norm",
    _BLOCK + "attn.q": "layers.{}.attention.query",
    _BLOCK + "attn.k": "layers.{}.attention.key",
    _BLOCK + "attn.v": "layers.{}.attention.value",
    _BLOCK + "attn.o": "layers.{}.attention.output",
    _BLOCK + "ln1": "layers.{}.attention_layer_norm",
    _BLOCK + "ffn.i": "layers.{}.fc1",
    _BLOCK + "ffn.o": "layers.{}.fc2",
    _BLOCK + "ln2": "layers.{}.final_layer_norm",
    "mlm": "lm_head.dense",
    "mlm_ln": "lm_head.layer_norm",
}
_PADDLE_PARAMETERS = {
    "word_emb.weight": "embeddings.tokens.weight",
    "pos_emb.weight": "embeddings.positions.weight",
    "sent_emb.weight": "embeddings.segments.weight",
    "mlm_bias": "lm_head.bias",
}


def _fold_task(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    """Add the embedding of task 0 to every position, if the configuration says that tasks have embeddings."""
    tasks = weights.pop("embeddings.tasks.weight", None)
    if tasks is not None and config.get("use_task_id", False):
        fold_row(weights, tasks[0])


def _transpose(weights: Weights, sizes: Sizes, config: Mapping[str, Any]) -> None:
    """Transpose the matrices of linear layers from (in, out) to (out, in)."""
    for name, value in weights.items():
        if not name.startswith("embeddings.") and name.endswith(".weight") and value.ndim == 2:
            # The fused projection is (3 * in, out): three matrices stacked.
            parts = value.chunk(3) if ".qkv." in name else [value]
            weights[name] = torch.cat([part.t() for part in parts])


def _segments(config: Mapping[str, Any]) -> int:
    return config.get("type_vocab_size", config.get("sent_type_vocab_size", 2))


def _segments_of_ernie_gen(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return ERNIE-GEN's layout: one segment per field of the source, and the last of the four for the target."""
    return {"source_segments": "0,1,2", "target_segment": 3} if _segments(config) == 4 else {}


def _paddle_sizes(config: Mapping[str, Any]) -> Sizes:
    segments = _segments(config)
    settings = {
        "intermediate_size": 4 * config.get("hidden_size", 0),
        **config,
        "type_vocab_size": segments,
        "layer_norm_eps": config.get("layer_norm_eps", 1e-5),
    }
    return bert_sizes(settings)


ERNIE = replace(
    BERT,
    name="ERNIE",
    models="ERNIE 1.0 to 3.0 in Hugging Face's names",
    model_types=("ernie",),
    base="ernie.",
    signature=r"ernie\.embeddings\.",
    modules={**with_base("ernie.", ENCODER), **HEAD},
    parameters={
        **with_base("ernie.", EMBEDDINGS),
        "ernie.embeddings.task_type_embeddings.weight": "embeddings.tasks.weight",
        "cls.predictions.bias": "lm_head.bias",
    },
    adapt=_fold_task,
    layout=lambda config: {},
)

PADDLE_ERNIE = Family(
    name="ERNIE of Baidu's program",
    models="ERNIE and ERNIE-GEN as Baidu published them",
    signature=r"encoder_stack\.block\.",
    modules=_PADDLE_MODULES,
    parameters=_PADDLE_PARAMETERS,
    unused=r"pooler\.",
    sizes=_paddle_sizes,
    config=bert_config,
    adapt=_transpose,
    layout=_segments_of_ernie_gen,
)
