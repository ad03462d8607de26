"""Speed and memory of generation in the engines that models are exported to, compared with this package's own.

    python benchmarks/engines.py                                  # everything: hours
    python benchmarks/engines.py --config deltalm_base --beam 5 --batch 1 16
    python benchmarks/engines.py --resume                         # continues after a stop

Models with random weights are exported once, to ``--folder``. Sources are random, each hypothesis has a fixed number of
tokens, and no search ends early. Each engine runs each cell of the grid in its own process, through its public API:

* `Seq2Seq` for ours, onnxruntime and CTranslate2, tokenizer included
* ``generate`` for transformers, which runs the same model by the export's own code, a DeltaLM as BART
* ``generate`` for bert2bert, another model of the same size, with its cache

In the table, "sentences/s" is that of the fastest of ``--repeats`` runs. "p50" and "p95" are times of single batches in
ms (with batch 1: of single sentences). "loaded" and "peak" are the resident memory of the process in GB. "ours" is the
ratio of sentences/s to ours in float32.
"""

import argparse
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

from generation_grid import parse_lengths
from records import Record, measure_cells

ENGINES = {
    "unilm": (
        *(("ours", "float32"), ("ours", "bfloat16"), ("ours", "int8")),
        *(("onnx", "float32"), ("onnx", "int8"), ("transformers", "float32"), ("bert2bert", "float32")),
    ),
    "deltalm": (
        *(("ours", "float32"), ("ours", "bfloat16"), ("ctranslate2", "float32"), ("ctranslate2", "int8")),
        *(("onnx", "float32"), ("onnx", "int8"), ("transformers", "float32")),
    ),
}
"""Engines and the formats of their weights, by the kind of model."""
LENGTHS = {"unilm": "60..464/48", "deltalm": "16..64/32"}
HEADINGS = (
    *("configuration", "lengths", "beam", "batch", "engine", "sentences/s", "p50", "p95", "loaded", "peak", "ours"),
)


@dataclass(frozen=True)
class Cell:
    """One engine on one task."""

    config: str
    lengths: str
    beam: int
    batch: int
    system: str
    precision: str
    sentences: int
    vocab: int
    threads: int
    seed: int
    repeats: int
    folder: str
    """Folder of the models."""


def kind_of(config: str) -> str:
    """Return the kind of model of an architecture: ``unilm`` or ``deltalm``."""
    return "deltalm" if config.startswith("deltalm") else "unilm"


def key_of(record: Record) -> tuple[Any, ...]:
    """Return the key of a record: what it measures."""
    names = ("config", "lengths", "beam", "batch", "system", "precision", "sentences", "vocab", "threads", "seed")
    return tuple(record[name] for name in names)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    names = ["deltalm_base", "minilm_l6_h384", "unilm_base"]
    add("--config", nargs="+", default=names, metavar="NAME", help="architectures")
    add("--lengths", metavar="S/T", help="positions of sources / tokens (default: 60..464/48, DeltaLM 16..64/32)")
    add("--beam", nargs="+", type=int, default=[1, 5], metavar="K")
    add("--batch", nargs="+", type=int, default=[1, 4, 16], metavar="N", help="sentences of a batch")
    add("--engine", nargs="+", metavar="NAME", help="leave the others out")
    add("--sentences", type=int, default=16, metavar="N", help="to decode in each cell, in one batch or several")
    add("--vocab", type=int, default=30522, metavar="V")
    add("--threads", type=int, default=2, metavar="N")
    add("--seed", type=int, default=1, help="of weights and sources")
    add("--repeats", type=int, default=2, metavar="N")
    add("--folder", type=Path, default=Path("engines"), metavar="DIR", help="for the models (default: engines)")
    add("--json", type=Path, default=Path("engines.json"), metavar="FILE", help="records are added to what it has")
    add("--resume", action="store_true", help="leave out what FILE has")
    options = parser.parse_args()
    if problems := list(find_problems(options)):
        parser.error("; ".join(problems))
    from engines_models import make_folders

    for config in options.config:
        make_folders(config, kind_of(config), options.vocab, options.seed, options.folder)
    cells = list(make_cells(options))
    records = measure_cells(
        cells,
        "engines_cell.py",
        options.json,
        resume=options.resume,
        key_of=key_of,
        describe=lambda cell: f"{cell.config} beam {cell.beam} batch {cell.batch} {cell.system} {cell.precision}",
    )
    print(table(records))


def find_problems(options: argparse.Namespace) -> Iterator[str]:
    """Yield every problem of the options."""
    known = {name for engines in ENGINES.values() for name, _ in engines}
    for name in options.engine or ():
        if name not in known:
            yield f"--engine must be one of {', '.join(sorted(known))}, but is {name}"
    if options.lengths:
        try:
            parse_lengths(options.lengths)
        except ValueError as error:
            yield f"--lengths: {error}"
    for batch in options.batch:
        if batch < 1 or options.sentences % batch:
            yield f"--sentences must be a multiple of every --batch ({batch}), but is {options.sentences}"


def make_cells(options: argparse.Namespace) -> Iterator[Cell]:
    """Yield the cells of the grid; the engines of one task follow each other."""
    for config, beam, batch in product(options.config, options.beam, options.batch):
        kind = kind_of(config)
        for system, precision in ENGINES[kind]:
            if options.engine and system not in options.engine:
                continue
            yield Cell(
                config=config,
                lengths=options.lengths or LENGTHS[kind],
                beam=beam,
                batch=batch,
                system=system,
                precision=precision,
                sentences=options.sentences,
                vocab=options.vocab,
                threads=options.threads,
                seed=options.seed,
                repeats=options.repeats,
                folder=str(options.folder.absolute()),
            )


def table(records: Sequence[Record]) -> str:
    """Return the records as a table: one row per record, in their order."""
    rows = [HEADINGS, *(_row(record, records) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip() for row in rows)
    loads = [record["load"] for record in records]
    return "\n".join([*lines, f"load {min(loads):.1f} to {max(loads):.1f}, {records[0]['cpu_capability']}"])


def _row(record: Record, records: Sequence[Record]) -> tuple[str, ...]:
    task = [record[name] for name in ("config", "lengths", "beam", "batch")]
    speed = record["sentences_per_second"]
    ours = [
        other["sentences_per_second"]
        for other in records
        if (other["system"], other["precision"]) == ("ours", "float32")
        and [other[name] for name in ("config", "lengths", "beam", "batch")] == task
    ]
    return (
        *map(str, task),
        f"{record['system']} {record['precision']}",
        f"{speed:.3g}",
        *(f"{1000 * record[name]:.0f}" for name in ("p50", "p95")),
        *(f"{record[name] / 1e9:.2f}" for name in ("loaded_bytes", "peak_bytes")),
        f"{speed / ours[0]:.2f}" if ours else "-",
    )


if __name__ == "__main__":
    main()
