"""What pictures share."""

import csv

import pytest
from matplotlib.figure import Figure

from s2sft_fairseq.files import DiskError
from s2sft_fairseq.plots.drawing import LINES, MARKERS, TONES, save, write_table


def test_a_table(tmp_path):
    write_table(tmp_path / "new" / "table.csv", ("a", "b"), [(1, "x, y"), (2, "ü")])
    with (tmp_path / "new" / "table.csv").open(encoding="utf-8", newline="") as stream:
        assert list(csv.reader(stream)) == [["a", "b"], ["1", "x, y"], ["2", "ü"]]


@pytest.mark.parametrize(("name", "start"), [("a.png", b"\x89PNG"), ("a.svg", b"<?xml"), ("a.pdf", b"%PDF")])
def test_formats(tmp_path, name, start):
    save(Figure(figsize=(1, 1)), tmp_path / name)
    assert (tmp_path / name).read_bytes().startswith(start)


def test_a_folder_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(DiskError, match=r"a\.png could not be written"):
        save(Figure(figsize=(1, 1)), tmp_path / "file" / "new" / "a.png")


def test_styles_differ():
    for styles in (LINES, TONES, MARKERS):
        assert len(set(styles)) == len(styles)
