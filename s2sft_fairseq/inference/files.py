"""Read a file of raw text window by window, and write the output so that the next run can resume it.

Finished windows are appended to ``OUTPUT.part``; ``OUTPUT.part.json`` beside it records the settings that the lines
depend on. At the end ``OUTPUT.part`` is renamed to ``OUTPUT``, so a file of this name is always complete.
"""

import contextlib
import fcntl
import json
import logging
import os
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import IO, Any, NamedTuple, TypeVar

import numpy as np

from s2sft_fairseq.checksums import sha256
from s2sft_fairseq.data.bounded_files import read_json_object, readable
from s2sft_fairseq.data.dictionary import DICTIONARY
from s2sft_fairseq.errors import UserError, printable
from s2sft_fairseq.files import disk_errors, sync, write_whole
from s2sft_fairseq.tokenization.folder import Tokenizer
from s2sft_fairseq.tokenization.statistics import PieceStats
from s2sft_fairseq.tokenization.tokenize_files import (
    Job,
    TextTokenizer,
    check_inputs,
    open_input,
    piece_stats,
    tokenize_chunk,
)
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary
from s2sft_fairseq.tokenization.workers import Workers

logger = logging.getLogger(__name__)

Item = TypeVar("Item")

_END = object()
# Byte-level vocabularies have symbols for line ends, which would break the line of the output.
_LINE_END = re.compile(r"\r\n|[\r\n]")


class Window(NamedTuple):
    """Consecutive lines of the input."""

    first: int
    """Number of the first line, from 0."""
    sources: list[np.ndarray]
    """The ids of each line, without special symbols except the separator between fields."""
    numbers: Sequence[int] | None = None
    """The number of each source, on which its random numbers depend; None: that of its line."""


@dataclass(frozen=True)
class RawText:
    """A checked file of text, JSON lines or Parquet, with its tokenizer and the shard of its lines to read."""

    job: Job
    text_tokenizer: TextTokenizer
    lines: range
    """Numbers of the lines of the shard, from 0."""
    stats: PieceStats = field(default_factory=PieceStats)
    """Statistics of the lines that were read."""

    @classmethod
    def open(cls, job: Job, text_tokenizer: TextTokenizer, num_shards: int = 1, shard_id: int = 0) -> "RawText":
        """Check the whole file and count its lines. A file without lines, such as an empty shard, is valid.

        Args:
            job: one input, with one output that says which fields it joins.
            text_tokenizer: the tokenizer.
            num_shards: number of shards of consecutive lines; their sizes differ by one line at most.
            shard_id: the shard to read, from 0.

        Raises:
            UserError: naming all mistakes of the file.
        """
        with Workers(1, text_tokenizer) as pool:
            count = check_inputs(pool, [job], allow_empty=True)[job.inputs[0]]
        return cls(job, text_tokenizer, range(count * shard_id // num_shards, count * (shard_id + 1) // num_shards))

    def windows(self, size: int, done: int = 0) -> Iterator[Window]:
        """Yield the lines of the shard after the first `done`, in windows of `size` lines."""
        index = self.text_tokenizer.tokenizer.dictionary.index
        first = self.lines.start + done
        with open_input(self.job, self.job.inputs[0]) as file:
            lines = islice(file, first, self.lines.stop)
            while chunk := b"".join(islice(lines, size)):
                (symbols,) = tokenize_chunk(self.text_tokenizer, self.job, [chunk])
                (numbers,) = self.job.outputs.values()
                self.stats.add(piece_stats(self.text_tokenizer, self.job, [chunk], numbers, symbols))
                yield Window(first, [np.array([index(s) for s in line.split()], dtype=np.int64) for line in symbols])
                first += len(symbols)


def read_ahead(items: Iterator[Item]) -> Iterator[Item]:
    """Yield `items`; a thread prepares the next item while one is in use."""
    with ThreadPoolExecutor(1) as thread:
        coming: Future[Any] = thread.submit(next, items, _END)
        while (item := coming.result()) is not _END:
            coming = thread.submit(next, items, _END)
            yield item


@dataclass(frozen=True)
class HypothesisLines:
    """Writes hypotheses as text or as JSON."""

    tokenizer: Tokenizer
    stripped: Collection[int]
    """Ids to remove from the text, besides bos and padding."""
    json_lines: bool
    """Write objects with all hypotheses in place of the best text."""

    def __call__(self, first: int, hypotheses: Sequence[Sequence[dict[str, Any]]]) -> list[str]:
        """Return the line of each sentence, without a line end.

        Args:
            first: number of the first sentence in the input.
            hypotheses: hypotheses of each sentence, the best first, in fairseq's form.
        """
        if not self.json_lines:
            return [_LINE_END.sub(" ", self.text(found[0])) if found else "" for found in hypotheses]
        objects = ({"index": first + i, "hypotheses": list(map(self._object, h))} for i, h in enumerate(hypotheses))
        return [json.dumps(each, ensure_ascii=False) for each in objects]

    def text(self, hypothesis: dict[str, Any]) -> str:
        """Return the text of a hypothesis in fairseq's form."""
        dictionary = self.tokenizer.dictionary
        stripped = {*self.stripped, dictionary.bos(), dictionary.pad()}
        tokens = (token for token in hypothesis["tokens"].tolist() if token not in stripped)
        return self.tokenizer.decode(" ".join(dictionary.symbols[token] for token in tokens))

    def _object(self, hypothesis: dict[str, Any]) -> dict[str, Any]:
        symbols = self.tokenizer.dictionary.symbols
        return {
            "text": self.text(hypothesis),
            "score": round(hypothesis["score"].item(), 6),
            "tokens": [symbols[token] for token in hypothesis["tokens"].tolist()],
            "positional_scores": [round(score, 4) for score in hypothesis["positional_scores"].tolist()],
        }


class ResumableOutput:
    """A context manager for the output file.

    After an exception or a crash, the next run continues from the last complete window.
    """

    file: IO[bytes]

    def __init__(self, path: Path, settings: Mapping[str, Any], window: int) -> None:
        """Name the output.

        Args:
            path: the output.
            settings: everything that the lines depend on, in values of JSON.
            window: number of lines that are appended together; the last window may have fewer.
        """
        self.path, self.settings, self.window = path, settings, window
        self.part = path.with_name(f"{path.name}.part")
        self.record = path.with_name(f"{path.name}.part.json")
        self.done = 0
        """Number of lines that an earlier run wrote."""
        self.written = 0
        """Number of lines written so far, with those."""

    def __enter__(self) -> "ResumableOutput":
        """Open the output and remove the lines of an incomplete window.

        Raises:
            UserError: if another process writes this output, if it was begun with other settings, or if it cannot be
                written.
        """
        with disk_errors(self.path):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            self.file = self.part.open("ab+")
        try:
            self._lock()
            if os.path.getsize(self.part):
                self._check_settings()
                self._keep_windows()
            else:
                text = json.dumps(self.settings, indent=1)
                write_whole(self.record, lambda path: path.write_text(text, encoding="utf-8"))
        except BaseException:
            self.file.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if kind in (SystemExit, KeyboardInterrupt):
            logger.info("%s has %s lines: the same command resumes from there", self.part, f"{self.written:,}")
        with contextlib.suppress(OSError):  # of a window that the disk refused; the complete windows are on the disk
            self.file.close()

    def append(self, lines: Sequence[str]) -> None:
        """Write the lines of a window to the disk.

        Raises:
            DiskError: if the disk refuses them; the lines written before stay.
        """
        with disk_errors(self.path, f"{self.part} keeps the complete lines, and the next run resumes from there"):
            self.file.write("".join(f"{line}\n" for line in lines).encode())
            self.file.flush()
            os.fsync(self.file.fileno())
        self.written += len(lines)

    def finish(self) -> None:
        """Rename the complete output to its final name."""
        os.replace(self.part, self.path)
        self.record.unlink()
        sync(self.path.parent)

    def _lock(self) -> None:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (self.part.exists() and os.path.samestat(os.fstat(self.file.fileno()), self.part.stat())):
                raise BlockingIOError  # another process has renamed it since it was opened
        except BlockingIOError:
            raise UserError(f"{self.part} is being written by another process; give --output another name") from None
        except OSError:  # a file system without locks
            logger.warning("%s cannot be locked: make sure that no other process writes it", self.part)

    def _check_settings(self) -> None:
        advice = f"to start anew remove {self.part}, or give --output another name"
        if not self.record.exists():
            raise UserError(f"{self.part} cannot be resumed: {self.record.name} is missing; {advice}")
        recorded = read_json_object(self.record)
        if problems := list(differences(recorded, json.loads(json.dumps(self.settings)))):
            raise UserError.of(problems, f"{self.part} was begun with other settings ({advice}):")

    def _keep_windows(self) -> None:
        lines = size = kept = 0
        self.file.seek(0)
        for line in self.file:
            if line.endswith(b"\n"):
                lines, size = lines + 1, size + len(line)
                if lines % self.window == 0:
                    self.done = self.written = lines
                    kept = size
        self.file.truncate(kept)
        logger.info("%s: resumes after %s lines", self.part, f"{self.done:,}")


def file_state(path: Path) -> dict[str, Any]:
    """Return the path and the SHA-256 sum of a file or pipe, which identify its contents."""
    return {"path": printable(path.resolve()) if path.is_file() else "a pipe", "sha256": sha256(readable(path))}


def tokenizer_state(folder: Path) -> dict[str, Any]:
    """Return the path of a tokenizer and the SHA-256 sums of its files, which identify it.

    Raises:
        UserError: if the folder holds no tokenizer.
    """
    names = {DICTIONARY, *read_vocabulary(folder).files}
    paths = [folder / name for name in sorted(names) if (folder / name).is_file()]
    return {"path": str(folder.resolve()), **{path.name: file_state(path)["sha256"] for path in paths}}


def differences(recorded: Mapping[str, Any], settings: Mapping[str, Any], name: str = "") -> Iterator[str]:
    """Yield a message for each setting that differs from its recorded value; ``name`` is the prefix of its name."""
    for key in sorted({*recorded, *settings}):
        before, now = recorded.get(key), settings.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from differences(before, now, f"{name}{key}, ")
        elif before != now:
            yield f"{name}{key} was {before}, now is {now}"
