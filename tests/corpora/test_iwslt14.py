"""The files of IWSLT'14."""

import sys
from types import SimpleNamespace

import pytest
from raw_corpora import iwslt14

from s2sft_fairseq.corpora.iwslt14 import read_iwslt14
from s2sft_fairseq.errors import UserError


def test_german_to_english(tmp_path, malformed, pairs, sizes):
    iwslt14(tmp_path)
    splits = read_iwslt14(tmp_path, "de", "en", malformed)
    train, valid, test = (pairs(splits[name]) for name in ("train", "valid", "test"))
    assert (len(train), len(valid), len(test)) == (67, 3, 10)
    # The title of a talk is its first sentence; the 23rd of all is the third of the third talk.
    assert train[0] == ("Der Turm 0 steht dort .", ["The tower 0 is there ."])
    assert train[10][0] == "Der Turm 1 steht dort ." and train[11][0] == "Der Turm 10 steht dort ."
    assert valid[0] == ("Der Turm 21 steht dort .", ["The tower 21 is there ."])
    assert test[:2] == [(f"Der Turm {n} steht dort .", [f"The tower {n} is there ."]) for n in (1, 2)]
    assert not malformed.records


def test_the_other_way(tmp_path, malformed, pairs):
    iwslt14(tmp_path)
    assert pairs(read_iwslt14(tmp_path, "en", "de", malformed)["valid"])[0][0] == "The tower 21 is there ."


def test_missing_and_malformed_files(tmp_path, malformed, pairs):
    iwslt14(tmp_path)
    path = tmp_path / "IWSLT14.TED.tst2010.de-en.en.xml"
    text = path.read_text()
    path.write_text(text.replace('<seg id="2">', '<seg id="3">'))
    with pytest.raises(UserError, match="must have the same segments:") as error:
        pairs(read_iwslt14(tmp_path, "de", "en", malformed)["test"])
    assert [problem.split(".de-en.")[1] for problem in error.value.problems] == [
        "de.xml lacks 1 of them: document 7, segment 3",
        "en.xml lacks 1 of them: document 7, segment 2",
    ]
    path.write_text(text.replace("tower 2", "R &amp; D"))
    assert pairs(read_iwslt14(tmp_path, "de", "en", malformed)["test"])[5][1] == ["The R & D is there ."]
    path.write_text("nothing")
    with pytest.raises(UserError, match=r"en\.xml lacks 2 of them: document 7, segment 1, document 7, segment 2"):
        pairs(read_iwslt14(tmp_path, "de", "en", malformed)["test"])
    path.with_name(path.name.replace(".en.xml", ".de.xml")).write_text("nothing")
    with pytest.raises(UserError, match=r"en\.xml have none"):
        pairs(read_iwslt14(tmp_path, "de", "en", malformed)["test"])
    path.unlink()
    with pytest.raises(UserError, match=r"lacks IWSLT14\.TED\.tst2010\.de-en\.en\.xml"):
        read_iwslt14(tmp_path, "de", "en", malformed)


def test_invalid_bytes_are_counted_once(tmp_path, malformed):
    """The training files are read for training and again for validation, which use different lines."""
    iwslt14(tmp_path)
    path = tmp_path / "train.tags.de-en.de"
    path.write_bytes(path.read_bytes().replace(b"Turm 8 ", b"T\xfcrm 8 "))
    test = tmp_path / "IWSLT14.TED.tst2010.de-en.en.xml"
    test.write_bytes(test.read_bytes().replace(b"tower 2", b"t\xf6wer 2"))
    for examples in read_iwslt14(tmp_path, "de", "en", malformed).values():
        for example in examples:
            with malformed.record(example.path, example.where):
                example.reference_lines()
    assert malformed.records == {path: 1, test: 1}


def test_as_the_script_prepares_it(tmp_path, malformed, pairs, monkeypatch):
    """Tokens in lower case; pairs of unequal length are left out before every 23rd of the others is for validation."""
    tokenizer = SimpleNamespace(tokenize=lambda text, *, return_str: text.replace("'", " ' "))
    monkeypatch.setitem(sys.modules, "sacremoses", SimpleNamespace(MosesTokenizer=lambda lang: tokenizer))
    iwslt14(tmp_path)
    train = tmp_path / "train.tags.de-en.en"
    train.write_text(train.read_text().replace("The tower 1 is there .", "tower"))
    test = tmp_path / "IWSLT14.TED.tst2010.de-en.en.xml"
    test.write_text(test.read_text().replace("The tower 1", "The tower\u2019s 1"))
    splits = read_iwslt14(tmp_path, "de", "en", malformed, moses=True)
    found = {name: pairs(split) for name, split in splits.items()}
    assert (len(found["train"]), len(found["valid"]), len(found["test"])) == (66, 2, 10)  # of 70
    assert found["train"][0] == ("der turm 0 steht dort .", ["the tower 0 is there ."])
    assert found["valid"][0] == ("der turm 23 steht dort .", ["the tower 23 is there ."])
    assert found["test"][4][1] == ["the tower ' s 1 is there ."]
