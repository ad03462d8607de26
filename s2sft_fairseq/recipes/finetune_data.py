"""Checks of files and folders for `s2sft_fairseq.recipes.finetune`, and writing of pairs in memory to files."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.frames import column_names, rows_of
from s2sft_fairseq.corpora.pairs import Fields, record_problem
from s2sft_fairseq.corpora.reading import MOST_KNOWN
from s2sft_fairseq.corpora.tables import NAMING
from s2sft_fairseq.data.bounded_files import has_half_pair, open_bytes
from s2sft_fairseq.data.source_names import with_names
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.errors import UserError, first_of
from s2sft_fairseq.files import LOCK

logger = logging.getLogger(__name__)

PINNED = "finetune.settings"
"""A file that identifies an output folder of ``s2sft finetune``."""
_SHOWN = 10


def to_files(
    data: Mapping[str, Any], folder: Path, fields: Fields, *, skip_malformed: bool = False
) -> dict[str, list[Path]]:
    """Return the files of each set; write examples in memory to files.

    Args:
        data: for each set a path, two paths of line-aligned files, a DataFrame, an iterable of ``(source, target)`` or
            of dicts, or None.
        folder: the folder to write to, ``NAME.jsonl`` for each set. A file stays as it was if examples are malformed.
        fields: keys of the dicts, or names of columns.
        skip_malformed: leave out examples whose values are no texts; otherwise they are an error.

    Raises:
        UserError: lists the examples that are neither pairs of texts nor dicts with these keys.
    """
    files: dict[str, list[Path]] = {}
    problems: list[str] = []
    for name, examples in data.items():
        if examples is None:
            continue
        paths = [examples] if _is_path(examples) else examples
        if isinstance(paths, list | tuple) and len(paths) in (1, 2) and all(map(_is_path, paths)):
            files[name] = [Path(path) for path in paths]
            continue
        try:
            files[name] = [folder / f"{name}.jsonl"]
            write_lines(files[name][0], _lines(name, _listed(name, examples, fields), fields, skip_malformed))
        except UserError as error:
            problems += error.problems
    if problems:
        raise UserError.of(problems)
    return files


def _listed(name: str, examples: Any, fields: Fields) -> Iterable[Any]:
    """Return the examples of a set as an iterable of pairs or dicts.

    Raises:
        UserError: it holds no examples.
    """
    what = f"{name} must be pairs or the path of a file, but is"
    if (columns := column_names(examples)) is not None:
        wanted = [*fields.source, fields.target]
        if not set(wanted).issubset(columns):
            found = ", ".join(map(str, columns[:20]))
            raise UserError(f"{name} must have the columns {', '.join(wanted)}, but has {found} ({NAMING})")
        if repeated := [column for column in wanted if columns.count(column) > 1]:
            raise UserError(f"{name} has several columns {', '.join(repeated)}")
        return rows_of(examples, wanted)
    if isinstance(examples, Mapping):
        keys = ", ".join(f"{key!s:.30}" for key in list(examples)[:10])
        raise UserError(f"{what} a dict with {keys or 'no keys'}: give a list of dicts, one for each pair")
    if isinstance(examples, str | bytes | set | frozenset) or not isinstance(examples, Iterable):
        of_sets = ", which has no order" if isinstance(examples, set | frozenset) else ""
        raise UserError(f"{what} a {type(examples).__name__}{of_sets}")
    return examples


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


def _lines(name: str, examples: Iterable[Any], fields: Fields, skip_malformed: bool) -> Iterator[str]:
    """Yield each example as a line of JSON.

    Raises:
        UserError: at the end, lists the first examples that are malformed; or says that there is none.
    """
    wrong: list[str] = []
    number = -1
    for number, example in enumerate(examples):
        record = _record(example, fields)
        if record is None:
            problem = f"must be a pair (source, target) or a dict, but is {example!r:.60}"
        else:
            problem = record_problem(record, fields) or ""
        if not problem:
            keys = {*fields.source, fields.target, "refs"}
            texts = {key: value for key, value in (record or {}).items() if key in keys}
            problem = "has half a surrogate pair, which UTF-8 cannot hold" if has_half_pair(texts) else ""
        if not problem:
            yield json.dumps(texts, ensure_ascii=False)
        elif len(wrong) < MOST_KNOWN:
            wrong.append(f"{name}[{number}] {problem}")
    if number < 0:
        raise UserError(f"{name} must have pairs, but is empty")
    shown = first_of(wrong, _SHOWN, name)
    if wrong and not skip_malformed:
        raise UserError.of(shown)
    for line in shown:
        logger.warning(f"left out: {line}")


def _record(example: Any, fields: Fields) -> Mapping[str, Any] | None:
    """Return an example of a program as a dict; None if it is no pair and no dict."""
    example = with_names(example)
    if isinstance(example, Mapping):
        return example
    if isinstance(example, str | bytes) or len(fields.source) != 1:
        return None
    pair = example.tolist() if hasattr(example, "tolist") else example  # a row of an array
    if not isinstance(pair, list | tuple) or len(pair) != 2:
        return None
    return {fields.source[0]: pair[0], fields.target: pair[1]}
