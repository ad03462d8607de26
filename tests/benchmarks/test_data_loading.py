"""The benchmark of data loading runs, on data with the documented lengths."""

import sys

import data_loading

from s2sft_fairseq.objectives.objective import OBJECTIVES


def test_a_small_run(capsys, monkeypatch):
    sizes = ["--examples", "40", "--batched-examples", "500", "--max-tokens", "1000", "--repeats", "1"]
    monkeypatch.setattr(sys, "argv", ["data_loading.py", *sizes])
    data_loading.main()
    lines = capsys.readouterr().out.splitlines()
    assert sum("examples/s" in line for line in lines) == 2 * 2 * len(OBJECTIVES)
    assert "500 examples are ordered and batched in" in lines[-1]


def test_lengths():
    """Without the final eos: sources of 59 to 199 tokens, 149 on average, and targets of 7 to 23."""
    sources, targets = data_loading.random_lengths(5000)
    assert (sources.min(), sources.max(), targets.min(), targets.max()) == (60, 200, 8, 24)
    assert abs(sources.mean() - 150) < 2
