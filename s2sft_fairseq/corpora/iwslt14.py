"""IWSLT'14, German and English: translated talks, from the archive of the evaluation campaign.

Raw files: the folder ``de-en`` of ``de-en.tgz`` (https://wit3.fbk.eu, 2014-01; Cettolo et al., 2014). The splits are
those of fairseq's script (``examples/translation/prepare-iwslt14.sh``), which papers use: every 23rd pair of the
training files is for validation, and the sets of 2010 to 2012, concatenated, are the test set. Titles and descriptions
are kept as sentences; URLs, ids and keywords of talks are left out.

With ``--moses`` the texts, too, are those of the script, which DeltaLM's authors adapted: Moses' tokens in lower case.
Training pairs of unequal length are left out, before every 23rd of the others is taken for validation.
"""

import html
import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

from s2sft_fairseq.corpora.moses import is_clean, moses_tokenizer
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


Sides = tuple[Callable[[str], str], Callable[[str], str]]
"""Functions that prepare the texts of the source and of the target."""


def read_iwslt14(
    folder: Path, source: str, target: str, malformed: Malformed, *, moses: bool = False
) -> dict[str, Iterator[Example]]:
    """Return the three splits of a translation direction.

    Args:
        folder: the folder of the raw files.
        source: ``de`` or ``en``.
        target: the other one.
        malformed: collects malformed records.
        moses: prepare the texts as the script does.

    Raises:
        UserError: naming the files that are missing, or the package.
    """
    sides = (source, target)
    train = [f"train.tags.de-en.{side}" for side in sides]
    tests = [f"IWSLT14.{name}.de-en.{side}.xml" for name in TESTS for side in sides]
    paths = require(folder, *train, *tests)
    pairs = paths[2:]
    prepare = (moses_tokenizer(source), moses_tokenizer(target)) if moses else None
    return {
        "train": (example for number, example in _talks(paths[:2], malformed, prepare) if number % VALID_EVERY),
        "valid": (example for number, example in _talks(paths[:2], malformed, prepare) if number % VALID_EVERY == 0),
        "test": (
            _prepared(example, prepare)
            for one, other in zip(pairs[::2], pairs[1::2], strict=True)
            for example in _segments(one, other, malformed)
        ),
    }


def _talks(paths: list[Path], malformed: Malformed, prepare: Sides | None) -> Iterator[tuple[int, Example]]:
    """Yield the sentence pairs of the training files with their numbers, from 1."""
    number = 0
    for line, texts in aligned_lines(paths, malformed):
        if texts[0].lstrip().startswith("<") and any(tag in texts[0] for tag in _LEFT_OUT):
            continue
        source, target = (_KEPT_TAGS.sub("", text).strip() for text in texts)
        if prepare is not None:
            source, target = prepare[0](source), prepare[1](target)
            if not is_clean(source, target):
                continue
        number += 1
        yield number, Example(paths[0], line, (source,), (target,), tuple(paths))


def _prepared(example: Example, prepare: Sides | None) -> Example:
    """Return an example of a test set with prepared texts. The script replaces its typographic apostrophes."""
    if prepare is None:
        return example
    source, target = (side[0].replace("\u2019", "'") for side in (example.source, example.references))
    return replace(example, source=(prepare[0](source),), references=(prepare[1](target),))


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
