"""White space within symbols."""

import sys

import pytest

from s2sft_fairseq.tokenization.symbols import read_symbol, write_symbol


def test_every_white_space_character_is_written_and_read_back():
    for character in filter(str.isspace, map(chr, range(sys.maxunicode + 1))):
        symbol = write_symbol(f"a{character}{character}b")
        assert symbol.split() == [symbol]
        assert read_symbol(symbol) == f"a{character}{character}b"
    assert write_symbol("\u2028") == "<U+2028>"


@pytest.mark.parametrize("text", ["<U+0041>", "<U+FFFFFF>", "<0x20>", "<U+20>", "<U+0020", "##ing"])
def test_other_symbols_are_left_alone(text):
    assert write_symbol(text) == read_symbol(text) == text
