"""The shards of a corpus, and the manifest of the output folder, which records the shards that are done.

``manifest.json`` has two entries: ``settings``, everything besides the input that the lines depend on, and ``shards``.
The latter has for each finished output the path and SHA-256 sum of its input, its number of lines, its own SHA-256 sum,
and the seconds that it took.
"""

import glob
import json
import os
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

from s2sft_fairseq.data.bounded_files import read_json_object
from s2sft_fairseq.data.text_files import JSON_SUFFIXES, plain_name
from s2sft_fairseq.errors import UserError, printable
from s2sft_fairseq.files import LOCK, check_replaceable, remove_temporary, write_whole
from s2sft_fairseq.inference.files import differences, file_state

MANIFEST = "manifest.json"
FORMATS = ("txt", "jsonl")
_SUFFIXES = {".txt", *JSON_SUFFIXES, ".parquet"}  # any other suffix, such as .0001 in part.0001, may distinguish shards


class Shard(NamedTuple):
    """An input file and its output file, as absolute paths."""

    input: Path
    output: Path


def find_shards(pattern: Path, folder: Path, suffix: str) -> list[Shard]:
    """Find the files of a corpus, in the order of their names.

    Args:
        pattern: a glob pattern (``**``: also folders below), or a folder. In a folder, names that begin with ``.`` or
            ``_`` are ignored: other programs leave such files there.
        folder: the folder of the outputs.
        suffix: the suffix of the outputs, without the dot.

    Raises:
        UserError: if there is no file, two outputs have the same name, or an output would replace an input.
    """
    if pattern.is_dir():
        paths = [path for path in pattern.iterdir() if not path.name.startswith((".", "_"))]
    else:
        paths = [Path(name) for name in glob.glob(str(pattern), recursive=True)]
    inputs = sorted(path for path in paths if path.is_file())
    if not inputs:
        raise UserError(f"--input must be a folder or a pattern of files, but no file is at {pattern}")
    shards: dict[Path, Shard] = {}
    problems = []
    for path in inputs:
        if printable(path) != str(path):  # JSON could not name it
            problems.append(f"--input must hold names in UTF-8, but {printable(path)} is none: rename the file")
        shard = Shard(_absolute(path), _absolute(folder / f"{_stem(path)}.{suffix}"))
        other = shards.setdefault(shard.output, shard)
        if other is not shard:
            problems.append(f"--input must not hold both {other.input} and {path}: both have the output {shard.output}")
    for path in sorted({path.resolve() for path in inputs} & {output.resolve() for output in shards}):
        problems.append(f"--output {folder} holds the input {path}, which would be replaced: give another folder")
    if problems:
        raise UserError.of(problems)
    return list(shards.values())


def _stem(path: Path) -> str:
    name = Path(plain_name(path))
    return name.stem if name.suffix in _SUFFIXES else name.name


def _absolute(path: Path) -> Path:
    return Path(os.path.abspath(path))


class Manifest:
    """The manifest of an output folder. Only this process may write the folder."""

    def __init__(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Begin a folder or resume it.

        Args:
            folder: a folder that is empty or has a manifest.
            settings: everything besides the input that the lines depend on.

        Raises:
            UserError: if the folder holds anything else, or was begun with other settings.
        """
        self.path = folder / MANIFEST
        self.settings = json.loads(json.dumps(settings))
        self.shards: dict[str, Any] = {}
        if self.path.exists():
            self._read()
        else:
            remove_temporary(folder, MANIFEST.__eq__)
            check_replaceable(folder.resolve(), "--output", {LOCK})
            self._write()

    def missing(self, shards: Sequence[Shard]) -> list[Shard]:
        """Return the shards that are not done, or whose input or output has changed since."""
        with ThreadPoolExecutor() as threads:
            return [
                shard for shard, is_done in zip(shards, threads.map(self._is_done, shards), strict=True) if not is_done
            ]

    def add(self, shard: Shard, record: Mapping[str, Any]) -> None:
        """Record a shard that is done."""
        self.shards[shard.output.name] = record
        self._write()

    def _is_done(self, shard: Shard) -> bool:
        record = self.shards.get(shard.output.name)
        return (
            record is not None
            and shard.output.is_file()
            and file_state(shard.output)["sha256"] == record.get("sha256")
            and file_state(shard.input)["sha256"] == record["input"].get("sha256")
        )

    def _read(self) -> None:
        advice = f"to start anew remove {self.path.parent}, or give --output another name"
        recorded = read_json_object(self.path)
        settings, shards = recorded.get("settings"), recorded.get("shards")
        if not (isinstance(settings, dict) and isinstance(shards, dict) and all(map(_is_record, shards.values()))):
            raise UserError(f"{self.path} must hold settings and shards, but does not; {advice}")
        if problems := list(differences(settings, self.settings)):
            raise UserError.of(problems, f"{self.path.parent} was begun with other settings ({advice}):")
        self.shards = shards

    def _write(self) -> None:
        text = json.dumps({"settings": self.settings, "shards": self.shards}, indent=1, ensure_ascii=False)
        write_whole(self.path, lambda path: path.write_text(text + "\n", encoding="utf-8"))


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("input"), dict)
