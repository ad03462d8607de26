"""JSON files of one document, plain or compressed."""

import json
from pathlib import Path
from typing import Any

from s2sft_fairseq.corpora.malformed import MalformedRecordError, take
from s2sft_fairseq.corpora.raw_files import read_bytes
from s2sft_fairseq.errors import UserError


def read_json_file(path: Path) -> Any:
    """Read a JSON file, decompressed if its name ends in ``.gz``.

    Raises:
        UserError: if it cannot be read or is no JSON.
    """
    try:
        return json.loads(read_bytes(path))
    except ValueError as error:  # no JSON, or no UTF-8
        raise UserError(f"{path} must be JSON: {error}") from None


def read_data_list(path: Path) -> list[Any]:
    """The list ``data`` that SQuAD and CoQA keep their records in.

    Raises:
        UserError: if the file cannot be read or has no such list.
    """
    try:
        return take(read_json_file(path), "data", list)
    except MalformedRecordError as error:
        raise UserError(f"{path} must hold an object with a list `data`, but {error}") from None
