"""RoBERTa, XLM-RoBERTa and InfoXLM as fairseq saved them: ``model.pt`` with ``dict.txt`` beside it.

The sizes are options in the checkpoint. Before fairseq 0.10 the encoder was named decoder, and query, key and value
were one parameter.
"""

from collections.abc import Mapping
from typing import Any

from s2sft_fairseq.checkpoints.conversion import Family, Sizes, must_be
from s2sft_fairseq.checkpoints.families.bert import with_base
from s2sft_fairseq.checkpoints.families.roberta import PAD, drop_first_positions
from s2sft_fairseq.checkpoints.families.settings import activation, required

_LAYER = "layers.{}."
_MODULES = {
    "layernorm_embedding": "embeddings.layer_norm",
    _LAYER + "self_attn.q_proj": "layers.{}.attention.query",
    _LAYER + "self_attn.k_proj": "layers.{}.attention.key",
    _LAYER + "self_attn.v_proj": "layers.{}.attention.value",
    _LAYER + "self_attn.out_proj": "layers.{}.attention.output",
    _LAYER + "self_attn_layer_norm": "layers.{}.attention_layer_norm",
    _LAYER + "fc1": "layers.{}.fc1",
    _LAYER + "fc2": "layers.{}.fc2",
    _LAYER + "final_layer_norm": "layers.{}.final_layer_norm",
}
_PARAMETERS = {
    "embed_tokens.weight": "embeddings.tokens.weight",
    "embed_positions.weight": "embeddings.positions.weight",
    _LAYER + "self_attn.in_proj_weight": "layers.{}.attention.qkv.weight",
    _LAYER + "self_attn.in_proj_bias": "layers.{}.attention.qkv.bias",
}
_BASE = "encoder.sentence_encoder."


def _sizes(config: Mapping[str, Any]) -> Sizes:
    must_be(config, no_scale_embedding=True, encoder_learned_pos=True)
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads", "max_positions")
    return {
        **required(config, **{name: name for name in names}),
        "num_segments": 0,
        "layer_norm_eps": 1e-5,
        "activation_fn": activation(config, "activation_fn"),
    }


FAIRSEQ_ROBERTA = Family(
    name="fairseq RoBERTa",
    models="RoBERTa and XLM-R as fairseq published them",
    base=_BASE,
    signature=r"(encoder|decoder)\.sentence_encoder\.",
    modules={
        **with_base(_BASE, _MODULES),
        "encoder.lm_head.dense": "lm_head.dense",
        "encoder.lm_head.layer_norm": "lm_head.layer_norm",
    },
    parameters={**with_base(_BASE, _PARAMETERS), "encoder.lm_head.bias": "lm_head.bias"},
    spelling=((r"^decoder\.", "encoder."), (r"\.emb_layer_norm\.", ".layernorm_embedding.")),
    unused=r"version$|embed_positions\._float_tensor$",
    tied=("encoder.lm_head.weight",),
    sizes=_sizes,
    adapt=lambda weights, sizes, config: drop_first_positions(weights, sizes, PAD),
)
