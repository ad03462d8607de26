"""`fairseq-interactive` on text that is not UTF-8: fairseq fails with a traceback that names neither file nor line."""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path

from fairseq_cli import interactive

from s2sft_fairseq.data.text_files import check_text
from s2sft_fairseq.errors import UserError


def _explain_bad_text(read: Callable) -> Callable:
    @functools.wraps(read)
    def buffered_read(input: str, buffer_size: int) -> Iterator[list[str]]:
        try:
            yield from read(input, buffer_size)
        except UnicodeDecodeError as error:
            if input != "-":
                check_text(Path(input))
            raise UserError(f"--input {input}: must be UTF-8: {error}") from None

    return buffered_read


def apply() -> None:
    """Name the file and the lines, where they can be read again."""
    interactive.buffered_read = _explain_bad_text(interactive.buffered_read)
