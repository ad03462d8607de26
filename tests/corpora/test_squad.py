"""SQuAD for question generation, and its questions with the places of their answers."""

import json
import re

import pytest
from raw_corpora import squad, squad_article, squad_reading, squad_with_impossible, write, write_lines

from s2sft_fairseq.corpora.squad import read_articles, read_squad, read_squad_files, read_squad_questions
from s2sft_fairseq.errors import UserError


def test_official_split(tmp_path, malformed, pairs, sizes):
    squad(tmp_path)
    splits = read_squad(tmp_path, malformed)
    assert pairs(splits["test"])[:3] == [
        (
            "River bank tells : day old stands river and small pass every 10 . [SEP] River",
            ["which word is number 0 in River_bank ?"],
        ),
        (
            "River bank tells : day old stands river and small pass every 10 . [SEP] bank",
            ["which word is number 1 in River_bank ?"],
        ),
        (
            "Old town tells : bridge small it summer old near and boats 8 . [SEP] Old",
            ["which word is number 0 in Old_town ?"],
        ),
    ]
    assert sizes(read_squad(tmp_path, malformed)) == {"train": 8, "valid": 4, "test": 4}
    assert not malformed.records


def test_reversed_split(tmp_path, malformed, pairs):
    squad(tmp_path)
    official = {split: pairs(examples) for split, examples in read_squad(tmp_path, malformed).items()}
    swapped = {s: pairs(e) for s, e in read_squad(tmp_path, malformed, reversed_split=True).items()}
    assert swapped == {"train": official["train"], "valid": official["test"], "test": official["valid"]}


def test_published_references(tmp_path, malformed, pairs, sizes):
    """The sources are the same; each question is matched by its letters to a line of the file, in any order."""
    squad(tmp_path)
    test = pairs(read_squad(tmp_path, malformed)["test"])
    published = [question.lower().replace("_", " -lrb- ").replace(" ?", "?") for _, (question,) in test]
    write_lines(tmp_path / "tgt-test.txt", published[::-1])
    splits = read_squad(tmp_path, malformed)
    assert list(splits) == ["train", "valid", "test", "tgt-test"]
    assert pairs(splits["tgt-test"]) == [(source, [text]) for (source, _), text in zip(test, published, strict=True)]
    assert pairs(splits["test"]) == test
    assert "tgt-test" not in read_squad(tmp_path, malformed, reversed_split=True)

    write_lines(tmp_path / "tgt-test.txt", published[:-1])
    with pytest.raises(UserError, match=r"tgt-test\.txt .* lacks that of article 'Old_town', paragraph 1, question 2"):
        pairs(read_squad(tmp_path, malformed)["tgt-test"])
    write_lines(tmp_path / "tgt-test.txt", [*published, "what else ?"])
    with pytest.raises(UserError, match=r"1 line\(s\) are none of them: line 5 is 'what else \?'"):
        pairs(read_squad(tmp_path, malformed)["tgt-test"])


def test_malformed_records(tmp_path, malformed):
    article = squad_article("Tower", 5)
    asked = article["paragraphs"][0]["qas"]
    del asked[0]["question"]
    asked[1]["answers"] = []
    asked[2]["answers"][0]["answer_start"] += 1
    asked[3]["answers"][0]["answer_start"] = "3"
    articles = [article, {"title": "No paragraphs"}, "no article", {"title": "T", "paragraphs": [{"context": 1}]}]
    path = tmp_path / "train.json"
    assert len(list(read_articles(path, articles, malformed))) == 1
    assert malformed.lines() == [
        f"{path}, article 'Tower', paragraph 1, question 1: lacks 'question'",
        f"{path}, article 'Tower', paragraph 1, question 2: has no answer",
        f"{path}, article 'Tower', paragraph 1, question 3: the answer ':' is not at character 13 of its passage",
        f"{path}, article 'Tower', paragraph 1, question 4: 'answer_start' must be a whole number, but is '3'",
        f"{path}, article 2: lacks 'paragraphs'",
        f"{path}, article 3: must be an object, but is 'no article'",
        f"{path}, article 'T', paragraph 1: 'context' must be a text, but is 1",
    ]


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("train-v1.1.json", "{", "train-v1.1.json must be JSON: "),
        ("train-v1.1.json", "[]", "train-v1.1.json must hold an object with a list `data`, but must be an object"),
        ("train-v1.1.json", '{"data": 1}', "but 'data' must be a list, but is 1"),
        ("doclist-test.txt", "Mars\nTower\n", "names 1 article(s) that "),
        ("doclist-test.txt", "\n", "doclist-test.txt must name the articles of the test set, but is empty"),
    ],
)
def test_damaged_files(tmp_path, malformed, name, text, problem):
    squad(tmp_path)
    write(tmp_path / name, text)
    with pytest.raises(UserError, match=re.escape(problem)):
        read_squad(tmp_path, malformed)


def test_missing_files(tmp_path, malformed):
    write(tmp_path / "dev-v1.1.json", json.dumps({"data": []}))
    write_lines(tmp_path / "doclist-test.txt", ["Tower"])
    with pytest.raises(UserError, match=r"but lacks train-v1\.1\.json$"):
        read_squad(tmp_path, malformed)


def test_both_versions(tmp_path, malformed):
    squad_reading(tmp_path)
    for version, train, valid in (("1.1", 12, 4), ("2.0", 9, 6)):
        splits = {split: list(found) for split, found in read_squad_files(tmp_path, version, malformed).items()}
        assert {split: len(found) for split, found in splits.items()} == {"train": train, "valid": valid}
        for question in splits["train"]:
            for text, start in question.answers:
                assert question.passage[start : start + len(text)] == text
    assert [bool(question.answers) for question in splits["valid"]] == [True, True, False] * 2
    assert splits["valid"][0].id == "Harbour-0"
    assert splits["valid"][0].text == "which word is number 0 in Harbour ?"
    assert not malformed.records


def test_malformed_questions(tmp_path, malformed):
    article = squad_with_impossible("Tower")
    one, two, three = article["paragraphs"][0]["qas"]
    one["answers"] = []
    two["is_impossible"] = "no"
    three["answers"] = three["plausible_answers"]
    other = squad_article("Boat", 1)
    del other["paragraphs"][0]["qas"][0]["id"]
    path = write(tmp_path / "dev.json", json.dumps({"data": [article, other]}))
    assert not list(read_squad_questions(path, malformed))
    assert malformed.lines() == [
        f"{path}, article 'Tower', paragraph 1, question 1: has no answer",
        f"{path}, article 'Tower', paragraph 1, question 2: 'is_impossible' must be true or false, but is 'no'",
        f"{path}, article 'Tower', paragraph 1, question 3: is impossible, but has answers",
        f"{path}, article 'Boat', paragraph 1, question 1: lacks 'id'",
    ]
