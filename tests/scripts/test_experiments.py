"""The parts that the scripts in scripts/experiments share."""

import json
import os
import shutil
import sys
from argparse import Namespace
from pathlib import Path

import numpy as np
import pytest
from hugging_face import VOCAB_SIZE, initial_model, save
from raw_corpora import write_lines

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "experiments"))

import bert2bert
import deltalm_starts
import learning_curves
import whole_trainings
from ablations import BUDGETS, ORDERINGS, ROWS, UNILMV2, Ablations, tabulate
from intervals import interval, interval_of, table
from logs import log_records, update_seconds

from s2sft_fairseq.recipes import engine
from s2sft_fairseq.recipes.pretraining import PRESETS


def test_intervals_hold_the_mean_as_often_as_they_say():
    """Also with few seeds, whose percentiles would not."""
    random, seeds, sentences = np.random.default_rng(3), 5, 20
    held = 0
    for _ in range(200):
        of_seeds, of_sentences = random.normal(0, 1, seeds), random.normal(0, 1, sentences)
        found = interval(of_seeds[:, None] + of_sentences + random.normal(0, 1, (seeds, sentences)))
        held += found.low < 0 < found.high
    assert 185 <= held <= 199


def test_verdicts():
    random = np.random.default_rng(4)
    noise = random.normal(0, 1, (5, 50))
    assert [interval(noise + shift).verdict for shift in (-2, 0, 2)] == ["lower", "not resolved", "higher"]
    assert interval(noise).value == pytest.approx(noise.mean())


def test_scores_of_whole_sets():
    """A ratio of sums, like BLEU, is computed over the chosen sentences, and not averaged over them."""
    counts = np.random.default_rng(5).integers(1, 9, (3, 40, 2))
    found = interval_of(
        lambda seeds, sentences: float(np.divide(*counts[seeds][:, sentences].sum(axis=(0, 1)))), *counts.shape[:2]
    )
    assert found.value == pytest.approx(counts[..., 0].sum() / counts[..., 1].sum())
    assert found.low < found.value < found.high


def test_tables():
    assert table([50, 100], {"causal": ["a", 1]}) == "|  | 50 | 100 |\n| --- | --- | --- |\n| causal | a | 1 |\n"


def test_seconds_of_updates(tmp_path):
    """A resumed training has some updates twice; its epoch's summary and other lines do not count."""
    records = [{"num_updates": "50", "train_wall": "7"}, {"num_updates": "100", "train_wall": "8"}]
    records += [{"num_updates": "100", "train_wall": "9"}, {"train_num_updates": "100", "train_wall": "15"}]
    lines = ["DeltaLMModel(", *map(json.dumps, records)]
    (tmp_path / "train.log").write_text("".join(f"{line}\n" for line in lines))
    assert len(list(log_records(tmp_path / "train.log"))) == 4
    assert update_seconds(tmp_path / "train.log") == {50: 7.0, 100: 9.0}


def test_the_table_of_ablations(tmp_path):
    """Rows in which noise helps by ten points of ROUGE-L, and nothing else changes anything."""
    assert {row.preset for row in ROWS.values() if row.preset} <= PRESETS.keys()
    of_a_run = {"methods": list(ROWS), "seeds": [1, 2, 3], "budgets": BUDGETS}
    ablations = Ablations(Namespace(output=tmp_path, data=tmp_path, scores=None, **of_a_run), "e2e")
    ablations.scores.mkdir(parents=True)
    random = np.random.default_rng(6)
    for name in ROWS:
        for seed in (1, 2, 3):
            rouge_l = random.normal(60 if name.startswith("noise") else 50, 1, 100).tolist()
            scores = dict.fromkeys(map(str, BUDGETS), rouge_l)
            scores |= {f"{budget}, bits": random.normal(4, 1, 100).tolist() for budget in BUDGETS}
            ablations.scores_file(name, seed).write_text(json.dumps(scores))
            if name in UNILMV2:
                ablations.sst2_file(name, seed).write_text(json.dumps([True, False] * 50))
    tabulate(ablations, tmp_path / "ablations.md")
    scores, differences = (tmp_path / "ablations.md").read_text().split("Differences:")
    assert scores.count("| 50.00 (") == len(UNILMV2)
    assert scores.splitlines()[0] == "|  | 200 | 600 | 200, bits | 600, bits | SST-2 |"
    lines = {line.split(" | ")[0].strip("| "): line for line in differences.splitlines()}
    assert lines.keys() >= {f"{better} - {worse}" for better, worse in ORDERINGS}
    assert lines["noise - neither"].count("higher") == lines["noise, spans - spans"].count("higher") == len(BUDGETS)
    assert "higher" not in lines["spans - neither"]


def test_runs_with_scores_are_not_repeated(tmp_path, capsys):
    """Without data or encoder, since all scores come from another machine; other settings are refused."""
    methods, curve = ["causal", "masked"], {"50": [1.0, 2.0], "100": [3.0, 4.0]}
    scores = tmp_path / "scores" / "e2e"
    scores.mkdir(parents=True)
    for method in methods:
        for seed in (1, 2):
            (scores / f"{method}-seed{seed}.json").write_text(json.dumps(curve))
    given = ["--data", "none", "--encoder", "none", "--output", str(tmp_path / "out"), "--sets", "e2e"]
    given += ["--scores", str(tmp_path / "scores"), "--seeds", "1", "2", "--methods", *methods]
    given += ["--budgets", "50", "100"]
    assert learning_curves.main(given) == 0
    assert (tmp_path / "out" / "e2e.md").read_text().count("| 3.50 (") == 2
    for method in methods:
        assert str(tmp_path) not in (scores / f"{method}.settings.json").read_text()
    assert learning_curves.main([*given, "--sources", "150"]) == 2
    assert "sources: before 200, now 150" in capsys.readouterr().err


def test_the_table_of_starts(tmp_path, capsys):
    """With `--budgets`. "pairs" translates every line right, random weights every other one; the losses are equal."""
    folders = [tmp_path / "out" / name for name in ("texts", "tokenizer", "tokens", "data")]
    for folder in folders:
        folder.mkdir(parents=True)
    right = [f"the {color} house has {number} old doors" for color in ("red", "blue") for number in range(10)]
    write_lines(folders[0] / "test.tgt", right)
    half = [line if number % 2 else "a cat" for number, line in enumerate(right)]
    words = ["--data", str(tmp_path), "--output", str(tmp_path / "out"), "--budgets", "200", "50"]
    words += ["--seeds", "1", "2", "3", "--starts", "random", "pairs", "--sources", "20"]
    given = Namespace(output=tmp_path / "out", budgets=[50])
    for start, lines in (("random", half), ("pairs", right)):
        for seed in (1, 2, 3):
            folder = tmp_path / "out" / f"{start}-seed{seed}"
            folder.mkdir()
            for budget in (50, 200):
                write_lines(folder / f"{budget}.txt", lines)
            counts = deltalm_starts.Experiment(given).bleu(folder / "50.txt").counts.tolist()
            found = {"counts": counts, "loss": 4, "loss with other sources": 4.5}
            (folder / "scores.json").write_text(json.dumps({"50": found, "200": found}))
    assert deltalm_starts.main(words) == 0
    table_head = "|  | 50 updates | 200 updates |"
    _, scores, differences, losses = (tmp_path / "out" / "starts.md").read_text().split(table_head)
    assert scores.count("| 100.00 (100.00 to 100.00)") == 2
    assert differences.count("higher") == 2 and "| random |" not in differences
    assert losses.count("| 4.00, 4.50") == 4
    assert deltalm_starts.main([*words, "--budgets", "50", "100"]) == 2
    assert "budgets: before (50, 200), now (50, 100)" in capsys.readouterr().err


def test_the_report_of_bert2bert(tmp_path):
    """Ours has ten points more at each budget, and BERT2BERT needs half of our time."""
    of_a_run = {"methods": ["pseudo-masked"], "seeds": [1, 2, 3], "budgets": bert2bert.BUDGETS}
    given = Namespace(output=tmp_path, data=tmp_path, scores=None, **of_a_run)
    comparison = bert2bert.Comparison(given, "e2e")
    comparison.curves.scores.mkdir(parents=True)
    random = np.random.default_rng(7)
    for seed in given.seeds:
        ours = {budget: random.normal(60, 1, 100).tolist() for budget in given.budgets}
        comparison.curves.scores_file("pseudo-masked", seed).write_text(json.dumps(ours))
        theirs = {
            str(budget): {"updates": budget, "seconds": budget / 2, "ROUGE-L": random.normal(50, 1, 100).tolist()}
            for budget in given.budgets
        }
        theirs["same seconds"] = theirs["800"] | {"updates": 1600, "seconds": 800}
        record = {"theirs": theirs, "our seconds": {budget: budget for budget in given.budgets}}
        comparison.seed_file(seed).write_text(json.dumps(record))
    paths = ["--data", "none", "--encoder", "none", "--output", str(tmp_path)]
    assert bert2bert.main([*paths, "--sets", "e2e", "--seeds", "1", "2", "3"]) == 0
    lines = (tmp_path / "e2e-bert2bert.md").read_text().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    assert [row[0] for row in cells] == [*map(str, bert2bert.BUDGETS), "same seconds"]
    assert all(row[-1].endswith("higher") for row in cells)
    assert [(row[2], *row[4:6]) for row in cells[-2:]] == [("800", "800", "400"), ("800", "1600", "800")]
    assert (tmp_path / "e2e-bert2bert.png").stat().st_size > 1000


def test_each_line_of_a_test_set_is_scored(tmp_path):
    """Equal sources are generated once, but each of their lines is scored with its own reference."""
    (tmp_path / "corpus").mkdir()
    files = {"corpus/scored.src": "a\nb\n", "scored.txt": "A\nB\n", "test.src": "b\na\nb\n", "test.tgt": "1\n2\n3\n"}
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    texts = whole_trainings.scored(tmp_path, [tmp_path / "test.src", tmp_path / "test.tgt"])
    assert texts["hyp"].read_text() == "B\nA\nB\n"
    assert texts["src"].read_text() == "b\na\nb\n"
    assert [json.loads(line)["refs"] for line in texts["ref"].read_text().splitlines()] == [["1"], ["2"], ["3"]]


@pytest.mark.parametrize("name", ["gigaword", "e2e"])
def test_a_whole_training(tmp_path, monkeypatch, name):
    """The best of two learning rates is used, all test sources are scored, and nothing is repeated."""
    monkeypatch.setattr(whole_trainings, "LEARNING_RATES", ("1e-3", "1e-2"))
    monkeypatch.setattr(engine, "_free_memory", lambda: None)
    monkeypatch.setattr(os, "sched_getaffinity", lambda process: {0})  # start no processes for tokenizing
    save("bert-no-head", initial_model("bert-no-head"), tmp_path / "encoder")
    data = tmp_path / "data" / name
    data.mkdir(parents=True)
    draw = np.random.default_rng(8)
    for split, lines in (("train", 40), ("valid", 10), ("test", 12)):
        texts = [" ".join(f"w{number}" for number in draw.integers(5, VOCAB_SIZE, size=4)) for _ in range(lines)]
        for side in ("src", "tgt"):
            (data / f"{split}.{side}").write_text("".join(f"{text}\n" for text in texts))
        objects = [json.dumps({"src": text, "refs": [text, f"{text} w5"]}) for text in texts]
        (data / f"{split}.multi.jsonl").write_text("".join(f"{line}\n" for line in objects))
    out = tmp_path / "out"
    words = ["--data", data.parent, "--encoder", tmp_path / "encoder", "--output", out, "--sets", name]
    words += ["--epochs", 1, "--updates-of-choice", 2, "--cpu"]
    assert whole_trainings.main(list(map(str, words))) == 0
    scores = json.loads((out / f"{name}-lr.json").read_text())
    record = json.loads((out / name / "run" / "finetune.json").read_text())
    assert scores.keys() == {"1e-3", "1e-2"}
    assert record["settings"]["lr"]["value"] == max(scores, key=scores.get)
    assert record["settings"]["updates"]["value"] == 3  # 40 pairs, 16 an update
    assert len((out / name / "run" / "scored.txt").read_text().splitlines()) == 12
    assert (out / f"{name}.md").read_text() == (out / name / "run" / "model" / "README.md").read_text()
    assert json.loads((out / f"{name}.json").read_text())["systems"]
    commands = (out / name / "run" / "commands.jsonl").read_text()
    for folder in (out / name).glob("lr-*"):
        shutil.rmtree(folder)
    assert whole_trainings.main(list(map(str, words))) == 0
    assert (out / name / "run" / "commands.jsonl").read_text() == commands
    assert not list((out / name).glob("lr-*"))  # the scores of the learning rates are in a file
