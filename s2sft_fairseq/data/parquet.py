"""Rows of Parquet as JSON lines, so that the readers of JSON lines can read them."""

import json
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from s2sft_fairseq.checksums import check_files
from s2sft_fairseq.data.bounded_files import readable
from s2sft_fairseq.errors import UserError, package

_ROWS = 1024  # number of rows that are read together; few, to bound the memory


@contextmanager
def open_parquet(path: Path, columns: Sequence[str]) -> Iterator[Iterator[bytes]]:
    """Context manager that opens a file and yields an iterator over its rows, as lines with a JSON object each.

    Values that JSON does not support, such as bytes, become null.

    Args:
        path: the file.
        columns: the columns to read.

    Raises:
        UserError: if pyarrow is not installed, the file cannot be read as Parquet or
            differs from its checksum, or a column is missing.
    """
    arrow = package("pyarrow", f"{path}, as a file of Parquet,")
    parquet = package("pyarrow.parquet", f"{path}, as a file of Parquet,")
    check_files(path)
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
    except (arrow.ArrowException, OSError, UnicodeDecodeError) as error:
        if getattr(error, "errno", None):
            raise  # from the file system; pyarrow's errors for damaged pages have no errno
        raise UserError(f"{path}: cannot be read as Parquet: {error}") from None
