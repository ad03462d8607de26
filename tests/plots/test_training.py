"""The curves of trainings: what is read of logs, and what is drawn."""

import csv
import json

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.plots.training import MOST_RUNS, draw, parse, read_run, write_csv

UPDATE = {"epoch": 1, "loss": "9.5", "ppl": "724", "wps": "210.5", "num_updates": "10", "lr": "7.5e-05", "gnorm": "4"}
HELD_OUT = {"epoch": 1, "valid_loss": "8.5", "valid_nll_loss": "8", "valid_bleu": "12.5", "valid_num_updates": "10"}
PREFIX = "2026-11-20 12:00:00 | INFO | train_inner | "


def write_log(path, *records):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(["noise", *(PREFIX + json.dumps(record) for record in records)]))
    return path


@pytest.mark.parametrize("prefix", ["", PREFIX])
def test_lines_of_the_output_and_of_the_log_file(prefix):
    assert parse(prefix + json.dumps(UPDATE)) == ("training", UPDATE)
    kind, record = parse(prefix + json.dumps(HELD_OUT))
    assert (kind, record["loss"], record["num_updates"]) == ("held out", "8.5", "10")
    assert parse(prefix + '{"epoch": 1, "train_loss": "9.1", "train_num_updates": "50"}') is None
    assert parse(prefix + "{'_name': None, 'common': {\"x") is None
    assert parse(prefix + "no numbers") is None


@pytest.fixture
def run(tmp_path):
    """The folder of a training that was resumed after update 20, with two checkpoints that were tried."""
    later = [{**UPDATE, "num_updates": "30", "loss": "7"}, {**UPDATE, "num_updates": "20", "loss": "8"}]
    write_log(tmp_path / "run" / "train.log", UPDATE, HELD_OUT, {**UPDATE, "num_updates": "20"}, *later)
    candidates = {"update-10": {"loss": 8.5, "ROUGE-L": 20.5}, "update-20": {"ROUGE-L": 30}, "average": {"ROUGE-L": 9}}
    (tmp_path / "run" / "finetune.json").write_text(json.dumps({"candidates": candidates}))
    return tmp_path / "run"


def test_curves(run):
    found = read_run(run)
    assert found.curves == {
        "loss": {10: 9.5, 20: 8.0, 30: 7.0},
        "learning rate": dict.fromkeys((10, 20, 30), 7.5e-05),
        "tokens/s": dict.fromkeys((10, 20, 30), 210.5),
        "gradient norm": dict.fromkeys((10, 20, 30), 4.0),
        "held-out loss": {10: 8.5},
    }
    assert list(found.curves["loss"]) == [10, 20, 30]
    assert found.scores == {"bleu": {10: 12.5}, "ROUGE-L": {10: 20.5, 20: 30.0}}


def test_a_log_by_itself(run):
    assert read_run(run / "train.log").curves == read_run(run).curves
    assert read_run(run / "train.log").scores == {"bleu": {10: 12.5}}


def test_what_fairseq_writes(call_command, tiny_data, tiny_options, tmp_path):
    words = [*tiny_options.training, "--max-update", 3, "--save-dir", "out", "--log-file", "train.log"]
    call_command("train", tiny_data, *words, "--log-format", "json")
    found = read_run(tmp_path)
    assert list(found.curves["loss"]) == [1, 2, 3] and list(found.curves["held-out loss"]) == [3]
    assert all(list(curve) == [1, 2, 3] for name, curve in found.curves.items() if name != "held-out loss")
    assert found.scores == {}


def test_numbers(run, tmp_path):
    write_csv([read_run(run)], tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert rows[0] == {"run": str(run), "curve": "loss", "update": "10", "value": "9.5"}
    assert {"run": str(run), "curve": "ROUGE-L", "update": "20", "value": "30.0"} in rows


def test_the_picture_names_runs_and_scores(run, tmp_path):
    """The text of a picture stands in comments of its SVG."""
    other = write_log(tmp_path / "other.log", UPDATE, {**UPDATE, "num_updates": "20"})
    draw([read_run(run), read_run(other)], tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    for stated in (str(run), str(other), "held out", "learning rate", "gradient norm", "validation scores", "ROUGE-L"):
        assert f"<!-- {stated}" in text


def test_without_scores_there_is_no_panel_of_them(tmp_path):
    draw([read_run(write_log(tmp_path / "a.log", UPDATE))], tmp_path / "curves.svg")
    text = (tmp_path / "curves.svg").read_text(encoding="utf-8")
    assert "validation scores" not in text and "held out" not in text


def test_as_many_runs_as_can_be_told_apart(tmp_path):
    run = read_run(write_log(tmp_path / "a.log", UPDATE))
    draw([run] * MOST_RUNS, tmp_path / "curves.svg")


def test_mistakes(tmp_path):
    with pytest.raises(UserError, match=r"nowhere does not exist"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(UserError, match=r"RUN must be a folder with train\.log.*train\.log does not exist"):
        read_run(tmp_path)
    with pytest.raises(UserError, match=r"a\.log has no updates: .*--log-format json"):
        read_run(write_log(tmp_path / "a.log", HELD_OUT))
    with pytest.raises(UserError, match=r"a\.log, line 2: loss must be a number, but is 'many'"):
        read_run(write_log(tmp_path / "a.log", {**UPDATE, "loss": "many"}))
    with pytest.raises(UserError, match=r"a\.log, line 2: num_updates must be a number, but is None"):
        read_run(write_log(tmp_path / "a.log", {"valid_loss": "8.5"}))
