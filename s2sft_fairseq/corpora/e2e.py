"""The E2E NLG challenge: from a meaning representation to a sentence about a restaurant.

Raw files: ``trainset.csv``, ``devset.csv`` and ``testset_w_refs.csv`` (Novikova et al., 2017;
https://github.com/tuetschek/e2e-dataset), CSV with the columns ``mr`` and ``ref``. A meaning representation stands in
one row for each of its references; for scoring, the rows of one are put together, as the challenge's own script does.
"""

import csv
import io
import re
from collections.abc import Iterable, Iterator
from pathlib import Path

from s2sft_fairseq.corpora.example import Example, one_line
from s2sft_fairseq.corpora.malformed import Malformed
from s2sft_fairseq.corpora.raw_files import read_bytes, require
from s2sft_fairseq.errors import UserError

HEADER = ["mr", "ref"]
SLOTS = ("name", "eatType", "food", "priceRange", "customer rating", "area", "familyFriendly", "near")
_SLOT = rf"(?:{'|'.join(SLOTS)})\[[^\[\]]+\]"
_MEANING = re.compile(rf"{_SLOT}(?:, {_SLOT})*")


def read_e2e(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """The three splits; those that are scored have an example for each meaning representation, with all references.

    Raises:
        UserError: if a file is missing, is no UTF-8 or has another header.
    """
    train, valid, test = require(folder, "trainset.csv", "devset.csv", "testset_w_refs.csv")
    return {
        "train": read_rows(train, malformed),
        "valid": grouped(read_rows(valid, malformed)),
        "test": grouped(read_rows(test, malformed)),
    }


def read_rows(path: Path, malformed: Malformed) -> Iterator[Example]:
    """Yield an example for each row.

    Raises:
        UserError: if the file is no UTF-8 or has another header.
    """
    try:
        text = read_bytes(path).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UserError(f"{path} must be UTF-8, but byte {error.start} is not") from None
    rows = csv.reader(io.StringIO(text, newline=""), strict=True)
    try:
        header = next(rows, [])
        if header != HEADER:
            raise UserError(f"{path} must have the columns {', '.join(HEADER)}, but has {', '.join(header) or 'none'}")
        line = rows.line_num + 1
        for row in rows:
            if len(row) != len(HEADER):
                malformed.add(path, line, f"must have {len(HEADER)} columns, but has {len(row)}")
            elif not _MEANING.fullmatch(one_line(row[0])):
                malformed.add(path, line, f"mr must be slot[value], slot[value] ... of known slots, but is {row[0]!r}")
            else:
                yield Example(path, line, (row[0],), (row[1],))
            line = rows.line_num + 1
    except csv.Error as error:
        raise UserError(f"{path}:{rows.line_num} must be CSV: {error}") from None


def grouped(examples: Iterable[Example]) -> Iterator[Example]:
    """Put the references of equal sources together, in the order in which the sources come first."""
    groups: dict[str, list[Example]] = {}
    for example in examples:
        if all(map(one_line, example.references)):
            groups.setdefault(one_line(" ".join(example.source)), []).append(example)
        else:
            yield example  # malformed, which is not to spoil the others
    for group in groups.values():
        first = group[0]
        yield Example(first.path, first.where, first.source, tuple(text for one in group for text in one.references))
