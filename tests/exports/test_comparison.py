"""Comparing an exported model with its original."""

import math

import pytest
import torch

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.checks import _finish
from s2sft_fairseq.exports.comparison import TEXTS, Comparison, compare, read_texts, write_comparison


def search(texts):
    return [[len(text), 4] for text in texts]


def logits(text, ids):
    return torch.full((len(ids) + 1, 3), float(len(text)))


def test_two_models_that_agree(tmp_path):
    found = compare("engine 1.0", ["a", "bcd"], search, search, logits, lambda *given: logits(*given) + 0.5)
    assert (found.equal, found.texts, found.largest_difference, found.differing) == (2, 2, 0.5, [])
    assert str(found) == "engine 1.0: 2 of 2 hypotheses are equal, logits within 5.0e-01"
    (tmp_path / "README.md").write_text("# A model\n")
    (tmp_path / "weights").write_bytes(bytes(2_500_000))
    write_comparison(tmp_path, found, 5_000_000)
    told = (tmp_path / "README.md").read_text()
    assert told.startswith("# A model\n")
    assert "| equal hypotheses | 2 of 2 |" in told
    assert "| largest difference of logits | 5.0e-01 |" in told
    assert "| size | 2.5 MB; of the original's weights 5.0 MB |" in told


def test_two_models_that_differ(tmp_path):
    other = lambda texts: [ids if len(text) > 1 else [7] for text, ids in zip(texts, search(texts), strict=True)]  # noqa: E731
    found = compare("engine", ["a", "bcd"], search, other)
    assert (found.equal, found.texts, found.largest_difference, found.differing) == (1, 2, None, ["a"])
    (tmp_path / "README.md").write_text("")
    write_comparison(tmp_path, found, 1)
    assert "* a\n" in (tmp_path / "README.md").read_text()
    assert "logits" not in (tmp_path / "README.md").read_text()


def test_columns_without_a_symbol_are_not_compared():
    padded = lambda text, ids: torch.nn.functional.pad(logits(text, ids), (0, 2), value=1e9)  # noqa: E731
    assert compare("engine", ["a"], search, search, logits, padded).largest_difference == 0


def test_texts(tmp_path):
    assert read_texts(None) == TEXTS
    (tmp_path / "texts").write_text("one\ntwo\n")
    assert read_texts(tmp_path / "texts") == ["one", "two"]
    (tmp_path / "empty").write_text("")
    with pytest.raises(UserError, match=r"^--verify .*empty must hold texts"):
        read_texts(tmp_path / "empty")
    with pytest.raises(UserError, match=r"^--verify .*missing must be a text file"):
        read_texts(tmp_path / "missing")


def test_a_difference_is_an_error(tmp_path):
    (tmp_path / "README.md").write_text("")
    equal = {"program": "engine", "texts": 3, "equal": 3, "largest_difference": 1e-5}
    assert _finish(tmp_path, tmp_path / "README.md", Comparison(**equal)).problems(is_exact=True) == []
    for change, named in (
        ({"equal": 2}, "1 of 3 hypotheses differ"),
        ({"largest_difference": 0.01}, "logits differ by 1.0e-02, but may differ by 1e-03"),
        ({"largest_difference": math.nan}, "logits differ by nan"),
    ):
        found = Comparison(**{**equal, **change})
        with pytest.raises(UserError, match=named):
            _finish(tmp_path, tmp_path / "README.md", found)
        assert found.problems(is_exact=False) == []  # rounded weights
    misread = Comparison(**equal, misread=["a\u00a0b"])
    for is_exact in (True, False):
        assert misread.problems(is_exact=is_exact) == ["the exported tokenizer reads 'a\\xa0b' differently"]
    with pytest.raises(UserError, match="is written, but differs from the model, as its README"):
        _finish(tmp_path, tmp_path / "README.md", misread)
    assert "* `'a\\xa0b'`" in (tmp_path / "README.md").read_text()


def test_logits_that_are_not_a_number():
    nan = lambda text, ids: logits(text, ids) * (math.nan if text == "a" else 1)  # noqa: E731
    assert math.isnan(compare("engine", ["a", "bcd"], search, search, logits, nan).largest_difference)
