r"""Small language models and encoders as starts, and other programs: quality, time and memory at equal minutes.

    python benchmarks/language_models.py --data ../shared/data --output out --start minilm=DIR mpnet=DIR smollm2=DIR \
        --systems minilm mpnet smollm2 smollm2-transformers smollm2-peft --pairs 100 500 2000 --minutes 2 4 8

A system is a start, trained by this package (``smollm2``) or by another program (``smollm2-transformers``,
``smollm2-peft``); ``NAME-llama.cpp`` generates with a .gguf file as it is, and only its speed counts. Each cell learns
from the same pairs for the same minutes of training, and then writes greedy texts for the same sources:

* this package: ``s2sft finetune`` with its defaults for the start (`language_models_ours.py`)
* others: the usual plain training with padding (`language_models_plain.py`)

The number of updates is not known before, so that the default learning rate is that of many. For one or two minutes on
a few cores, compare with ``--options="--lr 3e-4"``, a system of its own in the tables.

Each cell has its own process, and a cell that is done is not measured again: so cells can be run one at a time, with
nothing else on the machine. A data set, a start or a package that is missing is named, and its cells are left out. In
the tables

* ROUGE-L and BLEU do not distinguish capitals; "without fault" and "other food" are E2E's slots (`e2e_slots.py`)
* "s" are seconds of one text, of a batch of one and in batches of ``--batch``; the machine decodes in float32
* "peak GB" is the peak resident memory of the process, of training and of generation
* differences are of the baseline's score on the same sources, of all seeds together, with their 95 % interval from
  paired resamples; ratios of the seconds have a * if the two were not measured in one run
"""

import argparse
import importlib.util
import shlex
import sys
from collections.abc import Iterator, Sequence
from itertools import product
from pathlib import Path

from language_models_table import tables
from language_models_task import PROGRAMS, SETS, Cell, key_of, missing
from records import measure_cells

PACKAGES = {
    "ours": (),
    "transformers": ("transformers",),
    "peft": ("transformers", "peft", "accelerate"),
    "llama.cpp": ("llama_cpp",),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--data", type=Path, required=True, metavar="DIR", help="folder of the data sets")
    add("--output", type=Path, required=True, metavar="DIR", help="records, texts and tables are added to what it has")
    add("--start", nargs="+", default=[], metavar="NAME=PATH", help="folders or files of pretrained models")
    add("--systems", nargs="+", required=True, metavar="NAME", help="START, or START-PROGRAM")
    add("--sets", nargs="+", default=list(SETS), choices=SETS)
    add("--pairs", nargs="+", type=int, default=[100, 500, 2000], metavar="N", help="to train on; 0: all")
    add("--minutes", nargs="+", type=float, default=[2, 4, 8], metavar="M", help="of training")
    add("--seeds", nargs="+", type=int, default=[1, 2, 3], metavar="N", help="of the choice of pairs and the training")
    add("--baseline", default="smollm2-transformers", metavar="NAME", help="the system to compare with")
    add("--sources", type=int, default=630, metavar="N", help="most test sources")
    add("--alone", type=int, default=20, metavar="N", help="texts that are also generated one by one")
    add("--batch", type=int, default=16, metavar="N", help="pairs of an update, and sources of a batch")
    add("--threads", type=int, default=2, metavar="N")
    add("--options", type=shlex.split, default=[], metavar="WORDS", help="of s2sft train, for this package's systems")
    add("--tables", action="store_true", help="only write the tables of what is measured")
    options = parser.parse_args()
    options.output.mkdir(parents=True, exist_ok=True)
    cells, skipped = make_cells(options)
    for why in skipped:
        print(f"left out: {why}", file=sys.stderr)
    file = options.output / "cells.json"
    how = {"resume": True, "key_of": key_of, "describe": lambda cell: cell.name}
    if not options.tables:
        measure_cells(cells, "language_models_cell.py", file, **how)
    text = tables(file, options.data, options.baseline)
    (options.output / "tables.md").write_text(text, encoding="utf-8")
    print(text)


def make_cells(options: argparse.Namespace) -> tuple[list[Cell], list[str]]:
    """Return the cells that can be measured, those of one task one after the other, and why others cannot."""
    starts = dict(each.partition("=")[::2] for each in options.start)
    skipped = [f"{name}: {file} is missing" for name in options.sets for file in missing(options.data, name)]
    systems = []
    for name in options.systems:
        start, program = split_name(name)
        problems = list(system_problems(start, program, starts))
        skipped += [f"{name}: {problem}" for problem in problems]
        systems += [] if problems else [(start, program)]
    sets = [name for name in options.sets if not list(missing(options.data, name))]
    grid = product(sets, options.pairs, options.minutes, options.seeds, systems)
    cells = [
        Cell(
            system=program,
            start=start,
            path=str(Path(starts[start]).resolve()),
            set=name,
            pairs=pairs,
            minutes=minutes,
            seed=seed,
            data=str(options.data.resolve()),
            output=str(options.output.resolve()),
            sources=options.sources,
            alone=options.alone,
            batch=options.batch,
            threads=options.threads,
            options=tuple(options.options) if program == "ours" else (),
        )
        for name, pairs, minutes, seed, (start, program) in grid
    ]
    return cells, skipped


def split_name(name: str) -> tuple[str, str]:
    """Return the start and the program of a system."""
    for program in PROGRAMS:
        if name.endswith(f"-{program}"):
            return name.removesuffix(f"-{program}"), program
    return name, "ours"


def system_problems(start: str, program: str, starts: dict[str, str]) -> Iterator[str]:
    """Yield why a system cannot be measured here."""
    if start not in starts:
        yield f"give --start {start}=PATH"
    elif not Path(starts[start]).exists():
        yield f"--start {start}: there is no {starts[start]}"
    yield from (f"the package {name} is not installed" for name in lacking(PACKAGES[program]))
    if program == "llama.cpp" and not starts.get(start, "").endswith(".gguf"):
        yield f"--start {start} must be a .gguf file"


def lacking(packages: Sequence[str]) -> list[str]:
    """Return the packages that are not installed."""
    return [name for name in packages if importlib.util.find_spec(name) is None]


if __name__ == "__main__":
    main()
