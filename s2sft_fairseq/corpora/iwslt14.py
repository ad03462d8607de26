"""IWSLT'14, German and English: translated talks, from the archive of the evaluation campaign.

Raw files: the folder ``de-en`` of ``de-en.tgz`` (https://wit3.fbk.eu, 2014-01; Cettolo et al., 2014). The splits are
those of fairseq's script (``examples/translation/prepare-iwslt14.sh``), which papers use: every 23rd pair of the
training files is for validation, and the sets of 2010 to 2012, concatenated, are the test set. Titles and descriptions
are kept as sentences; URLs, ids and keywords of talks are left out.
"""

import html
import re
from collections.abc import Iterator
from pathlib import Path

from s2sft_fairseq.corpora.reading import Example, Malformed, aligned_lines, require
from s2sft_fairseq.data.bounded_files import read_bytes
from s2sft_fairseq.errors import UserError

TESTS = ("TED.dev2010", "TEDX.dev2012", "TED.tst2010", "TED.tst2011", "TED.tst2012")
VALID_EVERY = 23

_LEFT_OUT = ("<url>", "<talkid>", "<keywords>")
# No group matches beyond the next opening tag: otherwise each unclosed tag would be scanned to the end of the file.
_SEGMENT = re.compile(
    r'<doc [^<>]*docid="(?P<talk>[^<"]*)"|<seg id="(?P<number>[^<"]*)">(?P<text>(?:[^<]++|<(?!/?seg\b))*+)</seg>'
)
_SHOWN = 5
_KEPT_TAGS = re.compile(r"</?(?:title|description)>")


def read_iwslt14(folder: Path, source: str, target: str, malformed: Malformed) -> dict[str, Iterator[Example]]:
    """Return the three splits of a translation direction.

    Args:
        folder: the folder of the raw files.
        source: ``de`` or ``en``.
        target: the other one.
        malformed: collects malformed records.

    Raises:
        UserError: naming the files that are missing.
    """
    sides = (source, target)
    train = [f"train.tags.de-en.{side}" for side in sides]
    tests = [f"IWSLT14.{name}.de-en.{side}.xml" for name in TESTS for side in sides]
    paths = require(folder, *train, *tests)
    pairs = paths[2:]
    return {
        "train": (example for number, example in _talks(paths[:2], malformed) if number % VALID_EVERY),
        "valid": (example for number, example in _talks(paths[:2], malformed) if number % VALID_EVERY == 0),
        "test": (
            example
            for one, other in zip(pairs[::2], pairs[1::2], strict=True)
            for example in _segments(one, other, malformed)
        ),
    }


def _talks(paths: list[Path], malformed: Malformed) -> Iterator[tuple[int, Example]]:
    """Yield the sentence pairs of the training files with their numbers, from 1."""
    number = 0
    for line, texts in aligned_lines(paths, malformed):
        if texts[0].lstrip().startswith("<") and any(tag in texts[0] for tag in _LEFT_OUT):
            continue
        number += 1
        source, target = (_KEPT_TAGS.sub("", text).strip() for text in texts)
        yield number, Example(paths[0], line, (source,), (target,), tuple(paths))


def _segments(source: Path, target: Path, malformed: Malformed) -> Iterator[Example]:
    """Yield the sentence pairs of a test set.

    Raises:
        UserError: if the two files have different segments, or none.
    """
    texts, others = (_by_name(path, malformed) for path in (source, target))
    problems = [
        f"{path} lacks {len(lacking):,} of them: {', '.join([*lacking[:_SHOWN], *['...'][: len(lacking) - _SHOWN]])}"
        for path, own, other in ((source, texts, others), (target, others, texts))
        if (lacking := [name for name in other if name not in own])
    ]
    if not (texts or others):
        problems = [f"{source} and {target} have none"]
    if problems:
        raise UserError.of(problems, f"{source} and {target} must have the same segments:")
    for name, text in texts.items():
        if text is not None and (other := others[name]) is not None:
            yield Example(source, name, (text,), (other,), (source, target))


def _by_name(path: Path, malformed: Malformed) -> dict[str, str | None]:
    """Return the segments of a file by their names; None for a segment that is not UTF-8.

    The file is not parsed as XML, as it may not be well-formed.
    """
    found: dict[str, str | None] = {}
    talk = ""
    for match in _SEGMENT.finditer(read_bytes(path).decode("utf-8", errors="surrogateescape")):
        talk = match["talk"] or talk
        if match["number"]:
            name = f"document {talk}, segment {match['number']}"
            found[name] = html.unescape(match["text"]).strip()
            if any("\udc80" <= letter <= "\udcff" for letter in match["text"]):
                malformed.add(path, name, "is not valid UTF-8")
                found[name] = None
    return found
