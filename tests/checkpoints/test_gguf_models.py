"""Language models in GGUF files: their weights and sizes are those of the models in transformers that they hold."""

import math

import pytest
import torch
from gguf_files import SIZES, metadata_of, write_gguf

from s2sft_fairseq.checkpoints.families import recognize
from s2sft_fairseq.checkpoints.gguf_models import read_gguf
from s2sft_fairseq.errors import UserError

NAMES = {
    "model.embed_tokens": "token_embd",
    "model.norm": "output_norm",
    "lm_head": "output",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
GEMMA = {
    **NAMES,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
COMMON = {
    "vocab_size": 23,
    "hidden_size": SIZES["width"],
    "intermediate_size": SIZES["inner"],
    "num_attention_heads": SIZES["heads"],
    "num_key_value_heads": SIZES["shared"],
    "max_position_embeddings": 64,
    "rms_norm_eps": 1e-5,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
BASE = {"rope_type": "default", "rope_theta": 100000.0}
LLAMA3 = {"rope_type": "llama3", "factor": 32.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 8192, "rope_theta": 500000.0}
LOCAL = {"rope_type": "default", "rope_theta": 10000.0}


def by_head(value: torch.Tensor, heads: int) -> torch.Tensor:
    """Return queries or keys in the order of llama.cpp: dimension i of a head beside dimension i + d / 2."""
    rows = value.reshape(heads, value.size(0) // heads, -1)
    half = rows.size(1) // 2
    order = [part for number in range(half) for part in (number, number + half)]
    return rows[:, order].reshape(value.shape)


def tensors_of(model, architecture: str) -> dict[str, torch.Tensor]:
    """Return the tensors that llama.cpp's converter writes for a model of transformers."""
    found = {}
    for name, value in model.state_dict().items():
        module, _, kind = name.rpartition(".")
        if module == "lm_head" and model.config.tie_word_embeddings:
            continue
        layer = f"blk.{module.split('.')[2]}." if module.startswith("model.layers.") else ""
        part = ".".join(module.split(".")[3:]) if layer else module
        ours = (GEMMA if architecture == "gemma3" else NAMES)[part]
        if architecture in ("llama", "smollm3") and ours in ("attn_q", "attn_k"):
            value = by_head(value, SIZES["heads"] if ours == "attn_q" else SIZES["shared"])
        if architecture == "gemma3" and ours.endswith("norm"):
            value = value + 1
        found[f"{layer}{ours}.{kind}"] = value
    return found


def rotation_factors(parameters: dict, head_dim: int) -> torch.Tensor:
    """Return the factors of Llama 3.1's rotation, one frequency after the other."""
    factors = []
    for at in range(0, head_dim, 2):
        wave = 2 * math.pi * parameters["rope_theta"] ** (at / head_dim)
        length, low, high = (parameters[name] for name in list(parameters)[4:5] + list(parameters)[2:4])
        if wave < length / high:
            factors.append(1.0)
        elif wave > length / low:
            factors.append(parameters["factor"])
        else:
            smooth = (length / wave - low) / (high - low)
            factors.append(1 / ((1 - smooth) / parameters["factor"] + smooth))
    return torch.tensor(factors)


MODELS = {
    "llama": ("Llama", {"num_hidden_layers": 2, "rope_parameters": BASE}, {}),
    "llama with its own output matrix": (
        "Llama",
        {"num_hidden_layers": 2, "rope_parameters": BASE, "tie_word_embeddings": False},
        {},
    ),
    "llama of version 3.2": (
        "Llama",
        {"num_hidden_layers": 2, "head_dim": 64, "rope_parameters": LLAMA3},
        {"llama.rope.freq_base": 500000.0},
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 5, "rope_parameters": BASE}, {}),
    "qwen2": ("Qwen2", {"num_hidden_layers": 2, "rope_parameters": BASE}, {}),
    "qwen3": ("Qwen3", {"num_hidden_layers": 2, "head_dim": 16, "rope_parameters": BASE}, {}),
    "gemma3": (
        "Gemma3",
        {
            "num_hidden_layers": 7,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "rope_parameters": {"full_attention": BASE, "sliding_attention": LOCAL},
        },
        {"gemma3.attention.sliding_window": 8},
    ),
    "gemma3 with longer positions": (
        "Gemma3",
        {
            "num_hidden_layers": 6,
            "head_dim": 16,
            "query_pre_attn_scalar": 16,
            "sliding_window": 8,
            "rope_parameters": {
                "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 100000.0},
                "sliding_attention": LOCAL,
            },
        },
        {
            "gemma3.attention.sliding_window": 8,
            "gemma3.rope.scaling.type": "linear",
            "gemma3.rope.scaling.factor": 8.0,
        },
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_weights_and_sizes_are_those_of_transformers(tmp_path, name):
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    architecture = name.split()[0]
    kind, settings, others = MODELS[name]
    config_of = getattr(transformers, f"{kind}TextConfig" if kind == "Gemma3" else f"{kind}Config")
    model_of = getattr(transformers, f"{kind}ForCausalLM")
    torch.manual_seed(1)
    tied = {"tie_word_embeddings": True}
    model = model_of(config_of(**{**COMMON, **tied, **settings}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter)
    theirs = model.config.to_dict()
    head = theirs.get("head_dim") or SIZES["width"] // SIZES["heads"]
    metadata = {
        **metadata_of(architecture),
        f"{architecture}.block_count": settings["num_hidden_layers"],
        f"{architecture}.attention.key_length": head,
        f"{architecture}.attention.value_length": head,
        f"{architecture}.rope.dimension_count": head,
        **others,
    }
    tensors = tensors_of(model, architecture)
    if "version 3.2" in name:
        tensors["rope_freqs.weight"] = rotation_factors(LLAMA3, head)
    weights, config = read_gguf(write_gguf(tmp_path / "a.gguf", metadata, tensors))
    expected = {key: value for key, value in model.state_dict().items() if key in weights}
    assert set(model.state_dict()) - set(weights) <= {"lm_head.weight"}
    assert "lm_head.weight" in weights or config["tie_word_embeddings"]
    for key, value in expected.items():
        torch.testing.assert_close(weights[key], value, rtol=0, atol=1e-6 if architecture == "gemma3" else 0)
    family = recognize(weights, config)
    assert family.sizes(config) == family.sizes({key: value for key, value in theirs.items() if value is not None})


def test_the_first_problems_of_many(tmp_path):
    tensors = {f"blk.0.unknown{number}.weight": torch.ones(1) for number in range(30)}
    with pytest.raises(UserError, match="and 20 more"):
        read_gguf(write_gguf(tmp_path / "a.gguf", metadata_of("llama"), tensors))
