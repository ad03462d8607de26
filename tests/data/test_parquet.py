"""Rows of Parquet, read as lines of JSON."""

import json
import sys

import pytest

from s2sft_fairseq.data.parquet import _ROWS, open_parquet
from s2sft_fairseq.errors import UserError

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyarrow import parquet  # noqa: E402


@pytest.fixture
def written(tmp_path):
    """Write a file of columns."""

    def write(**columns):
        parquet.write_table(pyarrow.table(columns), tmp_path / "rows.parquet")
        return tmp_path / "rows.parquet"

    return write


def rows(path, *columns):
    with open_parquet(path, columns) as lines:
        return [json.loads(line) for line in lines]


def test_rows_are_objects_of_the_columns_in_their_order(written):
    count = 2 * _ROWS + 1
    path = written(id=range(count), answer=[["ü", "\n"]] * count, text=[f"text {i}\u2028\n{i}" for i in range(count)])
    assert rows(path, "text", "answer") == [
        {"text": f"text {i}\u2028\n{i}", "answer": ["ü", "\n"]} for i in range(count)
    ]
    with open_parquet(path, ["id"]) as lines:
        assert next(lines) == b'{"id": 0}\n'


def test_values_without_a_json_type(written):
    assert rows(written(a=[b"\xff", None], b=[1, None]), "a", "b") == [{"a": None, "b": 1}, {"a": None, "b": None}]


def test_mistakes(written, tmp_path):
    with pytest.raises(UserError, match=r"rows\.parquet must have the column\(s\) b, d, but has a, c"):
        rows(written(a=["x"], c=["y"]), "a", "b", "d")
    (tmp_path / "none.parquet").write_bytes(b"PAR1 and no more PAR1")
    with pytest.raises(UserError, match=r"none\.parquet: cannot be read as Parquet: "):
        rows(tmp_path / "none.parquet", "a")
    damaged = written(a=["x" * 1000, "y" * 1000])
    data = damaged.read_bytes()
    damaged.write_bytes(data[:4] + b"\xff" * 30 + data[34:])
    with pytest.raises(UserError, match=r"rows\.parquet: cannot be read as Parquet: "):
        rows(damaged, "a")
    with pytest.raises(FileNotFoundError):
        rows(tmp_path / "missing.parquet", "a")


def test_without_pyarrow(written, monkeypatch):
    path = written(a=["x"])
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(UserError, match=r"rows\.parquet, .* needs the package pyarrow, .*: pip install pyarrow"):
        rows(path, "a")
