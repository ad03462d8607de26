"""Persona-Chat's numbered lines."""

from raw_corpora import persona_chat, write_lines

from s2sft_fairseq.corpora.persona_chat import read_conversations, read_persona_chat


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
    assert pairs(read_conversations(path, malformed)) == [
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
    assert pairs(read_conversations(path, malformed)) == [("a. [SEP] b", ["c"])]
    assert malformed.lines() == [f"{path}:1: must be the numbered line 1, but is '3 hi\\thello'"]
