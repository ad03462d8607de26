"""Lengths of sources and targets: what is counted, what is cut, and the histogram."""

import csv

import numpy as np
import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.plots.lengths import Side, draw, measure, write_csv


def test_binarized_data(tiny_corpus, tiny_data):
    """[CLS] and two [SEP] are counted with the tokens of a line."""
    lines = (tiny_corpus / "train.src").read_text(encoding="utf-8").splitlines()
    tokens = np.array([len(line.split()) for line in lines])
    sources, targets = measure([tiny_data], "train", None, None, None)
    assert (sources.positions == tokens + 2).all() and (targets.positions == tokens + 1).all()
    assert (sources.limit, targets.limit, sources.cut, targets.cut) == (464, 48, 0, 0)
    sources, targets = measure([tiny_data], "train", None, 7, 6)
    assert sources.cut == targets.cut == np.mean(tokens > 5) > 0
    assert f"50 sources: median {np.median(tokens + 2):.0f}" in str(sources)
    assert f"{100 * np.mean(tokens > 5):.2f} % are cut to 7" in str(sources)


def test_text_files_have_the_lengths_of_binarized_ones(tiny_corpus, tiny_data, tiny_parts):
    files = [tiny_corpus / "valid.src", tiny_corpus / "valid.tgt"]
    expected = measure([tiny_data], "valid", None, None, None)
    found = measure(files, "train", tiny_parts / "encoder", None, None)
    for one, other in zip(found, expected, strict=True):
        assert (one.positions == other.positions).all() and one.limit == other.limit


def test_limits_of_a_model(tiny_data, tiny_parts):
    sides = measure([tiny_data], "train", tiny_parts / "model", None, 9)
    assert [side.limit for side in sides] == [16, 9]


def test_the_cut_is_that_of_the_layout(tiny_data):
    """A text is cut exactly if its laid-out form lacks a token."""
    from s2sft_fairseq.plots.lengths import _form

    form = _form(None, 7, 6)
    for length in range(9):
        is_cut = len(form.source(np.ones(length, dtype=np.int64))) < length + form.source_specials
        assert is_cut == (length + form.source_specials > form.max_source)


def test_numbers(tmp_path):
    side = Side("sources", np.array([3, 5, 5, 9]), 5)
    write_csv([side], tmp_path / "out.csv")
    with (tmp_path / "out.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.reader(stream))
    assert rows == [
        ["side", "positions", "texts", "cut"],
        ["sources", "3", "1", "0"],
        ["sources", "5", "2", "0"],
        ["sources", "9", "1", "1"],
    ]


@pytest.mark.parametrize("limit", [2, 50, 464, 5000])
@pytest.mark.parametrize("longest", [2, 60, 20000])
def test_histogram(tmp_path, monkeypatch, limit, longest):
    """Every text is in a bar, and a bar is cut as a whole or not at all."""
    from matplotlib.axes import Axes

    bars = []
    monkeypatch.setattr(Axes, "bar", lambda axes, x, height, width, **style: bars.append((x, height, width, style)))
    side = Side("sources", np.random.default_rng(1).integers(2, longest + 1, size=1000), limit)
    draw([side], tmp_path / "lengths.svg")
    (kept_x, kept, width, _), (cut_x, cut, _, style) = bars
    assert kept.sum() + cut.sum() == 1000 and cut.sum() == round(1000 * side.cut)
    assert (kept_x + width <= limit + 0.5).all() and (cut_x >= limit + 0.5).all()
    assert style["hatch"]


def test_the_picture(tmp_path):
    sides = [Side(name, np.array([3, 5, 5, 9]), 5) for name in ("sources", "targets")]
    draw(sides, tmp_path / "lengths.svg")
    text = (tmp_path / "lengths.svg").read_text(encoding="utf-8")
    assert "<!-- 4 sources: median 5" in text and "25.00 % are cut to 5" in text and "limit: 5 positions" in text


def test_mistakes(tiny_corpus, tiny_data, tmp_path):
    with pytest.raises(UserError, match=r"train\.src alone"):
        measure([tiny_corpus / "train.src"], "train", None, None, None)
    with pytest.raises(UserError, match="--encoder is needed"):
        measure([tiny_corpus / "train.src", tiny_corpus / "train.tgt"], "train", None, None, None)
    with pytest.raises(UserError, match="no data for the split 'dev'"):
        measure([tiny_data], "dev", None, None, None)
    with pytest.raises(UserError, match=r"one language pair, but .* has: none"):
        measure([tmp_path], "train", None, None, None)
