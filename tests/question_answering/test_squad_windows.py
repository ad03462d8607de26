"""Windows of questions and passages, written and read again."""

from pathlib import Path

import pytest
from tokenizer_folders import write_wordpiece

from s2sft_fairseq.corpora.reading import Malformed, MalformedRecordError
from s2sft_fairseq.corpora.squad import SquadQuestion, read_squad_questions
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.question_answering.questions import questions_path, read_questions
from s2sft_fairseq.question_answering.squad_windows import WindowMaker, find_answer, write_windows
from s2sft_fairseq.tokenization.folder import open_tokenizer

PASSAGE = "The  quick\n§ a, b c d e f (tokenization)."


def asked(text, answers, identity="q"):
    return SquadQuestion(Path("dev.json"), f"question {identity}", identity, text, PASSAGE, tuple(answers))


@pytest.fixture
def malformed():
    return Malformed()


@pytest.fixture
def maker(tmp_path):
    tokenizer = open_tokenizer(write_wordpiece(tmp_path / "tokenizer"))
    return WindowMaker(tokenizer, max_positions=12, stride=4, max_query=2)


def test_windows_of_a_question(maker):
    question, lines = maker.make(asked("the quick a", [("d e", PASSAGE.index("d e"))]))
    # [CLS], two [SEP] and the question leave 7 of 12 positions; the passage has 15 tokens.
    assert question.windows == [(0, 7), (4, 7), (8, 7)]
    assert lines == [
        "the quick [SEP] the quick [UNK] a , b c",
        "the quick [SEP] , b c d e f [UNK]",
        "the quick [SEP] e f [UNK] token ##ization [UNK] .",
    ]
    assert [PASSAGE[start:end] for start, end in question.offsets][:5] == ["The", "quick", "§", "a", ","]
    first, last = question.answer
    assert PASSAGE[question.offsets[first][0] : question.offsets[last][1]] == "d e"
    assert question.labels() == [(0, 0), (7, 8), (0, 0)]
    assert ["[CLS]", *lines[1].split(), "[SEP]"][7:9] == ["d", "e"]


def test_a_separator_in_a_question_is_text(maker):
    _, (line, *_) = maker.make(asked("[SEP] x", []))
    assert line.split()[:3] == ["[UNK]", "s", "[SEP]"]
    assert line.split().count("[SEP]") == 1


@pytest.mark.parametrize(
    ("text", "start", "tokens"),
    [("ab", 0, (0, 0)), ("ab cd", 0, (0, 1)), ("b c", 1, (0, 1)), ("d", 4, (1, 1))],
)
def test_an_answer_within_tokens(text, start, tokens):
    assert find_answer([(0, 2), (3, 5)], text, start) == tokens


def test_an_answer_without_tokens():
    with pytest.raises(MalformedRecordError, match="no token of the passage belongs to the answer ' '"):
        find_answer([(0, 2), (3, 5)], " ", 2)


def test_files(maker, tmp_path, malformed):
    questions = [asked("the", [("c", PASSAGE.index("c d"))], "1"), asked("quick", [], "2")]
    stats = write_windows(
        {"train": questions, "valid": questions[:1]}, tmp_path / "out", malformed, windows=maker, settings={}
    )
    for split, count in (("train", 2), ("valid", 1)):
        lines = (tmp_path / "out" / f"{split}.txt").read_text().splitlines()
        found = read_questions(questions_path(tmp_path / "out", split), stats["lines"][split])
        assert len(lines) == stats["lines"][split]
        assert [question.id for question in found] == ["1", "2"][:count]
        assert [question.passage for question in found] == [PASSAGE if split == "valid" else None] * count
    assert found[0].answer is not None
    (kept,) = read_squad_questions(tmp_path / "out" / "valid.json", malformed)
    assert (kept.id, kept.text, kept.passage, kept.answers) == ("1", "the", PASSAGE, questions[0].answers)
    assert not (tmp_path / "out" / "train.json").exists()


def test_mistakes(maker, tmp_path, malformed):
    wrong = WindowMaker(maker.tokenizer, max_positions=5, stride=0, max_query=2)
    with pytest.raises(UserError) as raised:
        write_windows({}, tmp_path / "out", malformed, windows=wrong)
    assert raised.value.problems == [
        "--stride must be at least 1, but is 0",
        "--max-positions must be more than --max-query and 3 special symbols (5), but is 5",
    ]
    with pytest.raises(UserError, match=r"dev\.json, question q: no token of the passage belongs to the answer"):
        write_windows({"train": [asked("a", [(" ", 3)])]}, tmp_path / "out", malformed, windows=maker)
