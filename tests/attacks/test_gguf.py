"""Hostile GGUF files: each is refused with the file and the reason, in little time and memory."""

import os
import struct

import pytest
import torch
from gguf_files import BYTE_LEVEL, Raw, Typed, gguf_bytes, llama_tensors, metadata_of, text

from s2sft_fairseq.checkpoints.gguf_file import GgufFile
from s2sft_fairseq.checkpoints.gguf_models import read_gguf
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.gguf_tokenizer import write_gguf_tokenizer

HUGE = 2**63


def header(tensors: int, keys: int, rest: bytes = b"") -> bytes:
    return b"GGUF" + struct.pack("<IQQ", 3, tensors, keys) + rest


def key(kind: int, content: bytes) -> bytes:
    return header(0, 1, text("a.key") + struct.pack("<I", kind) + content)


def tensor(shape: tuple[int, ...], kind: int = 0, offset: int | None = None, content: bytes = bytes(64)) -> bytes:
    return gguf_bytes({}, {"a": Raw(kind, shape, content, offset)})


FILES = {
    "empty": (b"", "cannot be read"),
    "another format": (b"PK\x03\x04" + bytes(100), "does not begin with GGUF"),
    "a name alone": (b"GGUF", "cut off: 'version' must end within the file"),
    "version 1": (b"GGUF" + struct.pack("<I", 1) + bytes(100), "must have version 2 or 3 of the format, but has 1"),
    "big-endian": (b"GGUF" + struct.pack(">I", 3) + bytes(100), "of a big-endian machine"),
    "many tensors": (header(HUGE, 0), "at most 100,000 tensors"),
    "many keys": (header(0, HUGE), "at most 10,000 keys"),
    "keys that are missing": (header(0, 9), "is damaged or cut off"),
    "a long text": (key(8, struct.pack("<Q", HUGE)), "at most 1,048,576 bytes in 'a.key'"),
    "a text that is cut off": (key(8, struct.pack("<Q", 1000) + b"x"), "cut off: 'a.key'"),
    "a text that is not UTF-8": (key(8, text("\udcff")), "'a.key' must be UTF-8"),
    "an unknown type": (key(99, bytes(8)), "must have a type of the format, but has 99"),
    "a long array": (key(9, struct.pack("<IQ", 4, HUGE)), "at most 10,000,000 items of 'a.key'"),
    "an array of missing numbers": (key(9, struct.pack("<IQ", 10, 9_000_000)), "cut off: 'a.key'"),
    "an array of missing texts": (key(9, struct.pack("<IQ", 8, 9_000_000)), "is damaged or cut off"),
    "an array of arrays": (
        key(9, struct.pack("<IQIQ", 9, 1, 9, 1)),
        "an array of numbers or texts, but has the type 9",
    ),
    "a key twice": (gguf_bytes([("a", 1), ("a", 2)], {}), "the key 'a' must occur once"),
    "alignment 0": (gguf_bytes({"general.alignment": 0}, {}), "general.alignment must be between 1 and"),
    "alignment as a text": (gguf_bytes({"general.alignment": "32"}, {}), "general.alignment must be between 1 and"),
    "no dimensions": (tensor(()), "'a' must have rows of whole blocks"),
    "many dimensions": (tensor((1,) * 9), "at most 4 dimensions of 'a'"),
    "an empty dimension": (tensor((0, 4)), "'a' must have rows of whole blocks"),
    "a huge tensor": (tensor((2**40, 2**40)), "'a' must end within the file"),
    "a tensor outside": (tensor((4,), offset=2**60), "'a' must end within the file"),
    "half a block": (tensor((33,), kind=2), "'a' must have rows of whole blocks of 32"),
    "an unknown type of tensor": (tensor((32,), kind=9999), "'a': type 9999 is unknown"),
    "tensors over each other": (
        gguf_bytes({}, {str(at): Raw(0, (16,), b"" if at else bytes(64), 0) for at in range(9)}),
        "the tensors need 576 bytes, but the file has 64",
    ),
}


@pytest.mark.parametrize("name", FILES)
def test_files(tmp_path, name):
    content, message = FILES[name]
    if "whole blocks of 32" in message or "9999" in message:
        pytest.importorskip("gguf", reason="gguf is not installed")
    path = tmp_path / "a.gguf"
    path.write_bytes(content)
    with pytest.raises(UserError) as raised:
        GgufFile(path)
    assert message in str(raised.value)
    assert "a.gguf" in str(raised.value)


def test_a_file_that_is_cut_off_anywhere(tmp_path):
    tensors = {"token_embd.weight": torch.ones(4, 8)}
    content = gguf_bytes(metadata_of("llama"), tensors)
    path = tmp_path / "a.gguf"
    for size in range(0, len(content), 37):
        path.write_bytes(content[:size])
        with pytest.raises(UserError, match=r"a\.gguf"):
            GgufFile(path)


def test_a_file_with_a_changed_byte_anywhere(tmp_path):
    """It is read, or refused; nothing else happens."""
    content = gguf_bytes(metadata_of("llama"), llama_tensors(len(BYTE_LEVEL["tokenizer.ggml.tokens"])))
    path = tmp_path / "a.gguf"
    refused = 0
    for at in range(0, 2400, 7):
        path.write_bytes(content[:at] + bytes([content[at] ^ 0x81]) + content[at + 1 :])
        for read in (read_gguf, lambda path: write_gguf_tokenizer(path, tmp_path)):
            try:
                read(path)
            except UserError as error:
                refused += 1
                assert "a.gguf" in str(error)
    assert refused > 100


def test_pipes_and_links(tmp_path):
    os.mkfifo(tmp_path / "pipe.gguf")
    (tmp_path / "link.gguf").symlink_to(tmp_path / "nothing")
    with pytest.raises(UserError, match=r"pipe\.gguf must be a file, but is a pipe"):
        GgufFile(tmp_path / "pipe.gguf")
    with pytest.raises(UserError, match="is a link to nothing"):
        GgufFile(tmp_path / "link.gguf")


def model(tmp_path, others=None, tensors=None):
    made = llama_tensors(len(BYTE_LEVEL["tokenizer.ggml.tokens"])) | (tensors or {})
    metadata = {**metadata_of("llama"), **(others or {})}
    present = {name: value for name, value in metadata.items() if value is not None}
    (tmp_path / "a.gguf").write_bytes(gguf_bytes(present, made))
    return tmp_path / "a.gguf"


MODELS = {
    "no architecture": ({"general.architecture": None}, {}, "general.architecture must be one of llama, "),
    "another architecture": ({"general.architecture": "mamba"}, {}, "but is 'mamba'"),
    "an architecture that is no text": ({"general.architecture": ["llama"]}, {}, "but is ['llama']"),
    "many layers": ({"llama.block_count": 2**31}, {}, "llama.block_count must be between 1 and 1,000"),
    "no layers": ({"llama.block_count": None}, {}, "llama.block_count must be between 1 and 1,000, but is None"),
    "heads by layer": ({"llama.attention.head_count_kv": [2, 2]}, {}, "head_count_kv must be between 1 and"),
    "no heads": ({"llama.attention.head_count": 0}, {}, "llama.attention.head_count must be between 1 and"),
    "an infinite base": ({"llama.rope.freq_base": float("inf")}, {}, "llama.rope.freq_base must be a number above 0"),
    "yarn": ({"llama.rope.scaling.type": "yarn"}, {}, "llama.rope.scaling.type must be none, but is 'yarn'"),
    "half a rotation": ({"llama.rope.dimension_count": 4}, {}, "rope.dimension_count must be 8, but is 4"),
    "another rotation": ({}, {"rope_freqs.weight": torch.ones(4) * 3}, "must be that of Llama 3.1 or 3.2"),
    "another name": ({}, {"blk.0.ffn_gate_exps.weight": torch.ones(2)}, "'blk.0.ffn_gate_exps.weight' is no tensor"),
    "another layer": ({}, {"blk.7.attn_q.weight": torch.ones(32, 32)}, "'blk.7.attn_q.weight' is no tensor of llama"),
    "another shape": (
        {},
        {"blk.0.attn_q.weight": torch.ones(31, 32)},
        "blk.0.attn_q.weight must have the shape (32, 32), as the metadata say, but has (31, 32)",
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_models(tmp_path, name):
    others, tensors, message = MODELS[name]
    with pytest.raises(UserError) as raised:
        read_gguf(model(tmp_path, others, tensors))
    assert message in str(raised.value)


TOKENIZERS = {
    "none": ({"model": None}, "tokenizer.ggml.model must be one of gpt2, llama, but is None"),
    "another": ({"model": "rwkv"}, "but is 'rwkv'"),
    "a list": ({"model": ["gpt2"]}, "tokenizer.ggml.model must be one of"),
    "an unknown way to split": ({"pre": "bloom"}, "tokenizer.ggml.pre must be one of gpt-2, smollm"),
    "no way to split": ({"pre": ["smollm"]}, "tokenizer.ggml.pre must be one of"),
    "no tokens": ({"tokens": None}, "tokenizer.ggml.tokens must be an array of texts, but is None"),
    "numbers as tokens": ({"tokens": [1, 2]}, "tokenizer.ggml.tokens must be an array of texts"),
    "a token twice": ({"tokens": ["a", "b", "a"], "token_type": [1, 1, 1]}, "each token once, but has 'a' again"),
    "few types": ({"token_type": [1]}, "token_type must have a whole number for each of 51 tokens"),
    "no merges": ({"merges": None}, "tokenizer.ggml.merges must be an array of texts"),
    "a merge of three": ({"merges": ["a b c"]}, "must hold two pieces each, but has 'a b c'"),
    "a merge of nothing": ({"merges": ["a"]}, "must hold two pieces each, but has 'a'"),
    "an unknown piece": ({"merges": ["a zz"]}, "its tokenizer cannot be used"),
    "no scores": ({"model": "llama"}, "tokenizer.ggml.scores must have a number for each of 51 tokens"),
    "few scores": ({"model": "llama", "scores": [0.5]}, "tokenizer.ggml.scores must have a number"),
    "a normalizer": ({"model": "llama", "precompiled_charsmap": [1, 2]}, "has a normalizer of its own"),
}


@pytest.mark.parametrize("name", TOKENIZERS)
def test_tokenizers(tmp_path, name):
    pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    others, message = TOKENIZERS[name]
    changed = {f"tokenizer.ggml.{key}": value for key, value in others.items()}
    with pytest.raises(UserError) as raised:
        write_gguf_tokenizer(model(tmp_path, changed), tmp_path)
    assert message in str(raised.value)
    assert "a.gguf" in str(raised.value)


def test_an_array_of_a_type_without_a_size(tmp_path):
    (tmp_path / "a.gguf").write_bytes(gguf_bytes({"a": Typed(9, struct.pack("<IQ", 13, 4) + bytes(64))}, {}))
    with pytest.raises(UserError, match="an array of numbers or texts, but has the type 13"):
        GgufFile(tmp_path / "a.gguf")
