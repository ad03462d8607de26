"""Atomic writing of files and folders, with locks against other writers.

A process may be killed, a disk may be full and the power may fail at any moment. So a file or folder is written under a
temporary name. When it is complete and on the disk, it replaces the old one.
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
from s2sft_fairseq.progress import step

logger = logging.getLogger(__name__)

LOCK = ".lock"
_ADDED = "added"
_TEMPORARY = re.compile(r"\.(?P<name>.+)\.\d+-[0-9a-f]{8}\.tmp", re.DOTALL)
_CURRENT_FOLDER, _EXCHANGE = -100, 2  # AT_FDCWD and RENAME_EXCHANGE of Linux


# Errors of the system that mean that a file cannot be written.
_REFUSED = {
    *(errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EROFS, errno.EACCES, errno.EPERM, errno.EIO, errno.ESTALE),
    *(errno.ENOTDIR, errno.ENAMETOOLONG),
}
_NUMBER = re.compile(r"\(os error (\d+)\)")  # in the messages of libraries in Rust
KEPT = "the old files are unchanged"


def as_argument(path: str | os.PathLike[str]) -> str:
    """Return a path as an argument of a command, which reads one that begins with a hyphen as an option."""
    text = str(path)
    return f"./{text}" if text.startswith("-") else text


class DiskError(UserError):
    """Something could not be written: the disk is full, a quota is reached, the folder is read-only or the like."""

    def __init__(self, path: Path, reason: str, kept: str = KEPT) -> None:
        """Compose the message: the path, the reason, and `kept`, which says what is still valid."""
        super().__init__(f"{path} could not be written: {reason}; {kept}")
        self.reason = reason


@contextlib.contextmanager
def disk_errors(path: Path, kept: str = KEPT) -> Iterator[None]:
    """If the block cannot write to the disk, raise an error that names the file or folder and what is still valid.

    Raises:
        DiskError: replaces the error of the system or of a library. Other errors are not changed.
    """
    try:
        yield
    except DiskError as error:  # about a part of the folder, which has a temporary name
        raise DiskError(path, error.reason, kept) from error
    except Exception as error:
        reason = _reason(error, Path(os.path.abspath(path)))
        if reason is None:
            raise
        raise DiskError(path, reason, kept) from error


def _reason(error: BaseException | None, path: Path) -> str | None:
    """Return the system's reason if an error comes from writing `path`, else None."""
    while error is not None:
        number = getattr(error, "errno", None)
        if number is None and (found := _NUMBER.search(str(error))):
            number = int(found[1])
        # There are no names if the file was already open. The name of a temporary file contains that of the path; other
        # names are of inputs that cannot be read.
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
    """Yield a temporary path to write to, and rename it to `path` at the end, unless the block raises an exception.

    For a pipe or a device, yield `path` itself.
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
    """Call `write` with a temporary path, and rename the file to `path`; see `whole_file`."""
    with whole_file(path) as temporary:
        write(temporary)


@contextlib.contextmanager
def new_folder(folder: Path, option: str, replaceable: Collection[str] = ()) -> Iterator[Path]:
    """Yield a temporary folder to write into, and rename it to `folder` at the end, with checksums.

    If the block raises an exception, `folder` does not change.

    Args:
        folder: must not exist, or be empty, or hold only replaceable files. It is replaced as a whole.
        option: the option that names the folder, for messages.
        replaceable: names of files in `folder` that may be replaced.

    Raises:
        UserError: the folder holds anything else, is a link or a file, or another process is writing it.
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
                with step(f"sync {folder}"):
                    for path in [*temporary.rglob("*"), temporary]:
                        sync(path)
                check_replaceable(folder, option, replaceable)  # again: it may have taken hours
                _move(temporary, place)
                sync(place.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


@contextlib.contextmanager
def added_files(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder to write files into, and move them to `folder` at the end.

    If the block raises an exception, `folder` does not change. Old files of all the new names are removed first, so
    that old and new files never mix. The checksums of `folder` are updated.

    Raises:
        UserError: another process is writing `folder`.
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
                names.append(names.pop(names.index(CHECKSUMS)))  # last: they are valid when all files are there
                with step(f"sync {folder}"):
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
        UserError: it is a link or a file, or holds files that may not be replaced.
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
    """Rename the folder `new` to `folder`. If `folder` exists and is not empty, it gets the name `new`."""
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
    """Exchange two names atomically, and return whether the system and the file system can do that."""
    rename = getattr(ctypes.CDLL(None), "renameat2", None)
    names = (_CURRENT_FOLDER, os.fsencode(one), _CURRENT_FOLDER, os.fsencode(other))
    return rename is not None and rename(*names, _EXCHANGE) == 0


@contextlib.contextmanager
def locked(folder: Path, lock: Path | None = None) -> Iterator[None]:
    """Lock a folder against other writers until the end of the block or of this process.

    Child processes do not inherit the lock, so that nothing stays locked when this process is killed. Network file
    systems need a running lock service; if locks do not work, a warning is logged.

    Args:
        folder: the folder.
        lock: the file to lock, which is removed at the end; None: ``.lock`` in the folder.

    Raises:
        UserError: another process has locked the folder.
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
            with contextlib.suppress(OSError):  # it does not exist, or is not empty
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
        os.close(descriptor)  # another process has just ended and removed this file


def remove_temporary(folder: Path, is_ours: Callable[[str], object]) -> None:
    """Remove temporary files and folders of killed processes.

    Args:
        folder: the folder that holds them.
        is_ours: returns whether a name is that of a file or folder that only this process may write.
    """
    for path in folder.iterdir():
        if (found := _TEMPORARY.fullmatch(path.name)) and is_ours(found["name"]):
            if path.is_dir() and not path.is_symlink():
                shutil.rmtree(path)
            else:
                path.unlink()


def is_reserved(name: str) -> bool:
    """Return whether a file in a written folder may not have this name: a lock, checksums, or a temporary file."""
    return name in (LOCK, CHECKSUMS) or _TEMPORARY.fullmatch(name) is not None


def temporary_files(path: Path) -> list[Path]:
    """Return the temporary files of a file, of running and of killed processes."""
    names = path.parent.glob(f".{glob.escape(path.name)}.*.tmp")
    return [each for each in names if (found := _TEMPORARY.fullmatch(each.name)) and found["name"] == path.name]


def sync(path: Path) -> None:
    """Wait until a file, or the entries of a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as error:
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):  # for folders on some network file systems
            raise
    finally:
        os.close(descriptor)


def _remove(path: Path) -> None:
    with contextlib.suppress(OSError):  # an earlier error matters more
        path.unlink(missing_ok=True)


def _temporary(path: Path) -> Path:
    """Return a new temporary path beside `path`, in the form that `remove_temporary` recognizes."""
    return path.with_name(f".{path.name}.{os.getpid()}-{secrets.token_hex(4)}.tmp")
