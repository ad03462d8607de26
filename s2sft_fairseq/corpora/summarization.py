"""Summaries of news articles: CNN/DailyMail and XSum.

CNN/DailyMail: from a news article to its highlights. Raw files: ``cnn/stories`` and ``dailymail/stories`` with the
``.story`` files of Hermann et al. (2015; https://cs.nyu.edu/~kcho/DMQA), and ``all_train.txt``, ``all_val.txt`` and
``all_test.txt``, the URLs of each split (See et al., 2017; https://github.com/abisee/cnn-dailymail, ``url_lists``). The
name of a story is the SHA-1 of its URL. 114 of the 287,227 training stories have no article; without them, 287,113
remain.

XSum: from a BBC article to its first sentence, which its author wrote as a summary. Raw files (Narayan et al., 2018;
https://github.com/EdinburghNLP/XSum): a folder of articles, either the authors' ``bbc-summary-data/ID.summary`` or
``xsum-extracts-from-downloads/ID.data`` of their download script, and ``XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json``, the
ids of each split. An article consists of sections with headings ``[SN]NAME[SN]`` (``[XSUM]NAME[XSUM]``). The summary is
the section ``FIRST-SENTENCE`` (``INTRODUCTION``), the rest of the article is ``RESTBODY``.
"""

import hashlib
import re
from collections.abc import Iterator
from pathlib import Path

from s2sft_fairseq.corpora.reading import (
    SENTENCE_SEPARATOR,
    Example,
    Malformed,
    MalformedRecordError,
    numbered_lines,
    one_line,
    require,
    take,
)
from s2sft_fairseq.data.bounded_files import read_json
from s2sft_fairseq.errors import UserError

HIGHLIGHT = "@highlight"
STORY_FOLDERS = ("cnn/stories", "dailymail/stories")
_SENTENCE_ENDS = tuple(".!?'`\")\u2019\u201d")


def read_stories(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the three splits; a target is the highlights, joined by `SENTENCE_SEPARATOR`.

    Raises:
        UserError: if a list of URLs is missing, or there is no folder of stories.
    """
    folders = [folder / name for name in STORY_FOLDERS if (folder / name).is_dir()]
    if not folders:
        raise UserError(f"--raw {folder} must hold {' and '.join(STORY_FOLDERS)}, but has neither")
    lists = require(folder, "all_train.txt", "all_val.txt", "all_test.txt")
    return {
        split: _of_urls(path, folders, malformed) for split, path in zip(("train", "valid", "test"), lists, strict=True)
    }


def _of_urls(urls: Path, folders: list[Path], malformed: Malformed) -> Iterator[Example]:
    for number, url in numbered_lines(urls, malformed):
        if url is None:
            continue
        name = f"{hashlib.sha1(url.strip().encode()).hexdigest()}.story"
        path = next((folder / name for folder in folders if (folder / name).is_file()), None)
        if path is None:
            malformed.add(urls, number, f"no folder has {name}, the story of {url}")
            continue
        with malformed.record(path, "story"):
            article, highlights = split_story(path, malformed)
            yield Example(path, "story", (article,), (highlights,))


def split_story(path: Path, malformed: Malformed) -> tuple[str, str]:
    """Return the article and the highlights of a story.

    A paragraph without a final stop, mostly the caption of a picture, gets one, as in See et al.

    Raises:
        MalformedRecordError: if there is no article, no highlight, or an empty highlight.
    """
    article: list[str] = []
    highlights: list[list[str]] = []
    for _, line in numbered_lines(path, malformed):
        text = one_line(line or "")
        if text == HIGHLIGHT:
            highlights.append([])
        elif text:
            (highlights[-1] if highlights else article).append(text)
    if not article:
        raise MalformedRecordError("has no article")
    if not highlights or not all(highlights):
        raise MalformedRecordError(f"has no {HIGHLIGHT}" if not highlights else f"has an empty {HIGHLIGHT}")
    body = " ".join(text if text.endswith(_SENTENCE_ENDS) else f"{text} ." for text in article)
    return body, f" {SENTENCE_SEPARATOR} ".join(map(" ".join, highlights))


SPLIT_FILE = "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"
XSUM_FOLDERS = {"bbc-summary-data": ".summary", "xsum-extracts-from-downloads": ".data"}
SUMMARIES = ("FIRST-SENTENCE", "INTRODUCTION")
_SPLITS = {"train": "train", "validation": "valid", "test": "test"}  # the names in the file -> ours
_HEADING = re.compile(r"\[(SN|XSUM)\]([A-Z-]+)\[\1\]")


def read_xsum(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the three splits.

    Raises:
        UserError: if the list of ids is missing or malformed, or there is no folder of articles.
    """
    (ids,) = require(folder, SPLIT_FILE)
    names = [name for name in XSUM_FOLDERS if (folder / name).is_dir()]
    if not names:
        raise UserError(f"--raw {folder} must hold {' or '.join(XSUM_FOLDERS)}, but has neither")
    articles, suffix = folder / names[0], XSUM_FOLDERS[names[0]]
    splits = read_json(ids)
    try:
        of_split = {ours: take(splits, name, list) for name, ours in _SPLITS.items()}
    except MalformedRecordError as error:
        raise UserError(f"{ids} must hold an object with a list of ids for each split, but {error}") from None
    return {
        split: _read_articles(ids, split, articles, [f"{name}{suffix}" for name in names_of], malformed)
        for split, names_of in of_split.items()
    }


def _read_articles(ids: Path, split: str, folder: Path, names: list[str], malformed: Malformed) -> Iterator[Example]:
    there = {path.name for path in folder.iterdir()}  # a name must not lead out of the folder
    for name in names:
        path = folder / name
        if name not in there:
            malformed.add(ids, f"split {split}", f"there is no {f'{path}':.200}")
            continue
        with malformed.record(path, "article"):
            sections = read_sections(path, malformed)
            summary = next((sections[name] for name in SUMMARIES if name in sections), None)
            if summary is None or "RESTBODY" not in sections:
                raise MalformedRecordError(f"must have {' or '.join(SUMMARIES)}, and RESTBODY")
            yield Example(path, "article", (sections["RESTBODY"],), (summary,))


def read_sections(path: Path, malformed: Malformed) -> dict[str, str]:
    """Return the text of each section of an article, by its heading.

    Raises:
        MalformedRecordError: if a heading occurs twice, or there is text before the first heading.
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
