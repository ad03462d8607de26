import threading
from concurrent.futures import CancelledError, wait

import pytest

from s2sft_fairseq.serve.batching import Batcher
from s2sft_fairseq.serve.metrics import Metrics
from s2sft_fairseq.serve.settings import Limits, Refused


class Doubling:
    """Work that doubles numbers; it records its batches, and waits for `go` in each."""

    def __init__(self):
        self.batches = []
        self.started, self.go = threading.Event(), threading.Event()

    def __call__(self, items):
        self.batches.append(list(items))
        self.started.set()
        assert self.go.wait(10)
        if -1 in items:
            raise ValueError("minus one")
        return [2 * item for item in items]


@pytest.fixture
def work():
    return Doubling()


@pytest.fixture
def make(work):
    made = []

    def batcher(**limits):
        made.append(Batcher(Limits(**{"max_wait_ms": 0, **limits}), Metrics()))
        return made[-1]

    yield batcher
    work.go.set()
    for each in made:
        each.close()
        assert not each.is_alive()


def busy(batcher, work):
    """Keep the model busy, so that the next jobs must wait."""
    future = batcher.submit("first", work, [0])
    assert work.started.wait(10)
    return future


def test_jobs_of_equal_keys_share_a_batch_and_keep_their_order(make, work):
    batcher = make(max_batch=8)
    busy(batcher, work)
    jobs = [("a", [1, 2]), ("b", [3]), ("a", [4]), ("b", [5])]
    futures = [batcher.submit(key, work, items) for key, items in jobs]
    assert batcher.queue_length() == 5
    work.go.set()
    assert [future.result(10) for future in futures] == [[2, 4], [6], [8], [10]]
    assert work.batches == [[0], [1, 2, 4], [3, 5]]


def test_a_batch_is_no_larger_than_allowed(make, work):
    batcher = make(max_batch=3)
    busy(batcher, work)
    futures = [batcher.submit("a", work, items) for items in ([1, 2], [3, 4], [5], [6])]
    work.go.set()
    wait(futures, 10)
    assert work.batches[1:] == [[1, 2], [3, 4, 5], [6]]


def test_a_job_waits_for_others(make, work):
    work.go.set()
    batcher = make(max_batch=2, max_wait_ms=10_000)
    futures = [batcher.submit("a", work, [item]) for item in (1, 2)]
    assert [future.result(5) for future in futures] == [[2], [4]]
    assert work.batches == [[1, 2]]


def test_a_job_does_not_wait_for_long(make, work):
    work.go.set()
    assert make(max_wait_ms=1).submit("a", work, [1]).result(5) == [2]


def test_an_error_is_of_the_job_that_causes_it(make, work):
    batcher = make()
    busy(batcher, work)
    good, bad, other = (batcher.submit("a", work, items) for items in ([1], [-1], [2]))
    work.go.set()
    assert (good.result(10), other.result(10)) == ([2], [4])
    with pytest.raises(ValueError, match="minus one"):
        bad.result(10)
    with pytest.raises(ValueError, match="minus one"):
        batcher.submit("a", work, [-1]).result(10)


def test_a_full_queue(make, work):
    batcher = make(max_queue=3)
    busy(batcher, work)
    batcher.submit("a", work, [1, 2])
    with pytest.raises(Refused, match="2 of at most 3") as refused:
        batcher.submit("a", work, [3, 4])
    assert refused.value.status == 429 and refused.value.headers == {"Retry-After": "1"}
    batcher.submit("a", work, [3])


def test_cancelled_jobs_leave_the_queue(make, work):
    batcher = make(max_queue=1)
    busy(batcher, work)
    assert batcher.submit("a", work, [1]).cancel()
    assert batcher.queue_length() == 0
    kept = batcher.submit("a", work, [2])
    work.go.set()
    assert kept.result(10) == [4]
    assert work.batches == [[0], [2]]


def test_closing_finishes_waiting_jobs_and_accepts_no_more(make, work):
    batcher = make(max_wait_ms=60_000)
    first = busy_future = batcher.submit("a", work, [1])
    closing = threading.Thread(target=batcher.close)
    closing.start()
    assert work.started.wait(10)  # without waiting for a minute
    with pytest.raises(Refused, match="shutting down") as refused:
        batcher.submit("a", work, [2])
    assert refused.value.status == 503
    work.go.set()
    closing.join(10)
    assert first.result(0) == busy_future.result(0) == [2]


class Panic(BaseException):
    """Like the exception of a library in Rust that panics."""


@pytest.mark.parametrize("error", [Panic("the decoder"), SystemExit(3), StopIteration("end"), CancelledError("no")])
def test_whatever_the_work_raises_the_thread_goes_on(make, error):
    def broken(items):
        raise error

    batcher = make()
    futures = [batcher.submit("a", broken, [item]) for item in range(2)]
    for future in futures:
        with pytest.raises(RuntimeError, match=type(error).__name__) as found:
            future.result(5)
        assert found.value.__cause__ is error
    assert batcher.submit("b", list, [1]).result(5) == [1]


def test_if_the_thread_ends_all_requests_fail_at_once(make, work, monkeypatch):
    batcher = make()
    busy(batcher, work)
    waiting, gone = (batcher.submit("a", work, [item]) for item in (1, 2))
    gone.cancel()

    def panic():
        raise Panic

    monkeypatch.setattr(batcher, "_next_batch", panic)
    work.go.set()
    with pytest.raises(Refused) as refused:
        waiting.result(5)
    assert refused.value.status == 503
    assert not batcher.is_alive()
    with pytest.raises(Refused, match="thread has ended") as refused:
        batcher.submit("a", work, [1])
    assert refused.value.status == 503


def test_closing_does_not_wait_for_a_model_that_hangs(make, work):
    batcher = make(timeout=0.5)
    busy(batcher, work)
    batcher.close()
    assert batcher.is_alive()
