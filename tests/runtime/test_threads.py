"""The warning of threads that wait for a core."""

import logging
from concurrent.futures import ThreadPoolExecutor

import torch

from s2sft_fairseq.runtime import threads
from s2sft_fairseq.runtime.threads import INTERVAL, Contention, waited_seconds


def warnings_of(caplog, looks):
    """What is said when the clock and the seconds waited until then are these, after each step."""
    caplog.set_level(logging.WARNING)
    clock, waited = (iter(column) for column in zip(*looks, strict=True))
    contention = Contention(lambda: next(waited), lambda: next(clock))
    for _ in looks:
        contention.after_step()
    return [record.getMessage() for record in caplog.records]


def test_threads_that_waited(caplog, monkeypatch):
    """15 of 40 thread seconds; said once."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    (message,) = warnings_of(caplog, [(100, 7), (100 + INTERVAL, 22), (100 + 2 * INTERVAL, 60)])
    assert "2 threads waited 38% of the last 20 s" in message and "OMP_NUM_THREADS" in message


def test_one_thread(caplog, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    (message,) = warnings_of(caplog, [(0, 0), (INTERVAL, 10)])
    assert "1 thread waited 50%" in message and "OMP_NUM_THREADS" not in message


def test_threads_that_have_cores(caplog, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not warnings_of(caplog, [(0, 50), (INTERVAL, 57), (2 * INTERVAL, 65)])


def test_no_look_within_the_interval(caplog):
    clock = iter((0.0, INTERVAL / 2, INTERVAL - 0.1))
    looks = []
    contention = Contention(lambda: looks.append(1) or 1000.0 * len(looks), lambda: next(clock))
    for _ in range(3):
        contention.after_step()
    assert len(looks) == 1 and not caplog.records


def test_what_linux_says():
    """It never goes down while the same threads live, and needs no thread to be there still."""
    before = waited_seconds()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: sum(range(200_000)), range(8)))
        during = waited_seconds()
    assert 0 <= before <= during


def test_elsewhere(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "Path", lambda _: tmp_path)
    assert waited_seconds() == 0
