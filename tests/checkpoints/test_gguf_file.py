"""GGUF files: metadata, tensors in all orders of bytes that they may have, dequantized as by the package gguf."""

import struct

import numpy as np
import pytest
import torch
from gguf_files import Raw, Typed, gguf_bytes, metadata_of, text, write_gguf

from s2sft_fairseq.checkpoints import gguf_file
from s2sft_fairseq.checkpoints.gguf_file import GgufFile
from s2sft_fairseq.errors import UserError


def test_metadata(tmp_path):
    metadata = {
        "text": "añ b",
        "yes": True,
        "number": 7,
        "float": 1e-5,
        "texts": ["a", "", "b\n"],
        "numbers": [3, 1],
        "floats": [0.5, -1.0],
        "wide": Typed(10, struct.pack("<Q", 2**40)),
        "double": Typed(12, struct.pack("<d", 0.1)),
        "small": Typed(1, struct.pack("<b", -3)),
    }
    file = GgufFile(write_gguf(tmp_path / "a.gguf", metadata, {}))
    expected = {**metadata, "wide": 2**40, "double": 0.1, "small": -3}
    assert file.metadata == expected  # 1e-05 as it was written, not as float32 rounds it
    assert file.tensors == {}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_tensors_that_are_not_quantized_keep_their_type(tmp_path, dtype):
    tensors = {"a": torch.randn(3, 5).to(dtype), "b": torch.randn(7).to(dtype)}
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {"general.alignment": 32}, tensors))
    for name, tensor in tensors.items():
        found = file.read(name)
        assert found.dtype == dtype
        assert torch.equal(found, tensor)


@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # any bytes are blocks, also of infinite scales
@pytest.mark.parametrize("name", ["Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "Q4_K", "Q6_K"])
def test_quantized_tensors(tmp_path, monkeypatch, name):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    monkeypatch.setattr(gguf_file, "_AT_ONCE", 512)  # several parts
    kind = gguf.GGMLQuantizationType[name]
    block, size = gguf.GGML_QUANT_SIZES[kind]
    draw = np.random.default_rng(1)
    content = draw.integers(0, 256, (6, 512 // block * size), dtype=np.uint8)
    expected = gguf.dequantize(content, kind)
    path = write_gguf(tmp_path / "a.gguf", {}, {"a": Raw(int(kind), (6, 512), content.tobytes())})
    found = GgufFile(path).read("a")
    assert found.shape == (6, 512)
    assert np.array_equal(found.numpy(), expected, equal_nan=True)


def test_the_reader_of_the_package_finds_the_same(tmp_path):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    tensors = {"a": torch.randn(3, 64), "b": torch.randn(5).half()}
    path = write_gguf(tmp_path / "a.gguf", {"general.alignment": 64, **metadata_of("llama")}, {})
    assert gguf.GGUFReader(path).fields["general.alignment"].contents() == 64
    path = write_gguf(tmp_path / "b.gguf", metadata_of("llama"), tensors)
    reader, ours = gguf.GGUFReader(path), GgufFile(path)
    for tensor in reader.tensors:
        assert np.array_equal(tensor.data, ours.read(tensor.name).numpy())
    for key, value in ours.metadata.items():
        assert reader.fields[key].contents() == pytest.approx(value)


def test_a_file_that_the_package_writes(tmp_path):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    writer = gguf.GGUFWriter(str(tmp_path / "a.gguf"), "llama")
    writer.add_custom_alignment(64)
    writer.add_block_count(2)
    writer.add_token_list(["a", "b"])
    numbers = np.random.default_rng(1).standard_normal((4, 32), dtype=np.float32)
    writer.add_tensor("plain", numbers)
    packed = gguf.quantize(numbers, gguf.GGMLQuantizationType.Q8_0)
    writer.add_tensor("packed", packed, raw_dtype=gguf.GGMLQuantizationType.Q8_0)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    file = GgufFile(tmp_path / "a.gguf")
    assert file.metadata["tokenizer.ggml.tokens"] == ["a", "b"]
    assert np.array_equal(file.read("plain").numpy(), numbers)
    assert np.abs(file.read("packed").numpy() - numbers).max() < 0.05


def test_without_the_package(tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "gguf", None)
    path = write_gguf(tmp_path / "a.gguf", {}, {"a": Raw(8, (1, 32), bytes(34))})
    with pytest.raises(UserError, match=r"needs the package gguf: pip install s2sft_fairseq\[gguf\]"):
        GgufFile(path)
    path = write_gguf(tmp_path / "b.gguf", {}, {"a": torch.ones(2)})
    assert torch.equal(GgufFile(path).read("a"), torch.ones(2))


def test_a_type_that_cannot_be_dequantized(tmp_path):
    gguf = pytest.importorskip("gguf", reason="gguf is not installed")
    kind = int(gguf.GGMLQuantizationType.I32)
    file = GgufFile(write_gguf(tmp_path / "a.gguf", {}, {"a": Raw(kind, (4,), bytes(16))}))
    with pytest.raises(UserError, match=r"a\.gguf: a is of type I32, which cannot be dequantized"):
        file.read("a")


def test_version_2(tmp_path):
    (tmp_path / "a.gguf").write_bytes(gguf_bytes({"a": 1}, {}, version=2))
    assert GgufFile(tmp_path / "a.gguf").metadata == {"a": 1}


def test_a_text_of_the_format():
    assert text("é") == b"\x02" + bytes(7) + "é".encode()
