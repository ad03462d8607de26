"""Prefill and training of a ModernBERT on one long text, compared with transformers and its sdpa attention.

    python benchmarks/long_inputs.py --threads 2

Random weights of ModernBERT's base shape, float32, no dropout. A prefill reads the text. As in decoding, ours keeps
keys and values and skips the rest of the last layer; theirs returns the last hidden states. An update predicts 30 % of
the positions, forward and backward. The optimizer's step is left out: it is the same for both.
"""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from long_inputs_cell import Cell
from records import Record, measure_cells

SYSTEMS, TASKS = ("ours", "transformers"), ("prefill", "update")
FIELDS = ("system", "task", "length", "layers", "vocab", "threads")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--lengths", type=int, nargs="+", default=[512, 2048, 8192], help="positions of the text")
    parser.add_argument("--layers", type=int, default=22, help="fewer are quicker; every third one is global")
    parser.add_argument("--vocab", type=int, default=50368)
    parser.add_argument("--repeats", type=int, default=2, help="timed runs, after one more; the fastest counts")
    parser.add_argument("--file", type=Path, default=Path("long_inputs.json"), help="of the records")
    parser.add_argument("--resume", action="store_true", help="measure what the file lacks alone")
    options = parser.parse_args(arguments)
    if options.layers < 2:
        parser.error(f"--layers must be at least 2, for the first one is global, but is {options.layers}")
    cells = [
        Cell(system, task, length, options.layers, options.vocab, options.threads, options.repeats)
        for task in TASKS
        for length in options.lengths
        for system in SYSTEMS
    ]
    records = measure_cells(
        cells,
        "long_inputs_cell.py",
        options.file,
        resume=options.resume,
        key_of=lambda record: tuple(record[field] for field in FIELDS),
        describe=lambda cell: f"{cell.task} {cell.length} {cell.system}",
    )
    print("\n".join(table(records)))


def table(records: Sequence[Record]) -> Iterator[str]:
    """Yield a row for each task and length; records of ours and of transformers alternate."""
    yield "| task | positions | ours, s | transformers, s | ratio | ours, GB | transformers, GB | local attention |"
    yield "|---|---|---|---|---|---|---|---|"
    for own, other in zip(records[::2], records[1::2], strict=True):
        seconds = own["seconds"], other["seconds"], own["seconds"] / other["seconds"]
        memory = own["peak_bytes"] / 1e9, other["peak_bytes"] / 1e9
        local = f"{own['local_seconds']:.3f} s, {own['local_seconds'] / own['seconds']:.1%}"
        figures = " | ".join(f"{figure:.2f}" for figure in (*seconds, *memory))
        yield f"| {own['task']} | {own['length']:,} | {figures} | {local} |"


if __name__ == "__main__":
    main()
