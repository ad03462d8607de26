"""Write small GGUF files: a Llama with random weights, and any metadata and tensors, also damaged ones."""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch

ALIGNMENT = 32
PLAIN = {torch.float32: 0, torch.float16: 1, torch.bfloat16: 30}


class Raw(NamedTuple):
    """A tensor in another form than it has in PyTorch: its type, its shape in PyTorch's order, and its bytes."""

    kind: int
    shape: tuple[int, ...]
    content: bytes
    offset: int | None = None
    """None: after the tensor before it."""


class Typed(NamedTuple):
    """A value of metadata with the number of its type."""

    kind: int
    content: bytes


def text(value: str) -> bytes:
    """Return a text as it is stored."""
    content = value.encode("utf-8", "surrogateescape")
    return struct.pack("<Q", len(content)) + content


def _value(value: Any) -> bytes:
    if isinstance(value, Typed):
        return struct.pack("<I", value.kind) + value.content
    if isinstance(value, list):
        kind, parts = _kind(value[0]), b"".join(_value(item)[4:] for item in value)
        return struct.pack("<IIQ", 9, kind, len(value)) + parts
    forms = {7: "?", 4: "I", 6: "f", 5: "i"}
    kind = _kind(value)
    return struct.pack("<I", kind) + (text(value) if kind == 8 else struct.pack(f"<{forms[kind]}", value))


def _kind(value: Any) -> int:
    return {bool: 7, int: 4, float: 6, str: 8}[type(value)]


def gguf_bytes(
    metadata: Mapping[str, Any] | Sequence[tuple[str, Any]],
    tensors: Mapping[str, torch.Tensor | Raw],
    *,
    version: int = 3,
) -> bytes:
    """Return the content of a file."""
    pairs = list(metadata.items() if isinstance(metadata, Mapping) else metadata)
    header = b"GGUF" + struct.pack("<IQQ", version, len(tensors), len(pairs))
    header += b"".join(text(key) + _value(value) for key, value in pairs)
    data = b""
    for name, tensor in tensors.items():
        raw = tensor if isinstance(tensor, Raw) else plain(tensor)
        offset = len(data) if raw.offset is None else raw.offset
        header += text(name) + struct.pack("<I", len(raw.shape))
        header += b"".join(struct.pack("<Q", size) for size in reversed(raw.shape))
        header += struct.pack("<IQ", raw.kind, offset)
        data += raw.content + bytes(-len(raw.content) % ALIGNMENT)
    return header + bytes(-len(header) % ALIGNMENT) + data


def plain(tensor: torch.Tensor) -> Raw:
    """Return a tensor that is not quantized as it is stored."""
    content = tensor.contiguous().view(torch.uint8).numpy().tobytes()
    return Raw(PLAIN[tensor.dtype], tuple(tensor.shape), content)


def write_gguf(path: Path, metadata: Mapping[str, Any], tensors: Mapping[str, torch.Tensor | Raw]) -> Path:
    """Write a file, and return its path."""
    path.write_bytes(gguf_bytes(metadata, tensors))
    return path


WORDS = ["Ġ", *"abcdefghijklmnopqrstuvwxyz0123456789<>|_/", "th", "the", "Ġthe"]
SPECIAL = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>"]
BYTE_LEVEL = {
    "tokenizer.ggml.model": "gpt2",
    "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.tokens": [*SPECIAL, *WORDS],
    "tokenizer.ggml.token_type": [*[3] * len(SPECIAL), *[1] * len(WORDS)],
    "tokenizer.ggml.merges": ["t h", "th e", "Ġ the"],
    "tokenizer.ggml.bos_token_id": 1,
    "tokenizer.ggml.eos_token_id": 2,
    "tokenizer.ggml.unknown_token_id": 0,
    "tokenizer.ggml.padding_token_id": 2,
    "tokenizer.ggml.add_bos_token": False,
}
"""The metadata of a tokenizer of SmolLM2's kind."""

SIZES = {"width": 32, "inner": 48, "heads": 4, "shared": 2, "layers": 2, "head": 8}


def metadata_of(architecture: str, tokenizer: Mapping[str, Any] = BYTE_LEVEL, **others: Any) -> dict[str, Any]:
    """Return the metadata of a model of `SIZES`."""
    return {
        "general.architecture": architecture,
        f"{architecture}.block_count": SIZES["layers"],
        f"{architecture}.context_length": 64,
        f"{architecture}.embedding_length": SIZES["width"],
        f"{architecture}.feed_forward_length": SIZES["inner"],
        f"{architecture}.attention.head_count": SIZES["heads"],
        f"{architecture}.attention.head_count_kv": SIZES["shared"],
        f"{architecture}.attention.layer_norm_rms_epsilon": 1e-5,
        f"{architecture}.rope.freq_base": 100000.0,
        **tokenizer,
        **others,
    }


def llama_tensors(rows: int, *, seed: int = 1) -> dict[str, torch.Tensor]:
    """Return random tensors of a Llama of `SIZES`, in float32, by llama.cpp's names."""
    width, inner, head = SIZES["width"], SIZES["inner"], SIZES["head"]
    draw = torch.Generator().manual_seed(seed)
    shapes = {"token_embd": (rows, width), "output_norm": (width,)}
    for layer in range(SIZES["layers"]):
        shapes |= {
            f"blk.{layer}.attn_q": (SIZES["heads"] * head, width),
            f"blk.{layer}.attn_k": (SIZES["shared"] * head, width),
            f"blk.{layer}.attn_v": (SIZES["shared"] * head, width),
            f"blk.{layer}.attn_output": (width, SIZES["heads"] * head),
            f"blk.{layer}.ffn_gate": (inner, width),
            f"blk.{layer}.ffn_up": (inner, width),
            f"blk.{layer}.ffn_down": (width, inner),
            f"blk.{layer}.attn_norm": (width,),
            f"blk.{layer}.ffn_norm": (width,),
        }
    return {f"{name}.weight": torch.randn(shape, generator=draw) / 4 for name, shape in shapes.items()}


def write_llama(path: Path, **others: Any) -> Path:
    """Write a small Llama with the tokenizer `BYTE_LEVEL`."""
    rows = len(BYTE_LEVEL["tokenizer.ggml.tokens"])
    return write_gguf(path, metadata_of("llama", **others), llama_tensors(rows))
