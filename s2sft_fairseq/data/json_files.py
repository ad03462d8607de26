"""JSON files of others, with errors that name them."""

import json
from pathlib import Path
from typing import Any

from s2sft_fairseq.data.text_files import readable
from s2sft_fairseq.errors import UserError


def read_json(path: Path) -> Any:
    """Read a JSON file.

    Raises:
        UserError: if it cannot be read or is no JSON.
    """
    try:
        return json.loads(readable(path).read_bytes().decode("utf-8"))
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be UTF-8, but byte {error.start} is not") from None
    except ValueError as error:
        raise UserError(f"{path} must be JSON: {error}") from None


def read_json_object(path: Path) -> dict[str, Any]:
    """Read a JSON file that holds an object.

    Raises:
        UserError: if it cannot be read or holds something else.
    """
    value = read_json(path)
    if not isinstance(value, dict):
        raise UserError(f"{path} must hold a JSON object, but holds a {type(value).__name__}")
    return value
