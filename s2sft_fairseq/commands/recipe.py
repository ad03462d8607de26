"""``s2sft recipe``: run a benchmark's recipe, from its raw files to scores."""

import os
import sys
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq.errors import UserError

FOLDER = Path(__file__).resolve().parents[1] / "recipes"


def main(arguments: Sequence[str]) -> None:
    """Run the command line: the recipe takes the place of this process.

    Raises:
        UserError: if there is no such recipe.
    """
    name, *words = arguments or ["--help"]
    if name in ("-h", "--help"):
        print(usage())
        return
    if name not in names():
        raise UserError(f"s2sft recipe NAME must be one of {', '.join(names())}, but is {name}")
    os.execvpe("bash", ["bash", str(FOLDER / f"{name}.sh"), *words], {**os.environ, "PYTHON": sys.executable})


def names() -> list[str]:
    """Return the names of the recipes: the files that are to be run, not what they share."""
    return sorted(path.stem for path in FOLDER.glob("*.sh") if path.read_text(encoding="utf-8").startswith("#!"))


def usage() -> str:
    """Return the help text, with what the head of each recipe says first."""
    heads = {name: (FOLDER / f"{name}.sh").read_text(encoding="utf-8").splitlines()[1] for name in names()}
    recipes = "\n".join(f"  {name:14} {head.removeprefix('# ')}" for name, head in heads.items())
    return (
        f"usage: s2sft recipe NAME --raw DIR --encoder DIR [OPTIONS] [-- OPTIONS OF s2sft train]\n\n"
        f"recipes:\n{recipes}\n\ns2sft recipe NAME --help lists the options of a recipe and its raw files."
    )
