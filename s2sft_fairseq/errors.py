"""User errors, which are reported completely and without a traceback."""

import difflib
import importlib
import re
import reprlib
import sys
import traceback
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType
from typing import Any

# A UserError in a traceback that this process received as text, up to the next traceback of the chain.
_IN_TRACEBACK = re.compile(
    r"^(?:\w+\.)*UserError: (.*?)(?=\n\n(?:During handling|The above exception) |\Z)", re.M | re.S
)


class UserError(Exception):
    """A mistake that the user can correct. Its text names what was needed, what was found and where.

    `problems` are the single mistakes in the text, so that a caller can add others.
    """

    def __init__(self, text: str, problems: Iterable[str] = ()):
        super().__init__(text)
        self.problems = list(problems) or [text]

    @classmethod
    def of(cls, problems: Iterable[str], heading: str = "", *, most: int | None = None) -> "UserError":
        """Return one error for several problems, with a line for each.

        Args:
            problems: the problems.
            heading: the first line; "": it has their number.
            most: how many to name, see `first_of`; None: all.
        """
        found = list(problems)
        lines = found if most is None else first_of(found, most)
        if len(lines) == 1 and not heading:
            return cls(lines[0])
        items = [f"  - {_indented(line)}" for line in lines]
        return cls("\n".join([heading or f"{len(found)} problems:", *items]), lines)


def first_of(problems: Sequence[str], most: int, of: str = "") -> list[str]:
    """Return the first problems, and a last line with the number of the others if there are any.

    Args:
        problems: the problems.
        most: how many to return.
        of: what they belong to, for the last line.
    """
    others = len(problems) - most
    if others <= 0:
        return list(problems)
    place = f" of {of}" if of else ""
    return [*problems[:most], f"and {others:,} more{place}"]


def _indented(problem: str) -> str:
    """Return a problem of several lines as an item of a list."""
    return problem.replace("\n", "\n    ")


@contextmanager
def about(place: str | None) -> Iterator[None]:
    """Context manager that puts a place, such as a file, before the text of a `UserError` that does not name it."""
    try:
        yield
    except UserError as error:
        if place is None or place in str(error):
            raise
        raise UserError(f"{place}: {error}", error.problems) from None


class _Shown(reprlib.Repr):
    """A `repr` that is cut to a short text.

    Values of a pickle may refer to themselves, or repeat others so often that their full `repr` does not fit into
    memory. Python also refuses to print integers of more than 4,300 digits.
    """

    def __init__(self) -> None:
        super().__init__()
        self.maxlevel, self.maxlist, self.maxtuple, self.maxdict, self.maxset, self.maxstring = 2, 8, 8, 8, 8, 60

    def repr_int(self, value: int, level: int) -> str:
        return repr(value) if value.bit_length() < 128 else f"a whole number of {value.bit_length():,} bits"

    def repr_instance(self, value: Any, level: int) -> str:
        plain = isinstance(value, bool | float | complex | type(None))
        return repr(value) if plain else f"{repr(value[:60]) if isinstance(value, bytes) else type(value).__name__}"


_shown = _Shown()


def shown(value: object) -> str:
    """Return the text of a value from a file for a message: always one short line."""
    return f"{_shown.repr(value):.120}"


def printable(path: object) -> str:
    """Return the text of a path for the output: bytes that are not UTF-8 are shown as escapes."""
    return str(path).encode("utf-8", "backslashreplace").decode("utf-8")


def nearest_name(name: str, known: Iterable[str]) -> str | None:
    """Return the known name that is nearest to a misspelled one, or None if none is near."""
    found = difflib.get_close_matches(name, list(known), n=1)
    return found[0] if found else None


def as_option(name: str) -> str:
    """Return the option of an attribute name, such as ``--max-len`` for ``max_len``."""
    return f"--{name.replace('_', '-')}"


def user_error_text(error: BaseException | None) -> str | None:
    """Return the text of the `UserError` that caused `error`, or None if there is none.

    fairseq replaces exceptions by its own ("Cannot load model parameters ..."). Spawned processes and data loading
    workers pass their traceback as text.
    """
    while error is not None:
        text = str(error)
        if in_traceback := _IN_TRACEBACK.search(text):
            return in_traceback[1].rstrip()
        if isinstance(error, UserError):
            return text
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return None


def stated_by_fairseq(error: Exception) -> str | None:
    """Return the text for the user if `error` is about a file, or a mistake that fairseq found; None for a bug.

    These are fairseq's assertions about its options, and exceptions with a text that fairseq's own code raises ("The
    dataset is empty. ..."). Exceptions of the libraries that it calls do not count.
    """
    if isinstance(error, OSError):
        return f"{error.filename}: {error.strerror}" if error.filename and error.strerror else str(error)
    if (hydra := sys.modules.get("hydra.errors")) and isinstance(error, hydra.ConfigCompositionException):
        return str(error)  # an override of s2sft hydra-train that Hydra does not understand
    frame, _ = list(traceback.walk_tb(error.__traceback__))[-1]
    raised = traceback.extract_tb(error.__traceback__)[-1].line or ""
    stated = isinstance(error, AssertionError) or raised.startswith("raise ")
    in_fairseq = frame.f_globals.get("__name__", "").partition(".")[0] in ("fairseq", "fairseq_cli")
    return str(error) or None if stated and in_fairseq else None


def install_excepthook() -> None:
    """Print only the text of an uncaught `UserError`; print other exceptions as before.

    fairseq's own commands do not catch `UserError`, and would print its traceback.
    """
    previous = sys.excepthook
    if getattr(previous, "prints_user_errors", False):
        return

    def excepthook(kind: type[BaseException], value: BaseException, trace: TracebackType | None) -> None:
        text = user_error_text(value)
        if text is None:
            previous(kind, value, trace)
        else:
            print(f"error: {text}", file=sys.stderr)

    excepthook.prints_user_errors = True  # type: ignore[attr-defined]
    sys.excepthook = excepthook


def package(name: str, wanted: str, installed_as: str | None = None) -> Any:
    """Import an optional package.

    Args:
        name: the name of the package.
        wanted: the option or feature that needs it, for the message.
        installed_as: the name for pip, if it is different.

    Raises:
        UserError: the package is not installed.
    """
    try:
        return importlib.import_module(name)
    except ImportError:
        raise UserError(
            f"{wanted} needs the package {name}, which is not installed: pip install {installed_as or name}"
        ) from None
