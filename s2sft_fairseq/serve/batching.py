"""The thread that runs the model, and the queue of requests that wait for it."""

import contextlib
import logging
import threading
import time
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import CancelledError, Future, InvalidStateError
from dataclasses import dataclass, field
from typing import Any

from s2sft_fairseq.serve.metrics import Metrics
from s2sft_fairseq.serve.settings import Limits, Refused

logger = logging.getLogger(__name__)

ENDED = "the model's thread has ended: start the server again"
Work = Callable[[list[Any]], Sequence[Any]]
"""A function from the items of a batch to their results, in the same order."""


@dataclass
class Job:
    """The work of one request."""

    key: Hashable
    """Jobs with equal keys may share a batch: they ask for the same work with the same options."""
    work: Work
    items: list[Any]
    future: Future[list[Any]] = field(default_factory=Future)
    arrived: float = field(default_factory=time.monotonic)


class Batcher:
    """Runs jobs in the order of arrival. Later jobs with the same key may join the batch of the oldest one."""

    def __init__(self, limits: Limits, metrics: Metrics) -> None:
        self._limits, self._metrics = limits, metrics
        self._changed = threading.Condition()
        self._waiting: list[Job] = []
        self._closed = self._failed = False
        self._thread = threading.Thread(target=self._run, name="s2sft-model", daemon=True)
        self._thread.start()
        metrics.queue_length = self.queue_length

    def submit(self, key: Hashable, work: Work, items: list[Any]) -> Future[list[Any]]:
        """Queue a job and return its future. Cancel the future to remove the job from the queue.

        Raises:
            Refused: 429 if the queue is full, 503 if the server is shutting down or the model's thread has ended.
        """
        job = Job(key, work, items)
        with self._changed:
            if self._closed:
                raise Refused(503, "the server is shutting down")
            if not self.is_alive():
                raise Refused(503, ENDED)
            waiting = self._count()
            if waiting + len(items) > self._limits.max_queue:
                reason = f"the queue is full: {waiting} of at most {self._limits.max_queue} sources wait"
                raise Refused(429, reason, {"Retry-After": "1"})
            self._waiting.append(job)
            self._changed.notify()
        return job.future

    def queue_length(self) -> int:
        """Return how many sources wait for the model."""
        with self._changed:
            return self._count()

    def is_alive(self) -> bool:
        """Return whether the model's thread runs."""
        return self._thread.is_alive() and not self._failed

    def close(self) -> None:
        """Refuse new jobs, finish the waiting ones, and end the thread.

        Wait no longer than a request may take: later nobody waits for the rest.
        """
        with self._changed:
            self._closed = True
            self._changed.notify()
        self._thread.join(self._limits.timeout)

    def _count(self) -> int:
        self._waiting = [job for job in self._waiting if not job.future.cancelled()]
        return sum(len(job.items) for job in self._waiting)

    def _run(self) -> None:
        batch: list[Job] = []
        try:
            while batch := self._next_batch():
                self._do(batch)
        except BaseException:  # errors of the work do not come here
            logger.exception(ENDED)
            with self._changed:
                self._failed = True
                orphans, self._waiting = [*batch, *self._waiting], []
            for job in orphans:
                with contextlib.suppress(InvalidStateError):  # its request has ended
                    job.future.set_exception(Refused(503, ENDED))

    def _next_batch(self) -> list[Job]:
        """Wait for the next batch and return it; return an empty one if the batcher is closed and no job waits."""
        with self._changed:
            while True:
                self._count()  # removes cancelled jobs
                if self._waiting:
                    batch, full = self._sharing(self._waiting[0])
                    left = self._waiting[0].arrived + self._limits.max_wait_ms / 1000 - time.monotonic()
                    if full or left <= 0 or self._closed:
                        break
                    self._changed.wait(left)
                elif self._closed:
                    return []
                else:
                    self._changed.wait()
            taken = {id(job) for job in batch}
            self._waiting = [job for job in self._waiting if id(job) not in taken]
        return batch

    def _sharing(self, oldest: Job) -> tuple[list[Job], bool]:
        """Return the jobs that share a batch with the oldest one, and whether the batch is full."""
        batch: list[Job] = []
        size = 0
        for job in self._waiting:
            if job.key == oldest.key:
                if batch and size + len(job.items) > self._limits.max_batch:
                    return batch, True
                batch.append(job)
                size += len(job.items)
        return batch, size >= self._limits.max_batch

    def _do(self, batch: list[Job]) -> None:
        running = [job for job in batch if job.future.set_running_or_notify_cancel()]
        if not running:
            return
        start = time.monotonic()
        items = [item for job in running for item in job.items]
        try:
            results = list(running[0].work(items))
        except BaseException as error:
            if len(running) == 1:
                running[0].future.set_exception(_for_the_future(error))
            else:  # run each job alone, so that only the failing one gets the error
                for job in running:
                    self._do_alone(job)
        else:
            for job in running:
                job.future.set_result(results[: len(job.items)])
                del results[: len(job.items)]
        self._metrics.count_batch(len(items), time.monotonic() - start)

    @staticmethod
    def _do_alone(job: Job) -> None:
        try:
            job.future.set_result(list(job.work(job.items)))
        except BaseException as error:
            job.future.set_exception(_for_the_future(error))


def _for_the_future(error: BaseException) -> Exception:
    """Return an error that a future passes on.

    Panics of libraries in Rust and `SystemExit` are no `Exception`. A `StopIteration` is lost on its way to asyncio. A
    `CancelledError` would look like a request that the server itself ended.
    """
    if isinstance(error, Exception) and not isinstance(error, StopIteration | CancelledError):
        return error
    translated = RuntimeError(f"{type(error).__name__}: {error}")
    translated.__cause__ = error
    return translated
