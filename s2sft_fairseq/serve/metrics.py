"""Counters of a server, in the text format that Prometheus reads (version 0.0.4)."""

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Sequence

SECONDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
BATCHES = (1, 2, 4, 8, 16, 32, 64, 128)


class Histogram:
    """The numbers of values up to each bound, their sum and their count."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = tuple(bounds)
        self._counts = [0] * (len(bounds) + 1)
        self._sum = 0.0

    def add(self, value: float) -> None:
        """Add a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self._sum += value

    def lines(self, name: str) -> list[str]:
        """Return the lines for Prometheus."""
        found, below = [], 0
        for bound, count in zip((*self._bounds, "+Inf"), self._counts, strict=True):
            below += count
            found.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*found, f"{name}_sum {self._sum:.6f}", f"{name}_count {below}"]


class Metrics:
    """All numbers of ``/metrics``; thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, int]] = Counter()
        self._seconds = Histogram(SECONDS)
        self._batch_sizes = Histogram(BATCHES)
        self._model_seconds = Histogram(SECONDS)
        self.queue_length: Callable[[], int] = lambda: 0
        """Called when the text is made."""

    def count_request(self, path: str, status: int, seconds: float) -> None:
        """Count an answer. `path` must be one of a fixed set, because each makes a line."""
        with self._lock:
            self._requests[path, status] += 1
            self._seconds.add(seconds)

    def count_batch(self, size: int, seconds: float) -> None:
        """Count a batch that the model has finished."""
        with self._lock:
            self._batch_sizes.add(size)
            self._model_seconds.add(seconds)

    def text(self) -> str:
        """Return the page for Prometheus."""
        queue_length = self.queue_length()
        with self._lock:
            lines = _head("s2sft_requests_total", "counter", "Answered requests.")
            for (path, status), count in sorted(self._requests.items()):
                lines.append(f's2sft_requests_total{{path="{path}",status="{status}"}} {count}')
            lines += _head("s2sft_request_seconds", "histogram", "Seconds from a request to its answer.")
            lines += self._seconds.lines("s2sft_request_seconds")
            lines += _head("s2sft_queue_length", "gauge", "Sources that wait for the model.")
            lines.append(f"s2sft_queue_length {queue_length}")
            lines += _head("s2sft_batch_size", "histogram", "Sources that went through the model together.")
            lines += self._batch_sizes.lines("s2sft_batch_size")
            lines += _head("s2sft_model_seconds", "histogram", "Seconds that the model took for a batch.")
            lines += self._model_seconds.lines("s2sft_model_seconds")
        return "\n".join(lines) + "\n"


def _head(name: str, kind: str, text: str) -> list[str]:
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]
