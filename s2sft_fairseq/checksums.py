"""Checksums of written files, so that a flipped bit is an error that names the file, not a wrong text.

``SHA256SUMS`` in a folder has the SHA-256 of its files, in the format of ``sha256sum``, so that
``sha256sum -c SHA256SUMS`` checks them, too. A checkpoint is a zip archive with a CRC-32 of each member, which PyTorch
writes but does not check.

Each process checks a file before it reads it for the first time. ``S2SFT_SKIP_CHECKSUMS=1`` in the environment turns
the checks off. After an intended change of a file, update its checksum with ``s2sft doctor --accept``.
"""

import hashlib
import os
import re
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import bar_of_bytes
from s2sft_fairseq.received import check_parts, has_part, part_problems, regular_file

CHECKSUMS = "SHA256SUMS"
SKIP = "S2SFT_SKIP_CHECKSUMS"
# Files without a checksum: people edit them, they grow, or they are there while a process writes.
_WITHOUT = re.compile(r"README\.md|.*\.log|SHA256SUMS|\.lock|\..*\.tmp")
_LINE = re.compile(r"(\\?)([0-9a-f]{64}) [ *](.+)")  # sha256sum writes * with --binary
# A name with one of these is written with escapes, and its line begins with \, as sha256sum writes it.
_ESCAPES = {"\\": "\\\\", "\n": "\\n", "\r": "\\r"}
_ESCAPED = re.compile(r"\\(.)")
_NAMES: Any = {"encoding": "utf-8", "errors": "surrogateescape"}  # as Python decodes names of files
_LARGEST = 2**26  # bytes of SHA256SUMS, about half a million files
_CHUNK = 1 << 20
_checked: set[tuple[object, ...]] = set()


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file, in hexadecimal."""
    return _sums([path])[0]


def _sums(paths: Sequence[Path]) -> list[str]:
    """Return the SHA-256 of each file, and show progress over all."""
    sums = []
    with bar_of_bytes("checksums", paths) as shown:
        for path in paths:
            digest = hashlib.sha256()
            with path.open("rb") as file:
                while chunk := file.read(_CHUNK):
                    digest.update(chunk)
                    shown.update(len(chunk))
            sums.append(digest.hexdigest())
    return sums


def write_checksums(
    folder: Path,
    others: Mapping[str, str] | None = None,
    *,
    names: Iterable[str] | None = None,
    file: Path | None = None,
) -> None:
    """Write the checksums of files of a folder.

    Args:
        folder: the folder.
        others: further checksums, of files that keep theirs or are not in the folder yet, by name.
        names: names of the files; None: all files, except model cards and logs.
        file: the file to write, if it is to replace the old one when it is complete; None: ``SHA256SUMS``.
    """
    if names is None:
        paths = [path for path in folder.rglob("*") if not path.is_dir() and not _WITHOUT.fullmatch(path.name)]
        check_parts(paths, folder)
        names = [path.relative_to(folder).as_posix() for path in paths]
    names = sorted(names)
    sums = dict(others or {}) | dict(zip(names, _sums([folder / name for name in names]), strict=True))
    text = "".join(_line(name, value) for name, value in sorted(sums.items()))
    (file or folder / CHECKSUMS).write_text(text, **_NAMES)


def _line(name: str, value: str) -> str:
    escaped = "".join(_ESCAPES.get(letter, letter) for letter in name)
    mark = "\\" if escaped != name else ""
    return f"{mark}{value}  {escaped}\n"


def _without_escapes(name: str) -> str:
    letters = {escaped[1]: letter for letter, escaped in _ESCAPES.items()}
    return _ESCAPED.sub(lambda found: letters.get(found[1], found[0]), name)


def read_checksums(folder: Path) -> dict[str, str]:
    """Return the checksums of a folder by file name; empty if it has none.

    Raises:
        UserError: a line is malformed, or names a file outside the folder; or there are too many.
    """
    path, sums = folder / CHECKSUMS, {}
    if not has_part(path):
        return {}
    if (size := path.stat().st_size) > _LARGEST:
        raise UserError(f"{path} must have at most {_LARGEST:,} bytes, but has {size:,}")
    lines = path.read_text(**_NAMES).removesuffix("\n").split("\n")  # names may hold what `splitlines` splits at
    for number, line in enumerate(lines, start=1):
        found = _LINE.fullmatch(line)
        name = found and (_without_escapes(found[3]) if found[1] else found[3])
        if found is None or not name or ".." in Path(name).parts or Path(name).is_absolute():
            raise UserError(f"{path}, line {number} must be a SHA-256, two spaces and a file of the folder")
        sums[name] = found[2]
    return sums


def check_complete(folder: Path, is_needed: Callable[[str], bool]) -> None:
    """Check that a folder has those files of its checksums without which others would be read differently.

    Raises:
        UserError: naming every file that is missing.
    """
    if os.environ.get(SKIP, "0") != "0":
        return
    names = filter(is_needed, read_checksums(folder))
    if lacking := [name for name in names if not os.path.lexists(folder / name)]:
        raise UserError(f"{folder} lacks {', '.join(lacking)}, which its {CHECKSUMS} names: copy all of its files")


def check_files(*paths: Path) -> None:
    """Compare files with the checksums of their folders; files without a checksum are not checked.

    Raises:
        UserError: lists every file that differs.
    """
    if os.environ.get(SKIP, "0") != "0":
        return
    problems: list[str] = []
    for folder in dict.fromkeys(path.parent for path in paths):
        sums = read_checksums(folder)
        names = [path.name for path in paths if path.parent == folder and path.name in sums and path.is_file()]
        problems += _differences(folder, {name: sums[name] for name in names})
    if problems:
        raise UserError.of(problems)


def check_checkpoint(path: Path) -> None:
    """Compare the members of a checkpoint with their CRC-32. Files that are not zip archives are not checked.

    Raises:
        UserError: names the first member that differs; or if the file is no regular one.
    """
    if os.environ.get(SKIP, "0") == "0" and _is_new(regular_file(path)):
        with bar_of_bytes(f"check {path.name}", [path]) as shown:
            if problem := next(_damaged_members(path, shown.update), None):
                raise UserError(problem)
        _checked.add(_state(path))


def check_folder(folder: Path) -> Iterator[str]:
    """Yield the problems of the files in a folder and its subfolders: other checksums, missing files."""
    for sums in sorted(folder.rglob(CHECKSUMS)):
        try:
            known = read_checksums(sums.parent)
        except UserError as error:
            yield str(error)
            continue
        yield from (f"{sums.parent / name} is missing" for name in known if not os.path.lexists(sums.parent / name))
        refused = {name: list(part_problems([sums.parent / name], sums.parent)) for name in known}
        yield from chain.from_iterable(refused.values())
        whole = [name for name in known if os.path.lexists(sums.parent / name) and not refused[name]]
        yield from _differences(sums.parent, {name: known[name] for name in whole})
    found = sorted(folder.rglob("*.pt"))
    yield from part_problems(found, folder)
    checkpoints = [path for path in found if not any(part_problems([path], folder))]
    with bar_of_bytes("check checkpoints", checkpoints) as shown:
        for path in checkpoints:
            if problems := list(_damaged_members(path, shown.update)):
                yield from problems
            else:
                _checked.add(_state(path))


def _differences(folder: Path, sums: Mapping[str, str]) -> Iterable[str]:
    new = {path: expected for name, expected in sums.items() if _is_new(path := folder / name)}
    if not new:
        return
    for (path, expected), found in zip(new.items(), _sums(list(new)), strict=True):
        if found == expected:
            _checked.add(_state(path))
            continue
        yield (
            f"{path} is damaged, or was changed: its SHA-256 must be {expected:.12}..., as {CHECKSUMS} says, but is "
            f"{found:.12}... Copy it again; if the change is yours: s2sft doctor --accept {folder}"
        )


def _damaged_members(path: Path, report: Callable[[int], object]) -> Iterator[str]:
    try:
        with zipfile.ZipFile(path) as archive:
            for member in archive.infolist():
                # PyTorch does not compress members, and writes 0 if its checksums are turned off.
                if member.compress_type != zipfile.ZIP_STORED or member.CRC == 0:
                    continue
                try:
                    with archive.open(member) as file:
                        while chunk := file.read(_CHUNK):
                            report(len(chunk))
                except zipfile.BadZipFile:
                    yield (
                        f"{path} is damaged: its member {member.filename} does not match its CRC-32 in the archive. "
                        f"Copy it again, or give an earlier checkpoint ({SKIP}=1 reads it all the same)"
                    )
    except Exception:  # not an archive, or a damaged one: loading it gives a better message
        return


def _is_new(path: Path) -> bool:
    return _state(path) not in _checked


def _state(path: Path) -> tuple[object, ...]:
    found = path.stat()
    return str(path), found.st_ino, found.st_size, found.st_mtime_ns
