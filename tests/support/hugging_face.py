"""Tiny random models of `transformers`, their saved folders, and our models of converted encoders."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.modules.visibility import PackedColumns

VOCAB_SIZE, POSITIONS = 50, 40
BYTES = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRĠ"  # in GPT-2's spelling, whose last character is a space
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 16,
    "num_hidden_layers": 3,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "max_position_embeddings": POSITIONS,
}
NO_DROPOUT = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
ROBERTA = {"max_position_embeddings": POSITIONS + 2, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "pad_token_id": 1}
MODERN = {
    **{"num_hidden_layers": 5, "global_attn_every_n_layers": 3, "local_attention": 8, "attn_implementation": "eager"},
    **{"pad_token_id": 48, "bos_token_id": 46, "cls_token_id": 46, "eos_token_id": 47, "sep_token_id": 47},
}
MMBERT = {
    **MODERN,
    **{"pad_token_id": 0, "bos_token_id": 2, "cls_token_id": 1, "eos_token_id": 1, "sep_token_id": 1},
    "rope_parameters": {
        kind: {"rope_type": "default", "rope_theta": 160000.0} for kind in ("full_attention", "sliding_attention")
    },
}
EURO = {"attn_implementation": "eager", "pad_token_id": 1, "bos_token_id": 0, "eos_token_id": 1, "mask_token_id": 2}
GROUPED = {"num_attention_heads": 4, "num_key_value_heads": 2}
ULTRA = {"num_hidden_layers": 5, "sliding_window": 4, "prediction_head_size": 12}
ROTARY = {"attn_implementation": "eager"}

SPECIAL = {
    "tokenizer_json": ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"],
    "gemma": ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>"],
    "llama": ["<|begin_of_text|>", "<|end_of_text|>", "<|mask|>"]
    + [f"<|reserved_special_token_{number}|>" for number in range(2)],
}
"""The special tokens of the ``tokenizer.json`` schemes; their ids start at 0, except in the first scheme."""
DEBERTA = {
    **{"relative_attention": True, "position_biased_input": False, "pos_att_type": ["p2c", "c2p"]},
    **{"position_buckets": 8, "share_att_key": True, "norm_rel_ebd": "layer_norm"},
}
SPM_SPECIAL = {
    **{"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3},
    **{"pad_piece": "[PAD]", "bos_piece": "[CLS]", "eos_piece": "[SEP]", "unk_piece": "[UNK]"},
}
OWN_PROJECTIONS = {**DEBERTA, "share_att_key": False}

# Each family and variant by name: class, tokenizer, and changes of its configuration.
MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "bert": ("BertForMaskedLM", "wordpiece", {}),
    "bert-pretraining": ("BertForPreTraining", "wordpiece", {"hidden_act": "gelu_new"}),
    "bert-1-segment": ("BertForMaskedLM", "wordpiece", {"type_vocab_size": 1}),
    "bert-6-segments": ("BertForMaskedLM", "wordpiece", {"type_vocab_size": 6}),
    "bert-no-head": ("BertModel", "wordpiece", {}),
    "roberta": ("RobertaForMaskedLM", "byte_level_bpe", ROBERTA),
    "roberta-no-head": ("RobertaModel", "byte_level_bpe", ROBERTA),
    "xlm-roberta": ("XLMRobertaForMaskedLM", "sentencepiece", ROBERTA),
    "mpnet": ("MPNetForMaskedLM", "mpnet", {**ROBERTA, **ROTARY}),
    "mpnet-no-head": ("MPNetModel", "mpnet", {**ROBERTA, **ROTARY}),
    "electra-discriminator": ("ElectraForPreTraining", "wordpiece", {"embedding_size": 16}),
    "electra-small-discriminator": ("ElectraForPreTraining", "wordpiece", {"embedding_size": 8}),
    "electra-generator": ("ElectraForMaskedLM", "wordpiece", {"embedding_size": 16}),
    "electra-small-generator": ("ElectraForMaskedLM", "wordpiece", {"embedding_size": 8}),
    "electra-base-generator": ("ElectraForMaskedLM", "wordpiece", {"embedding_size": 24}),  # wider than its layers
    "ernie": ("ErnieForMaskedLM", "wordpiece", {"type_vocab_size": 4}),
    "ernie-tasks": ("ErnieForMaskedLM", "wordpiece", {"use_task_id": True}),
    "ernie-no-head": ("ErnieModel", "wordpiece", {}),
    "modernbert": ("ModernBertForMaskedLM", "tokenizer_json", MODERN),
    "modernbert-all-global": ("ModernBertForMaskedLM", "tokenizer_json", {**MODERN, "global_attn_every_n_layers": 1}),
    "modernbert-no-head": ("ModernBertModel", "tokenizer_json", MODERN),
    "mmbert": ("ModernBertForMaskedLM", "gemma", MMBERT),
    "eurobert": ("EuroBertForMaskedLM", "llama", EURO),
    "eurobert-grouped": ("EuroBertForMaskedLM", "llama", {**EURO, **GROUPED, "attention_bias": True}),
    "eurobert-biased": ("EuroBertForMaskedLM", "llama", {**EURO, "mlp_bias": True, "hidden_act": "gelu"}),
    "eurobert-no-head": ("EuroBertModel", "llama", EURO),
    "ultrabert": ("UltrabertForMaskedLM", "tokenizer_json", {**EURO, **ULTRA}),
    "nomic-bert": ("NomicBertForMaskedLM", "wordpiece", ROTARY),
    "nomic-bert-no-head": ("NomicBertModel", "wordpiece", ROTARY),
    "gte": ("GteForMaskedLM", "sentencepiece", {**ROTARY, "pad_token_id": 1}),
    "gte-no-segments": ("GteForMaskedLM", "sentencepiece", {**ROTARY, "pad_token_id": 1, "type_vocab_size": 0}),
    "jina": ("JinaEmbeddingsV3ForMaskedLM", "sentencepiece", {**ROTARY, "pad_token_id": 1, "type_vocab_size": 1}),
    "deberta": ("DebertaV2ForMaskedLM", "spm", DEBERTA),
    "deberta-own-projections": ("DebertaV2ForMaskedLM", "spm", OWN_PROJECTIONS),
    "deberta-no-buckets": ("DebertaV2ForMaskedLM", "spm", {**DEBERTA, "position_buckets": -1}),
    "deberta-c2p": ("DebertaV2ForMaskedLM", "spm", {**OWN_PROJECTIONS, "pos_att_type": "c2p"}),
    "deberta-p2c": ("DebertaV2ForMaskedLM", "spm", {**OWN_PROJECTIONS, "pos_att_type": "p2c"}),
    "deberta-no-norm": (
        "DebertaV2ForMaskedLM",
        "spm",
        {**DEBERTA, "norm_rel_ebd": "none", "max_relative_positions": 12},
    ),
    "deberta-segments": ("DebertaV2ForMaskedLM", "spm", {**DEBERTA, "type_vocab_size": 2}),
    "deberta-no-head": ("DebertaV2Model", "spm", {**DEBERTA, "position_buckets": 32}),
}

CAUSAL = {"attn_implementation": "eager", "pad_token_id": 3, "bos_token_id": 0, "eos_token_id": 1}
_TIED = {"tie_word_embeddings": True}
LLAMA3 = {
    **{"rope_type": "llama3", "rope_theta": 500.0, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0},
    "original_max_position_embeddings": 16,
}
GEMMA = {"num_hidden_layers": 5, "head_dim": 12, "num_key_value_heads": 1, "query_pre_attn_scalar": 12}
GEMMA |= {"sliding_window": 4, "sliding_window_pattern": 3, "pad_token_id": 0, "bos_token_id": 2}
GEMMA_ROPE = {
    "full_attention": {"rope_type": "linear", "rope_theta": 1000.0, "factor": 4.0},
    "sliding_attention": {"rope_type": "default", "rope_theta": 50.0},
}
# Families of language models: heads that share keys and values and others, tied and untied output matrices.
LANGUAGE_MODELS: dict[str, tuple[str, str, dict[str, Any]]] = {
    "llama": ("LlamaForCausalLM", "llama", CAUSAL),
    "llama-grouped": ("LlamaForCausalLM", "llama", {**CAUSAL, **GROUPED, **_TIED}),
    "llama-3": ("LlamaForCausalLM", "llama", {**CAUSAL, **_TIED, "rope_parameters": LLAMA3, "head_dim": 12}),
    "llama-biased": ("LlamaForCausalLM", "llama", {**CAUSAL, "attention_bias": True, "mlp_bias": True}),
    "llama-no-head": ("LlamaModel", "llama", CAUSAL),
    "smollm3": (
        "SmolLM3ForCausalLM",
        "llama",
        {**CAUSAL, **GROUPED, "num_hidden_layers": 5, "no_rope_layer_interval": 2},
    ),
    "smollm3-rotated": ("SmolLM3ForCausalLM", "llama", {**CAUSAL, **GROUPED, "no_rope_layers": [1, 1, 1]}),
    "qwen2": ("Qwen2ForCausalLM", "llama", {**CAUSAL, **GROUPED}),
    "qwen2-tied": ("Qwen2ForCausalLM", "llama", {**CAUSAL, **_TIED, "num_key_value_heads": 2}),
    "qwen3": ("Qwen3ForCausalLM", "llama", {**CAUSAL, **GROUPED, **_TIED, "head_dim": 12}),
    "qwen3-untied": ("Qwen3ForCausalLM", "llama", {**CAUSAL, "num_key_value_heads": 2, "head_dim": 8}),
    "gemma3": ("Gemma3ForCausalLM", "gemma", {**CAUSAL, **GEMMA}),
    "gemma3-linear": (
        "Gemma3ForCausalLM",
        "gemma",
        {
            **{**CAUSAL, **GEMMA, **GROUPED, "rope_parameters": GEMMA_ROPE, "tie_word_embeddings": False},
            "query_pre_attn_scalar": 9,
        },
    ),
}


def their_model(name: str, **changes: Any) -> torch.nn.Module:
    """Return a model with weights large enough for its states to depend on each of them."""
    model = initial_model(name, **changes)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn_like(parameter)
            is_scale = parameter.ndim == 1 and bool((parameter == 1).all())
            parameter.copy_(1 + 0.2 * noise if is_scale else 0.3 * noise)
    return model


def initial_model(name: str, **changes: Any) -> torch.nn.Module:
    """Return a model as `transformers` initializes it."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    kind, _, special = {**MODELS, **LANGUAGE_MODELS}[name]
    config_class = getattr(transformers, kind).config_class
    without = name in LANGUAGE_MODELS or name.startswith(("modernbert", "mmbert", "eurobert", "ultrabert"))
    dropout = {} if without else NO_DROPOUT
    torch.manual_seed(0)
    return getattr(transformers, kind)(config_class(**{**SIZES, **dropout, **special, **changes})).eval()


def save(name: str, model: torch.nn.Module, folder: Path, **how: Any) -> Path:
    """Save a model as `transformers` does, with a tokenizer of its kind."""
    model.save_pretrained(folder, **how)
    write_tokenizer({**MODELS, **LANGUAGE_MODELS}[name][1], folder)
    return folder


def write_tokenizer(scheme: str, folder: Path) -> None:
    """Write the files of a tokenizer with `VOCAB_SIZE` tokens."""
    folder.mkdir(parents=True, exist_ok=True)
    if scheme == "wordpiece":
        tokens = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, VOCAB_SIZE))]
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    elif scheme == "mpnet":
        first, last = ["<s>", "<pad>", "</s>", "<unk>", "[PAD]", "[UNK]"], ["[CLS]", "[SEP]", "[MASK]", "<mask>"]
        words = [f"w{i}" for i in range(len(first), VOCAB_SIZE - len(last))]
        (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in [*first, *words, *last]))
    elif scheme == "byte_level_bpe":
        tokens = ["<s>", "<pad>", "</s>", "<unk>", *BYTES, "<mask>"]
        (folder / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
        (folder / "merges.txt").write_text("#version: 0.2\n")
    elif scheme in SPECIAL:
        special = SPECIAL[scheme]
        first = len(BYTES) if scheme == "tokenizer_json" else 0
        added = [
            {"id": first + i, "content": token, "special": True, "single_word": False}
            | {"lstrip": False, "rstrip": False, "normalized": False}
            for i, token in enumerate(special)
        ]
        # Special tokens with the first ids are also in the model's own vocabulary.
        tokens = [*BYTES] if first else [*special, *BYTES]
        model = {"type": "BPE", "vocab": {token: i for i, token in enumerate(tokens)}, "merges": []}
        level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True}
        whole = {"version": "1.0", "added_tokens": added, "model": model, "pre_tokenizer": level, "decoder": level}
        (folder / "tokenizer.json").write_text(json.dumps(whole))
    else:
        sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
        # DeBERTa's model holds its special symbols except [MASK]; additional rows are padding.
        stem, special = ("spm", SPM_SPECIAL) if scheme == "spm" else ("sentencepiece.bpe", {})
        text = ["the quick brown fox jumps over the lazy dog", "a sphinx of black quartz judges my vow"] * 20
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(text),
            model_prefix=str(folder / stem),
            vocab_size=VOCAB_SIZE - 2,
            hard_vocab_limit=False,
            minloglevel=2,
            **special,
        )
        (folder / f"{stem}.vocab").unlink()


def our_model(folder: Path) -> UnilmModel:
    """Return the model of a converted encoder, as ``--pretrained`` makes it."""
    encoder = PretrainedEncoder.open(folder)
    cfg = UnilmConfig(dropout=0.0, attention_dropout=0.0)
    complete_sizes(cfg, encoder.sizes)
    pad = PretrainedDictionary.load(str(folder / "dict.txt")).pad()
    model = UnilmModel(cfg, vocab_size=encoder.vocab_size, pad=pad).eval()
    encoder.load_into(model)
    return model


def texts(lengths: list[int], pad: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Return random ids of ordinary tokens, padded on the right, and which of them are real, both (B, L)."""
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.integers(5, 45, size=(len(lengths), max(lengths))))
    real = torch.arange(max(lengths)) < torch.tensor(lengths).unsqueeze(1)
    return tokens.masked_fill(~real, pad), real


def segments_of(real: Tensor, number: int) -> Tensor:
    """Return segment ids (B, L) that use each of the segments, in runs of five positions."""
    return (torch.arange(real.size(1)) // 5 % max(1, number)).expand_as(real)


@torch.no_grad()
def our_output(model: UnilmModel, tokens: Tensor, real: Tensor, segments: Tensor, *, logits: bool) -> Tensor:
    """Return logits or states (B, L, ...) of whole texts; 0 at the padding."""
    positions = torch.arange(tokens.size(1)).expand_as(tokens)[real]
    columns = PackedColumns.given(tokens[real], positions, segments[real], real.sum(dim=1).tolist())
    packed = model(*columns[:7]) if logits else model.encode(columns)
    rows = packed.new_zeros(*real.shape, packed.size(-1))
    rows[real] = packed
    return rows


@torch.no_grad()
def their_output(model: torch.nn.Module, tokens: Tensor, real: Tensor, segments: Tensor) -> Tensor:
    """Return the logits (B, L, V) of a model with a head, or the last states (B, L, H) of any other model."""
    types = {"token_type_ids": segments} if getattr(model.config, "type_vocab_size", 0) > 1 else {}
    inputs = {"input_ids": tokens, "attention_mask": real.long(), **types}
    if has_head(model):
        output = model(**inputs)
        return output.prediction_logits if hasattr(output, "prediction_logits") else output.logits
    return model.base_model(**inputs).last_hidden_state


def has_head(model: torch.nn.Module) -> bool:
    """Return whether a model of `transformers` predicts tokens."""
    kind = type(model).__name__
    return kind == "BertForPreTraining" or kind.endswith(("ForMaskedLM", "ForCausalLM"))
