"""Growth of time and memory of an update with lengths, vocabulary and examples: the cells, and their plot."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from records import Record
from training_grid import SYSTEMS, Cell, task_of
from training_table import sustained_rate

TARGET = 48


class Sweep(NamedTuple):
    """A field of the cell that is varied."""

    field: str
    """Name of the field."""
    name: str
    values: tuple[int, ...]
    most_of_plain: int
    """Largest value of the other systems: beyond it, dense scores and full logits would take more than 20 GB."""


SWEEPS = (
    Sweep("lengths", "source positions", (64, 128, 256, 512, 1024, 2048), most_of_plain=1024),
    Sweep("vocab", "vocabulary", (8192, 30522, 65536, 131072, 250002), most_of_plain=250002),
    Sweep("batch", "examples", (1, 2, 4, 8, 16), most_of_plain=16),
)


def sweep_cells(cell: Cell, systems: Iterable[str] = SYSTEMS) -> list[Cell]:
    """Return the cells of all sweeps around one cell, without duplicates; systems alternate."""
    cells: dict[Cell, None] = {}
    for sweep in SWEEPS:
        for value in sweep.values:
            for system in systems:
                if system == "ours" or value <= sweep.most_of_plain:
                    cells[replace(cell, system=system, **{sweep.field: _setting(sweep, value)})] = None
    return list(cells)


def draw(records: Sequence[Record], cell: Cell, file: Path) -> None:
    """Plot seconds and memory over each sweep around a cell, and the time of the needed FLOPs at the sustained rate."""
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    rate = sustained_rate(records)
    found = {(*task_of(record), record["system"]): record for record in records}
    figure, axes = pyplot.subplots(2, len(SWEEPS), figsize=(5 * len(SWEEPS), 8), squeeze=False, layout="constrained")
    for (seconds, memory), sweep in zip(axes.T, SWEEPS, strict=True):
        for system in SYSTEMS:
            points = _points(found, cell, sweep, system)
            values = [value for value, _ in points]
            seconds.plot(values, [record["least_seconds"] for _, record in points], marker="o", label=system)
            memory.plot(values, [record["peak_bytes"] / 1e9 for _, record in points], marker="o", label=system)
            if system == "ours":
                needed = [record["flops"] / rate for _, record in points]
                seconds.plot(values, needed, linestyle=":", color="black", label="needed FLOPs at the matrix rate")
        for axis, label, scale in ((seconds, "seconds per update", "log"), (memory, "peak memory, GB", "linear")):
            axis.set(xlabel=sweep.name, ylabel=label, xscale="log", yscale=scale)
            axis.set_xticks(sweep.values, [str(value) for value in sweep.values], rotation=30)
            axis.minorticks_off()
            axis.grid(alpha=0.3)
            axis.legend()
        memory.set_ylim(bottom=0)
    figure.suptitle(
        f"{cell.config}, {cell.method}, {cell.threads} threads; where not varied: batches of {cell.batch}, "
        f"{cell.lengths} positions, vocabulary {cell.vocab}"
    )
    figure.savefig(file, dpi=120)
    pyplot.close(figure)


def _points(found: dict, cell: Cell, sweep: Sweep, system: str) -> list[tuple[int, Record]]:
    """Return the values of a sweep that were measured for a system, with their records."""
    points = []
    for value in sweep.values:
        varied = replace(cell, system=system, **{sweep.field: _setting(sweep, value)})
        if record := found.get((*task_of(vars(varied)), system)):
            points.append((value, record))
    return points


def _setting(sweep: Sweep, value: int) -> str | int:
    return f"{value}/{TARGET}" if sweep.field == "lengths" else value
