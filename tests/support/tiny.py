"""Tiny models, dictionaries and pairs that the unit tests share."""

from typing import Any

import numpy as np
import torch

from s2sft_fairseq.data.dictionary import BERT_SYMBOLS
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.objectives.finetuning import Corruption
from s2sft_fairseq.objectives.objective import OBJECTIVES, Objective
from s2sft_fairseq.objectives.packing import PackedBatch, PackedExamples
from s2sft_fairseq.objectives.ragged import Draws, Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

VOCAB_SIZE = 50
PAD, UNK, CLS, SEP, MASK = range(5)
FIRST_WORD = 5

TINY_SIZES: dict[str, Any] = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 32,
    "encoder_attention_heads": 2,
    "max_positions": 64,
    "num_segments": 2,
}

# The settings of a tiny model, beyond its sizes, for each kind of encoder. ModernBERT's layers are global, local,
# local, global, and the local ones see three positions to either side.
ENCODERS: dict[str, dict[str, Any]] = {
    "absolute": {},
    "relative": {"relative": True},
    "electra": {"embedding_dim": 8},
    "deberta": {
        "num_segments": 0,
        "disentangled_attention": "both",
        "disentangled_buckets": 8,
        "max_relative_position": 16,
    },
    "modernbert": {
        "encoder_layers": 4,
        "num_segments": 0,
        "layer_norm_position": "pre",
        "feed_forward": "gated",
        "biases": "none",
        "rotary_base": 100.0,
        "local_rotary_base": 10.0,
        "local_attention_window": 6,
        "global_attention_every": 3,
    },
    # Like EuroBERT, whose heads share keys and values, and like GTE.
    "grouped": {
        "encoder_embed_dim": 32,
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
        "output_matrix": "own",
        "output_bias": "no",
    },
    # Like Llama 3.2, with Qwen2's biases and SmolLM3's layers without positions.
    "causal": {
        "encoder_layers": 3,
        "encoder_embed_dim": 32,
        "encoder_attention_heads": 4,
        "key_value_heads": 2,
        "num_segments": 0,
        "source_visibility": "causal",
        "layer_norm_position": "pre",
        "norm": "rms",
        "embedding_norm": "no",
        "feed_forward": "gated",
        "activation_fn": "silu",
        "biases": "qkv",
        "rotary_base": 100.0,
        "rotary_scaling": "llama3:4:1:4:32",
        "unrotated_layers_every": 2,
        "lm_head": "plain",
        "output_bias": "no",
    },
    # Like Gemma 3, whose norms of queries and keys Qwen3 has, too; in local layers a query sees two tokens before it.
    "local causal": {
        "encoder_layers": 4,
        "encoder_attention_heads": 4,
        "head_dim": 8,
        "key_value_heads": 2,
        "num_segments": 0,
        "source_visibility": "causal",
        "layer_norm_position": "both",
        "norm": "rms",
        "query_key_norm": "rms",
        "embedding_norm": "no",
        "embedding_scale": 4.0,
        "feed_forward": "gated",
        "activation_fn": "gelu_tanh",
        "biases": "none",
        "rotary_base": 100.0,
        "rotary_scaling": "linear:2",
        "local_rotary_base": 10.0,
        "local_attention_window": 4,
        "global_attention_every": 3,
        "first_global_layer": 2,
        "lm_head": "plain",
        "output_bias": "no",
    },
    "rotary-post": {
        "num_segments": 2,
        "feed_forward": "gated",
        "biases": "attention,fc2,norm,head",
        "rotary_base": 100.0,
        "lm_head": "two_layer",
        "lm_head_dim": 12,
        "lm_head_activation_fn": "gelu_tanh",
    },
}


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
}
"""Options of models, each with one of the differences between BERT and language models."""
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


def pairs_of_switches() -> dict[str, dict[str, Any]]:
    """Return causal sources with each other switch, and with encoders that are not language models."""
    causal = SWITCHES["causal sources"]
    others = {name: sizes for name, sizes in SWITCHES.items() if sizes is not causal}
    others |= {name: ENCODERS[name] for name in ("relative", "electra", "deberta", "modernbert", "grouped")}
    return {f"causal sources, {name}": {**causal, **sizes} for name, sizes in others.items()}


def tiny_form(method: str = "pseudo_masked", **changes: Any) -> SequenceForm:
    """Return the layout for a method, with BERT's special symbols first in the vocabulary."""
    settings = {
        "cls": CLS,
        "sep": SEP,
        "pad": PAD,
        "placeholder": MASK,
        "vocab_size": VOCAB_SIZE,
        "starts_with": OBJECTIVES[method].starts_with,
        "placeholder_segment": changes.get("target_segment", 1),
        "max_source": 24,
        "max_target": 16,
    }
    return SequenceForm(**{**settings, **changes})


def tiny_config(*, relative: bool = False, **sizes: Any) -> UnilmConfig:
    """Return complete options of a tiny model without dropout."""
    bias = {"relative_position_bins": 8, "max_relative_position": 16} if relative else {}
    options = {**TINY_SIZES, **bias, "dropout": 0.0, "attention_dropout": 0.0, **sizes}
    cfg = UnilmConfig(**options)
    complete_sizes(cfg)
    return cfg


def tiny_model(seed: int = 0, *, vocab_size: int = VOCAB_SIZE, relative: bool = False, **sizes: Any) -> UnilmModel:
    """Return a random model with weights large enough for its probabilities to be far from uniform."""
    model = UnilmModel(tiny_config(relative=relative, **sizes), vocab_size=vocab_size, pad=PAD)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            is_scale = "norm" in name and name.endswith("weight")
            parameter.copy_(1 + 0.2 * noise if is_scale else 0.4 * noise)
    return model.eval()


def tiny_dictionary(size: int = VOCAB_SIZE) -> FairseqDictionary:
    """Return a BERT-like dictionary: the five special symbols, then ``w5``, ``w6`` and so on."""
    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(FIRST_WORD, size))]
    return FairseqDictionary([(symbol, 1) for symbol in symbols], BERT_SYMBOLS)


def words(rng: np.random.Generator, length: int) -> np.ndarray:
    """Return random ids (length,) of ordinary symbols."""
    return rng.integers(FIRST_WORD, VOCAB_SIZE, size=length)


def laid_out(source: np.ndarray, target: np.ndarray, form: SequenceForm) -> tuple[Ragged, Ragged]:
    """Return a pair of ids without special symbols as the arguments of objectives."""
    return Ragged.of([form.source(source)]), Ragged.of([form.target(target)])


def pack_example(
    method: str,
    source: np.ndarray,
    target: np.ndarray,
    form: SequenceForm,
    corruption: Corruption,
    rng: np.random.Generator,
) -> PackedExamples:
    """Pack one pair, with random numbers that differ from call to call."""
    draws = Draws(int(rng.integers(1 << 62)), 1, np.array([0]))
    return OBJECTIVES[method].pack(*laid_out(source, target, form), form, corruption, draws)


def reference_example(source: np.ndarray, target: np.ndarray, form: SequenceForm) -> PackedExamples:
    """Pack one pair without corruption, to compute its probability."""
    return objective_of(form).reference(*laid_out(source, target, form), form)


def objective_of(form: SequenceForm) -> Objective:
    """Return an objective of this form; masked and pseudo-masked models share one objective and its references."""
    return next(objective for objective in OBJECTIVES.values() if objective.starts_with == form.starts_with)


def model_inputs(batch: PackedBatch) -> dict[str, Any]:
    """Return the arguments of `UnilmModel.forward` for a packed batch."""
    return model_input(batch)


def packed_columns(batch: PackedBatch) -> PackedColumns:
    """Return the argument of `UnilmModel.encode` for a packed batch."""
    return PackedColumns(**model_inputs(batch))


def padded(rows: list[np.ndarray], pad: int = PAD) -> torch.Tensor:
    """Return rows of ids as one tensor, padded on the right."""
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(row) for row in rows], batch_first=True, padding_value=pad)
