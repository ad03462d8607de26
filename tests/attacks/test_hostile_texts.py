"""Tokenizers, corpora and JSON with values that nobody writes by mistake: errors name the file and a line or key."""

import gzip
import json
import zlib
from pathlib import Path

import pytest
from raw_corpora import squad, xsum
from tokenizer_folders import write_fastbpe, write_modernbert, write_sentencepiece, write_wordpiece

from s2sft_fairseq.corpora.data_to_text import read_webnlg_file
from s2sft_fairseq.corpora.pairs import USUAL, read_pairs
from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.squad import read_squad
from s2sft_fairseq.corpora.summarization import read_xsum
from s2sft_fairseq.data.bounded_files import LARGEST_FILE, LONGEST_LINE, parse_json, read_json
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import check_text, read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.question_answering.questions import read_questions
from s2sft_fairseq.spans.vocabulary import load_spans
from s2sft_fairseq.tokenization.folder import open_tokenizer

DEEP = {
    "lists": "[" * 100_000 + "]" * 100_000,
    "objects": '{"a":' * 500 + "1" + "}" * 500,
    "101": "[" * 101 + "]" * 101,
}


@pytest.mark.parametrize("name", DEEP)
def test_deep_json(tmp_path, name):
    (tmp_path / "a.json").write_text(DEEP[name])
    with pytest.raises(UserError, match=r"a\.json must be JSON: it is nested more than 100 deep"):
        read_json(tmp_path / "a.json")
    (tmp_path / "a.jsonl").write_text(f'{{"src": "a", "tgt": "b"}}\n{{"src": {DEEP[name]}}}\n')
    malformed = Malformed()
    assert len(list(read_pairs([tmp_path / "a.jsonl"], USUAL, malformed))) == 1
    assert malformed.lines() == [f"{tmp_path / 'a.jsonl'}:2: is not valid JSON"]


def test_valid_json():
    assert parse_json(f"{'[' * 100}{2**63 - 1}, {-(2**63)}{']' * 100}") is not None
    assert parse_json(b'{"a": "\\ud83d\\ude00", "b": [1e3, null, true]}') == {"a": "😀", "b": [1e3, None, True]}


@pytest.mark.parametrize("text", [f"[{2**63}]", "9" * 5000, "-" + "9" * 30, '"\\ud800"', '{"\\udc00": 1}', "", "[1,]"])
def test_invalid_json(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=r"a\.json must be JSON: "):
        read_json(tmp_path / "a.json")


def letters(path: Path, count: int, before: bytes = b"") -> Path:
    """Write a ``.gz`` of this many letters without a line end."""
    pack = zlib.compressobj(9, wbits=31)
    parts = [pack.compress(before), *(pack.compress(b"a" * 2**20) for _ in range(count // 2**20)), pack.flush()]
    path.write_bytes(b"".join(parts))
    return path


def test_a_line_of_256_megabytes(tmp_path):
    path = letters(tmp_path / "a.jsonl.gz", 2**28, b'{"src": "a", "tgt": "b"}\n' * 3)
    assert path.stat().st_size < 300_000
    message = rf"a\.jsonl\.gz, line 4: must have at most {LONGEST_LINE:,} bytes, but has more"
    malformed = Malformed()
    for read in (
        lambda: list(read_pairs([path], USUAL, malformed)),
        lambda: check_text(path),
        lambda: list(read_lines(path)),
    ):
        with pytest.raises(UserError, match=message):
            read()


def test_a_long_line_that_is_not_compressed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"one\ntwo\n" + b"a" * (LONGEST_LINE + 2**21) + b"\n")
    with pytest.raises(UserError, match=r"a\.txt, line 3: must have at most 67,108,864 bytes"):
        check_text(path)
    path.write_bytes(b"a" * LONGEST_LINE)
    assert check_text(path).lines == 1


def test_a_corpus_that_unpacks_to_more_than_memory(tmp_path):
    squad(tmp_path)
    (tmp_path / "dev-v1.1.json.gz").unlink()
    path = letters(tmp_path / "train-v1.1.json.gz", LARGEST_FILE + 2**21)
    (tmp_path / "train-v1.1.json").unlink()
    (tmp_path / "dev-v1.1.json").write_text("{}")
    assert path.stat().st_size < 300_000
    with pytest.raises(UserError, match=rf"train-v1\.1\.json\.gz: must have at most {LARGEST_FILE:,} bytes, unpacked"):
        read_squad(tmp_path, Malformed())


def test_two_files_in_one_gz(tmp_path):
    """This is valid: gzip files can be concatenated."""
    (tmp_path / "a.txt.gz").write_bytes(gzip.compress(b"one\n") + gzip.compress(b"two\n"))
    assert check_text(tmp_path / "a.txt.gz").lines == 2
    assert list(read_lines(tmp_path / "a.txt.gz")) == ["one", "two"]


@pytest.mark.parametrize("title", [[], {}, 1, None])
def test_titles_of_squad(tmp_path, title):
    squad(tmp_path)
    path = tmp_path / "train-v1.1.json"
    document = json.loads(path.read_text())
    document["data"][0]["title"] = title
    path.write_text(json.dumps(document))
    malformed = Malformed()
    for examples in read_squad(tmp_path, malformed).values():
        list(examples)
    assert malformed.lines() == [f"{path}, article 1: 'title' must be a text, but is {title!r}"]


@pytest.mark.parametrize("name", ["../outside", "x" * 5000, "a\x00b", 7, {"a": 1}], ids=lambda name: f"{name!r:.12}")
def test_articles_of_xsum(tmp_path, name):
    xsum(tmp_path / "raw")
    (tmp_path / "raw" / "outside.summary").write_text("[SN]FIRST-SENTENCE[SN]\na\n[SN]RESTBODY[SN]\nb\n")
    path = tmp_path / "raw" / "XSum-TRAINING-DEV-TEST-SPLIT-90-5-5.json"
    path.write_text(json.dumps({"train": [name], "validation": [], "test": []}))
    malformed = Malformed()
    assert list(read_xsum(tmp_path / "raw", malformed)["train"]) == []
    assert len(malformed.lines()) == 1 and malformed.lines()[0].startswith(f"{path}, split train: there is no ")


def test_a_sentencepiece_model_without_pieces(tmp_path):
    write_sentencepiece(tmp_path)
    (tmp_path / "sentencepiece.bpe.model").write_bytes(b"")
    with pytest.raises(
        UserError, match=r"sentencepiece\.bpe\.model must have a piece for unknown text, but none of its 0 pieces"
    ):
        open_tokenizer(tmp_path)


XML = {
    "a billion laughs": '<!DOCTYPE a [<!ENTITY b "x">'
    + "".join(f'<!ENTITY c{n} "{(f"&c{n - 1};" if n else "&b;") * 10}">' for n in range(12))
    + "]><a>&c11;</a>",
    "a file of others": '<!DOCTYPE a [<!ENTITY b SYSTEM "file:///etc/hostname">]><a>&b;</a>',
    "no encoding": '<?xml version="1.0" encoding="none"?><a/>',
    "several bytes": '<?xml version="1.0" encoding="utf-32"?><a/>',
}


@pytest.mark.parametrize("name", XML)
def test_xml(tmp_path, name):
    (tmp_path / "a.xml").write_text(XML[name])
    malformed = Malformed()
    assert list(read_webnlg_file(tmp_path / "a.xml", "en", malformed)) == []
    assert len(malformed.lines()) == 1 and "is no well-formed XML: " in malformed.lines()[0]


@pytest.mark.parametrize("name", ["do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space"])
@pytest.mark.parametrize("value", ["false", "", 0, 1, [], {}, 1.5])
def test_settings_that_must_be_true_or_false(tmp_path, name, value):
    write_wordpiece(tmp_path)
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({name: value}))
    with pytest.raises(UserError) as error:
        open_tokenizer(tmp_path)
    assert f"tokenizer_config.json: {name} must be true, false or null, but is {value!r}" in str(error.value)


@pytest.mark.parametrize(
    "added",
    [
        {"a!": 85, "b!": 85},
        {"a!": 85, "b!": 87},
        {"[PAD]": 1},
        {"a!": True},
        {"a!": "85"},
        {"a!": -1},
        {"a!": 8.5},
        [1],
    ],
    ids=str,
)
def test_added_tokens_that_contradict_each_other(tmp_path, added):
    write_wordpiece(tmp_path)
    (tmp_path / "added_tokens.json").write_text(json.dumps(added))
    with pytest.raises(UserError, match=r"added_tokens\.json"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("value", [7, None, [1], {"a": {"a": 1}}, "x", True])
@pytest.mark.parametrize("part", ["normalizer", "added_tokens", "model"])
def test_a_tokenizer_json_with_parts_of_other_types(tmp_path, part, value):
    write_modernbert(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    (path).write_text(json.dumps({**document, part: value}))
    if (part, value) in (("normalizer", None), ("added_tokens", None)):
        return  # null is the same as leaving it out
    with pytest.raises(UserError, match=r"tokenizer\.json"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize(
    "token", [{"content": 1, "id": 500}, {"content": "a", "id": "5"}, {"content": "a", "id": True}, {}, 5]
)
def test_added_tokens_of_a_tokenizer_json(tmp_path, token):
    write_modernbert(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    document["added_tokens"].append(token)
    path.write_text(json.dumps(document))
    with pytest.raises(UserError, match=r"tokenizer\.json must hold "):
        open_tokenizer(tmp_path)


def test_invalid_codes(tmp_path):
    write_fastbpe(tmp_path)
    (tmp_path / "codes").write_text("")
    with pytest.raises(UserError, match="codes must hold pairs of pieces, a line each, but is empty"):
        open_tokenizer(tmp_path)


NUMBERS = ["9" * 5000, "1" * 19, "²", "٣", "-1", "1.0", ""]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:5])
def test_counts_of_a_dictionary(tmp_path, number):
    (tmp_path / "dict.txt").write_text(f"[PAD] 1\na {number}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"dict\.txt, line 2: needs '<symbol> <count>', found 'a "):
        PretrainedDictionary.load(str(tmp_path / "dict.txt"))


@pytest.mark.parametrize("number", NUMBERS[:2], ids=lambda number: number[:5])
def test_ids_of_a_vocabulary(tmp_path, number):
    (tmp_path / "vocab.txt").write_text(f"[PAD]\t0\n[UNK]\t{number}\n")
    with pytest.raises(UserError, match=r"vocab\.txt, line 2: the id after the tab must be 1, but is [19]{19,40}$"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("number", ["1e400", "true", '"1"', "null", "1.0"])
def test_numbers_of_a_span_vocabulary(tmp_path, number):
    first = f'{{"format": "s2sft span vocabulary", "version": 1, "listed": {{"bigrams": {number}, "trigrams": 0}}}}'
    (tmp_path / "spans.txt").write_text(f"{first}\ncontinuing\t\n")
    dictionary = PretrainedDictionary.of(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    with pytest.raises(
        UserError, match=r"spans\.txt, line 1: needs whole numbers of n-grams in listed, but bigrams is "
    ):
        load_spans(tmp_path / "spans.txt", dictionary)


QUESTION = {"id": "q", "query": 3, "windows": [[0, 4]], "answer": [1, 2], "passage": "a b", "offsets": [[0, 1]]}


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("id", value) for value in (1, None, [])),
        *(("query", value) for value in ("3", -1, 1e400, True)),
        *(("windows", value) for value in (None, {}, [[0]], [[0, 1, 2]], [["0", 1]], [[0, 1e400]], [[-1, 4]], "ab")),
        *(("answer", value) for value in (5, [1], [1, 2.5], "12", {})),
        *(("passage", value) for value in (1, [])),
        *(("offsets", value) for value in (1, [1], [[0, None]])),
        ("further", 1),
    ],
)
def test_a_question(tmp_path, key, value):
    path = tmp_path / "train.questions.jsonl"
    path.write_text(f"{json.dumps(QUESTION)}\n{json.dumps({**QUESTION, key: value})}\n")
    with pytest.raises(
        UserError, match=r"questions\.jsonl: 1 line\(s\) were not written by s2sft prepare squad: line 2$"
    ):
        read_questions(path, 2)


@pytest.mark.parametrize("text", ["[1]", "1.5", "null", '"a"', "{}", "[" * 5000])
def test_a_line_that_is_no_question(tmp_path, text):
    path = tmp_path / "train.questions.jsonl"
    path.write_text(f"{text}\n")
    with pytest.raises(UserError, match=r"questions\.jsonl: 1 line\(s\) were not written"):
        read_questions(path, 1)
