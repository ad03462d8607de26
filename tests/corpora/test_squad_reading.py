"""SQuAD's questions with the places of their answers."""

import json

from raw_corpora import squad_article, squad_reading, squad_with_impossible, write

from s2sft_fairseq.corpora.squad_reading import read_squad_files, read_squad_questions


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
