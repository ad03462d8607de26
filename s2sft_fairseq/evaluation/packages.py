"""Modules of optional packages, or a message of what to install."""

from importlib import import_module
from importlib.metadata import version
from types import ModuleType

from s2sft_fairseq.errors import UserError


def optional_module(name: str, package: str, value: str, option: str = "--metrics") -> ModuleType:
    """Import the module `name` of `package`, which this value of an option needs.

    Raises:
        UserError: it is not installed.
    """
    try:
        return import_module(name)
    except ModuleNotFoundError:
        text = f"{option} {value} needs the package {package}, which is not installed: pip install {package}"
        raise UserError(text) from None


def tool(package: str) -> str:
    """The beginning of a signature."""
    return f"tool:{package}|version:{version(package)}"
