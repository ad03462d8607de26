"""The parts that the scripts in scripts/experiments share."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "scripts" / "experiments"))

from intervals import interval, interval_of, table
from logs import log_records, update_seconds


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
