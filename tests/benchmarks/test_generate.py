"""The script on a tiny model: records, their table, resuming, mistakes."""

import json
from pathlib import Path

import pytest
from called import call_script
from generation_grid import SYSTEMS
from generation_table import HEADINGS, table

SCRIPT = Path(__file__).resolve().parents[2] / "benchmarks" / "generate.py"
TINY = (
    *("--config", "unilm_tiny", "--lengths", "5..20/12", "--beam", "2", "--batch", "2", "--sentences", "4"),
    *("--vocab", "60", "--threads", "1", "--repeats", "2", "--baseline-steps", "3"),
)


def rows_of(stdout):
    """Return the rows of a table by their systems, and its last line."""
    heading, *rows, conditions = stdout.splitlines()
    assert heading.split() == " ".join(HEADINGS).split()
    return {row.split()[4]: row for row in rows}, conditions


@pytest.mark.slow  # each system measures the rates of the machine, for many seconds
@pytest.mark.process
def test_three_systems_side_by_side(tmp_path):
    done = call_script(SCRIPT, tmp_path, *TINY)
    assert [line.split()[-2] for line in done.stderr.splitlines()] == list(SYSTEMS)
    records = json.loads((tmp_path / "generate.json").read_text())
    assert [record["system"] for record in records] == list(SYSTEMS)
    for record in records:
        assert len(record["seconds"]) == record["repeats"] == (1 if record["system"] == "original" else 2)
        assert record["sentences_per_second"] == pytest.approx(4 / min(record["seconds"]))
        assert record["threads_used"] == 1
        assert record["peak_bytes"] >= record["loaded_bytes"] > 1e8
        assert {"torch", "cpu_capability", "commit", "seed", "load"} <= record.keys()
    assert [len(record["tokens"] or ()) for record in records] == [4, 0, 4]
    assert {len(tokens) for record in records for tokens in record["tokens"] or ()} == {12}
    assert "roofline_share" not in records[2]
    rows, conditions = rows_of(done.stdout)
    assert list(rows) == list(SYSTEMS)
    ratio = records[0]["sentences_per_second"] / records[1]["sentences_per_second"]
    assert f" {ratio:.2f} " in rows["ours"]
    assert rows["original"].endswith("extrapolated from 3 of 11 steps")
    assert conditions.startswith("matrix rate ")
    again = call_script(SCRIPT, tmp_path, *TINY, "--resume")
    assert again.stderr == "", "something was run again"
    assert again.stdout == done.stdout


MISTAKES = {
    ("--lengths", "60-464/48"): "--lengths: lengths must look like 60..464/48 or 608/160, but are 60-464/48",
    ("--batch", "3"): "--sentences must be a multiple of every --batch (3), but is 16",
    ("--beam", "0", "--threads", "0"): "--beam must be at least 1, but is 0; --threads must be at least 1, but is 0",
    ("--baseline-steps", "1"): "--baseline-steps must be at least 2, or 0 for all, but is 1",
}


@pytest.mark.parametrize(("words", "error"), MISTAKES.items(), ids=map(" ".join, MISTAKES))
def test_mistakes(tmp_path, words, error):
    done = call_script(SCRIPT, tmp_path, *words)
    assert done.returncode == 2
    assert done.stderr.endswith(f"error: {error}\n")
    assert not list(tmp_path.iterdir())


def a_record(system, speed, **changes):
    record = {
        **{"config": "unilm_base", "lengths": "608/160", "beam": 5, "batch": 4, "sentences": 16, "vocab": 30522},
        **{"device": "cpu", "threads": 2, "seed": 1, "system": system, "precision": "float32", "run": "first"},
        **{"sentences_per_second": speed, "prefill_ms": 10.0, "step_ms": 2.0, "first_steps_ms": 1.0},
        **{"last_steps_ms": 3.0, "peak_bytes": 2.5e9, "roofline_share": 0.5, "extrapolated": None},
        **{"flops_per_second": 2e11, "bytes_per_second": 1e10, "load": 1.0, "tokens": [[1], [2]]},
    }
    return {**record, **changes}


def test_ratios_and_the_same_hypotheses():
    records = [
        a_record("ours", 6.0),
        a_record("ours", 9.0, precision="int8", tokens=[[1], [3]]),
        a_record("original", 0.5, run="second", tokens=None, extrapolated="from 6 of 159 steps"),
        a_record("bert2bert", 2.0, roofline_share=None),
        a_record("ours", 3.0, beam=1),
    ]
    rows = [line.split() for line in table(records).splitlines()[1:-1]]
    assert [row[-4:] for row in rows[:2]] == [["%", "12.00*", "3.00", "-"], ["%", "18.00*", "4.50", "1/2"]]
    assert rows[1][4:7] == ["ours", "int8", "9"]
    assert " ".join(rows[2]).endswith("50.0 % - - - extrapolated from 6 of 159 steps")
    assert rows[3][-4:] == ["-"] * 4
    assert rows[4][-3:] == ["-"] * 3, "another beam is another task"
