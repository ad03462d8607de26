"""Save checkpoints on a disk that may be full: the previous checkpoint is kept until the new one is complete."""

import errno
import io
import logging
import os
import shutil
import time
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from s2sft_fairseq.files import DiskError, write_whole

logger = logging.getLogger(__name__)

PAUSES = (2.0, 4.0)
"""Seconds between tries, so that a disk that is full for a few seconds does not end a training."""


def save_checkpoint(state: dict[str, Any], path: str | os.PathLike[str]) -> None:
    """Save a checkpoint, in several tries; each writes a temporary file and checks it before renaming it.

    Raises:
        DiskError: if no try wrote the whole file, naming the reason and the space that is needed.
    """

    def write(temporary: Path) -> None:
        with temporary.open("wb") as file:
            torch.save(state, file)
        check_whole(temporary)

    _write_in_tries(Path(path), write, lambda: _saved_size(state))


def copy_checkpoint(source: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Copy a checkpoint in the same way as `save_checkpoint` saves one.

    A hard link would take no space, but then writing into one of the two files would also change the other.

    Raises:
        DiskError: see `save_checkpoint`.
    """

    def write(temporary: Path) -> None:
        shutil.copyfile(source, temporary)
        if temporary.stat().st_size != os.path.getsize(source):
            raise OSError(errno.EIO, f"{temporary} is not as long as {source}")

    _write_in_tries(Path(path), write, lambda: os.path.getsize(source))


def check_whole(path: Path) -> None:
    """Check that a file that was just written is a zip archive whose entries are where its directory says.

    The contents are not read again, as writing them raised no error.

    Raises:
        OSError: if it is not.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            for entry in archive.infolist():
                archive.open(entry).close()
    except zipfile.BadZipFile as error:
        raise OSError(errno.EIO, f"{path} is damaged: {error}") from None


def _write_in_tries(path: Path, write: Callable[[Path], object], size: Callable[[], int]) -> None:
    for pause in PAUSES:
        try:
            return write_whole(path, write)
        except DiskError as error:
            logger.warning("%s could not be saved (%s); next try in %g s", path, error.reason, pause)
            time.sleep(pause)
    try:
        return write_whole(path, write)
    except DiskError as error:
        reason = f"{error.reason} in {len(PAUSES) + 1} tries; it needs {size():,} bytes"
        raise DiskError(path, reason) from error


class _Length(io.RawIOBase):
    """A file that only counts what is written to it."""

    length = 0

    def writable(self) -> bool:
        return True

    def write(self, data: Any) -> int:
        size = memoryview(data).nbytes
        self.length += size
        return size


def _saved_size(state: dict[str, Any]) -> int:
    file = _Length()
    torch.save(state, file)  # type: ignore[arg-type]  # torch.save only writes
    return file.length
