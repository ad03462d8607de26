"""Attention weights of a model folder: rows of a distribution over what the rule lets a query see."""

import csv
import json
import shutil

import numpy as np
import pytest
from tiny_deltalm import write_deltalm

from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.plots.attention import attend, draw, write_csv


@pytest.fixture(scope="module")
def attention(tiny_parts):
    return attend(tiny_parts / "model", "a b", "b a")


def test_tokens(attention):
    assert attention.tokens == ["[CLS]", "a", "b", "[SEP]", "b", "a", "[SEP]", "[MASK]", "[MASK]", "[MASK]"]
    assert attention.positions == [0, 1, 2, 3, 4, 5, 6, 4, 5, 6]
    assert attention.labels == [""] * 7 + ["b", "a", "[SEP]"]
    assert attention.section.tolist() == [0] * 4 + [1] * 3 + [2] * 3


def test_weights(attention):
    assert np.allclose(attention.weights.sum(1), 1, atol=1e-6)
    assert (attention.weights[~attention.sees] == 0).all() and (attention.weights[attention.sees] > 0).all()
    # A placeholder sees the source, what comes before its token, and itself.
    assert attention.sees[8].astype(int).tolist() == [1, 1, 1, 1, 1, 0, 0, 0, 1, 0]


def test_heads(attention, tiny_parts):
    heads = [attend(tiny_parts / "model", "a b", "b a", 0, head).weights for head in (0, 1)]
    assert not np.allclose(*heads)
    assert np.allclose(np.mean(heads, axis=0), attention.weights, atol=1e-6)


def test_fields(tiny_parts):
    assert attend(tiny_parts / "model", "a [SEP] b", "b").tokens[:5] == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]


def test_numbers(attention, tmp_path):
    write_csv(attention, tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as stream:
        heading, *rows = csv.reader(stream)
    assert heading == ["token", "position", "label", "section", *attention.tokens]
    assert [row[:4] for row in rows[6:8]] == [["[SEP]", "6", "", "1"], ["[MASK]", "4", "b", "2"]]
    assert np.allclose(np.array([row[4:] for row in rows]).astype(float), attention.weights, atol=1e-6)


def test_the_picture(attention, tmp_path):
    draw(attention, tmp_path / "attention.svg")
    text = (tmp_path / "attention.svg").read_text(encoding="utf-8")
    assert "<!-- key; hatched: not seen -->" in text and text.count("<!-- [MASK]") == 6


def test_options_that_do_not_fit(tiny_parts):
    with pytest.raises(UserError) as error:
        attend(tiny_parts / "model", "a", "a " * 20, layer=1, head=2)
    assert [problem.split(",")[0] for problem in error.value.problems] == [
        "--layer must be from -1 to 0",
        "--head must be from 0 to 1",
        "--target must have at most 15 tokens",
    ]


def test_too_many_tokens(tiny_parts, monkeypatch):
    monkeypatch.setattr("s2sft_fairseq.plots.attention.MOST_TOKENS", 9)
    with pytest.raises(UserError, match="at most 9 packed tokens, but take 10"):
        attend(tiny_parts / "model", "a b", "b a")


def test_other_folders(tiny_parts, tmp_path):
    with pytest.raises(UserError, match="a converted encoder"):
        attend(tiny_parts / "encoder", "a", "b")
    with pytest.raises(UserError, match="nowhere is no folder"):
        attend(tmp_path / "nowhere", "a", "b")
    with pytest.raises(UserError, match="is an encoder-decoder, which has no packed sequence"):
        attend(write_deltalm(tmp_path / "deltalm", tokenizer="wordpiece"), "the dog", "the")
    model = shutil.copytree(tiny_parts / "model", tmp_path / "model")
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "engine": "onnx"}))
    write_checksums(model)
    with pytest.raises(UserError, match="is one for onnx"):
        attend(model, "a", "b")
