"""Pictures of packed examples, checked by the numbers next to them."""

import csv
import sys

import numpy as np
import pytest

from s2sft_fairseq.objectives.blocks import Blocks
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.plots.masks import GREYS, draw, pack_words

PLAIN = {"cut": Blocks(1, 1), "corruption": NO_CORRUPTION}


def test_pseudo_masked_fine_tuning():
    """Figure 1 of s2s-ft, for a source of one word and a target of two."""
    example = pack_words("pseudo_masked", ["x"], ["y", "z"], **PLAIN)
    assert example.tokens == ("[CLS]", "x", "[SEP]", "y", "z", "[SEP]", "[M]", "[M]", "[M]")
    assert example.labels == ("", "", "", "", "", "", "y", "z", "[SEP]")
    assert example.kinds() == ["source"] * 3 + ["target"] * 3 + ["placeholder"] * 3
    assert example.sees.astype(int).tolist() == [
        *[[1, 1, 1, 0, 0, 0, 0, 0, 0]] * 3,
        [1, 1, 1, 1, 0, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 0],
        [1, 1, 1, 1, 1, 1, 0, 0, 0],
        [1, 1, 1, 0, 0, 0, 1, 0, 0],
        [1, 1, 1, 1, 0, 0, 0, 1, 0],
        [1, 1, 1, 1, 1, 0, 0, 0, 1],
    ]


def test_a_causal_target_begins_with_the_separator_of_its_source():
    example = pack_words("causal", ["x"], ["y"], **PLAIN)
    assert example.tokens == ("[CLS]", "x", "[SEP]", "y")
    assert example.labels == ("", "", "y", "[SEP]")


def test_blocks_continue_after_the_end():
    example = pack_words("blocks", ["x"], ["y", "z"], cut=Blocks(2, 2, schedule="full"), corruption=NO_CORRUPTION)
    assert example.tokens[6:] == ("[M]",) * 4
    assert example.labels[6:] == ("y", "z", "[SEP]", "[SEP]")
    assert example.sees[6:, 6:].astype(int).tolist() == [[1, 1, 0, 0]] * 2 + [[0, 0, 1, 1]] * 2


@pytest.mark.parametrize("method", OBJECTIVES)
def test_every_objective_is_drawn(method, tmp_path):
    example = pack_words(method, ["a", "[SEP]", "b"], ["c", "d", "e"], cut=Blocks(), corruption=NO_CORRUPTION)
    draw(example, tmp_path / "masks.svg")
    text = (tmp_path / "masks.svg").read_text(encoding="utf-8")
    assert text.count("<!-- [CLS]") == 2 * example.tokens.count("[CLS]")  # an axis of queries and one of keys
    assert set(example.kinds()) <= set(GREYS)


def test_the_command(call_command, tmp_path):
    words = ["--method", "blocks", "--source", "x", "--target", "y z", "--block-length", "target"]
    done = call_command("plot", "masks", *words, "--output", str(tmp_path / "masks.png"))
    assert done.stdout == f"plot: wrote {tmp_path}/masks.png and {tmp_path}/masks.csv\n"
    assert (tmp_path / "masks.png").read_bytes().startswith(b"\x89PNG")
    with (tmp_path / "masks.csv").open(encoding="utf-8", newline="") as stream:
        heading, *rows = csv.reader(stream)
    assert heading[:6] == ["token", "position", "segment", "step", "group", "label"]
    assert [row[0] for row in rows] == heading[6:]
    # One block, which sees the source and itself; no content is packed.
    assert np.array([row[6:] for row in rows]).astype(int).tolist() == [[1, 1, 1, 0, 0, 0]] * 3 + [[1] * 6] * 3


def test_options_that_are_out_of_range(call_command):
    words = ["--method", "blocks", "--source", " ", "--target", "y", "--block-length", "0", "--output", "masks.txt"]
    done = call_command("plot", "masks", *words, "--target-mask-prob", "1.5", status=2)
    for stated in ("--source", "--block-length", "'0'", "--output", "masks.txt", "--target-mask-prob", "1.5"):
        assert stated in done.stderr


def test_options_of_other_methods(call_command):
    words = ["--source", "x", "--target", "y", "--output", "masks.png", "--block-length", "2", "--noise-prob", "0.5"]
    said = call_command("plot", "masks", *words, status=2).stderr
    assert "--block-length" in said and "--noise-prob" in said and "pseudo_masked" in said


def test_masked_fine_tuning_masks_half_of_the_target(call_command, tmp_path):
    """The corruption is the paper's."""
    words = ["--method", "masked", "--source", "x", "--target", "a b c d e f g h i j", "--output", "masks.svg"]
    call_command("plot", "masks", *words)
    with (tmp_path / "masks.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert 0 < sum(row["label"] != "" for row in rows) < 11


def test_matplotlib_is_missing(call_command, monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    words = ["--source", "x", "--target", "y", "--output", str(tmp_path / "masks.png")]
    assert "pip install matplotlib" in call_command("plot", "masks", *words, status=2).stderr
