"""ELECTRA's discriminators and generators (arXiv 2003.10555), by Hugging Face's names.

The embeddings of small models are narrower than their layers, those of base and large generators wider; a projection
is between them. A discriminator has no language model head, and its own head is left out.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Sizes
from s2sft_fairseq.checkpoints.families.bert import BERT, EMBEDDINGS, ENCODER, bert_config, bert_sizes, with_base
from s2sft_fairseq.checkpoints.families.settings import head_with_gelu


def _sizes(config: Mapping[str, Any]) -> Sizes:
    sizes = bert_sizes(config)
    narrow = config.get("embedding_size", sizes["encoder_embed_dim"])
    return {**sizes, **head_with_gelu(sizes), "embedding_dim": 0 if narrow == sizes["encoder_embed_dim"] else narrow}


def _config(sizes: Sizes) -> dict[str, Any]:
    return {
        **bert_config(sizes),
        "architectures": ["ElectraForMaskedLM"],
        "model_type": "electra",
        "embedding_size": sizes["embedding_dim"] or sizes["encoder_embed_dim"],
    }


ELECTRA = replace(
    BERT,
    name="ELECTRA",
    models="ELECTRA, generators and discriminators",
    model_types=("electra",),
    base="electra.",
    signature=r"electra\.embeddings\.",
    modules={
        **with_base("electra.", ENCODER),
        "electra.embeddings_project": "embeddings.projection",
        "generator_predictions.dense": "lm_head.dense",
        "generator_predictions.LayerNorm": "lm_head.layer_norm",
    },
    parameters={**with_base("electra.", EMBEDDINGS), "generator_lm_head.bias": "lm_head.bias"},
    tied=("generator_lm_head.weight",),
    second_bias="",
    sizes=_sizes,
    config=_config,
    layout=lambda config: {},
)
