"""The timed parts of decoding, and the interpolation of skipped steps."""

import io
import json
import sys
from dataclasses import asdict
from types import SimpleNamespace

import generation_cell
import pytest
import torch
from generation_cell import Timing, batch_works, make_sources, run_batch, spread_steps, times
from generation_grid import Cell, parse_lengths
from generation_systems import CLS, PAD, SEP


def a_cell(**changes):
    fields = {
        "config": "unilm_tiny",
        "lengths": "5..20/8",
        "beam": 2,
        "batch": 4,
        "system": "ours",
        "precision": "float32",
        "sentences": 8,
        "vocab": 60,
        "device": "cpu",
        "threads": 1,
        "seed": 3,
        "baseline_steps": 0,
        "repeats": 1,
    }
    return Cell(**{**fields, **changes})


@pytest.fixture
def clock(monkeypatch):
    clock = SimpleNamespace(now=0.0)
    monkeypatch.setattr(generation_cell.time, "perf_counter", lambda: clock.now)
    return clock


def slow_decode(clock, seconds):
    """Return a system that takes the first duration before its first tick, and each further one after a tick."""

    def decode(source, tick):
        for number, step in enumerate(seconds):
            if number:
                tick()
            clock.now += step
        return torch.zeros(len(source), 8, dtype=torch.int64)

    return decode


SOURCE = torch.full((4, 6), SEP)


def test_the_time_before_the_first_step_is_the_prefill(clock):
    timing, tokens = run_batch(slow_decode(clock, [5, 1, 2, 3, 4, 5, 6, 7, 8]), SOURCE, a_cell(), None)
    assert timing == Timing(5, [1, 2, 3, 4, 5, 6, 7, 8])
    assert timing.total == 41
    assert tokens.shape == (4, 8)


def test_skipped_steps_are_interpolated(clock):
    cell = a_cell(system="original", baseline_steps=3)
    assert spread_steps(8, 3) == [1, 4, 7]
    left_out = 0.01
    decode = slow_decode(clock, [5, 10, left_out, left_out, 40, left_out, left_out, 70])
    timing, _ = run_batch(decode, SOURCE, cell, spread_steps(8, 3))
    assert timing.prefill == 5
    assert timing.steps == pytest.approx([10, 20, 30, 40, 50, 60, 70])


@pytest.mark.parametrize("seconds", [[1] * 8, [1] * 10])
def test_another_number_of_steps_is_an_error(clock, seconds):
    with pytest.raises(RuntimeError, match=f"{len(seconds) - 1} steps were counted"):
        run_batch(slow_decode(clock, seconds), SOURCE, a_cell(), None)


def test_all_steps_can_be_measured():
    assert spread_steps(8, 100) == [1, 2, 3, 4, 5, 6, 7]
    assert spread_steps(160, 2) == [1, 159]
    assert spread_steps(2, 5) == [1]


def test_times():
    timings = [Timing(2.0, [1.0] * 10 + [9.0] * 5 + [2.0] * 10), Timing(4.0, [3.0] * 10 + [9.0] * 5 + [4.0] * 10)]
    found = times(timings, sentences=8)
    assert found["sentences_per_second"] == pytest.approx(8 / (2 + 75 + 4 + 115))
    assert found["prefill_ms"] == pytest.approx(3000)
    assert found["step_ms"] == pytest.approx(1000 * (75 + 115) / 50)
    assert (found["first_steps_ms"], found["last_steps_ms"]) == (2000, 3000)


def test_sources_are_the_same_in_all_batch_sizes():
    def rows(**changes):
        batches = make_sources(a_cell(**changes))
        return batches, [row[row != PAD].tolist() for batch in batches for row in batch]

    batches, sources = rows()
    assert [len(batch) for batch in batches] == [4, 4]
    lengths = [len(source) for source in sources]
    assert lengths == sorted(lengths, reverse=True)
    assert 5 <= lengths[-1] < lengths[0] <= 20
    for source in sources:
        assert (source[0], source[-1], source.count(SEP)) == (CLS, SEP, 1)
    assert rows(batch=1)[1] == rows(batch=8)[1] == rows(system="original", beam=1)[1] == sources
    assert rows(seed=4)[1] != sources
    assert {len(source) for source in rows(lengths="12/8")[1]} == {12}


def test_work_is_counted_without_padding():
    cell = a_cell(batch=8)
    (together,) = batch_works(cell, make_sources(cell))
    alone = batch_works(a_cell(batch=1), make_sources(a_cell(batch=1)))
    assert together.prefill_flops == sum(work.prefill_flops for work in alone)
    assert together.step_flops == [sum(steps) for steps in zip(*(work.step_flops for work in alone), strict=True)]


@pytest.mark.parametrize("text", ["60-464/48", "48", "", "5..4/8", "1/8", "5/1", "5..9/8 "])
def test_invalid_lengths(text):
    with pytest.raises(ValueError, match=r"but (are|the lengths are)"):
        parse_lengths(text)


def test_lengths():
    assert parse_lengths("60..464/48") == ((60, 464), 48)
    assert parse_lengths("608/160") == ((608, 608), 160)


def test_an_unknown_configuration_is_named(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO(json.dumps(asdict(a_cell(config="modernbert_base")))))
    with pytest.raises(SystemExit, match=r"^--config must be one of unilm_tiny, .* but is modernbert_base$"):
        generation_cell.main()
