"""Paths of files in folders that others made: models, encoders, tokenizers, checkpoints.

A folder that was received may hold a pipe, which blocks whoever opens it, a device without end, or a link to a file of
this machine, which an export would copy. So each part of such a folder passes `part` before it is opened: it must be a
regular file within its folder. A pointer of git-LFS, which stands in the place of a large file that was not fetched, is
named as what it is. Files that the user names, such as a corpus, need not be in any folder, and may be pipes
(`s2sft_fairseq.data.bounded_files.readable`).
"""

import os
import stat
from collections.abc import Iterable, Iterator
from pathlib import Path

from s2sft_fairseq.errors import UserError, shown

_KINDS = {
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
_POINTER, _LARGEST_POINTER = b"version https://git-lfs.github.com/spec/", 1024
# A cache of Hugging Face is models--OWNER--NAME/snapshots/REVISION, whose files are links to models--OWNER--NAME/blobs.
_CACHES, _SNAPSHOTS = ("models--", "datasets--"), "snapshots"


def regular_file(path: Path) -> Path:
    """Return the path of a file that the user names, after a check that it is a regular file or a link to one.

    Raises:
        UserError: it does not exist, is a pipe, a device, a socket or a folder, or holds a pointer of git-LFS.
    """
    if problem := _kind_problem(path) or pointer_problem(path):
        raise UserError(problem)
    return path


def part(path: Path, folder: Path | None = None) -> Path:
    """Return the path of a part of a folder, after a check that it is a regular file within the folder.

    Args:
        path: the file.
        folder: the folder; None: the parent of the file.

    Raises:
        UserError: it does not exist, is no regular file, holds a pointer of git-LFS, or is a link that leads out of the
            folder. Links within one model of Hugging Face's cache are allowed.
    """
    if problem := _part_problem(path, folder or path.parent):
        raise UserError(problem)
    return path


def has_part(path: Path, folder: Path | None = None) -> bool:
    """Return whether a folder has a part of this name.

    Raises:
        UserError: it has something of this name that `part` refuses, such as a link to nothing.
    """
    return os.path.lexists(path) and part(path, folder) is path


def check_parts(paths: Iterable[Path], folder: Path | None = None) -> None:
    """Check all parts of a folder that exist.

    Raises:
        UserError: naming every part that `part` refuses.
    """
    if problems := list(part_problems(paths, folder)):
        raise UserError.of(problems)


def check_regular(paths: Iterable[Path]) -> None:
    """Check files that may be links to files of other folders, as the user's own may.

    Raises:
        UserError: naming every one that `regular_file` refuses.
    """
    if problems := list(filter(None, (_kind_problem(path) or pointer_problem(path) for path in paths))):
        raise UserError.of(problems)


def part_problems(paths: Iterable[Path], folder: Path | None = None) -> Iterator[str]:
    """Yield why `part` refuses paths; those that do not exist are left out."""
    for path in filter(os.path.lexists, paths):
        if problem := _part_problem(path, folder or path.parent):
            yield problem


def _part_problem(path: Path, folder: Path) -> str | None:
    if problem := _kind_problem(path):
        return problem
    root = _root(Path(os.path.realpath(folder)))
    if Path(os.path.realpath(path)).is_relative_to(root):
        return pointer_problem(path)
    return (
        f"{path} must be a file of its folder, but is a link that leads out of it{_target(path)}: if you trust the "
        "folder, copy the file to its place"
    )


def pointer_problem(path: Path) -> str | None:
    """Return the message for a regular file that holds a pointer of git-LFS; None for any other."""
    try:
        if path.stat().st_size > _LARGEST_POINTER:
            return None
        with path.open("rb") as file:
            is_pointer = file.read(len(_POINTER)) == _POINTER
    except OSError:  # reading the file gives a better message
        return None
    if not is_pointer:
        return None
    return f"{path} is a pointer of git-LFS: the file itself was not fetched (git lfs pull fetches it)"


def _kind_problem(path: Path) -> str | None:
    try:
        kind = stat.S_IFMT(path.stat().st_mode)
    except (OSError, ValueError) as error:
        if path.is_symlink():
            return f"{path} must be a file, but is a link to nothing{_target(path)}"
        return f"{path} cannot be read: {getattr(error, 'strerror', None) or error}"
    if kind == stat.S_IFREG:
        return None
    through = " a link to" if path.is_symlink() else ""
    return f"{path} must be a file, but is{through} {_KINDS.get(kind, 'of another kind')}"


def _target(path: Path) -> str:
    return f", {shown(os.readlink(path))}" if path.is_symlink() else ""


def _root(folder: Path) -> Path:
    """Return the folder that links in `folder` may lead to: itself, or for a snapshot the whole model of the cache."""
    for snapshot in (folder, *folder.parents):
        model = snapshot.parent.parent
        if snapshot.parent.name == _SNAPSHOTS and model.name.startswith(_CACHES):
            return model
    return folder
