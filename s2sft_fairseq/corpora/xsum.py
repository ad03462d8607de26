"""XSum: from a BBC article to its first sentence, written by the author as a summary.

Raw files (Narayan et al., 2018; https://github.com/EdinburghNLP/XSum): a folder of articles, either the authors'
``bbc-summary-data/ID.summary`` or ``xsum-extracts-from-downloads/ID.data`` of their download script, and
``XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json``, the ids of each split. An article is sections headed ``[SN]NAME[SN]``
(``[XSUM]NAME[XSUM]``); the summary is ``FIRST-SENTENCE`` (``INTRODUCTION``), the rest ``RESTBODY``.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.json_records import read_json_file
from s2sft_fairseq.corpora.malformed import Malformed, MalformedRecordError, take
from s2sft_fairseq.corpora.raw_files import numbered_lines, require
from s2sft_fairseq.errors import UserError

SPLIT_FILE = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"
FOLDERS = {"bbc-summary-data": ".summary", "xsum-extracts-from-downloads": ".data"}
SUMMARIES = ("FIRST-SENTENCE", "INTRODUCTION")
_SPLITS = {"train": "train", "validation": "valid", "test": "test"}  # its names, and ours
_HEADING = re.compile(r"\[(SN|XSUM)\]([A-Z-]+)\[\1\]")


def read_xsum(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """The three splits.

    Raises:
        UserError: if the list of ids is missing or malformed, or there is no folder of articles.
    """
    (ids,) = require(folder, SPLIT_FILE)
    names = [name for name in FOLDERS if (folder / name).is_dir()]
    if not names:
        raise UserError(f"--raw {folder} must hold {' or '.join(FOLDERS)}, but has neither")
    articles, suffix = folder / names[0], FOLDERS[names[0]]
    splits = read_json_file(ids)
    try:
        of_split = {ours: take(splits, name, list) for name, ours in _SPLITS.items()}
    except MalformedRecordError as error:
        raise UserError(f"{ids} must hold an object with a list of ids for each split, but {error}") from None
    return {
        split: _read(ids, split, [articles / f"{name}{suffix}" for name in names_of], malformed)
        for split, names_of in of_split.items()
    }


def _read(ids: Path, split: str, paths: list[Path], malformed: Malformed) -> Iterator[Example]:
    for path in paths:
        if not path.is_file():
            malformed.add(ids, f"split {split}", f"there is no {path}")
            continue
        with malformed.record(path, "article"):
            sections = read_sections(path, malformed)
            summary = next((sections[name] for name in SUMMARIES if name in sections), None)
            if summary is None or "RESTBODY" not in sections:
                raise MalformedRecordError(f"must have {' or '.join(SUMMARIES)}, and RESTBODY")
            yield Example(path, "article", (sections["RESTBODY"],), (summary,))


def read_sections(path: Path, malformed: Malformed) -> dict[str, str]:
    """The text of each section of an article, by its heading.

    Raises:
        MalformedRecordError: if a heading comes twice, or text stands before the first.
    """
    sections: dict[str, list[str]] = {}
    for number, line in numbered_lines(path, malformed):
        text = (line or "").strip()
        if heading := _HEADING.fullmatch(text):
            if heading[2] in sections:
                raise MalformedRecordError(f"has two sections {heading[2]}")
            sections[heading[2]] = []
        elif text and not sections:
            raise MalformedRecordError(f"has text before its first heading, in line {number}")
        elif text:
            sections[next(reversed(sections))].append(text)
    return {name: "\n".join(lines) for name, lines in sections.items()}
