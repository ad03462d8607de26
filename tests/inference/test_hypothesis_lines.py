"""Lines of an output: text, or JSON with all hypotheses."""

import json

import pytest
import torch
from tiny import CLS, PAD, SEP, tiny_dictionary

from s2sft_fairseq.inference.files import HypothesisLines


class Shouting:
    """A tokenizer whose text has line ends."""

    dictionary = tiny_dictionary()

    def decode(self, tokens):
        return tokens.upper().replace(" ", "\r\n")


def hypothesis(tokens, score, positional_scores):
    return {
        "tokens": torch.tensor(tokens),
        "score": torch.tensor(score),
        "positional_scores": torch.tensor(positional_scores),
    }


FOUND = [
    [hypothesis([5, 6, SEP], -0.12345678, [-0.5, -0.25, -0.123456]), hypothesis([7], -1.0, [-1.0])],
    [],
    [hypothesis([SEP], -2.0, [-2.0])],
]


def test_text_is_the_best_hypothesis_in_one_line():
    lines = HypothesisLines(Shouting(), {SEP}, json_lines=False)
    assert lines(3, FOUND) == ["W5 W6", "", ""]


def test_json_has_all_hypotheses():
    lines = HypothesisLines(Shouting(), {SEP}, json_lines=True)(3, FOUND)
    assert [json.loads(line) for line in lines] == [
        {
            "index": 3,
            "hypotheses": [
                {
                    "text": "W5\r\nW6",
                    "score": -0.123457,
                    "tokens": ["w5", "w6", "[SEP]"],
                    "positional_scores": [-0.5, -0.25, -0.1235],
                },
                {"text": "W7", "score": -1.0, "tokens": ["w7"], "positional_scores": [-1.0]},
            ],
        },
        {"index": 4, "hypotheses": []},
        {
            "index": 5,
            "hypotheses": [{"text": "", "score": -2.0, "tokens": ["[SEP]"], "positional_scores": [-2.0]}],
        },
    ]
    assert not any("\n" in line for line in lines)


def test_the_text_is_that_of_the_dictionary():
    """Fairseq removes eos, bos and symbols that the generator names; it writes an unknown word unchanged."""
    tokens = torch.tensor([CLS, 5, 1, SEP, 6, SEP, PAD])
    found = [[{"tokens": tokens}]]
    expected = Shouting().decode(Shouting.dictionary.string(tokens, extra_symbols_to_ignore={SEP}))
    assert HypothesisLines(Shouting(), {SEP}, json_lines=False)(0, found) == [expected.replace("\r\n", " ")]


@pytest.mark.parametrize("json_lines", [True, False])
def test_letters_are_written_as_they_are(json_lines):
    class Greek(Shouting):
        def decode(self, tokens):
            return "ω"

    (line,) = HypothesisLines(Greek(), {SEP}, json_lines=json_lines)(0, FOUND[:1])
    assert "ω" in line
