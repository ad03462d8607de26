"""``s2sft recipe --grid``: train with every combination of some settings, and choose one on the development set.

A combination is a *cell*. ``--runs N`` trains each cell with N seeds; cells are compared by the mean of their scores,
as in UniLMv2's Table 9. A run of a cell is an ordinary run of the recipe with a folder of its own, so that a grid that
was killed goes on where it was. At the end the chosen cell is scored on the test set.
"""

import argparse
import itertools
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import mean, median
from typing import Any, NamedTuple

from s2sft_fairseq.errors import UserError, about, as_option
from s2sft_fairseq.files import whole_file
from s2sft_fairseq.recipes.recipe import Recipe
from s2sft_fairseq.recipes.scores import read_scores

PAPER = "paper"
"""The value of ``--grid`` that stands for the ranges of the paper."""
SCORES = ("BLEU-4", "BLEU", "MCC", "Pearson", "accuracy", "F1", "ROUGE-L", "BLEU-1")
"""The score that chooses is the first of these that a benchmark has, the one that its papers compare."""
_VALUE = re.compile(r"[A-Za-z0-9][\w.+-]*")  # it becomes a part of the name of a folder
MOST_RUNS = 1000
Scores = Mapping[str, float]


class Request(NamedTuple):
    """The options of a grid."""

    ranges: Sequence[str]
    """Values of ``--grid``."""
    runs: int
    """Runs of each cell, with seeds one after the other."""
    score: str | None
    """Name of the score that chooses; None: the first of `SCORES`."""


class Cell(NamedTuple):
    """The scores of a combination of values."""

    values: Mapping[str, str]
    runs: Sequence[Scores]

    def of(self, score: str) -> list[float]:
        """Return one score of all runs."""
        return [scores[score] for scores in self.runs]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options of a grid to a parser."""
    parser.add_argument(
        "--grid",
        action="append",
        metavar="NAME=V,V",
        help="train with each of these values, and choose on the development set; again for further settings. "
        f"{PAPER}: the ranges of the paper",
    )
    parser.add_argument("--runs", type=int, metavar="N", help="trainings of a cell, with seeds in a row (default: 1)")
    parser.add_argument(
        "--grid-score", metavar="NAME", help="the score that chooses, by its mean over the runs, such as ROUGE-1"
    )


def read_request(words: Sequence[str]) -> tuple[Request | None, list[str]]:
    """Split the arguments of a recipe into the options of its grid, None if there are none, and the rest.

    Raises:
        UserError: they are wrong.
    """
    parser = argparse.ArgumentParser(prog="s2sft recipe", add_help=False, allow_abbrev=False)
    add_options(parser)
    options, rest = parser.parse_known_args(words)
    if options.grid is None and options.runs is None:
        if options.grid_score is not None:
            raise UserError("--grid-score needs --grid or --runs")
        return None, rest
    if options.runs is not None and not 1 <= options.runs <= MOST_RUNS:
        raise UserError(f"--runs must be from 1 to {MOST_RUNS}, but is {options.runs}")
    return Request(options.grid or [], options.runs or 1, options.grid_score), rest


def read_ranges(recipe: Recipe, texts: Iterable[str], words: Sequence[str]) -> dict[str, list[str]]:
    """Return the values to try of each setting.

    Args:
        recipe: the recipe with the settings that all cells share.
        texts: values of ``--grid``.
        words: the other arguments of the recipe.

    Raises:
        UserError: names every problem of the values.
    """
    found: dict[str, list[str]] = {}
    problems = []
    for text in texts:
        if text == PAPER:
            found |= recipe.ranges_of_paper()
            if not found:
                problems.append(f"--grid {PAPER}: no paper gives ranges for this recipe and method")
            continue
        name, _, values = text.partition("=")
        name = name.replace("-", "_")
        found[name] = list(dict.fromkeys(values.split(",")))
        problems += _problems(recipe, name, found[name], text)
    for name in found:
        option = as_option(name)
        if any(word == option or word.startswith(f"{option}=") for word in words):
            problems.append(f"--grid has {name}, and so it must not be given by {option}")
    if "epochs" in found and "updates" in recipe.settings.given:
        problems.append("--grid has epochs, which have no effect with --updates")
    if problems:
        raise UserError.of(problems)
    return found


def _problems(recipe: Recipe, name: str, values: Sequence[str], text: str) -> list[str]:
    """Return what is wrong with one value of ``--grid``."""
    if name not in recipe.searched:
        return [f"--grid must be NAME=VALUE,VALUE with one of {', '.join(recipe.searched)}, but is {text}"]
    problems = []
    for value in values:
        try:
            recipe.settings.declared[name].read(name, value)
        except UserError as error:
            problems.append(f"--grid {text}: {error}")
            continue
        if not _VALUE.fullmatch(value):
            problems.append(f"--grid {text}: a value must be a word or a number, but is {value!r:.60}")
    return problems


def cells_of(ranges: Mapping[str, Sequence[str]]) -> list[dict[str, str]]:
    """Return all combinations of values; the last setting changes first. Without settings there is one."""
    return [dict(zip(ranges, values, strict=True)) for values in itertools.product(*ranges.values())]


def run_grid(open_recipe: Callable[[Sequence[str]], Recipe], words: Sequence[str], request: Request) -> None:
    """Run all cells that are not done, and write the table.

    Args:
        open_recipe: opens a recipe with arguments.
        words: the arguments that all cells share.
        request: the grid.

    Raises:
        UserError: the grid is wrong, or a stage of a cell fails; the cell is named, and finished cells stay.
    """
    recipe = open_recipe(words)
    settings = recipe.settings
    if settings.dump_config or getattr(settings, "hyp", ""):
        raise UserError("--grid and --runs train models: leave out --dump-config and --hyp")
    ranges = read_ranges(recipe, request.ranges, words)
    folder = settings.run or "grid"
    seeds = range(settings.seed, settings.seed + request.runs)
    on_dev = ["--set", "dev"] if "set" in settings.declared else []

    def opened(cell: Mapping[str, str], seed: int, *further: str) -> Recipe:
        options = [f"{as_option(name)}={value}" for name, value in cell.items()]
        values = [f"{name}={value}" for name, value in cell.items()]
        run_name = ",".join([*values, f"seed={seed}"])
        return open_recipe([*words, *options, "--seed", str(seed), "--run", f"{folder}/{run_name}", *further])

    def run(cell: Mapping[str, str], seed: int, *further: str) -> Scores:
        one = opened(cell, seed, *further)
        one.say(f"cell {one.work.name}")
        with about(f"the cell {one.work.name}"):
            one.run()
        return scores_of(one)

    cells = cells_of(ranges)
    if settings.dry_run:
        for cell, seed in itertools.product(cells, seeds):
            opened(cell, seed, *on_dev).show_commands()
        return
    recipe.say(f"{len(cells)} cells, {len(seeds)} trainings of each")
    done: list[Cell] = []
    for cell in cells:
        done.append(Cell(cell, [run(cell, seed, *on_dev) for seed in seeds]))
        score = chosen_score(done[0].runs[0], request.score)
        _write(recipe.output / folder, done, score, "dev")
    best = max(done, key=lambda cell: mean(cell.of(score)))
    recipe.say(f"chosen by {score}: {_named(best.values)}, of {len(done)} cells")
    _write_settings(opened(best.values, settings.seed), recipe.output / folder / "best.toml")
    if on_dev and settings.set != "dev":
        tested = Cell(best.values, [run(best.values, seed) for seed in seeds])
        _write(recipe.output / folder, [tested], score, settings.set)


def scores_of(recipe: Recipe) -> dict[str, float]:
    """Return the scores of a finished run by name, the mean over the files if it has several."""
    of_files = [read_scores(path) for path in recipe.score_files()]
    return {name: mean(scores[name] for scores in of_files) for name in of_files[0]}


def chosen_score(scores: Scores, name: str | None) -> str:
    """Return the name of the score that chooses.

    Raises:
        UserError: there is no such score.
    """
    if name is not None and name not in scores:
        raise UserError(f"--grid-score must be one of {', '.join(scores)}, but is {name}")
    usual = [usual for usual in SCORES if usual in scores] or list(scores)
    return name or usual[0]


def _named(values: Mapping[str, str]) -> str:
    return ", ".join(f"{name} {value}" for name, value in values.items()) or "the settings"


def as_table(cells: Sequence[Cell], score: str) -> str:
    """Return a table with a row for each cell, the best first: the score that chooses, and the means of the others."""
    others = [name for name in cells[0].runs[0] if name != score]
    names = [*cells[0].values, "runs", f"{score}, mean", "median", "least", "greatest", *others]
    rows = [names, ["---"] * len(names)]
    for cell in sorted(cells, key=lambda cell: -mean(cell.of(score))):
        values = cell.of(score)
        numbers = [mean(values), median(values), min(values), max(values), *(mean(cell.of(name)) for name in others)]
        rows.append([*cell.values.values(), str(len(values)), *(f"{number:.2f}" for number in numbers)])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _write(folder: Path, cells: Sequence[Cell], score: str, subset: str) -> None:
    """Write the cells so far as a table and as JSON, and print the table."""
    table = as_table(cells, score)
    content: list[dict[str, Any]] = [{"values": cell.values, "runs": cell.runs} for cell in cells]
    record = json.dumps({"set": subset, "score": score, "cells": content}, indent=1, ensure_ascii=False)
    for name, text in ((f"{subset}.md", table), (f"{subset}.json", f"{record}\n")):
        with whole_file(folder / name) as temporary:
            temporary.write_text(text, encoding="utf-8")
    print(table, end="", flush=True)


def _write_settings(recipe: Recipe, path: Path) -> None:
    """Write the settings of the chosen cell for ``--config``."""
    text = recipe.settings.to_toml(f"{recipe.name}: the cell that --grid chose", [*recipe.run_options, "seed"])
    with whole_file(path) as temporary:
        temporary.write_text(f"{text}\n", encoding="utf-8")
