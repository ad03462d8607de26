"""Settings of recipes: options of ``s2sft recipe``, keys of its configuration files, and the source of each value.

Presets are the settings of ERNIE-GEN and UniLMv2 for their benchmarks. Each has a line in ``presets.tsv``.
"""

import argparse
import csv
import json
import math
import os
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from numbers import Number
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from s2sft_fairseq import other_names
from s2sft_fairseq.data.bounded_files import parse_toml, read_text, whole_number
from s2sft_fairseq.errors import UserError, as_option, nearest_name, shown
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.recipes.option_texts import layout_options, option_problems, words_of

BySource = Mapping[str, Mapping[str, Any]]
"""Values of settings by their source, such as a table of a paper; "" stands for this program's own defaults."""


class Setting(NamedTuple):
    """An option and its default. It is a whole number if `least` is not None, and a switch if the default is a bool."""

    default: Any
    help: str = ""
    metavar: str = "N"
    least: int | None = None
    choices: Sequence[str] = ()
    is_required: bool = False
    most: float | None = None
    """If not None, the maximum of a number. One that is not whole is from 0 on, and stays a text as it was written."""
    options: Callable[[], Collection[str]] | None = None
    """If not None, the value is a text of options, and this returns those that it may have if it is not trusted."""
    is_list: bool = False
    """Whether several of the choices may be given, separated by commas."""

    def read(self, name: str, value: object, *, is_trusted: bool = True) -> Any:
        """Check a value, and return it with its type; None stands for the default.

        Args:
            name: the name of the setting.
            value: the value.
            is_trusted: whether the user typed it; if not, a text of options may have only those in `options`.

        Raises:
            UserError: the value is not allowed.
        """
        if value is None:
            return self.default
        text = shown(value) if isinstance(value, int) else str(value)
        if problems := list(self._problems(value, text, is_trusted)):
            raise UserError.of(f"{as_option(name)} {problem}" for problem in problems)
        return value if isinstance(self.default, bool) else text if self.least is None else int(text)

    def _problems(self, value: object, text: str, is_trusted: bool) -> Iterable[str]:
        if isinstance(self.default, bool):
            return [] if isinstance(value, bool) else [f"must be true or false, but is {shown(value)}"]
        if isinstance(value, bool) or not isinstance(value, str | Number | os.PathLike):
            of_choices = f"one of {', '.join(self.choices)}" if self.choices else "a text"
            return [f"must be {of_choices if self.least is None else 'a whole number'}, but is {shown(value)}"]
        number = whole_number(text)
        if self.least is not None and (number is None or number < self.least):
            return [f"must be a whole number of at least {self.least}, but is {text}"]
        if number is not None and self.least is not None and self.most is not None and number > self.most:
            return [f"must be a whole number from {self.least} to {self.most:.10g}, but is {text}"]
        if self.least is None and self.most is not None and text and not _is_number(text, self.most):
            limits = f"from 0 to {self.most:g}" if math.isfinite(self.most) else "of at least 0"
            return [f"must be a number {limits}, but is {text}"]
        if self.choices and not set(text.split(",") if self.is_list else [text]).issubset(self.choices):
            return [f"must be one of {', '.join(self.choices)}, but is {text}"]
        if self.options is None:
            return []
        try:
            words_of(text)
            return [] if is_trusted else list(option_problems(text, self.options()))
        except UserError as error:
            return error.problems

    def add_to(self, parser: argparse.ArgumentParser, name: str, *, is_checked: bool = False) -> None:
        """Add the option to a parser.

        Args:
            parser: the parser.
            name: the name of the setting.
            is_checked: whether the parser checks values and has the default; if not, `read` checks values.
        """
        default = "" if self.default in (None, "", False) else f" (default: {self.default})"
        how: dict[str, Any] = {"help": f"{self.help}{default}"}
        if isinstance(self.default, bool):
            how["action"] = "store_true"
        elif not is_checked:
            how["metavar"] = f"{{{','.join(self.choices)}}}" if self.choices and not self.is_list else self.metavar
        elif self.choices:
            how |= {"choices": self.choices, "default": self.default, "required": self.is_required}
        else:
            how |= {"default": self.default, "required": self.is_required, "metavar": self.metavar}
            how["type"] = str if self.least is None else int
        parser.add_argument(as_option(name), **how)


def _is_number(text: str, most: float) -> bool:
    """Return whether a text stands for a finite number from 0 to `most`."""
    try:
        number = float(text)
    except ValueError:
        return False
    return math.isfinite(number) and 0 <= number <= most


class Settings(SimpleNamespace):
    """The values of settings as attributes.

    A value that is given, by the user or by a preset (`give`), is not replaced by a default (`take`).
    """

    def __init__(self, declared: Mapping[str, Setting], *defaults: BySource) -> None:
        super().__init__(declared=declared, source_of={}, given=set())
        for values in ({"": {name: setting.default for name, setting in declared.items()}}, *defaults):
            self.take(values)

    def take(self, values: BySource) -> None:
        """Set defaults: the values of settings that are not given."""
        for source, named in values.items():
            for name, value in named.items():
                if name not in self.given:
                    setattr(self, name, value)
                    self.source_of.pop(name, None)
                    self.source_of[name] = source  # keep the order: later sources are more specific

    def give(self, values: BySource) -> None:
        """Set the values of settings that are not given yet, and mark them as given; earlier sources win."""
        for source, named in values.items():
            self.take({source: named})
            self.given.update(named)

    def to_toml(self, head: str, left_out: Iterable[str]) -> str:
        """Return a configuration file.

        Args:
            head: the comment at its beginning.
            left_out: names of settings to leave out.
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
    """Return the contents of a configuration file.

    Raises:
        UserError: it cannot be read.
    """
    try:
        return parse_toml(read_text(path))
    except (UserError, ValueError) as error:
        raise UserError(f"--config {path} must be a TOML file of settings, but {error}") from None


def read_values(
    declared: Mapping[str, Setting], values: Mapping[str, object], where: str = "", *, is_trusted: bool = True
) -> dict[str, Any]:
    """Check the values of settings, and return them by name.

    Args:
        declared: the settings.
        values: their values.
        where: the beginning of messages, such as the name of the file.
        is_trusted: whether the user typed them; see `Setting.read`.

    Raises:
        UserError: lists every value that is not allowed, and every unknown name.
    """
    found, problems = {}, []
    for name, value in values.items():
        if name not in declared:
            nearest = nearest_name(name.lower(), declared)
            ours = other_names.hint(name, other_names.FINETUNE) or (f" (did you mean {nearest}?)" if nearest else "")
            problems.append(f"{where}there is no setting {name:.40}{ours}: known are {', '.join(declared)}")
            continue
        try:
            found[name] = declared[name].read(name, value, is_trusted=is_trusted)
        except UserError as error:
            problems += [f"{where}{problem}" for problem in error.problems]
    if problems:
        raise UserError.of(problems)
    return found


SMOKE_LINES, SMOKE_UPDATES = 200, 4
MOST_POSITIONS = 2**17
"""Maximum number of positions of a source or a target. Encoders with more are not known, and each needs memory."""

RUN = {
    "raw": Setting("", "the data set as it is published: docs/recipes.md tells where, and which files", "DIR"),
    "encoder": Setting("", "a pretrained encoder as it is published, or a folder that s2sft convert wrote", "DIR"),
    "output": Setting("", "where to write (default: recipes-out/NAME)", "DIR"),
    "run": Setting("", "folder in it of this training; the trainings of an output share the data", "NAME"),
    "limit": Setting(None, "the first N examples of each set only", least=1),
    "workers": Setting(None, "processes for tokenizing and binarizing (default: all cores)", least=1, most=1024),
    "smoke": Setting(False, f"everything once on {SMOKE_LINES} examples of each set, in minutes on a CPU"),
    "skip_malformed": Setting(False, "leave malformed records of the raw files out; otherwise they are an error"),
    "cpu": Setting(False, "use no GPU, though there is one"),
    "dry_run": Setting(False, "only print the long commands; without a prepared corpus, with --updates"),
    "dump_config": Setting(False, "only print the settings, as a file for --config"),
}
"""Options of a run; `--dump-config` leaves them out."""

TRAINING = {
    "max_source": Setting(384, "positions of a source, special symbols included", least=1, most=MOST_POSITIONS),
    "layout": Setting(
        "", "options of s2sft train about the model and the layout of sequences", "WORDS", options=layout_options
    ),
    "seed": Setting(1, "of a training", least=0, most=2**32 - 1),
    "lr": Setting("", "learning rate", "X", most=math.inf),
    "epochs": Setting(10, "passes over the training set", least=1),
    "updates": Setting(None, "updates, in place of epochs", least=1),
    "warmup": Setting(
        0, "warm-up updates; a tenth of all updates, if these are less than four times the default", least=0
    ),
    "warmup_share": Setting("", "share of the updates to warm up, in place of --warmup", "X", most=1),
    "batch": Setting(64, "examples of an update, of all GPUs", least=1),
    "device_batch": Setting(16, "examples at a time; an update adds up several of these", least=1),
    "dropout": Setting("0.1", "of hidden states", "X", most=1),
    "weight_decay": Setting("", "of the optimizer", "X", most=math.inf),
    "adam_eps": Setting("", "epsilon of Adam; without a preset of ERNIE-GEN 1e-6", "X", most=math.inf),
}
"""Settings of every training."""


PRESETS = Path(__file__).with_name("presets.tsv")
_OF_NOISE = ("noise_prob", "noise_symbol", "loss_tokens")


def read_presets() -> list[dict[str, str]]:
    """Return the lines of ``presets.tsv``, as values by column."""
    with PRESETS.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file, delimiter="\t"))


def use_preset(settings: Settings, name: str) -> None:
    """Give the settings of a preset of the benchmark `name`.

    Batches are those of all GPUs together. ERNIE-GEN's target lengths include a [CLS] at the beginning, max_target does
    not. Its lengths of generated texts include the [SEP], --max-len-b does not.

    Raises:
        UserError: the benchmark has no such preset.
    """
    rows = [row for row in read_presets() if row["recipe"] == name]
    row = next((row for row in rows if row["preset"] == settings.preset), None)
    if row is None:
        known = ", ".join(row["preset"] for row in rows) or "none"
        raise UserError(f"--preset must be a preset of this recipe ({known}), but is {settings.preset}")
    is_infilling = row["method"] == "infilling"
    source = f"ERNIE-GEN, {row['source']}" if is_infilling else row["source"]
    settings.give({source: {"method": row["method"]}})
    names = ["size", "batch", "epochs", "lr", "dropout", "label_smoothing", "weight_decay", "adam_eps"]
    names += [name for name in _OF_NOISE if name in OBJECTIVES[settings.method].options]
    values = {name: row[name] for name in names} | {"max_source": row["max_src_len"]}
    values["max_target"] = str(int(row["max_tgt_len"]) - is_infilling)
    read = {name: settings.declared[name].read(name, value) for name, value in values.items() if value != "-"}
    settings.give({source: read})
    search = f"--beam {row['beam']} --length-penalty gnmt --lenpen {row['length_penalty']}"
    search += f" --max-len-b {int(row['max_dec_len']) - 1} --rank-each-step --keep-unfinished"
    if not is_infilling:
        search = f"{settings.decoding} --beam {row['beam']} --lenpen {row['length_penalty']}"  # the last ones win
    settings.take({source: {"decoding": search, "warmup_share": row["warmup_proportion"]}})
