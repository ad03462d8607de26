"""``s2sft recipe``: run a benchmark's recipe, from its raw files to scores."""

import argparse
import textwrap
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq.cli import call
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes import grid
from s2sft_fairseq.recipes.benchmarks import BENCHMARKS
from s2sft_fairseq.recipes.recipe import Benchmark, Recipe
from s2sft_fairseq.recipes.settings import read_toml, read_values

_WORDS = ("--layout", "--decoding", "--evaluation", "--scoring")  # their values may look like options


def main(arguments: Sequence[str]) -> None:
    """Run the command line.

    Raises:
        UserError: if there is no such recipe; naming everything that is wrong with its settings; or raised by a stage.
    """
    name, *words = arguments or ["--help"]
    if name in ("-h", "--help", "--list"):
        print(usage())
        return
    if name not in BENCHMARKS:
        raise UserError(f"s2sft recipe NAME must be one of {', '.join(BENCHMARKS)}, but is {name}")
    end = words.index("--") if "--" in words else len(words)
    request, own = grid.read_request(words[:end])
    if request:
        grid.run_grid(lambda of_cell: _ready(name, [*of_cell, *words[end:]]), own, request)
        return
    recipe = _ready(name, words)
    if recipe.settings.dump_config:
        head = f"{_about(recipe.benchmark)}\n\ns2sft recipe {name} --config FILE takes this file."
        print(recipe.settings.to_toml(head, recipe.run_options))
    elif recipe.settings.dry_run:
        recipe.show_commands()
    else:
        recipe.run()


def _ready(name: str, words: Sequence[str]) -> Recipe:
    """Return a recipe that can run.

    Raises:
        UserError: naming everything that is wrong with its settings.
    """
    recipe = open_recipe(name, words)
    if problems := list(recipe.problems()):
        raise UserError.of(problems)
    if not (recipe.settings.dry_run or recipe.settings.dump_config):
        recipe.find_encoder()
    recipe.choose_lr()
    return recipe


def open_recipe(name: str, words: Sequence[str]) -> Recipe:
    """Return a recipe with its settings, from the name of its benchmark and the arguments of the command.

    Raises:
        UserError: naming the settings that are invalid or contradict each other.
    """
    words, benchmark = list(words), BENCHMARKS[name]
    end = words.index("--") if "--" in words else len(words)
    texts = vars(_parser(name, benchmark).parse_args(_joined(words[:end])))
    config = texts.pop("config", "")
    of_run, of_file = benchmark.recipe.run_options, benchmark.recipe.configurable(benchmark)
    given = read_values({**of_run, **of_file}, texts)
    file = read_values(of_file, read_toml(Path(config)), f"{config}: ", is_trusted=False) if config else {}
    settings = benchmark.recipe.configure(name, benchmark, given, file)
    return benchmark.recipe(name, benchmark, settings, words[end + 1 :], call)


def usage() -> str:
    """Return the help text, with a line for each recipe."""
    recipes = "\n".join(f"  {name:14} {benchmark.about}" for name, benchmark in BENCHMARKS.items())
    return (
        f"usage: s2sft recipe NAME --raw DIR --encoder DIR [OPTIONS] [-- OPTIONS OF s2sft train]\n\n"
        f"recipes:\n{recipes}\n\ns2sft recipe NAME --help lists the options of a recipe and its raw files."
    )


def _about(benchmark: Benchmark) -> str:
    """Return the description of a benchmark: what it is, its raw files, and notes."""
    parts = [benchmark.about, f"Raw files: {benchmark.raw}", benchmark.notes]
    return "\n\n".join(textwrap.fill(part, 100, break_on_hyphens=False) for part in parts if part)


def _joined(words: Sequence[str]) -> list[str]:
    """Return the arguments with values that may look like options joined by ``=``, as ``--scoring=--lowercase``."""
    joined: list[str] = []
    for word in words:
        if joined and joined[-1] in _WORDS:
            joined[-1] += f"={word}"
        else:
            joined.append(word)
    return joined


def _parser(name: str, benchmark: Benchmark) -> argparse.ArgumentParser:
    usual = benchmark.recipe.configure(name, benchmark, {}, {})
    parser = argparse.ArgumentParser(
        prog=f"s2sft recipe {name}",
        usage=f"s2sft recipe {name} --raw DIR --encoder DIR [OPTIONS] [-- OPTIONS OF s2sft train]",
        description=f"{_about(benchmark)}\n\nStages that are done are not done again: started again, a recipe "
        "continues where it was.\nWhat was made with other settings is not continued.",
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
        allow_abbrev=False,
    )
    for key, setting in {**benchmark.recipe.run_options, **benchmark.recipe.configurable(benchmark)}.items():
        setting._replace(default=getattr(usual, key)).add_to(parser, key)
    grid.add_options(parser)
    parser.add_argument("--config", metavar="FILE", help="take settings from a file as --dump-config prints it")
    return parser
