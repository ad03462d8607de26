"""CoQA's conversations and Persona-Chat's numbered lines."""

import json

from raw_corpora import conversation, coqa, persona_chat, write, write_lines

from s2sft_fairseq.corpora.dialogue import read_coqa, read_coqa_file, read_persona_chat, read_persona_chat_file


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
    assert len(list(read_coqa_file(path, malformed))) == 6  # the first and the last
    assert malformed.lines() == [
        f"{path}, conversation 1: lacks 'id'",
        f"{path}, conversation c1: has 3 questions, but 2 answers",
        f"{path}, conversation c2: turn 2 of 'questions' has the turn_id 3",
        f"{path}, conversation c3: has 3 questions, but 2 answers",
        f"{path}, conversation c4: 'story' must be a text, but is None",
    ]


def test_persona_and_turns(tmp_path, malformed, pairs, sizes):
    persona_chat(tmp_path)
    found = pairs(read_persona_chat(tmp_path, malformed)["test"])
    assert found[2:] == [
        ("i like boats. i am 1. [SEP] hello 1 ?", ["hi , old ."]),
        ("i like boats. i am 1. [SEP] hello 1 ? [SEP] hi , old . [SEP] and you ?", ["i am fine ."]),
    ]
    assert sizes(read_persona_chat(tmp_path, malformed)) == {"train": 12, "valid": 4, "test": 4}
    assert not malformed.records


def test_the_rest_of_a_malformed_conversation_is_left_out(tmp_path, malformed, pairs):
    lines = [
        *("1 your persona: a.", "2 hi\thello", "4 skipped\tone", "5 left\tout"),
        *("1 your persona: b.", "2 no tab", "3 left\tout"),
        *("1 hi\tyou", "2 your persona: late.", "3 left\tout"),
        *("1 your persona: c.", "no number", "2 left\tout"),
        *("1 your persona: d.", "2 last\tone"),
    ]
    path = write_lines(tmp_path / "a.txt", lines)
    assert pairs(read_persona_chat_file(path, malformed)) == [
        ("a. [SEP] hi", ["hello"]),
        (" [SEP] hi", ["you"]),
        ("d. [SEP] last", ["one"]),
    ]
    assert malformed.lines() == [
        f"{path}:3: must be the numbered line 3, but is '4 skipped\\tone'",
        f"{path}:6: must be a turn and the answer, separated by a tab, but has no tab",
        f"{path}:9: has a persona after the first turn",
        f"{path}:12: must be the numbered line 2, but is 'no number'",
    ]


def test_a_file_that_starts_in_the_middle(tmp_path, malformed, pairs):
    path = write_lines(tmp_path / "a.txt", ["3 hi\thello", "4 left\tout", "1 your persona: a.", "2 b\tc"])
    assert pairs(read_persona_chat_file(path, malformed)) == [("a. [SEP] b", ["c"])]
    assert malformed.lines() == [f"{path}:1: must be the numbered line 1, but is '3 hi\\thello'"]
