"""Threads that wait for a core: the warning, and a number of threads that fits other programs' load."""

import logging
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import pytest
import torch

from s2sft_fairseq.runtime import threads
from s2sft_fairseq.runtime.threads import INTERVAL, Contention, idle_seconds, waited_seconds


def warnings_of(caplog, looks):
    """Return the messages if the clock and the seconds waited have these values after each step."""
    caplog.set_level(logging.WARNING)
    clock, waited = (iter(column) for column in zip(*looks, strict=True))
    times = [next(clock) for _ in looks]
    contention = Contention(lambda: next(waited), lambda: 0.0, lambda: times[0])
    for _ in looks:
        contention.after_step()
        times.pop(0)
    return [record.getMessage() for record in caplog.records]


def test_threads_that_waited(caplog, monkeypatch):
    """15 of 40 thread seconds; logged once."""
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    (message,) = warnings_of(caplog, [(100, 7), (100 + INTERVAL, 22), (100 + 2 * INTERVAL, 60)])
    assert "2 threads waited 38% of the last 20 s" in message and "--share-cores" in message


def test_one_thread(caplog, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 1)
    (message,) = warnings_of(caplog, [(0, 0), (INTERVAL, 10)])
    assert "1 thread waited 50%" in message and "--share-cores" not in message


def test_threads_that_have_cores(caplog, monkeypatch):
    monkeypatch.setattr(torch, "get_num_threads", lambda: 2)
    assert not warnings_of(caplog, [(0, 50), (INTERVAL, 57), (2 * INTERVAL, 65)])


def test_no_look_within_the_interval(caplog):
    times, looks = [0.0, INTERVAL / 2, INTERVAL - 0.1], []
    contention = Contention(lambda: looks.append(1) or 1000.0 * len(looks), lambda: 0.0, lambda: times[0])
    while times:
        contention.after_step()
        times.pop(0)
    assert len(looks) == 1 and not caplog.records


def test_the_number_of_threads_follows_the_free_cores(caplog, monkeypatch):
    """While 3 threads wait, one at a time is dropped, down to 1; while cores are idle, all return.

    The table has the seconds waited and idle at each look, 20 s apart, and the threads then.
    """
    caplog.set_level(logging.INFO)
    table = [
        (0, 0, 3),
        (10, 0, 2),
        (11, 0, 2),
        (17, 0, 1),
        (37, 0, 1),
        (37, 14, 1),
        (37, 30, 2),
        (37, 60, 3),
        (37, 80, 3),
    ]
    threads = [3]
    monkeypatch.setattr(torch, "get_num_threads", lambda: threads[-1])
    monkeypatch.setattr(torch, "set_num_threads", threads.append)
    look = [0]
    contention = Contention(lambda: table[look[0]][0], lambda: table[look[0]][1], lambda: 20.0 * look[0])
    for number, (_, _, expected) in enumerate(table):
        look[0] = number
        contention.after_step(adapts=True)
        assert threads[-1] == expected, f"look {number}"
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == 4 and "2 of 3 threads" in said[0] and "waited for 0.5 cores" in said[0]
    assert "3 of 3 threads" in said[-1] and "1.5 cores were idle" in said[-1]


@pytest.mark.parametrize(
    ("options", "cuda", "seen"),
    [({"share_cores": True}, False, [True]), ({}, False, [False]), ({"share_cores": True}, True, [])],
)
def test_option(options, cuda, seen, monkeypatch):
    """An update on the CPU is checked as the model's option says; one on a GPU is not."""
    looks, patches = [], []
    monkeypatch.setattr(threads, "wrap", lambda owner, name, around: patches.append(around))
    monkeypatch.setattr(Contention, "after_step", lambda self, *, adapts: looks.append(adapts))
    threads.install()
    trainer = SimpleNamespace(cuda=cuda, cfg=SimpleNamespace(model=SimpleNamespace(**options)))
    assert patches[0](lambda *words: words, trainer, "batch") == (trainer, "batch")
    assert looks == seen


def test_waiting_time_on_linux():
    """The value never decreases while the same threads live, and does not need any thread to exist still."""
    before = waited_seconds()
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: sum(range(200_000)), range(8)))
        during = waited_seconds()
    assert 0 <= before <= during


def test_waiting_time_on_other_systems(monkeypatch, tmp_path):
    monkeypatch.setattr(threads, "Path", lambda _: tmp_path)
    assert waited_seconds() == 0
    assert idle_seconds() == 0
