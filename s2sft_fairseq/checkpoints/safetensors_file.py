"""Files in the format of safetensors: tensors by name, and nothing that could run code."""

from collections.abc import Mapping
from pathlib import Path

from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import step


def read_safetensors(file: Path) -> dict[str, Tensor]:
    """Return the tensors of a file; their data are read from the disk when they are used.

    Raises:
        UserError: if the file is damaged, or the package is not installed.
    """
    try:
        from safetensors.torch import load_file
    except ImportError:
        raise _not_installed(file) from None
    try:
        return load_file(file)
    except Exception as error:  # safetensors has its own error type for damaged files, and OSError for others
        raise UserError(f"{file} is damaged or no safetensors file: {error}") from None


def write_safetensors(weights: Mapping[str, Tensor], file: Path) -> None:
    """Write tensors. Each one must have its own storage.

    Raises:
        UserError: if the file could not be written, or the package is not installed.
    """
    try:
        from safetensors import SafetensorError
        from safetensors.torch import save_file
    except ImportError:
        raise _not_installed(file) from None
    try:
        with step(f"write {file.name}"):
            save_file(dict(weights), file, metadata={"format": "pt"})
    except SafetensorError as error:
        raise UserError(f"{file.name} could not be written: {error}") from None


def _not_installed(file: Path) -> UserError:
    return UserError(f"{file} needs the package safetensors, which is not installed: pip install safetensors")
