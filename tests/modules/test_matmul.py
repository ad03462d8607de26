"""The choice of matrix kernels, and each kernel compared with the plain product."""

import json
import logging
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from s2sft_fairseq.modules import matmul
from s2sft_fairseq.modules.matmul import KERNELS, cache_path, fastest_kernels, machine, multiply, use_matmul

# All layouts of the two factors: contiguous, transposed, and with gaps between the rows.
LAYOUTS = {
    "n": lambda x: x.contiguous(),
    "t": lambda x: x.t().contiguous().t(),
    "gaps": lambda x: x.repeat(1, 2)[:, : x.size(1)],
}


@pytest.fixture(autouse=True)
def settings(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(matmul, "_settings", {"matmul": "auto"})
    monkeypatch.setattr(matmul, "_TRIED", {"few rows": (2, 8, 8), "layer": (8, 8, 8), "vocabulary": (4, 8, 32)})
    fastest_kernels.cache_clear()
    yield
    fastest_kernels.cache_clear()


def factors(rows=24, inner=40, columns=16, dtype=torch.float32):
    generator = torch.Generator().manual_seed(0)
    sizes = (rows, inner), (inner, columns), (columns,)
    return [torch.randn(size, generator=generator).to(dtype) for size in sizes]


@pytest.mark.parametrize("second", LAYOUTS)
@pytest.mark.parametrize("first", LAYOUTS)
@pytest.mark.parametrize("name", matmul.MATMULS)
@pytest.mark.parametrize("with_bias", [False, True])
def test_every_layout(monkeypatch, name, first, second, with_bias):
    monkeypatch.setattr(matmul, "LEAST", 0)
    use_matmul(name)
    a, b, bias = factors()
    found = multiply(LAYOUTS[first](a), LAYOUTS[second](b), bias if with_bias else None)
    expected = a.double() @ b.double() + with_bias * bias.double()
    torch.testing.assert_close(found.double(), expected, atol=1e-4, rtol=1e-5)


@pytest.mark.parametrize("name", KERNELS)
def test_every_kernel(name):
    a, b, bias = factors()
    for first in (a, a.t().contiguous().t()):
        for second in (b, b.t().contiguous().t()):
            torch.testing.assert_close(KERNELS[name](first, second), a @ b, atol=1e-4, rtol=1e-5)
            torch.testing.assert_close(KERNELS[name](first, second, bias), a @ b + bias, atol=1e-4, rtol=1e-5)


def test_nothing_to_multiply():
    assert multiply(torch.ones(0, 3), torch.ones(3, 2)).shape == (0, 2)
    assert torch.equal(multiply(torch.ones(2, 0), torch.ones(0, 3), torch.ones(3)), torch.ones(2, 3))


def test_a_wider_bias_keeps_its_type():
    a, b, bias = factors(dtype=torch.bfloat16)
    found = multiply(a, b, bias.float() + 1e-3)
    assert found.dtype == torch.float32
    torch.testing.assert_close(found, (a @ b).float() + bias.float() + 1e-3)


@pytest.mark.parametrize(
    ("layout", "sizes", "kind"),
    [
        ("nt", ((300, 8), (8, 24)), "layer"),
        ("nt", ((128, 8), (8, 24)), "few rows"),
        ("nt", ((300, 8), (8, 9000)), "vocabulary"),
        ("nn", ((300, 24), (24, 8)), "layer"),
        ("nn", ((300, 9000), (9000, 8)), "vocabulary"),
        ("tn", ((24, 300), (300, 8)), "layer"),
        ("tn", ((300, 64), (64, 8)), "few rows"),
        ("tn", ((9000, 300), (300, 8)), "vocabulary"),
    ],
)
def test_kinds(layout, sizes, kind):
    """The layout of the three products of a linear layer gives its rows, inputs and outputs."""
    assert matmul._kind(layout, *(torch.empty(size) for size in sizes)) == kind


def test_the_fastest_is_taken(monkeypatch):
    """It is timed once; the next process finds it in the file."""
    seconds = {"mkl": 3.0, "onednn": 2.0, "onednn_copied": 2.5}
    timed = []

    def time_kernel(kernel, a, b):
        timed.append((matmul._layout(a) + matmul._layout(b), kernel))
        return next(seconds[name] for name, function in KERNELS.items() if function is kernel)

    monkeypatch.setattr(matmul, "_seconds", time_kernel)
    found = fastest_kernels(3)
    assert found == {f"{layout} {kind}": "onednn" for kind in matmul._TRIED for layout in ("nt", "nn", "tn")}
    assert {layout for layout, _ in timed} == {"nt", "nn", "tn"}
    assert cache_path().is_relative_to(Path(matmul.os.environ["XDG_CACHE_HOME"]))
    assert json.loads(cache_path().read_text()) == {machine(3): found}
    timed.clear()
    fastest_kernels.cache_clear()
    assert fastest_kernels(3) == found and not timed
    # Another number of threads counts as another machine; the entry of the first one stays in the file.
    seconds["onednn"] = 2.99
    assert set(fastest_kernels(4).values()) == {"onednn_copied", "mkl"}
    assert set(json.loads(cache_path().read_text())) == {machine(3), machine(4)}


def test_the_choice_is_logged(caplog):
    caplog.set_level(logging.INFO)
    fastest_kernels(2)
    assert "2 threads" in caplog.text and "nt few rows: " in caplog.text


@pytest.mark.parametrize(
    "content", ["", "[1]", "{", '{"key": {"nt layer": "cublas"}}', '{"key": 3}', '{"key": {"a": []}}']
)
def test_a_file_of_another_version(content):
    """It is ignored."""
    cache_path().parent.mkdir(parents=True)
    cache_path().write_text(content.replace("key", machine(2)))
    assert set(fastest_kernels(2).values()) <= set(KERNELS)
    assert json.loads(cache_path().read_text()) == {machine(2): fastest_kernels(2)}


def test_a_folder_that_cannot_be_written(monkeypatch, tmp_path, caplog):
    (tmp_path / "cache").write_text("a file")
    caplog.set_level(logging.INFO)
    assert set(fastest_kernels(2).values()) <= set(KERNELS)
    assert str(cache_path()) in caplog.text


def test_without_onednn(monkeypatch):
    monkeypatch.setattr(matmul, "LEAST", 0)
    monkeypatch.setattr(matmul, "_has_onednn", lambda: False)
    a, b, _ = factors()
    for name in matmul.MATMULS:
        use_matmul(name)
        assert torch.equal(multiply(a, b), a @ b)
    assert not cache_path().exists()


def test_other_names():
    with pytest.raises(ValueError, match="auto, mkl, onednn, but is blas"):
        use_matmul("blas")


def test_a_processor_without_a_description(monkeypatch):
    def missing(*_, **options):
        raise FileNotFoundError

    monkeypatch.setattr(matmul.Path, "read_text", missing)
    assert matmul.processor() == (matmul.platform.machine(), frozenset())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_type_of_factors(device, dtype):
    """Autocast of a device rounds float32 factors there, and nothing on the other device."""
    x = SimpleNamespace(device=torch.device(device), dtype=dtype)
    assert matmul.operand_type(x) == dtype
    for within in ("cpu", "cuda"):
        torch.set_autocast_enabled(within, True)
        try:
            found = matmul.operand_type(x)
        finally:
            torch.set_autocast_enabled(within, False)
        is_rounded = within == device and dtype == torch.float32
        assert found == (torch.get_autocast_dtype(device) if is_rounded else dtype)
