"""Settings of recipes: options of ``s2sft recipe``, keys of its configuration files, and the source of each value."""

import argparse
import json
import tomllib
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from s2sft_fairseq.errors import UserError, as_option

BySource = Mapping[str, Mapping[str, Any]]
"""Values of settings by the source they are from, such as a table of a paper; "" is the program's own choice."""


class Setting(NamedTuple):
    """An option and its default; a whole number where `least` is not None, a switch where the default is a bool."""

    default: Any
    help: str = ""
    metavar: str = "N"
    least: int | None = None
    choices: Sequence[str] = ()
    is_required: bool = False

    def read(self, name: str, value: object) -> Any:
        """Return the value of the setting.

        Raises:
            UserError: if it must be another one.
        """
        text, option = str(value), as_option(name)
        if self.choices and text not in self.choices:
            raise UserError(f"{option} must be one of {', '.join(self.choices)}, but is {text}")
        if self.least is not None and not (text.isdecimal() and int(text) >= self.least):
            raise UserError(f"{option} must be a whole number of at least {self.least}, but is {text}")
        return value if isinstance(self.default, bool) else text if self.least is None else int(text)

    def add_to(self, parser: argparse.ArgumentParser, name: str, *, is_checked: bool = False) -> None:
        """Add the option to a parser.

        Args:
            is_checked: whether the parser checks values, and knows the default; or else leaves both to `read`.
        """
        default = "" if self.default in (None, "", False) else f" (default: {self.default})"
        how: dict[str, Any] = {"help": f"{self.help}{default}"}
        if isinstance(self.default, bool):
            how["action"] = "store_true"
        elif not is_checked:
            how["metavar"] = f"{{{','.join(self.choices)}}}" if self.choices else self.metavar
        elif self.choices:
            how |= {"choices": self.choices, "default": self.default, "required": self.is_required}
        else:
            how |= {"default": self.default, "required": self.is_required, "metavar": self.metavar}
            how["type"] = str if self.least is None else int
        parser.add_argument(as_option(name), **how)


class Settings(SimpleNamespace):
    """The values of settings as attributes.

    A value that is given, by the user or by a preset, is not replaced by one that is taken for lack of another.
    """

    def __init__(self, declared: Mapping[str, Setting], *defaults: BySource) -> None:
        super().__init__(declared=declared, source_of={}, given=set())
        for values in ({"": {name: setting.default for name, setting in declared.items()}}, *defaults):
            self.take(values)

    def take(self, values: BySource) -> None:
        """Set what is not given."""
        for source, named in values.items():
            for name, value in named.items():
                if name not in self.given:
                    setattr(self, name, value)
                    self.source_of.pop(name, None)
                    self.source_of[name] = source  # the last ones are the most special ones

    def give(self, values: BySource) -> None:
        """Set what is not given already, the first source before the others, and count it as given."""
        for source, named in values.items():
            self.take({source: named})
            self.given.update(named)

    def to_toml(self, head: str, left_out: Iterable[str]) -> str:
        """Return a configuration file.

        Args:
            head: its comment.
            left_out: names of settings that are not in it.
        """
        lines = [f"# {line}".rstrip() for line in head.splitlines()]
        names = [name for name in self.declared if name not in left_out and getattr(self, name) is not None]
        for source in dict.fromkeys(reversed(self.source_of.values())):
            values = {name: getattr(self, name) for name in names if self.source_of[name] == source}
            if values:
                lines += ["", f"# {source or 'usual values'}"]
                lines += [f"{name} = {json.dumps(value, ensure_ascii=False)}" for name, value in values.items()]
        return "\n".join(lines)


def read_toml(path: Path) -> dict[str, Any]:
    """Return what a configuration file holds.

    Raises:
        UserError: if it cannot be read.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise UserError(f"--config {path} must be a TOML file: {error}") from None


def read_values(declared: Mapping[str, Setting], values: Mapping[str, object], where: str = "") -> dict[str, Any]:
    """Return the values of settings by name.

    Args:
        where: the file that they are from, for messages.

    Raises:
        UserError: naming every value that cannot be, and every name that is no setting.
    """
    found, problems = {}, []
    for name, value in values.items():
        if name not in declared:
            problems.append(f"{where}there is no setting {name}: known are {', '.join(declared)}")
            continue
        try:
            found[name] = declared[name].read(name, value)
        except UserError as error:
            problems.append(f"{where}{error}")
    if problems:
        raise UserError.of(problems)
    return found
