"""Checks of files and folders for `s2sft_fairseq.recipes.finetune`, and writing of pairs in memory to files."""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.pairs import Fields
from s2sft_fairseq.data.bounded_files import open_bytes
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import LOCK

PINNED = "finetune.settings"
"""A file that identifies an output folder of ``s2sft finetune``."""
_SHOWN = 10


def to_files(data: Mapping[str, Any], folder: Path, fields: Fields) -> dict[str, list[Path]]:
    """Return the files of each set; write examples in memory to files.

    Args:
        data: for each set a path, two paths of line-aligned files, an iterable of ``(source, target)`` or of dicts, or
            None.
        folder: the folder to write to, ``NAME.jsonl`` for each set.
        fields: keys of the dicts.

    Raises:
        UserError: lists the examples that are neither pairs of texts nor dicts.
    """
    files: dict[str, list[Path]] = {}
    problems: list[str] = []
    for name, examples in data.items():
        if examples is None:
            continue
        paths = [examples] if _is_path(examples) else examples
        if isinstance(paths, list | tuple) and paths and all(map(_is_path, paths)):
            files[name] = [Path(path) for path in paths]
        elif not isinstance(examples, Iterable):
            problems.append(f"{name} must be pairs or the path of a file, but is a {type(examples).__name__}")
        else:
            wrong: list[str] = []
            files[name] = [folder / f"{name}.jsonl"]
            write_lines(files[name][0], _lines(name, examples, fields, wrong))
            more = [f"and {len(wrong) - _SHOWN} more of {name}"] if len(wrong) > _SHOWN else []
            problems += [*wrong[:_SHOWN], *more]
    if problems:
        raise UserError.of(problems)
    return files


def output_problems(output: Path) -> Iterator[str]:
    """Yield the problems of an output folder. Other folders are refused, because files are removed at the end."""
    if output.exists() and not output.is_dir():
        yield f"--output must be a folder, but {output} is not one"
    elif output.is_dir() and not (output / PINNED).exists():
        found = sorted({path.name for path in output.iterdir()} - {"pairs", LOCK})
        if found:
            names = ", ".join(found[:5]) + (", ..." if len(found) > 5 else "")
            yield f"--output must be new, empty or of this command, but {output} holds {names}"


def fingerprint(path: Path) -> str:
    """Return a short hash of the contents of a file."""
    with open_bytes(path) as file:
        return hashlib.file_digest(file, "blake2b").hexdigest()[:12]


def _is_path(value: object) -> bool:
    return isinstance(value, str | os.PathLike)


def _lines(name: str, examples: Iterable[Any], fields: Fields, wrong: list[str]) -> Iterator[str]:
    for number, example in enumerate(examples):
        if isinstance(example, Mapping):
            wanted = {*fields.source, fields.target, "refs"}
            record = {key: value for key, value in example.items() if key in wanted}
        elif isinstance(example, list | tuple) and len(example) == 2 and len(fields.source) == 1:
            record = {fields.source[0]: example[0], fields.target: example[1]}
        else:
            wrong.append(f"{name}[{number}] must be a pair (source, target) or a dict, but is {example!r:.60}")
            continue
        yield json.dumps(record, ensure_ascii=False, default=str)
