"""Tokens added at conversion, and symbols for rows without a token."""

import pytest
import torch

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.embedding_tables import add_tokens
from s2sft_fairseq.errors import UserError

SYMBOLS = ["[PAD]", "[MASK]", "same", "same", "end"]


def conversion(**more):
    table = torch.arange(10, dtype=torch.float32).view(5, 2)
    return Conversion("BERT", {"embeddings.tokens.weight": table, **more}, {})


def test_initial_values_of_new_rows():
    made = conversion(**{"lm_head.bias": torch.tensor([1.0, 2, 3, 4, 10])})
    symbols = list(SYMBOLS)
    assert add_tokens(made, symbols, ["[ATTN]=[MASK]", "new", "copy=same"]) == ["[ATTN]", "new", "copy"]
    assert symbols == [*SYMBOLS, "[ATTN]", "new", "copy"]
    assert made.weights["embeddings.tokens.weight"].tolist() == [
        *([0, 1], [2, 3], [4, 5], [6, 7], [8, 9]),
        *([2, 3], [4, 5], [6, 7]),  # a copy, the mean, the last of two with the same name
    ]
    assert made.weights["lm_head.bias"].tolist() == [1, 2, 3, 4, 10, 2, 4, 4]


def test_an_output_embedding_of_its_own():
    made = conversion(**{"lm_head.weight": -torch.arange(10.0).view(5, 2)})
    add_tokens(made, list(SYMBOLS), ["[ATTN]=[MASK]", "new"])
    assert made.weights["lm_head.weight"][5:].tolist() == [[-2, -3], [-4, -5]]


def test_without_an_output_bias_and_in_half_precision():
    made = conversion()
    made.weights["embeddings.tokens.weight"] = made.weights["embeddings.tokens.weight"].half()
    add_tokens(made, list(SYMBOLS), ["new"])
    assert made.weights["embeddings.tokens.weight"].dtype == torch.float16
    assert made.weights["embeddings.tokens.weight"].shape == (6, 2)
    assert "lm_head.bias" not in made.weights


def test_nothing_to_add():
    made = conversion()
    before = made.weights["embeddings.tokens.weight"]
    assert add_tokens(made, list(SYMBOLS), []) == []
    assert made.weights["embeddings.tokens.weight"] is before


def test_all_problems_are_reported():
    with pytest.raises(UserError) as raised:
        add_tokens(conversion(), list(SYMBOLS), ["end=[UNK]", "two words", "=end", "new=absent", "new"])
    assert raised.value.problems == [
        "--add-token end: the vocabulary holds it already, as id 4",
        "--add-token must be NAME or NAME=OTHER, without white space, but is 'two words'",
        "--add-token must be NAME or NAME=OTHER, without white space, but is '=end'",
        "--add-token new=absent: the vocabulary has no 'absent' to copy",
        "--add-token new: it is given twice",
    ]
