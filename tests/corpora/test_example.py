"""One record as lines of text."""

from pathlib import Path

import pytest

from s2sft_fairseq.corpora.example import Example
from s2sft_fairseq.corpora.malformed import Malformed, MalformedRecordError


def example(source: tuple[str, ...], *references: str) -> Example:
    return Example(Path("raw"), 1, source, references)


def test_lines():
    one = example((" a\u2028passage\r\n of\tlines", "", "answer"), "what\n is it ?", "b")
    assert one.source_line() == "a passage of lines [SEP]  [SEP] answer"
    assert one.reference_lines() == ["what is it ?", "b"]


@pytest.mark.parametrize(
    ("one", "problem"),
    [
        (example(("", " \n"), "b"), "the source is empty"),
        (example(("a [SEP] b",), "b"), r"the source holds \[SEP\], which separates fields"),
        (example(("a",)), "has no target"),
        (example(("a",), "b", " "), "the target is empty"),
    ],
)
def test_malformed(one, problem):
    with pytest.raises(MalformedRecordError, match=problem):
        print(one.source_line(), one.reference_lines())


def test_the_file_to_blame():
    paths = tuple(map(Path, ("passage", "answer", "question")))
    malformed = Malformed()
    for number, (source, target) in enumerate(((("a", "b"), ""), (("a", "b [SEP]"), "c"), (("", ""), "c")), 1):
        one = Example(paths[0], number, source, (target,), paths)
        with malformed.record(one.path, one.where):
            print(one.source_line(), one.reference_lines())
    assert malformed.shown == [
        "question:1: the target is empty",
        "answer:2: the source holds [SEP], which separates fields",
        "passage:3: the source is empty",
    ]
    assert set(malformed.records) == set(paths)
