"""The sources of a file of raw text, window by window."""

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from typing import NamedTuple, TypeVar

import numpy as np

from s2sft_fairseq.data.text_files import open_bytes
from s2sft_fairseq.tokenization.tokenize_files import Job, TextTokenizer, check_inputs, tokenize_chunk
from s2sft_fairseq.tokenization.workers import Workers

Item = TypeVar("Item")

_END = object()


class Window(NamedTuple):
    """Consecutive lines of the input."""

    first: int
    """Number of the first line, from 0."""
    sources: list[np.ndarray]
    """The ids of each line, without special symbols but for the one between fields."""


@dataclass(frozen=True)
class RawText:
    """A checked file of text or JSON lines and its tokenizer; of its lines a shard is read."""

    job: Job
    text_tokenizer: TextTokenizer
    lines: range
    """Numbers of the lines of the shard, from 0."""

    @classmethod
    def open(cls, job: Job, text_tokenizer: TextTokenizer, num_shards: int = 1, shard_id: int = 0) -> "RawText":
        """Look for mistakes in the whole file and count its lines.

        Args:
            job: one input, with one output that says which fields it joins.
            text_tokenizer: the tokenizer.
            num_shards: runs of lines that the file is cut into; they differ by one line at most.
            shard_id: which of them to read, from 0.

        Raises:
            UserError: naming all mistakes of the file.
        """
        with Workers(1, text_tokenizer) as pool:
            count = check_inputs(pool, [job])[job.inputs[0]]
        return cls(job, text_tokenizer, range(count * shard_id // num_shards, count * (shard_id + 1) // num_shards))

    def windows(self, size: int, done: int = 0) -> Iterator[Window]:
        """Yield the lines of the shard behind the first `done`, `size` at a time."""
        index = self.text_tokenizer.tokenizer.dictionary.index
        first = self.lines.start + done
        with open_bytes(self.job.inputs[0]) as file:
            lines = islice(file, first, self.lines.stop)
            while chunk := b"".join(islice(lines, size)):
                (symbols,) = tokenize_chunk(self.text_tokenizer, self.job, [chunk])
                yield Window(first, [np.array([index(s) for s in line.split()], dtype=np.int64) for line in symbols])
                first += len(symbols)


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield `items`; while one is in use, a thread makes the next."""
    with ThreadPoolExecutor(1) as thread:
        coming = thread.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, items, _END)
            yield item
