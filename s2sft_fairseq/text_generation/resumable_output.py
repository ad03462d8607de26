"""An output file that a killed run leaves in a state from which the next one goes on.

Finished windows are appended to ``OUTPUT.part``; ``OUTPUT.part.json`` beside it records what the lines depend on. At
the end the former is renamed to ``OUTPUT``, so that a file of this name is always complete.
"""

import fcntl
import hashlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any

from s2sft_fairseq.data.dictionary import DICTIONARY
from s2sft_fairseq.data.json_files import read_json_object
from s2sft_fairseq.data.text_files import readable
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import sync, write_whole
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

logger = logging.getLogger(__name__)


class ResumableOutput:
    """A context manager: what it is left with, whether by an exception or the death of the process, is gone on from."""

    file: IO[bytes]

    def __init__(self, path: Path, settings: Mapping[str, Any], window: int) -> None:
        """Name the output.

        Args:
            path: the output.
            settings: everything that the lines depend on, as JSON has it.
            window: lines that are appended together, but for the last ones.
        """
        self.path, self.settings, self.window = path, settings, window
        self.part = path.with_name(f"{path.name}.part")
        self.record = path.with_name(f"{path.name}.part.json")
        self.done = 0
        """Lines that are there already."""

    def __enter__(self) -> "ResumableOutput":
        """Open the output and drop what is left of an incomplete window.

        Raises:
            UserError: if another process writes this output, or if it was begun with other settings.
        """
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

    def __exit__(self, *_: object) -> None:
        self.file.close()

    def append(self, lines: Sequence[str]) -> None:
        """Write the lines of a window to the disk."""
        self.file.write("".join(f"{line}\n" for line in lines).encode())
        self.file.flush()
        os.fsync(self.file.fileno())

    def finish(self) -> None:
        """Give the output its name."""
        os.replace(self.part, self.path)
        self.record.unlink()
        sync(self.path.parent)

    def _lock(self) -> None:
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if not (self.part.exists() and os.path.samestat(os.fstat(self.file.fileno()), self.part.stat())):
                raise BlockingIOError  # another process has given it its name since it was opened
        except BlockingIOError:
            raise UserError(f"{self.part} is being written by another process; give --output another name") from None
        except OSError:  # a file system without locks
            logger.warning("%s cannot be locked: make sure that no other process writes it", self.part)

    def _check_settings(self) -> None:
        advice = f"to start anew remove {self.part}, or give --output another name"
        if not self.record.exists():
            raise UserError(f"{self.part} cannot be gone on with, for {self.record.name} is missing; {advice}")
        recorded = read_json_object(self.record)
        if problems := list(_differences(recorded, json.loads(json.dumps(self.settings)))):
            raise UserError.of(problems, f"{self.part} was begun with other settings ({advice}):")

    def _keep_windows(self) -> None:
        lines = size = kept = 0
        self.file.seek(0)
        for line in self.file:
            if line.endswith(b"\n"):
                lines, size = lines + 1, size + len(line)
                if lines % self.window == 0:
                    self.done, kept = lines, size
        self.file.truncate(kept)
        logger.info("%s: goes on behind %s lines", self.part, f"{self.done:,}")


def file_state(path: Path) -> dict[str, Any]:
    """Return what tells a file from another, or from what it was before; of a pipe too."""
    with readable(path).open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"path": str(path.resolve()) if path.is_file() else "a pipe", "sha256": digest}


def tokenizer_state(folder: Path) -> dict[str, Any]:
    """Return what tells a tokenizer from another, or from what it was before.

    Raises:
        UserError: if the folder holds no tokenizer.
    """
    names = {DICTIONARY, *read_vocabulary(folder).files}
    paths = [folder / name for name in sorted(names) if (folder / name).is_file()]
    return {"path": str(folder.resolve()), **{path.name: file_state(path)["sha256"] for path in paths}}


def _differences(recorded: Mapping[str, Any], settings: Mapping[str, Any], name: str = "") -> Iterator[str]:
    for key in sorted({*recorded, *settings}):
        before, now = recorded.get(key), settings.get(key)
        if isinstance(before, dict) and isinstance(now, dict):
            yield from _differences(before, now, f"{name}{key}, ")
        elif before != now:
            yield f"{name}{key} was {before}, now is {now}"
