"""All options of all commands, with choices, default and help, compared to ``options.txt``.

A line is an option, after the commands, tasks, architectures and criterions that have it. To write the file again,
after a change that is meant to change it (and that the change log describes)::

    python -m pytest tests/golden/test_options.py --record
"""

import argparse
import difflib
import functools
import importlib
import itertools
import logging
import math
import os
import re
import subprocess
import sys
from argparse import Namespace
from collections.abc import Iterator, Mapping
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

import s2sft_fairseq
from s2sft_fairseq import cli

# isort: split
from fairseq.criterions import CRITERION_REGISTRY
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_NAME_REGISTRY, ARCH_MODEL_REGISTRY, MODEL_DATACLASS_REGISTRY
from fairseq.tasks import TASK_REGISTRY

FILE = Path(__file__).with_name("options.txt")


# The choices on which the options of fairseq's commands depend.
COMMANDS = {
    "preprocess": ("--task",),
    "train": ("--task", "--arch", "--criterion"),
    "validate": ("--task", "--criterion"),
    "generate": ("--task",),
    "interactive": ("--task",),
}
OF_THE_MACHINE = ("distributed_world_size", "distributed_num_procs", "nprocs_per_node")


class Shown(BaseException):
    """Raised instead of printing a parser's help."""


@pytest.fixture(autouse=True)
def caught(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a parser that would print its help raise `Shown`."""

    def show(parser: argparse.ArgumentParser, *_: Any) -> None:
        raise Shown(parser, sys.argv[1:])

    root = logging.getLogger()
    monkeypatch.setattr(sys, "argv", sys.argv)
    monkeypatch.setattr(root, "handlers", [])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(argparse.ArgumentParser, "print_help", show)


def shown(*words: str) -> tuple[argparse.ArgumentParser, list[str]]:
    """Return the parser of a command line when it would print its help, and its arguments by then."""
    try:
        cli.main([*words, "--help"])
    except Shown as help_:
        return help_.args
    raise AssertionError(f"s2sft {' '.join(words)} --help has no parser")


@functools.cache
def choices() -> dict[str, list[str]]:
    """Return the names of this package's tasks, architectures and criterions, and of fairseq's criterions in use."""
    shown("train")  # registers them

    def own(registry: Mapping[str, Any]) -> list[str]:
        return [name for name, kind in registry.items() if kind.__module__.startswith("s2sft_fairseq")]

    criterions = [*own(CRITERION_REGISTRY), "cross_entropy", "label_smoothed_cross_entropy"]
    names = {"--task": own(TASK_REGISTRY), "--arch": own(ARCH_MODEL_REGISTRY), "--criterion": criterions}
    return {option: sorted(of_option) for option, of_option in names.items()}


def options_of(parser: argparse.ArgumentParser, command: str, model: str | None = None) -> Iterator[str]:
    """Yield a line for each option."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for name, below in action.choices.items():
                yield from options_of(below, f"{command} {name}")
        elif not isinstance(action, argparse._HelpAction):
            name = ", ".join(action.option_strings) or action.dest
            help_ = " ".join((action.help or "").split())
            yield " | ".join((command, name, values_of(action), f"default {default_of(action, model)}", help_))


def values_of(action: argparse.Action) -> str:
    """Return the kind of values of an option."""
    words = [] if action.nargs is None else ["flag" if action.nargs == 0 else f"nargs {action.nargs}"]
    if action.choices is not None:
        values = sorted(map(str, action.choices))
        # Of a registry, only our own names: another test may have loaded a plugin that adds to it.
        values = next(([*own, "fairseq's"] for own in choices().values() if {*own} <= {*values}), values)
        words.append(f"one of {', '.join(values)}")
    elif action.type in (int, float, Path):
        words.append(action.type.__name__)
    return "; ".join([*words, *(["required"] if action.required else [])]) or "text"


def default_of(action: argparse.Action, model: str | None) -> str:
    """Return the default of an option, unless it depends on the machine."""
    default = action.default
    if default is argparse.SUPPRESS and model:  # fairseq leaves the defaults of models to the architecture
        default = {field.name: field.default for field in fields(MODEL_DATACLASS_REGISTRY[model])}.get(action.dest)
    if action.dest in OF_THE_MACHINE or "all cores" in (action.help or ""):
        return "of the machine"
    return str(default)


def of_fairseq_command(command: str) -> Iterator[str]:
    """Yield the options of one of fairseq's commands, after the choices that have them, unless all have them."""
    has: dict[str, set[tuple[str, ...]]] = {}
    for chosen in itertools.product(*(choices()[option] for option in COMMANDS[command])):
        words = itertools.chain.from_iterable(zip(COMMANDS[command], chosen, strict=True))
        model = ARCH_MODEL_NAME_REGISTRY[chosen[1]] if "--arch" in COMMANDS[command] else None
        for line in options_of(shown(command, *words)[0], "", model):
            has.setdefault(line, set()).add(chosen)
    for line, those in has.items():
        of_option = [sorted(set(values)) for values in zip(*those, strict=True)]
        assert len(those) == math.prod(map(len, of_option)), f"{line}: {those}"
        where = [
            f" {option} {of_one_model(values) or ','.join(values)}"
            for option, values in zip(COMMANDS[command], of_option, strict=True)
            if values != choices()[option]
        ]
        yield f"{command}{''.join(where)}{line}"


def of_one_model(names: list[str]) -> str | None:
    """Return the model whose architectures these are, if there is one."""
    for model in ("unilm", "deltalm"):
        if names == [name for name in choices()["--arch"] if ARCH_MODEL_NAME_REGISTRY[name] == model]:
            return f"of {model}"
    return None


def of_recipes(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[str]:
    """Yield the options of each recipe; for a recipe that is a program of its own, those in its help."""

    def run(file: str, words: list[str], environment: dict[str, str]) -> None:
        print(subprocess.run(words, env=environment, capture_output=True, text=True, check=True).stdout)
        sys.exit()

    monkeypatch.setattr(os, "execvpe", run)
    capsys.readouterr()
    cli.main(["recipe", "--help"])
    for name in re.findall(r"^  (\w+) ", capsys.readouterr().out, re.M):
        try:
            yield from options_of(shown("recipe", name)[0], f"recipe {name}")
        except SystemExit:
            heads = re.findall(r"^ +(--.*?)(?:  |$)", capsys.readouterr().out, re.M)
            yield from (f"recipe {name} | {option}" for option in re.findall(r"--[a-z][a-z-]*", " ".join(heads)))


def given_by_s2sft(command: str) -> Iterator[str]:
    """Yield what ``s2sft`` adds to a command line for each task."""
    for task in choices()["--task"]:
        arguments = shown(command, "--task", task)[1]
        added = " ".join(arguments[: arguments.index("--task")])
        yield f"{command} --task {task} | is given {added or 'nothing'}"


def set_by_architecture(name: str) -> str:
    """Return the options that a named architecture sets."""
    defaults = {field.name: field.default for field in fields(MODEL_DATACLASS_REGISTRY[ARCH_MODEL_NAME_REGISTRY[name]])}
    options = Namespace(**defaults)
    ARCH_CONFIG_REGISTRY[name](options)
    changed = [f"{key} {value}" for key, value in vars(options).items() if value != defaults.get(key)]
    return f"train --arch {name} | sets {', '.join(sorted(changed)) or 'nothing'}"


def all_options(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> list[str]:
    lines = [*map(set_by_architecture, choices()["--arch"]), *of_recipes(monkeypatch, capsys)]
    for command in cli.COMMANDS:
        if command in COMMANDS:
            lines += [*of_fairseq_command(command), *given_by_s2sft(command)]
        elif command not in ("recipe", "hydra-train"):
            lines += options_of(shown(command)[0], command)
    return sorted(lines)


def test_options(recording, monkeypatch, capsys):
    found = all_options(monkeypatch, capsys)
    if recording:
        FILE.write_text("".join(f"{line}\n" for line in found), encoding="utf-8")
    expected = FILE.read_text(encoding="utf-8").splitlines()
    changes = difflib.unified_diff(expected, found, "options.txt", "these commands", n=0, lineterm="")
    if text := "\n".join(changes):
        pytest.fail(f"options, defaults or help texts are others:\n{text}", pytrace=False)


CHOSEN = ("--arch", "unilm", "--criterion", "mask_attention", "--optimizer", "fused_adamw")


@pytest.mark.parametrize(("command", "words"), [("train", CHOSEN), ("validate", CHOSEN[2:4]), ("interactive", ())])
def test_the_commands_of_fairseq_have_the_same_options(command, words, monkeypatch):
    words = ("--task", "unilm_seq2seq", *words)
    ours, _ = shown(command, *words)
    monkeypatch.setattr(sys, "argv", ["fairseq", "--user-dir", s2sft_fairseq.__path__[0], *words, "--help"])
    with pytest.raises(Shown) as help_:
        importlib.import_module(f"fairseq_cli.{command}").cli_main()
    theirs, _ = help_.value.args
    assert list(options_of(ours, command)) == list(options_of(theirs, command))
