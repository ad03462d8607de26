"""Reading hypotheses, references and sources, tables and answers, and leads of texts."""

import gzip
import json
import re

import pytest
from raw_corpora import squad_with_impossible

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import (
    Example,
    Lead,
    group_by_source,
    read_answers,
    read_examples,
    read_table,
    split_sentences,
)
from s2sft_fairseq.evaluation.settings import Settings


@pytest.fixture
def write(tmp_path):
    """Write lines to a file and return its path."""

    def write_(name, *lines):
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return write_


def test_one_reference(write):
    found = read_examples(write("hyp", "a", ""), [write("ref", "b", "c")], None, Settings())
    assert found == [Example("a", ("b",)), Example("", ("c",))]


def test_several_references(write):
    files = [write("ref1", "b", "c"), write("ref2", "d", "")]
    found = read_examples(write("hyp", "a", "x"), files, write("src", "S", "T"), Settings())
    assert found == [Example("a", ("b", "d"), "S"), Example("x", ("c",), "T")]


def test_json_lines_for_every_file(write):
    """Names that end in .json, too; hypotheses are what s2sft generate writes."""
    hypotheses = write("hyp.jsonl", '{"index": 0, "hypotheses": [{"text": "a"}, {"text": "b"}]}', '{"hypotheses": []}')
    references = write("ref.json", '{"tgt": "a"}', '{"refs": ["c", "d"]}')
    found = read_examples(hypotheses, [references], write("src.json", '{"src": "S"}', '{"src": "T"}'), Settings())
    assert found == [Example("a", ("a",), "S", equality="exact"), Example("", ("c", "d"), "T")]
    for name, line, words in (
        ("hyp.jsonl", '{"hypotheses": [{}]}', '"hypotheses"'),
        ("hyp.jsonl", '{"text": "a"}', '"hypotheses"'),
        ("hyp.jsonl", '"a"', '"hypotheses"'),
        ("src.json", '{"source": "a"}', '"src"'),
        ("src.json", "a", '"src"'),
    ):
        files = {"hyp.jsonl": '{"hypotheses": []}', "src.json": '{"src": "S"}', name: line}
        paths = [write(each, text) for each, text in files.items()]
        with pytest.raises(UserError, match=rf"{name}: 1 line\(s\) are not a JSON object .*{words}.*: line 1"):
            read_examples(paths[0], [write("ref", "b")], paths[1], Settings())


def test_references_of_json_lines(write):
    references = write("ref.jsonl", json.dumps({"src": "s", "refs": ["b", "c"]}), json.dumps({"tgt": "d"}))
    found = read_examples(write("hyp", "a", "x"), [references], None, Settings())
    assert found == [Example("a", ("b", "c")), Example("x", ("d",))]


def test_compressed_references(write, tmp_path):
    with gzip.open(tmp_path / "ref.gz", "wt", encoding="utf-8") as file:
        file.write("é\n")
    assert read_examples(write("hyp", "a"), [tmp_path / "ref.gz"], None, Settings()) == [Example("a", ("é",))]


def test_grouping_takes_the_last_hypothesis_and_all_references():
    examples = [Example("h1", ("r1",), "s"), Example("h2", ("r2",), "t"), Example("h3", ("r3", "r4"), "s")]
    assert group_by_source(examples) == [Example("h3", ("r1", "r3", "r4"), "s"), Example("h2", ("r2",), "t")]


def test_grouping_while_reading(write):
    files = write("hyp", "A", "B", "C"), [write("ref", "X", "Y", "Z")], write("src", "s", "t", "S ")
    grouped = read_examples(*files, Settings(group_by_source=True, lowercase=True))
    assert grouped == [Example("c", ("x", "z"), "s"), Example("b", ("y",), "t")]
    assert len(read_examples(*files, Settings(group_by_source=True))) == 3


def test_different_numbers_of_lines(write):
    with pytest.raises(UserError) as error:
        read_examples(write("hyp", "a", "b", "c"), [write("ref", "a", "b")], write("src", "a"), Settings())
    assert "hyp has 3" in str(error.value)
    assert "ref has 2" in str(error.value)
    assert "src has 1" in str(error.value)


def test_files_that_are_missing_or_empty(write, tmp_path):
    with pytest.raises(UserError) as error:
        read_examples(write("hyp"), [tmp_path / "nothing"], None, Settings())
    assert "hyp: is empty" in str(error.value)
    assert "nothing: cannot be read" in str(error.value)


def test_examples_without_a_reference(write):
    files = [write("ref1", "b", "", ""), write("ref2", "", " ", "c")]
    with pytest.raises(UserError, match=r"ref1: 1 line\(s\) have no reference: line 2$"):
        read_examples(write("hyp", "a", "b", "c"), files, None, Settings())


@pytest.mark.parametrize("line", ["no JSON", "[]", "{}", '{"refs": "text"}', '{"refs": [1]}', '{"tgt": 1}'])
def test_malformed_json_lines(write, line):
    references = write("ref.jsonl", '{"tgt": "b"}', line)
    with pytest.raises(UserError, match=r'ref.jsonl: 1 line\(s\) are not a JSON object with .*"tgt": line 2$'):
        read_examples(write("hyp", "a", "b"), [references], None, Settings())


@pytest.fixture
def squad_files(tmp_path):
    data = [squad_with_impossible("Tower")]
    (tmp_path / "dev.json").write_text(json.dumps({"version": "v2.0", "data": data}))
    answers = {"Tower-0": "Tower", "Tower-1": "boat", "Tower-2": "", "another": "x"}
    (tmp_path / "answers.json").write_text(json.dumps(answers))
    (tmp_path / "odds.json").write_text(json.dumps({"Tower-0": -2.5, "Tower-1": 1, "Tower-2": 3.0}))
    return tmp_path


def table(path, *lines):
    path.write_text("".join(f"{line}\n" for line in lines))
    return path


def test_tables(tmp_path, call_command):
    said = table(tmp_path / "said.tsv", "index\tprediction", "0\t1", "1\t0", "2\t1")
    labels = table(tmp_path / "valid.label", "1", "1", "1")
    assert [(e.hypothesis, e.references) for e in read_table(said, labels)] == [
        ("1", ("1",)),
        ("0", ("1",)),
        ("1", ("1",)),
    ]
    call_command("evaluate", "--task", "mrpc", "--hyp", said, "--ref", labels, "--json", "scores.json")
    scores = json.loads((tmp_path / "scores.json").read_text())["systems"][str(said)]["scores"]
    assert {score["name"]: score["value"] for score in scores} == {
        "F1": pytest.approx(80),
        "accuracy": pytest.approx(200 / 3),
    }
    plain = table(tmp_path / "said.txt", "1", "1", "1")
    assert "100.00" in call_command("evaluate", "--task", "sst-2", "--hyp", plain, "--ref", labels).stdout


@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        (["id\tlabel", "0\t1"], r"must begin with the line 'index\\tprediction', but begins with 'id\\tlabel'"),
        (["index\tprediction", "0\t1", "2\t1", "2"], r"2 line\(s\) are not the next index and a prediction: line 3, 4"),
        (["index\tprediction", "0\t1"], r"each label needs a prediction: .* has 2, .* 1$"),
    ],
)
def test_damaged_tables(tmp_path, lines, problem):
    with pytest.raises(UserError, match=problem):
        read_table(table(tmp_path / "said.tsv", *lines), table(tmp_path / "labels", "1", "1"))


def test_answers(squad_files, call_command):
    examples = read_answers(squad_files / "answers.json", squad_files / "dev.json", squad_files / "odds.json")
    assert [(e.hypothesis, e.references[0], e.null_odds) for e in examples] == [
        *(("Tower", "Tower", -2.5), ("boat", "tells", 1.0), ("", "", 3.0))
    ]
    words = ("evaluate", "--task", "squad_v2", "--hyp", "answers.json", "--ref", "dev.json")
    plain = call_command(*words).stdout
    assert re.search(r"HasAns EM +HasAns F1 +NoAns EM +NoAns F1\n", plain)
    assert re.search(r"answers\.json +66\.67 +66\.67 +50\.00 +50\.00 +100\.00 +100\.00", plain)
    searched = call_command(*words, "--null-odds", "odds.json", "--null-threshold", -3).stdout
    assert re.search(r"answers\.json +33\.33 ", searched)
    assert "threshold of best F1" in searched
    wrong = call_command(*words, "dev.json", "--null-threshold", 1, status=2).stderr
    assert "--ref must be SQuAD's own file alone, but names 2 files" in wrong
    assert "--null-threshold needs --null-odds" in wrong
    wrong = call_command(
        "evaluate", "--task", "rouge", "--hyp", "a", "b", "--ref", "c", "--null-odds", "o", status=2
    ).stderr
    assert "--null-odds is for --metrics squad_v2" in wrong
    assert "--null-odds belongs to one file of answers: score one --hyp, and no --baseline-hyp" in wrong


def test_parts_that_the_official_programs_do_not_read(squad_files):
    """Titles, passages and places of answers can be missing or wrong."""
    questions = [{"id": "a", "answers": [{"text": "one"}, {"text": "two"}]}, {"id": "b", "answers": []}]
    (squad_files / "bare.json").write_text(json.dumps({"data": [{"paragraphs": [{"qas": questions}]}]}))
    (squad_files / "said.json").write_text('{"a": "two", "b": ""}')
    found = read_answers(squad_files / "said.json", squad_files / "bare.json")
    assert [(example.hypothesis, example.references) for example in found] == [("two", ("one", "two")), ("", ("",))]
    (squad_files / "bare.json").write_text(json.dumps({"data": [{"paragraphs": [{"qas": [{"id": "a"}]}]}]}))
    with pytest.raises(UserError, match=r"(?s)bare\.json must be a file of SQuAD's:.*lacks 'answers'"):
        read_answers(squad_files / "said.json", squad_files / "bare.json")


def test_missing_and_damaged_answers(squad_files):
    answers, data, odds = (squad_files / name for name in ("answers.json", "dev.json", "odds.json"))
    (squad_files / "few.json").write_text('{"Tower-0": "x"}')
    with pytest.raises(UserError) as raised:
        read_answers(squad_files / "few.json", data, odds)
    assert str(raised.value) == f"{squad_files / 'few.json'} lacks 2 question(s) of {data}: Tower-1, Tower-2"
    answers.write_text('{"Tower-0": 1}')
    with pytest.raises(UserError, match=r"must give a text for each question, but for 1 it does not: Tower-0$"):
        read_answers(answers, data)


@pytest.mark.parametrize(
    "sentences",
    [
        ["One is here.", "Two are there!", "Three?", "4 more."],
        ["Mr. Smith of the U.S. Army met J. R. Jones on Jan. 3 at No. 10.", "He left."],
        ['He said "Go."', '"Why?" asked she.', "(It was late.)", "\u201cStop!\u201d", "It cost 3.50 e.g. Here."],
        ["no capital. follows here"],
        [""],
    ],
)
def test_sentences(sentences):
    assert split_sentences(" ".join(sentences)) == sentences


def test_leads():
    text = "A is here .  B is there . C came ."
    assert Lead.parse("2-sentences").of(text) == "A is here . B is there ."
    assert Lead.parse("2-sentences").of(text, "[X_SEP]") == "A is here . [X_SEP] B is there ."
    assert Lead(9, "sentences").of(text, "|") == "A is here . | B is there . | C came ."
    assert Lead.parse("3-words").of(text, "|") == "A is here"
    assert Lead(99, "words").of(text) == "A is here . B is there . C came ."
    assert str(Lead.parse("3-words")) == "lead-3-words"


@pytest.mark.parametrize("text", ["0-words", "3", "words", "-1-words", "3-letters", "3-sentences-"])
def test_other_texts_are_no_lead(text):
    with pytest.raises(ValueError, match=f"such as 3-sentences, but is {text}$"):
        Lead.parse(text)
