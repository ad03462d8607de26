"""Reading examples."""

import gzip
import json

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example, group_by_source, read_examples
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
    with pytest.raises(UserError, match=r'ref.jsonl: 1 line\(s\) are no JSON object with a list .*"tgt": line 2$'):
        read_examples(write("hyp", "a", "b"), [references], None, Settings())
