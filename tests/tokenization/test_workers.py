"""Chunks in processes: order, reading ahead, and early ends of input, workers or the caller."""

import os
import signal
import sys
import time

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.workers import Workers


def work(shared: float, chunk: int) -> tuple[int, int]:
    time.sleep(shared if chunk % 5 == 0 else 0)
    return chunk, os.getpid()


def fail(shared: None, chunk: int) -> None:
    if chunk == 7:
        raise UserError("the seventh")


def kill(shared: None, chunk: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.process
def test_results_come_in_order_from_other_processes():
    with Workers(2, 0.02) as workers:
        results = list(workers.map(work, range(30)))
        again = list(workers.map(work, range(5)))
    assert [chunk for chunk, _ in results] == list(range(30))
    processes = {process for _, process in results}
    assert os.getpid() not in processes
    assert len(processes) == 2
    assert {process for _, process in again} <= processes


@pytest.mark.parametrize(("count", "chunks"), [(1, 30), (2, 3)])
def test_one_worker_or_few_chunks_stay_in_this_process(count, chunks):
    with Workers(count, 0) as workers:
        assert list(workers.map(work, range(chunks))) == [(chunk, os.getpid()) for chunk in range(chunks)]


@pytest.mark.process
def test_chunks_are_read_only_as_they_are_needed():
    read = []
    with Workers(2, 0) as workers:
        results = workers.map(work, (read.append(chunk) or chunk for chunk in range(1000)))
        for _ in range(10):
            next(results)
        assert len(read) < 30


@pytest.mark.process
def test_exceptions_reach_the_caller():
    with Workers(2, None) as workers, pytest.raises(UserError, match="the seventh"):
        list(workers.map(fail, range(30)))


@pytest.mark.process
def test_a_process_that_is_killed():
    with (
        Workers(2, None) as workers,
        pytest.raises(UserError, match=r"a worker process was killed; .* fewer --workers"),
    ):
        list(workers.map(kill, range(30)))


def test_no_process_outlives_its_parent(run_process, tmp_path):
    (tmp_path / "parent.py").write_text(
        "import os, signal\n"
        "from s2sft_fairseq.tokenization.workers import Workers\n"
        "def work(shared, chunk): return os.getpid()\n"
        "with Workers(2, None) as workers:\n"
        "    print(*set(workers.map(work, range(9))), flush=True)\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    done = run_process(sys.executable, "parent.py", status=-signal.SIGKILL)
    deadline = time.monotonic() + 20
    for process in map(int, done.stdout.split()):
        while os.path.exists(f"/proc/{process}"):
            assert time.monotonic() < deadline, "a worker goes on without its parent"
            time.sleep(0.05)
