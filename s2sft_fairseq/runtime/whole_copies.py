"""fairseq writes checkpoint_best.pt and checkpoint_last.pt as copies, right into the file that was there before.

A training that is killed meanwhile has lost the old one and has no new one: there is nothing to go on from. Copied to a
file beside it, which then takes its name, the old one is there until the new one is whole.
"""

import functools
import os
import shutil
from collections.abc import Callable

from fairseq.file_io import PathManager


def _copy_beside(copy: Callable) -> Callable:
    @functools.wraps(copy)
    def copy_whole(src_path: str, dst_path: str, overwrite: bool = False) -> str | bool:
        if not (PathManager.supports_rename(src_path) and PathManager.supports_rename(dst_path)):
            return copy(src_path, dst_path, overwrite=overwrite)
        shutil.copyfile(src_path, f"{dst_path}.tmp")  # the name that fairseq gives to what it is saving
        os.replace(f"{dst_path}.tmp", dst_path)
        return True

    return copy_whole


def apply() -> None:
    """Replace fairseq's copying of local files."""
    PathManager.copy = staticmethod(_copy_beside(PathManager.copy))
