"""What the demo reads off logs and results."""

import json
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"
TRAINING = '{"epoch": 1, "loss": "9.5", "num_updates": "25", "lr": "0.1"}'
HELD_OUT = '{"epoch": 1, "valid_loss": "8.5", "valid_num_updates": "25"}'
END_OF_EPOCH = '{"epoch": 1, "train_loss": "9.1", "train_num_updates": "50"}'


@pytest.fixture
def scripts(monkeypatch):
    pytest.importorskip("matplotlib", reason="matplotlib is not installed")
    pytest.importorskip("rouge_score", reason="rouge-score is not installed")
    monkeypatch.syspath_prepend(str(SCRIPTS))
    import demo_report
    import training_log

    return training_log, demo_report


def test_lines_of_the_output_and_of_the_log_file(scripts):
    parse = scripts[0].parse
    for prefix in ("", "2026-11-20 12:00:00 | INFO | train_inner | "):
        assert parse(prefix + TRAINING) == ("training", json.loads(TRAINING))
        kind, record = parse(prefix + HELD_OUT)
        assert (kind, record["loss"], record["num_updates"]) == ("held out", "8.5", "25")
        assert parse(prefix + END_OF_EPOCH) is None
    assert parse("2026-11-20 | INFO | fairseq_cli.train | {'_name': None, 'common': {\"x") is None
    assert parse("no numbers") is None


def test_curves(scripts, tmp_path):
    log, plot = tmp_path / "train.log", scripts[1].plot
    log.write_text("\n".join(["noise", TRAINING, HELD_OUT, END_OF_EPOCH]))
    plot(log, tmp_path / "loss.png")
    assert (tmp_path / "loss.png").read_bytes().startswith(b"\x89PNG")
    log.write_text(TRAINING)
    with pytest.raises(SystemExit, match=r"has none: \['held out'\]"):
        plot(log, tmp_path / "other.png")
    assert not (tmp_path / "other.png").exists()


def test_progress(scripts, monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["training_log.py", "50"])
    monkeypatch.setattr(sys, "stdin", ["noise\n", TRAINING, HELD_OUT, "x | WARNING | y | 3 sources are cut\n"])
    scripts[0].main()
    assert capsys.readouterr().out.splitlines() == [
        "  update 25/50: training loss 9.5",
        "  update 25/50: held out loss 8.5",
        "  x | WARNING | y | 3 sources are cut",
    ]


def test_hypotheses_and_rouge(scripts, tmp_path):
    results = tmp_path / "generate-test.txt"
    results.write_text("S-1\tsource\nD-1\t-0.5\tthe second\nD-0\t-0.25\tthe first one\nGenerate test\n")
    assert scripts[1].read_hypotheses(results) == {0: "the first one", 1: "the second"}
    # 2 of 3 words of the hypothesis and 2 of 2 of the reference: F1 = 0.8.
    assert scripts[1].rouge(["the first one"], ["the first"])["rouge1"] == pytest.approx(80)
