"""Files and folders that are there as a whole or not at all, and that one process alone writes.

A process may be killed, a disk may be full and the power may fail at any moment. What is written here has another name
until it is whole and on the disk; only then does it take the place of what was there before.
"""

import contextlib
import ctypes
import errno
import fcntl
import glob
import logging
import os
import re
import secrets
import shutil
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from s2sft_fairseq.checksums import CHECKSUMS, read_checksums, write_checksums
from s2sft_fairseq.errors import UserError

logger = logging.getLogger(__name__)

LOCK = ".lock"
_ADDED = "added"
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+-[0-9a-f]{8}\.tmp")
_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


# What the system says where a disk does not take what is written.
_REFUSED = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE),
    *(errno.ENOTDIR, errno.ENAMETOOLONG),
}
_NUMBER = re.compile(r"\(os error (\d+)\)")  # libraries in Rust tell it in their text
KEPT = "what was there before is unchanged"


class DiskError(UserError):
    """Something could not be written: the disk is full, a quota is reached, the folder is read-only or the like."""

    def __init__(self, path: Path, reason: str, kept: str = KEPT) -> None:
        """Tell what could not be written, why, and what is still valid."""
        super().__init__(f"{path} could not be written: {reason}; {kept}")
        self.reason = reason


@contextlib.contextmanager
def disk_errors(path: Path, kept: str = KEPT) -> Iterator[None]:
    """Name the file or folder that the block writes, and what is still valid, where the disk does not take it.

    Raises:
        DiskError: in place of the error of the system, or of a library. Other errors stay as they are.
    """
    try:
        yield
    except DiskError as error:  # of a part, whose name is a temporary one
        raise DiskError(path, error.reason, kept) from error
    except Exception as error:
        reason = _reason(error, Path(os.path.abspath(path)))
        if reason is None:
            raise
        raise DiskError(path, reason, kept) from error


def _reason(error: BaseException | None, path: Path) -> str | None:
    """Return what the system said where an error comes from writing a path."""
    while error is not None:
        number = getattr(error, "errno", None)
        if number is None and (found := _NUMBER.search(str(error))):
            number = int(found[1])
        # Neither where the file was open already. What is being written has the name of the path in its own; other
        # files are inputs that cannot be read.
        names = [os.fsdecode(name) for key in ("filename", "filename2") if (name := getattr(error, key, None))]
        is_ours = any(path.name in name or Path(os.path.abspath(name)) in path.parents for name in names)
        if number in _REFUSED and (is_ours or not names):
            reason = getattr(error, "strerror", None) or os.strerror(number)
            if number == errno.ENOSPC:
                folder = next(each for each in path.parents if each.is_dir())
                reason += f" ({shutil.disk_usage(folder).free:,} bytes are free)"
            return reason
        error = error.__cause__ or error.__context__
    return None


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Yield the name to write a file under; it becomes `path` at the end, unless something is raised.

    A pipe or a device is written into directly.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    temporary = _temporary(path)
    try:
        with disk_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield temporary
            sync(temporary)
            os.replace(temporary, path)
            sync(path.parent)
    finally:
        _remove(temporary)


def write_whole(path: Path, write: Callable[[Path], object]) -> None:
    """Write a file, `write` under the name that it is given; see `whole_file`."""
    with whole_file(path) as temporary:
        write(temporary)


@contextlib.contextmanager
def new_folder(folder: Path, option: str, replaceable: Collection[str] = ()) -> Iterator[Path]:
    """Yield a folder to write into; it becomes `folder` at the end, with checksums, unless something is raised.

    Args:
        folder: must not exist or be empty, or hold only what may be replaced: it is replaced as a whole then.
        option: that names it, for messages.
        replaceable: names of files in `folder` that may be replaced.

    Raises:
        UserError: if the folder holds anything else, is no folder but a link or a file, or another process writes it.
    """
    place = Path(os.path.abspath(folder))  # messages name the folder as the user did
    with locked(folder, place.with_name(f".{place.name}{LOCK}")):
        check_replaceable(folder, option, replaceable)
        remove_temporary(place.parent, place.name.__eq__)
        temporary = _temporary(place)
        try:
            with disk_errors(folder):
                temporary.mkdir()
                yield temporary
                write_checksums(temporary)
                for path in [*temporary.rglob("*"), temporary]:
                    sync(path)
                check_replaceable(folder, option, replaceable)  # again: it may have taken hours
                _move(temporary, place)
                sync(place.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def added_files(folder: Path) -> Iterator[Path]:
    """Yield a folder to write files into; all of them go to `folder` at the end, unless something is raised.

    Files of the same names in `folder` are removed before: old and new ones, which may belong together, never mix. The
    checksums of the folder get theirs.

    Raises:
        UserError: if another process writes `folder`.
    """
    with locked(folder):
        remove_temporary(folder, _ADDED.__eq__)
        temporary = _temporary(folder / _ADDED)
        try:
            with disk_errors(folder):
                temporary.mkdir()
                yield temporary
                write_checksums(temporary, read_checksums(folder))
                names = sorted(path.name for path in temporary.iterdir())
                names.append(names.pop(names.index(CHECKSUMS)))  # last: they are true when all files are there
                for name in names:
                    sync(temporary / name)
                for name in names:
                    (folder / name).unlink(missing_ok=True)
                for name in names:
                    (temporary / name).rename(folder / name)
                sync(folder)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def check_replaceable(folder: Path, option: str, replaceable: Collection[str] = ()) -> None:
    """Check that `new_folder` may write a folder.

    Raises:
        UserError: if not.
    """
    if folder.is_symlink() or (folder.exists() and not folder.is_dir()):
        raise UserError(f"{option} {folder} must be a folder, but is a link or a file")
    if not folder.exists():
        return
    entries = list(folder.iterdir())
    kept = [path.name for path in entries if path.name not in replaceable or path.is_symlink() or path.is_dir()]
    if kept:
        names = ", ".join(sorted(kept)[:10]) + (", ..." if len(kept) > 10 else "")
        raise UserError(f"{option} {folder} must be new or empty, but holds {names}: remove it, or name another folder")


def _move(new: Path, folder: Path) -> None:
    """Give a folder its name; what had the name before is found under the other one, if it was not empty."""
    try:
        new.rename(folder)
    except OSError as error:
        if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
            raise
        if not _exchange(new, folder):
            before = _temporary(folder)
            folder.rename(before)
            new.rename(folder)
            before.rename(new)


def _exchange(one: Path, other: Path) -> bool:
    """Exchange two names in one step, where system and file system can do that."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = (_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other))
    return rename is not None and rename(*names, _EXCHANGE) == 0


@contextlib.contextmanager
def locked(folder: Path, lock: Path | None = None) -> Iterator[None]:
    """Keep other processes from writing a folder until the end of the block, or of this process.

    Processes that this one starts do not hold the lock: what is killed leaves nothing locked. Network file systems have
    locks where their lock service runs; a warning tells where locks do not work.

    Args:
        folder: the folder.
        lock: the file to lock, which is removed at the end; ``.lock`` in the folder if None.

    Raises:
        UserError: if another process has locked it.
    """
    lock = lock or folder / LOCK
    is_new = not lock.parent.exists()
    with disk_errors(folder):
        descriptor = _open_lock(lock, folder)
    try:
        yield
    finally:
        _remove(lock)
        if is_new:
            with contextlib.suppress(OSError):  # it is not there, or no longer empty
                lock.parent.rmdir()
        os.close(descriptor)


def _open_lock(lock: Path, folder: Path) -> int:
    while True:
        lock.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o666)
        try:
            fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if lock.exists() and os.path.samestat(os.fstat(descriptor), lock.stat()):
                return descriptor
        except (BlockingIOError, PermissionError):
            os.close(descriptor)
            raise UserError(
                f"{folder} is being written by another process: wait for its end, or name another folder"
            ) from None
        except OSError as error:
            logger.warning(
                "%s cannot be locked (%s): make sure that no other process writes it", folder, error.strerror
            )
            return descriptor
        os.close(descriptor)  # of a process that has just ended, and removed it


def remove_temporary(folder: Path, is_ours: Callable[[str], object]) -> None:
    """Remove what killed processes left of files and folders that this process alone may write now.

    Args:
        folder: where they are.
        is_ours: tells of the name of a file or folder whether it is one of those.
    """
    for path in folder.iterdir():
        if (found := _TEMPORARY.fullmatch(path.name)) and is_ours(found["name"]):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def temporary_files(path: Path) -> list[Path]:
    """Return what is being written of a file, and what killed processes left of it."""
    names = path.parent.glob(f".{glob.escape(path.name)}.*.tmp")
    return [each for each in names if (found := _TEMPORARY.fullmatch(each.name)) and found["name"] == path.name]


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # of folders on some network file systems
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # what the disk said before matters more
        path.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """A new name beside `path`, which `remove_temporary` knows again."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
