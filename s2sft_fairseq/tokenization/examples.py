"""The fields of raw examples: line-aligned text files with a field each, or JSON objects, one a line.

A field is text, or a list of tokens that this tokenizer made before.
"""

import json
import re
from collections.abc import Iterator, Sequence

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.tokenization.symbols import write_symbol

Field = str | list[str]

_LINE_END = re.compile(r"\r\n|[\r\n]")
_SPACE = re.compile(r"\s")


def text_column(lines: bytes) -> list[Field]:
    """Return the lines of a checked text."""
    text = lines.decode("utf-8").removesuffix("\n")
    return [line.removesuffix("\r") for line in text.split("\n")]


def json_columns(lines: bytes, keys: Sequence[str]) -> list[list[Field]]:
    """Return the fields of checked JSON lines, a list for each key; line ends within text become spaces."""
    columns: list[list[Field]] = [[] for _ in keys]
    for line in lines.removesuffix(b"\n").split(b"\n"):
        example = json.loads(line)
        for key, column in zip(keys, columns, strict=True):
            value = example[key]
            column.append(_LINE_END.sub(" ", value) if isinstance(value, str) else value)
    return columns


def json_mistakes(line: bytes, keys: Sequence[str], dictionary: PretrainedDictionary) -> Iterator[str]:
    """Tell what is wrong with a line of JSON, in words that go on from "12 line(s) ..."."""
    try:
        example = json.loads(line)
    except UnicodeDecodeError:
        yield "are not valid UTF-8"
        return
    except (ValueError, RecursionError):
        yield "are not valid JSON"
        return
    if not isinstance(example, dict):
        yield "are not a JSON object"
        return
    for key in keys:
        value = example.get(key)
        if key not in example:
            yield f'lack "{key}"'
        elif isinstance(value, str):
            if not value.isascii() and any("\ud800" <= character <= "\udfff" for character in value):
                yield f'have half of a surrogate pair in "{key}"'
        elif not isinstance(value, list) or not all(isinstance(token, str) for token in value):
            yield f'have a "{key}" that is neither text nor a list of tokens'
        else:
            unknown = [token for token in dict.fromkeys(value) if write_symbol(token) not in dictionary]
            if any(_SPACE.search(token.strip()) for token in unknown):
                yield f'have a "{key}" that is a list of texts, not one text or the list of its tokens'
                continue
            for token in unknown:
                yield f'have in "{key}" the token {token!r}, which is not in the vocabulary'
