"""CNN/DailyMail's stories."""

import pytest
from raw_corpora import cnn_dailymail, write, write_lines

from s2sft_fairseq.corpora.malformed import MalformedRecordError
from s2sft_fairseq.corpora.stories import read_stories, split_story
from s2sft_fairseq.errors import UserError


def test_stories_of_both_papers(tmp_path, malformed, pairs, sizes):
    cnn_dailymail(tmp_path)
    test = pairs(read_stories(tmp_path, malformed)["test"])
    source, (target,) = test[0]
    # The caption of a picture has got its stop.
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


def test_what_is_missing_is_listed(tmp_path, malformed, sizes):
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
