"""A column of Parquet that is called text, and is not UTF-8."""

import pytest

from s2sft_fairseq.data.parquet import open_parquet
from s2sft_fairseq.errors import UserError

pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")
parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed")


def test_text_that_is_not_utf8(tmp_path):
    text = pyarrow.array([b"a", b"\xff\xfe"], pyarrow.binary()).view(pyarrow.string())
    parquet.write_table(pyarrow.table({"src": text}), tmp_path / "a.parquet")
    with (
        pytest.raises(UserError, match=r"a\.parquet: cannot be read as Parquet: .*utf-8"),
        open_parquet(tmp_path / "a.parquet", ["src"]) as rows,
    ):
        list(rows)
