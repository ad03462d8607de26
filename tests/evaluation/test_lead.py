"""The beginning of a text."""

import pytest

from s2sft_fairseq.evaluation.lead import Lead, split_sentences


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
