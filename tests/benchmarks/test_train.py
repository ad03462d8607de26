"""The script on a tiny model: records, their table, resuming, the plot, mistakes."""

import json
from pathlib import Path

import pytest
import training_scaling
from called import call_script
from train import make_cells
from training_grid import Cell
from training_scaling import SWEEPS, draw, sweep_cells
from training_table import HEADINGS, table

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "train.py"
TINY = (
    *("--config", "unilm_tiny", "--lengths", "6..40/4..10", "--method", "pseudo_masked", "--vocab", "60"),
    *("--threads", "1", "--updates", "2"),
)


@pytest.mark.process
def test_both_systems_side_by_side(tmp_path):
    done = call_script(SCRIPT, tmp_path, *TINY)
    name = "unilm_tiny pseudo_masked 6..40/4..10 batch 4 vocabulary 60"
    assert done.stderr.splitlines() == [f"1/2 {name} ours", f"2/2 {name} plain"]
    ours, plain = records = json.loads((tmp_path / "train.json").read_text())
    for record in records:
        assert len(record["seconds"]) == 2
        assert record["least_seconds"] == min(record["seconds"])
        assert record["threads_used"] == 1
        assert record["peak_bytes"] >= record["loaded_bytes"] > 1e8
        assert {"torch", "cpu_capability", "commit", "seed", "load"} <= record.keys()
    amounts = ("real_tokens", "real_positions", "labels", "flops")
    assert [ours[name] for name in amounts] == [plain[name] for name in amounts]
    assert ours["first_loss"] == pytest.approx(plain["first_loss"], rel=0.1), "other weights, but as random"
    assert ours["positions"] == ours["real_positions"], "we do not pad"
    assert plain["positions"] == 4 * (40 + 10 + 10)
    heading, first, second, conditions = done.stdout.splitlines()
    assert heading.split() == " ".join(HEADINGS).split()
    ratio = plain["least_seconds"] / ours["least_seconds"]
    assert first.split()[-3:] == [f"{ratio:.2f}", f"{100 * ours['peak_bytes'] / plain['peak_bytes']:.0f}", "%"]
    assert second.split()[-2:] == ["-", "-"]
    assert conditions.startswith("matrix rate ")
    again = call_script(SCRIPT, tmp_path, *TINY, "--resume")
    assert again.stderr == "", "something was run again"
    assert again.stdout == done.stdout


MISTAKES = {
    ("--lengths", "60-464/48"): "--lengths: lengths must look like 60..464/8..48 or 464/48, or be one of squad_qg, "
    "but are 60-464/48",
    ("--batch", "0", "--vocab", "5"): "--batch must be at least 1, but is 0; --vocab must be at least 6, but is 5",
    ("--updates", "0", "--threads", "0"): "--updates must be at least 1, but is 0; "
    "--threads must be at least 1, but is 0",
    ("--scaling", "plot.pdf", "--lengths", "9/9"): "--scaling must end in .png, but is plot.pdf; "
    "--lengths must not be given with --scaling, which varies them",
}


@pytest.mark.parametrize(("words", "error"), MISTAKES.items(), ids=map(" ".join, MISTAKES))
def test_mistakes(tmp_path, words, error):
    done = call_script(SCRIPT, tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: {error}\n")
    assert not list(tmp_path.iterdir())


def a_cell(**changes):
    fields = {
        "config": "unilm_base",
        "method": "pseudo_masked",
        "lengths": "512/48",
        "batch": 4,
        "system": "ours",
        "vocab": 30522,
        "device": "cpu",
        "threads": 2,
        "seed": 1,
        "updates": 3,
    }
    return Cell(**{**fields, **changes})


def a_record(cell, seconds=2.0, **changes):
    record = {
        **vars(cell),
        **{"run": "first", "least_seconds": seconds, "median_seconds": 1.5 * seconds, "real_tokens": 1000},
        **{"real_positions": 1200, "positions": 1600, "flops": 2e11, "peak_bytes": 2.5e9},
        **{"flops_per_second": 2e11, "load": 1.0},
    }
    return {**record, **changes}


def test_ratios_and_the_rate_that_counts():
    records = [
        a_record(a_cell(), 2.0, positions=1200),
        a_record(a_cell(system="plain"), 5.0, peak_bytes=5e9, flops_per_second=4e11),
        a_record(a_cell(vocab=99), 4.0, run="second"),
        a_record(a_cell(vocab=99, system="plain"), 2.0),
        a_record(a_cell(batch=1)),
    ]
    rows = [line.split() for line in table(records).splitlines()[1:-1]]
    values = ["2", "3", "500", "0.0", "%", "2.50", "25.0", "%", "2.50", "50", "%"]
    assert rows[0][6:] == values, "the rate is the highest of all"
    assert rows[1][6:] == ["5", "7.5", "200", "25.0", "%", "5.00", "10.0", "%", "-", "-"]
    assert rows[2][-3:] == ["0.50*", "100", "%"]
    assert rows[4][-2:] == ["-", "-"], "another batch is another task"


def test_the_rate_of_the_same_precision_and_plain_in_float32():
    records = [
        a_record(a_cell(), 2.0, bf16_flops_per_second=8e11),
        a_record(a_cell(precision="bfloat16"), 1.0, bf16_flops_per_second=4e11),
        a_record(a_cell(system="plain"), 5.0),
        a_record(a_cell(system="plain", precision="bfloat16"), 4.0),
    ]
    *rows, last = table(records).splitlines()[1:]
    assert [row.split("2.50  ", maxsplit=1)[1].split() for row in rows] == [
        ["50.0", "%", "2.50", "100", "%"],
        ["25.0", "%", "5.00", "100", "%"],
        ["20.0", "%", "-", "-"],
        ["6.2", "%", "1.25", "100", "%"],
    ]
    assert "ours bfloat16" in rows[1]
    assert last == "matrix rate 200 to 200 GFLOP/s in float32, 400 to 800 GFLOP/s in bfloat16, load 1 to 1"


def options(**changes):
    defaults = {"config": ["unilm_base"], "method": ["masked"], "lengths": None, "batch": None, "vocab": [99]}
    others = {"system": ["ours", "plain"], "updates": 3, "threads": 2, "device": "cpu", "seed": 1}
    others["precision"] = ["float32"]
    return type("Options", (), {**defaults, **others, **changes})


def test_the_grid():
    cells = make_cells(options())
    assert [cell.system for cell in cells] == ["ours", "plain"] * 3
    assert [(cell.lengths, cell.batch) for cell in cells[::2]] == [
        ("60..464/8..48", 4),
        ("464/48", 4),
        ("squad_qg", 16),
    ]
    both = make_cells(options(precision=["float32", "bfloat16"], lengths=["464/48"]))
    assert [(cell.system, cell.precision) for cell in both] == [
        *(("ours", "float32"), ("plain", "float32"), ("ours", "bfloat16"), ("plain", "bfloat16")),
    ]
    assert [cell.batch for cell in make_cells(options(batch=[2, 3], lengths=["squad_qg"], system=["ours"]))] == [2, 3]


def test_sweeps_vary_one_thing_and_measure_nothing_twice():
    center = a_cell()
    cells = sweep_cells(center)
    assert len(set(cells)) == len(cells)
    for cell in cells:
        changed = [
            name for name in ("lengths", "vocab", "batch", "config") if getattr(cell, name) != getattr(center, name)
        ]
        assert len(changed) <= 1
    assert {cell.vocab for cell in cells if cell.system == "ours"} == {8192, 30522, 65536, 131072, 250002}
    sources = {
        system: {int(cell.lengths.split("/")[0]) for cell in cells if cell.system == system}
        for system in ("ours", "plain")
    }
    assert max(sources["ours"]) == 2048
    assert max(sources["plain"]) == 1024, "its scores would not fit into memory"


def test_the_plot(monkeypatch, tmp_path):
    center = a_cell()
    records = [a_record(cell, seconds=1.0 + index) for index, cell in enumerate(sweep_cells(center))]
    points = []
    found = training_scaling._points
    monkeypatch.setattr(training_scaling, "_points", lambda *given: points.append(found(*given)) or points[-1])
    draw(records, center, tmp_path / "plot.png")
    assert (tmp_path / "plot.png").read_bytes().startswith(b"\x89PNG")
    drawn = [len(values) for values in points]
    assert drawn == [
        length
        for sweep in SWEEPS
        for length in (len(sweep.values), sum(value <= sweep.most_of_plain for value in sweep.values))
    ]
    assert {record["least_seconds"] for values in points for _, record in values} == {
        record["least_seconds"] for record in records
    }
