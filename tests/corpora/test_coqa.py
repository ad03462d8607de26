"""CoQA's conversations."""

import json

from raw_corpora import conversation, coqa, write

from s2sft_fairseq.corpora.coqa import read_conversations, read_coqa


def test_history_and_references(tmp_path, malformed, pairs, sizes):
    coqa(tmp_path)
    source, references = pairs(read_coqa(tmp_path, malformed)["valid"])[4]
    story = " ".join(conversation(1)["story"].split())
    assert source == f"{story} [SEP] question 1 of 1 [SEP] answer 1 of 1 [SEP] question 2 of 1"
    assert references == ["answer 2 of 1", "answer a 2 of 1", "answer b 2 of 1", "answer c 2 of 1"]
    assert sizes(read_coqa(tmp_path, malformed)) == {"train": 12, "valid": 12}
    assert not malformed.records


def test_malformed_conversations(tmp_path, malformed):
    records = [conversation(number, 1) for number in range(6)]
    del records[0]["id"]
    records[1]["answers"].pop()
    records[2]["questions"][1]["turn_id"] = 3
    records[3]["additional_answers"]["0"].pop()
    records[4]["story"] = None
    path = write(tmp_path / "a.json", json.dumps({"data": records}))
    assert len(list(read_conversations(path, malformed))) == 6  # the first and the last
    assert malformed.lines() == [
        f"{path}, conversation 1: lacks 'id'",
        f"{path}, conversation c1: has 3 questions, but 2 answers",
        f"{path}, conversation c2: turn 2 of 'questions' has the turn_id 3",
        f"{path}, conversation c3: has 3 questions, but 2 answers",
        f"{path}, conversation c4: 'story' must be a text, but is None",
    ]
