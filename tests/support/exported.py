"""Model folders of tiny random generators, for exports."""

from pathlib import Path
from typing import Any

import numpy as np
from tiny import ENCODERS, VOCAB_SIZE, tiny_dictionary, tiny_model, words

from s2sft_fairseq.checkpoints.model_folder import write_model
from s2sft_fairseq.models.unilm import UnilmModel

METHODS = ("causal", "masked", "pseudo_masked", "infilling")
TEXTS = ("w5 w6 w7 w8 w9 w10", "w11", "w12 w13 w14 [SEP] w15 w16", "w20 w21 w22 w23 w24 w25 w26 w27 w28 w29 w30")
ROLES = {"num_segments": 0, "num_roles": 3, "num_turns": 4}
"""Options of a model for dialogues."""
_LOCAL = {"rotary_base": 100.0, "local_attention_window": 6, "encoder_layers": 3}
SWITCHES: dict[str, dict[str, Any]] = {
    "causal sources": {"source_visibility": "causal"},
    "causal sources, local layers": {"source_visibility": "causal", "global_attention_every": 3, **_LOCAL},
    "first global layer": {"global_attention_every": 3, "first_global_layer": 2, "local_rotary_base": 10.0, **_LOCAL},
    "wide heads": {"head_dim": 12},
    "shared keys": {"encoder_attention_heads": 4, "key_value_heads": 2},
    "norms of queries and keys": {"query_key_norm": "rms"},
    "four norms": {"layer_norm_position": "both"},
    "biases of queries, keys and values": {"biases": "qkv,fc1"},
    "scaled embeddings": {"embedding_scale": 3.0},
    "unrotated layers": {"rotary_base": 100.0, "unrotated_layers_every": 2},
    "linear scaling": {"rotary_base": 100.0, "rotary_scaling": "linear:4"},
    "Llama 3's scaling": {"rotary_base": 100.0, "rotary_scaling": "llama3:8:1:4:32"},
    "relative and absolute positions": {"relative": True},
}
"""Options of models, each with one of the differences between BERT and language models or MPNet."""
_LLAMA: dict[str, Any] = {
    "source_visibility": "causal",
    "encoder_attention_heads": 4,
    "key_value_heads": 2,
    "num_segments": 0,
    "layer_norm_position": "pre",
    "norm": "rms",
    "embedding_norm": "no",
    "feed_forward": "gated",
    "activation_fn": "silu",
    "biases": "none",
    "rotary_base": 100.0,
    "lm_head": "plain",
    "output_bias": "no",
}
LANGUAGE_MODELS: dict[str, dict[str, Any]] = {
    "llama": {**_LLAMA, "rotary_scaling": "llama3:8:1:4:32", "output_matrix": "own"},
    "smollm3": {**_LLAMA, "encoder_layers": 4, "unrotated_layers_every": 4},
    "qwen2": {**_LLAMA, "biases": "qkv"},
    "qwen3": {**_LLAMA, "head_dim": 6, "query_key_norm": "rms"},
    # Five local layers, then a global one.
    "gemma": {
        **_LLAMA,
        "encoder_layers": 6,
        "activation_fn": "gelu_tanh",
        "head_dim": 6,
        "key_value_heads": 1,
        "query_key_norm": "rms",
        "layer_norm_position": "both",
        "embedding_scale": 4.0,
        "rotary_scaling": "linear:8",
        "local_rotary_base": 10.0,
        "local_attention_window": 6,
        "global_attention_every": 6,
        "first_global_layer": 5,
    },
}
"""Options of models like tiny ones of each family of language models."""


def some_texts(count: int) -> list[str]:
    """Return random texts of 1 to 12 words."""
    rng = np.random.default_rng(5)
    return [" ".join(f"w{number}" for number in words(rng, rng.integers(1, 13))) for _ in range(count)]


def write_model_folder(
    folder: Path,
    kind: str = "absolute",
    method: str = "pseudo_masked",
    *,
    layout: dict[str, Any] | None = None,
    search: dict[str, Any] | None = None,
    **sizes: Any,
) -> UnilmModel:
    """Write the folder of a tiny random model with the words ``w5`` to ``w49``; return the model."""
    model = tiny_model(1, **{**ENCODERS[kind], **sizes})
    symbols = tiny_dictionary().symbols
    folder.mkdir(parents=True)
    (folder / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    limits = {"finetune_method": method, "max_source_positions": 24, "max_target_positions": 10}
    state = {
        "model": model.state_dict(),
        "cfg": {"model": {**vars(model.cfg), "_name": "unilm"}, "task": {"_name": "unilm_seq2seq"}},
        "task_state": {"layout": {**limits, **(layout or {})}, "num_symbols": VOCAB_SIZE},
    }
    write_model(state, folder, search or {}, {})
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols))
    return model
