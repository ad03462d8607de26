"""Rows of Parquet as lines of JSON, for whatever reads these."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from s2sft_fairseq.data.bounded_files import readable
from s2sft_fairseq.errors import UserError, package

_ROWS = 1024  # that are read together: few enough for any memory


@contextmanager
def open_parquet(path: Path, columns: Sequence[str]) -> Iterator[Iterator[bytes]]:
    """Open a file; within the block its rows are an iterator of lines, an object of the columns each.

    A value that JSON does not have, such as bytes, becomes null.

    Args:
        path: the file.
        columns: those to read.

    Raises:
        UserError: if pyarrow is not installed, the file cannot be read as Parquet, or a column is missing.
    """
    arrow = package("pyarrow", f"{path}, as a file of Parquet,")
    parquet = package("pyarrow.parquet", f"{path}, as a file of Parquet,")
    try:
        with parquet.ParquetFile(readable(path)) as file:
            names = file.schema_arrow.names
            if missing := [name for name in columns if name not in names]:
                needed = ", ".join(missing)
                raise UserError(f"{path} must have the column(s) {needed}, but has {', '.join(names) or 'none'}")
            yield (
                json.dumps(row, ensure_ascii=False, default=lambda value: None).encode() + b"\n"
                for batch in file.iter_batches(_ROWS, columns=list(columns))
                for row in batch.to_pylist()
            )
    except (arrow.ArrowException, OSError) as error:
        if getattr(error, "errno", None):
            raise  # of the file system; pyarrow raises others for damaged pages
        raise UserError(f"{path}: cannot be read as Parquet: {error}") from None
