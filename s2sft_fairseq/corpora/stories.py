"""CNN/DailyMail: from a news article to its highlights.

Raw files: ``cnn/stories`` and ``dailymail/stories`` with the ``.story`` files of Hermann et al. (2015;
https://cs.nyu.edu/~kcho/DMQA), and ``all_train.txt``, ``all_val.txt`` and ``all_test.txt``, the URLs of each split
(See et al., 2017; https://github.com/abisee/cnn-dailymail, ``url_lists``). A story's name is the SHA-1 of its URL. Of
the 287,227 training stories 114 have no article: leave them out, and 287,113 remain.
"""

import hashlib
from collections.abc import Iterator
from pathlib import Path

from s2sft_fairseq.corpora.example import SENTENCE_SEPARATOR, Example, one_line
from s2sft_fairseq.corpora.malformed import Malformed, MalformedRecordError
from s2sft_fairseq.corpora.raw_files import numbered_lines, require
from s2sft_fairseq.errors import UserError

HIGHLIGHT = "@highlight"
FOLDERS = ("cnn/stories", "dailymail/stories")
_SENTENCE_ENDS = tuple(".!?'`\")\u2019\u201d")


def read_stories(folder: Path, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """The three splits; a target is the highlights with `SENTENCE_SEPARATOR` between them.

    Raises:
        UserError: if a list of URLs is missing, or there is no folder of stories.
    """
    folders = [folder / name for name in FOLDERS if (folder / name).is_dir()]
    if not folders:
        raise UserError(f"--raw {folder} must hold {' and '.join(FOLDERS)}, but has neither")
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
    """The article and the highlights of a story.

    A paragraph that ends without a stop gets one, as See et al. did: it is mostly the caption of a picture.

    Raises:
        MalformedRecordError: if there is no article, or no highlight, or an empty one.
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
