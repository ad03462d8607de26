"""XSum's articles in sections."""

import re

import pytest
from raw_corpora import write, xsum

from s2sft_fairseq.corpora.malformed import MalformedRecordError
from s2sft_fairseq.corpora.xsum import SPLIT_FILE, read_sections, read_xsum
from s2sft_fairseq.errors import UserError


def test_authors_files(tmp_path, malformed, pairs, sizes):
    xsum(tmp_path)
    source, (target,) = pairs(read_xsum(tmp_path, malformed)["test"])[2]
    assert target == "boats every day tower river many pass warm 2 ."
    assert source.endswith(" 3 .")
    assert "TITLE" not in source
    assert sizes(read_xsum(tmp_path, malformed)) == {"train": 12, "valid": 4, "test": 4}
    assert not malformed.records


def test_files_of_the_download_script(tmp_path, malformed, pairs):
    write(tmp_path / SPLIT_FILE, '{"train": ["1"], "validation": ["1"], "test": ["1"]}')
    text = "[XSUM]URL[XSUM]\nhttp\n\n[XSUM]INTRODUCTION[XSUM]\nThe first.\n\n[XSUM]RESTBODY[XSUM]\nA [SN] line.\nNo.\n"
    write(tmp_path / "xsum-extracts-from-downloads" / "1.data", text)
    assert pairs(read_xsum(tmp_path, malformed)["train"]) == [("A [SN] line. No.", ["The first."])]


def test_malformed_articles(tmp_path, malformed, sizes):
    xsum(tmp_path)
    folder = tmp_path / "bbc-summary-data"
    (folder / "test0.summary").unlink()
    write(folder / "test1.summary", "[SN]URL[SN]\nhttp\n\n[SN]FIRST-SENTENCE[SN]\nOne.\n")
    assert sizes(read_xsum(tmp_path, malformed))["test"] == 2
    assert malformed.lines() == [
        f"{tmp_path / SPLIT_FILE}, split test: there is no {folder / 'test0.summary'}",
        f"{folder / 'test1.summary'}, article: must have FIRST-SENTENCE or INTRODUCTION, and RESTBODY",
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[SN]URL[SN]\na\n[SN]URL[SN]\nb\n", "has two sections URL"),
        ("\nhello\n[SN]URL[SN]\n", "has text before its first heading, in line 2"),
    ],
)
def test_malformed_sections(tmp_path, malformed, text, problem):
    with pytest.raises(MalformedRecordError, match=problem):
        read_sections(write(tmp_path / "a.summary", text), malformed)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ('{"train": []}', "must hold an object with a list of ids for each split, but lacks 'validation'"),
        ("no", "must be JSON: "),
    ],
)
def test_damaged_list_of_ids(tmp_path, malformed, text, problem):
    xsum(tmp_path)
    write(tmp_path / SPLIT_FILE, text)
    with pytest.raises(UserError, match=re.escape(problem)):
        read_xsum(tmp_path, malformed)


def test_no_folder_of_articles(tmp_path, malformed):
    write(tmp_path / SPLIT_FILE, "{}")
    with pytest.raises(UserError, match="must hold bbc-summary-data or xsum-extracts-from-downloads, but has neither"):
        read_xsum(tmp_path, malformed)
