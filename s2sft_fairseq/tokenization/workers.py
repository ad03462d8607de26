"""Processes that work on chunks in parallel, with results in the order of the chunks."""

import gc
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from itertools import chain, islice
from typing import Any, TypeVar

from s2sft_fairseq.errors import UserError

Chunk = TypeVar("Chunk")
Result = TypeVar("Result")

# With fewer chunks than this, starting processes takes longer than it saves.
_FEW = 4
_WAITING = 3  # chunks for each process: enough to keep it busy, few enough to fit into memory

_shared: Any = None  # in a worker: the `shared` of `Workers`


class Workers:
    """A context manager whose `map` runs in processes, which are started when they are first needed.

    They are forked, and so share all that the main process imported and loaded before.
    """

    def __init__(self, count: int, shared: Any) -> None:
        """Prepare `count` processes. Each function is called with `shared`, which is inherited, not copied."""
        self._count = count
        self._shared = shared
        self._executor: ProcessPoolExecutor | None = None

    def __enter__(self) -> "Workers":
        return self

    def __exit__(self, *_: object) -> None:
        if self._executor is not None:
            self._executor.shutdown(cancel_futures=True)

    def map(self, function: Callable[[Any, Chunk], Result], chunks: Iterable[Chunk]) -> Iterator[Result]:
        """Yield ``function(shared, chunk)`` for each chunk in order, reading only a few chunks ahead per process.

        Args:
            function: a function of a module, which can be pickled by name.
            chunks: the chunks.

        Raises:
            UserError: a process was killed.
        """
        chunks = iter(chunks)
        first = list(islice(chunks, _FEW))
        chunks = chain(first, chunks)
        if self._count == 1 or len(first) < _FEW:
            for chunk in chunks:
                yield function(self._shared, chunk)
            return
        pending: deque[Future[Result]] = deque()
        try:
            for chunk in chunks:
                pending.append(self._submit(function, chunk))
                if len(pending) > _WAITING * self._count:
                    yield pending.popleft().result()
            while pending:
                yield pending.popleft().result()
        except BrokenProcessPool:
            raise UserError("a worker process was killed; if the memory is too small, give fewer --workers") from None

    def _submit(self, function: Callable[[Any, Chunk], Result], chunk: Chunk) -> "Future[Result]":
        if self._executor is not None:
            return self._executor.submit(_call, function, chunk)
        # If the library started threads in each process, they would compete for the cores.
        os.environ["TOKENIZERS_PARALLELISM"] = "false"
        context = multiprocessing.get_context("fork")
        self._executor = ProcessPoolExecutor(self._count, context, _begin, (self._shared,))
        # The first submission forks all workers. Ctrl-C reaches every process; only this one handles it.
        unblocked = signal.pthread_sigmask(signal.SIG_BLOCK, [signal.SIGINT])
        try:
            return self._executor.submit(_call, function, chunk)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, unblocked)


def _begin(shared: Any) -> None:
    global _shared
    _shared = shared
    gc.freeze()  # else each garbage collection visits, and so copies, all that the parent imported
    threading.Thread(target=_end_with_parent, daemon=True).start()


def _end_with_parent() -> None:
    """Wait for the end of the parent, then exit: the parent may be killed before it can end its workers."""
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


def _call(function: Callable[[Any, Chunk], Result], chunk: Chunk) -> Result:
    return function(_shared, chunk)
