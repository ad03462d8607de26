"""Spaces come back where ordinary text has them."""

import re

import pytest

from s2sft_fairseq.tokenization.wordpiece import detokenize

TEXTS = [
    "A sentence, with marks; and (brackets [in brackets]): good!",
    "Don't say we've, they'll or it's O'Brien's.",
    "the readers' own words",
    "He said \"go\" and 'stay' and left.",
    'The "first" and the "second".',
    "a state-of-the-art and/or max_length_option",
    "from 3.14 to 1,000 at 10:30 (-1 below)",
    "about £20-25 each",
    "It costs $5 or £6, 7% more, @home #1",
    "e.g. this, i.e. that",
    "down #.# percent to $#,### on the ##th, a ##-year-old said",
    "# percent of #.## or # in #, #-# at ##:##",
    "www.example.org or forbes.com",
    "call f() of at::native -- _private name",
    "passage [SEP] answer [MASK] rest",
    "[SEP] (x)",
    "the 1914–18 war—over",
    "中文字符，标点。日本の",
    "한국어 단어",
    "",
]


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_restored(text):
    # as BERT splits it: at white space, special tokens, every punctuation mark and Chinese character
    words = re.findall(r"\[SEP\]|\[MASK\]|[\u4e00-\u9fff]|£?[^\W_\u4e00-\u9fff]+|[^\w\s]|_", text)
    assert detokenize(words) == text


def test_a_quotation_that_was_cut():
    assert detokenize(["say", '"', "yes"]) == 'say "yes'
    assert detokenize(["'"]) == "'"
