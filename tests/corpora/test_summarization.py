"""CNN/DailyMail's stories and XSum's articles in sections."""

import re
from argparse import Namespace

import pytest
from raw_corpora import cnn_dailymail, write, write_lines, xsum

from s2sft_fairseq.corpora import line_aligned
from s2sft_fairseq.corpora.reading import MalformedRecordError
from s2sft_fairseq.corpora.summarization import SPLIT_FILE, read_sections, read_stories, read_xsum, split_story
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.benchmarks import BENCHMARKS


def test_stories_of_both_papers(tmp_path, malformed, pairs, sizes):
    cnn_dailymail(tmp_path)
    test = pairs(read_stories(tmp_path, malformed)["test"])
    source, (target,) = test[0]
    # The caption of a picture gets its period.
    assert source.endswith(" the old tower 0 . A picture of the old tower stands near river bridge and 0 .")
    assert target == "river and small pass every 1 . [X_SEP] boats every day tower river 2 ."
    assert sizes(read_stories(tmp_path, malformed)) == {"train": 12, "valid": 4, "test": 4}
    assert not malformed.records


def test_split_story(tmp_path, malformed):
    text = "First.\n\nA caption\n\nHe said: 'Yes.'\n\n@highlight\n\nOne thing\n\n@highlight\n\nAnother\nthing\n"
    article, highlights = split_story(write(tmp_path / "a.story", text), malformed)
    assert article == "First. A caption . He said: 'Yes.'"
    assert highlights == "One thing [X_SEP] Another thing"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("@highlight\n\nOne\n", "has no article"),
        ("Text.\n", "has no @highlight"),
        ("Text.\n\n@highlight\n\n@highlight\n\nOne\n", "has an empty @highlight"),
    ],
)
def test_malformed_stories(tmp_path, malformed, text, problem):
    with pytest.raises(MalformedRecordError, match=problem):
        split_story(write(tmp_path / "a.story", text), malformed)


def test_missing_files_are_listed(tmp_path, malformed, sizes):
    cnn_dailymail(tmp_path)
    urls = (tmp_path / "all_test.txt").read_text().splitlines()
    write_lines(tmp_path / "all_test.txt", [urls[0], "http://news.example/unknown", *urls[1:]])
    damaged = next((tmp_path / "cnn" / "stories").iterdir())
    damaged.write_text("@highlight\n\nOne\n")
    assert sum(sizes(read_stories(tmp_path, malformed)).values()) == 19
    lines = malformed.lines()
    assert f"{damaged}, story: has no article" in lines
    (missing,) = (line for line in lines if "no folder has" in line)
    assert missing.startswith(f"{tmp_path / 'all_test.txt'}:2: no folder has ")
    assert missing.endswith(".story, the story of http://news.example/unknown")


def test_no_folder(tmp_path, malformed):
    with pytest.raises(UserError, match=r"must hold cnn/stories and dailymail/stories, but has neither"):
        read_stories(tmp_path, malformed)


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


def test_a_small_training_set_of_stories(tmp_path, malformed, sizes, monkeypatch):
    """ERNIE-GEN's Tables 7 and 8: fewer pairs to train on, and the whole validation and test sets."""
    monkeypatch.setattr(line_aligned, "SMALL", 5)
    cnn_dailymail(tmp_path)
    read = BENCHMARKS["cnn_dailymail"].read
    for size, count in (("10k", 5), ("full", 12), (None, 12)):
        splits = read(Namespace(raw=tmp_path, size=size, seed=1), malformed)
        assert sizes(splits) == {"train": count, "valid": 4, "test": 4}
