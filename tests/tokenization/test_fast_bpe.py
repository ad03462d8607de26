"""fastBPE's codes, applied by subword-nmt with the result of fastBPE itself."""

import io
import sys
from types import SimpleNamespace

import pytest
from tokenizer_folders import SENTENCES

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.fast_bpe import load_codes
from s2sft_fairseq.tokenization.folder import open_tokenizer

# Codes, words and the output of fastBPE 0.1.0.
CODES = ["t h 9", "e r</w> 8", "th e</w> 7", "o th 6", "l o 5", "lo w 4", "a a 3", "b c</w> 2", "é s</w> 1"]
RECORDED = {
    "the": "the",
    "other": "oth@@ er",
    "lower": "low@@ er",
    "thelow": "th@@ e@@ lo@@ w",
    "aaaaa": "aa@@ aa@@ a",
    "abcbc": "a@@ b@@ c@@ bc",
    "a": "a",
    "er": "er",
    "cafés": "c@@ a@@ f@@ és",
    "x@@y": "x@@ @@@ @@@ y",
    "😀the": "😀@@ the",
}


@pytest.fixture
def codes(tmp_path):
    path = tmp_path / "codes"
    path.write_text("".join(f"{line}\n" for line in CODES))
    return path


def test_pieces_are_those_of_fastbpe(codes):
    pieces_of = load_codes(codes)
    assert {word: " ".join(pieces_of(word)) for word in RECORDED} == RECORDED


def test_fastbpe_is_used_if_it_is_installed(codes, monkeypatch):
    class FastBPE:
        def __init__(self, codes_path: str, vocabulary_path: str) -> None:
            assert (codes_path, vocabulary_path) == (str(codes), "")

        def apply(self, lines: list[str]) -> list[str]:
            return [f"{line}@@ fast" for line in lines]

    monkeypatch.setitem(sys.modules, "fastBPE", SimpleNamespace(fastBPE=FastBPE))
    assert load_codes(codes)("x") == ["x@@", "fast"]


def test_neither_is_installed(codes, monkeypatch):
    monkeypatch.setitem(sys.modules, "fastBPE", None)
    monkeypatch.setitem(sys.modules, "subword_nmt.apply_bpe", None)
    with pytest.raises(UserError, match="codes needs the package subword-nmt, or fastBPE: pip install subword-nmt"):
        load_codes(codes)


def test_lines_are_those_of_subword_nmt(tokenizer_folder):
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe", reason="subword-nmt is not installed")
    folder = tokenizer_folder("fastbpe")
    pairs = [line.rpartition(" ")[0] for line in (folder / "codes").read_text().splitlines()]
    theirs, ours = apply_bpe.BPE(io.StringIO("\n".join(["#version: 0.2", *pairs]))), open_tokenizer(folder)
    for line in SENTENCES[:4]:
        assert ours.encode(line) == theirs.process_line(line)
        assert ours.decode(ours.encode(line)) == line


def test_pieces_missing_from_the_dictionary_are_unknown(tokenizer_folder):
    tokenizer = open_tokenizer(tokenizer_folder("fastbpe"))
    assert tokenizer.encode("  the\u2028dog 中\t") == "the do@@ g <unk>"
    assert tokenizer.encode("the <mask>") == "the <unk> m@@ a@@ s@@ k@@ >"
    assert tokenizer.decode("the <mask> d@@ og ju@@") == "the <mask> dog ju"


def test_damaged_codes(codes):
    codes.write_text("a b 1\n#version: 0.2\na b\n")
    with pytest.raises(UserError) as caught:
        load_codes(codes)
    assert str(caught.value).splitlines() == [
        f"2 malformed lines in {codes}:",
        f"  - {codes}, line 2: needs two pieces and a count, found '#version: 0.2'",
        f"  - {codes}, line 3: needs two pieces and a count, found 'a b'",
    ]
    codes.write_bytes(b"\xff \xff 1\n")
    with pytest.raises(UserError, match="codes: cannot be read as UTF-8 text"):
        load_codes(codes)
