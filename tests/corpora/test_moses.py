"""Pairs as the scripts of Moses prepare them."""

import sys
from types import SimpleNamespace

import pytest

from s2sft_fairseq.corpora.moses import is_clean, moses_tokenizer
from s2sft_fairseq.errors import UserError


@pytest.mark.parametrize(
    ("source", "target", "clean"),
    [
        *[(1, 1, True), (2, 3, True), (3, 2, True), (2, 4, False)],
        *[(0, 1, False), (0, 0, False), (175, 120, True), (176, 150, False)],
    ],
)
def test_lengths(source, target, clean):
    assert is_clean(" ".join("a" * source), " ".join("b" * target)) == clean


def test_a_package_that_is_missing(monkeypatch):
    monkeypatch.setitem(sys.modules, "sacremoses", None)
    with pytest.raises(UserError, match=r"--moses needs .*sacremoses"):
        moses_tokenizer("de")


def test_tokens_are_in_lower_case(monkeypatch):
    tokenizer = SimpleNamespace(tokenize=lambda text, *, return_str: text.replace(".", " ."))
    monkeypatch.setitem(sys.modules, "sacremoses", SimpleNamespace(MosesTokenizer=lambda lang: tokenizer))
    assert moses_tokenizer("de")("Der Ärger.") == "der ärger ."


def test_the_tokenizer_itself():
    pytest.importorskip("sacremoses", reason="sacremoses is not installed")
    english = "don &apos;t say &quot; r &amp; d &quot; now ."
    assert moses_tokenizer("en")('Don\'t say "R & D" now.') == english
    assert moses_tokenizer("de")("Das ist z.B. gut, sagt er.") == "das ist z.b. gut , sagt er ."
