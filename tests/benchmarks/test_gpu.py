"""The check of a GPU, on the CPU with tiny sizes: each part runs, resumes, and is compared with the bars."""

import math
import time
from types import SimpleNamespace

import gpu
import gpu_part_decoding
import gpu_part_memory
import gpu_part_parity
import gpu_part_training
import gpu_report
import pytest
import torch
from gpu_report import BARS, Bar, Records, judge, report
from gpu_timing import Profile, Settings, profiled, seconds_of, tally
from records import read_records, write_records

from s2sft_fairseq.models.unilm_config import ATTENTIONS

TINY, REAL = Settings("cpu", tiny=True), Settings("cuda", tiny=False)

# The cells to run of each part, one of each kind.
CELLS = {
    "environment": "",
    "parity": "relative window",
    "training": "128 20/5",
    "decoding": "N=2 12/4",
    "memory": "checkpointed",
    "resume": "bf16",
}


@pytest.fixture(autouse=True)
def no_process(monkeypatch):
    """Do not start Git to ask for the commit."""
    monkeypatch.setattr(gpu, "commit", lambda: "abc")


def read(file):
    return {record["name"]: record for record in read_records(file)}


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("part", CELLS)
def test_every_part_runs_and_is_not_run_again(part, tmp_path, monkeypatch, capfd):
    file = tmp_path / "gpu.json"
    assert gpu.run_part(part, TINY, file, only=CELLS[part]) == 0
    found = read(file)
    assert found
    assert {record["state"] for record in found.values()} <= {"measured", "skipped"}, capfd.readouterr().err
    for record in found.values():
        assert record["state"] == "measured" or "flash" in record["name"] or "graph" in record["name"]
        assert record["part"] == part
        assert {"commit", "torch", "device_name", "run", "tiny"} <= record.keys()
    assert f"### {part.capitalize()}" in report(list(found.values()))
    monkeypatch.setattr(gpu, "measure", lambda *_: pytest.fail("something was run again"))
    assert gpu.run_part(part, TINY, file, only=CELLS[part]) == 0


@pytest.mark.parametrize("search", gpu_part_parity.SEARCHES)
def test_hypotheses(search):
    """Hypotheses have different lengths, so that sentences end before others."""
    found = gpu_part_parity.measure({"search": search, "graph": False}, Settings("cpu", tiny=False))
    assert found["same"] == found["sentences"] == 64
    assert len(set(found["lengths"])) > 5


def test_differences_are_found():
    """A wrong attention is noticed."""
    cell = {"method": "pseudo_masked_relative", "attention": "padded", "window": ""}
    other = gpu_part_parity.loss_and_gradients
    losses = []

    def wrong(trainer, sample, attention, *rest):
        if attention == "padded":
            trainer.model.relative_position.weight.data.mul_(1.1)
        losses.append(other(trainer, sample, attention, *rest))
        return losses[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gpu_part_parity, "loss_and_gradients", wrong)
        found = gpu_part_parity.measure(cell, TINY)
    assert found["float32"]["worst_gradient"] > 1e-3
    with pytest.raises(ValueError, match=r"\['bias'\]"):
        gpu_part_parity.differences((1.0, {"bias": torch.ones(1)}), (1.0, {}))
    with pytest.raises(ValueError, match=r"NaN: loss, bias"):
        gpu_part_parity.differences((math.nan, {"bias": torch.full((1,), math.nan)}), (1.0, {"bias": torch.ones(1)}))


def a_part(measure, names="abc", **more):
    return SimpleNamespace(cells=lambda settings: [{"name": name} for name in names], measure=measure, **more)


@pytest.fixture
def run(tmp_path, monkeypatch):
    """Run a part that a test defines, and return the exit status and the records."""

    def run(part, **options):
        monkeypatch.setattr(gpu, "import_module", lambda name: part)
        status = gpu.run_part("parity", TINY, tmp_path / "gpu.json", **options)
        return status, read(tmp_path / "gpu.json")

    return run


def test_a_cell_that_fails_is_kept_and_the_others_run(run):
    def measure(cell, settings):
        if cell["name"] == "b":
            raise RuntimeError("no kernel")
        return {"value": 1}

    status, records = run(a_part(measure))
    assert status == 0
    assert [record["state"] for record in records.values()] == ["measured", "failed", "measured"]
    assert records["b"]["reason"] == "RuntimeError: no kernel"
    assert records["b"]["where"].startswith("test_gpu.py:")
    working = a_part(lambda cell, settings: {"value": 2})
    assert run(working)[1]["b"]["state"] == "failed"
    records = run(working, again=True)[1]
    assert [record["value"] for record in records.values()] == [1, 2, 1], "only what failed is measured again"


def test_a_cell_whose_process_ends_is_tried_twice(run):
    class Ended(BaseException):
        pass

    def measure(cell, settings):
        if cell["name"] == "b":
            raise Ended
        return {}

    for _ in range(2):
        with pytest.raises(Ended):
            run(a_part(measure))
    status, records = run(a_part(measure))
    assert status == 0
    assert [record["state"] for record in records.values()] == ["measured", "failed", "measured"]


def test_a_part_ends_where_the_gpu_is_unusable(run, monkeypatch):
    begun = []

    def measure(cell, settings):
        begun.append(cell["name"])
        raise RuntimeError("CUDA error: an illegal memory access was encountered")

    monkeypatch.setattr("gpu_timing.is_usable", lambda device: begun[-1] != "b")
    status, records = run(a_part(measure))
    assert status == gpu.POISONED
    assert list(records) == ["a", "b"]


def test_no_cell_begins_too_late(run, capfd):
    status, records = run(a_part(lambda cell, settings: {}), until=time.monotonic() - 1)
    assert status == gpu.LEFT
    assert not records
    assert "parity: no time is left for 3 cells; run it again to go on with: a; b; c" in capfd.readouterr().err


def test_unavailable_cells_are_checked_again(run):
    part = a_part(lambda cell, settings: {}, unavailable=lambda cell, settings: "--attention is one of auto")
    assert {record["state"] for record in run(part)[1].values()} == {"skipped"}
    assert {record["state"] for record in run(a_part(part.measure))[1].values()} == {"measured"}


def test_the_command_line(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    monkeypatch.setattr("sys.argv", ["gpu.py", "training"])
    with pytest.raises(SystemExit):
        gpu.main()
    assert capsys.readouterr().err.endswith("error: --device is cuda, but PyTorch finds no GPU\n")
    write_records(tmp_path / "gpu.json", [record("parity", "a", state="failed", reason="no\nkernel")])
    for path in (".", "gpu.json"):
        monkeypatch.setattr("sys.argv", ["gpu.py", "report", path])
        assert gpu.main() == 0
        assert "| a | failed: no kernel |" in capsys.readouterr().out


def test_the_grid_of_trainings():
    cells = gpu_part_training.cells(REAL)
    names = [cell["name"] for cell in cells]
    assert len(set(names)) == len(names) == 3 * 2 * 3 * (9 + 2)
    assert names[:2] == ["base 8k 464/48: auto", "base 8k 464/48: padded, not compiled"]
    bars = {"base 32k", "large 8k", "large 32k", "minilm 32k"}
    assert max(names.index(f"{task} 464/48: auto") for task in bars) < 20
    options = {cell["name"]: gpu_part_training.options(cell) for cell in cells if cell["system"] == "ours"}
    assert options["base 8k 464/48: auto"] == "--attention auto"
    assert options["base 8k 464/48: flex, compiled"] == "--attention flex --attention-dropout 0 --compile"
    assert set(gpu_part_training.CHOICES) >= set(ATTENTIONS)


@pytest.mark.parametrize(
    ("lengths", "positions", "batch"),
    [
        ("464/48", 8192, 15),
        ("squad_qg", 8192, 43),
        ("30..50/8..16", 8192, 128),
        ("464/48", 32768, 59),
        ("464/48", 9, 1),
    ],
)
def test_equal_positions(lengths, positions, batch):
    assert gpu_part_training.examples(lengths, positions) == batch


@pytest.mark.parametrize("fitting", [1, 5, 8, 1000, 4097])
def test_the_largest_batch(fitting, monkeypatch):
    tried = []

    def attempt(trainer, cell):
        tried.append(cell.batch)
        return cell.batch <= fitting

    monkeypatch.setattr(gpu_part_memory, "attempt", attempt)
    monkeypatch.setattr(gpu_part_memory, "timed", lambda cell, settings: {"batch": cell.batch})
    monkeypatch.setitem(gpu_part_memory.MOST, "cpu", 4096)
    found = gpu_part_memory.measure(gpu_part_memory.cells(TINY)[0], TINY)
    best = min(fitting, 4096)
    assert best - max(1, best // 8) < found["batch"] <= best
    assert len(tried) == len(set(tried)) < 25


def test_nothing_fits(monkeypatch):
    monkeypatch.setattr(gpu_part_memory, "attempt", lambda trainer, cell: False)
    with pytest.raises(RuntimeError, match="not even 1 examples fit"):
        gpu_part_memory.measure(gpu_part_memory.cells(TINY)[0], TINY)


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`"),
    ],
    ids=["of the allocator", "of a library"],
)
def test_out_of_memory_means_that_a_batch_does_not_fit(monkeypatch, error):
    def no_memory(*_):
        raise error

    emptied = []
    monkeypatch.setattr(gpu_part_memory, "update_of", lambda cell, trainer: (no_memory, []))
    trainer = SimpleNamespace(zero_grad=lambda: emptied.append(True))
    assert not gpu_part_memory.attempt(trainer, SimpleNamespace(device="cpu"))
    assert emptied
    error = RuntimeError("another one")
    with pytest.raises(RuntimeError, match="another one"):
        gpu_part_memory.attempt(trainer, SimpleNamespace(device="cpu"))


def test_calls_of_the_driver():
    counts = {"cudaLaunchKernel": 5, "cuLaunchKernelEx": 2, "cudaGraphLaunch": 1, "cudaMemcpyAsync": 3, "aten::mm": 9}
    counts |= {"cudaStreamSynchronize": 4, "cudaDeviceSynchronize": 7, "cudaMemsetAsync": 1}
    seen = tally(Profile(counts, device_seconds=0.25))
    assert seen == {"launches": 8, "graphs": 1, "copies": 4, "waits": 4, "device_ms": 250}
    on_cpu = profiled(lambda: torch.ones(2, 2) @ torch.ones(2, 2), "cpu")
    assert on_cpu.counts["aten::mm"] == 1
    assert tally(on_cpu) == dict.fromkeys(("launches", "graphs", "copies", "waits", "device_ms"))


def test_a_block_lasts_long_enough(monkeypatch):
    clock = SimpleNamespace(now=0.0)

    def call():
        clock.now += 0.1

    monkeypatch.setattr("gpu_timing.time", SimpleNamespace(perf_counter=lambda: clock.now))
    assert seconds_of(call, Settings("cpu", tiny=False), warm_up=2, repeats=4) == pytest.approx([0.1] * 4)
    assert clock.now == pytest.approx(0.1 * (2 + 4 * 3)), "0.25 seconds and more are three calls"


def test_graphs_need_a_gpu():
    assert gpu_part_decoding.unavailable({"system": "graph"}, TINY) == "CUDA graphs need a GPU"
    assert gpu_part_decoding.unavailable({"system": "graph"}, REAL) is None


def test_judgements():
    bar = Bar("MFU", ">= 30", ">= 25", "%", lambda records: None)
    assert [judge(bar, found) for found in (None, 30, 25, 24.9)] == [
        *("not measured", "met", "missed, the floor met", "missed"),
    ]
    assert judge(bar._replace(wanted="<= 1.25", floor=""), 1.3) == "missed"
    assert judge(bar._replace(wanted="< 1e-3", floor=""), 1e-3) == "missed"


def record(part, name, **found):
    common = {"state": "measured", "device_name": "NVIDIA H200", "torch": "2.11.0", "commit": "abc"}
    return {"part": part, "name": name, **common, **found}


def test_figures_of_the_report():
    records = [
        record(
            "training", "base 8k 464/48: auto", flops_per_second=350e12, positions_per_second=6e5, tokens_per_second=5e5
        ),
        record("training", "base 8k squad_qg: auto", positions_per_second=5e5, tokens_per_second=4e5),
        record("training", "base 8k squad_qg: plain", tokens_per_second=1e5),
        record("training", "base 8k squad_qg: sdpa", tokens_per_second=1.6e5),
        record("training", "base 8k 30..50/8..16: auto", positions_per_second=4.8e5),
        record("training", "large 8k 464/48: auto", state="failed", reason="OutOfMemoryError: 80 GB"),
        record("decoding", "N=64 512/64: eager", sentences_per_second=300, step_ms=3.0),
        record("decoding", "N=64 512/64: graph", sentences_per_second=650, step_ms=1.4),
        record("decoding", "N=64 512/64: bert2bert", sentences_per_second=50),
        record("decoding", "N=1 512/64: graph", sentences_per_second=9, step_ms=1.4),
    ]
    known = Records(records)
    found = {bar.title: bar.find(known) for bar in BARS}
    known_figures = {title: pytest.approx(value) for title, value in found.items() if value is not None}
    assert known_figures == {
        "base 8k 464/48: MFU": 100 * 350 / 989,
        "base 8k: slowest of three length mixes to fastest, by positions": 1.25,
        "base 8k squad_qg: real tokens/s to those of the faster padded Hugging Face BERT": 2.5,
        "base, beam 5, 512/64, N=64": 650,
        "base, beam 5, 512/64, N=1: a step": 1.4,
        "base, beam 5, 512/64, N=64: sentences/s to those of `generate`": 13,
    }
    text = report(records)
    assert "| base 8k 464/48: MFU | >= 30% | >= 25% | 35.4% | met |" in text
    assert "| large 8k 464/48: auto | failed: OutOfMemoryError: 80 GB |" in text
    assert "MFU is the share of 989 TFLOP/s, of the data sheet" in text
    assert text.endswith("Measured on NVIDIA H200, PyTorch 2.11.0, commit abc.")


def test_the_rate_of_a_device_without_a_data_sheet():
    records = [record("environment", "matrices: large", bfloat16_flops_per_second=1e14, device_name="NVIDIA X1")]
    assert Records(records).peak()[0] == 1e14
    assert Records([]).peak()[0] is None
    assert gpu_report.data_sheet_rate("NVIDIA H100 PCIe") < gpu_report.data_sheet_rate("NVIDIA H100 80GB HBM3")


def test_bars_of_checks():
    """A failed cell meets no bar."""
    difference = {"loss": 1e-5, "gradient": 3e-2, "worst_gradient": 2e-3}
    records = Records(
        [
            record("parity", "a", float32=difference, bfloat16=difference, bfloat16_on_the_cpu={"gradient": 0.5e-2}),
            record("parity", "b", sentences=64, same=62),
            record("parity", "c", rate=0.08, wanted=0.1, leaks=1),
            record("parity", "d", state="failed", reason="RuntimeError: no kernel"),
            record("resume", "e", difference=0.03, difference_of_two=0.001),
        ]
    )
    verdicts = {bar.title: judge(bar, bar.find(records)) for bar in BARS[:9]}
    assert list(verdicts.values()) == ["missed", "met", "missed", "met", *["missed"] * 5]
