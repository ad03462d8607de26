"""The table of `train.py`."""

from collections.abc import Sequence
from typing import Any

from records import Record
from training_grid import task_of

HEADINGS = (
    *("configuration", "method", "lengths", "batch", "vocabulary", "system", "least s", "median s", "tokens/s"),
    *("padding", "peak GB", "MFU", "speed/plain", "memory/plain"),
)


def table(records: Sequence[Record]) -> str:
    """Return the records as a table, a row each, in their order; what was not measured is a dash."""
    tasks: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        tasks.setdefault(task_of(record), {})[record["system"]] = record
    rate = sustained_rate(records)
    rows = [HEADINGS, *(_row(record, tasks[task_of(record)].get("plain"), rate) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join([*(line.rstrip() for line in lines), _conditions(records)])


def sustained_rate(records: Sequence[Record]) -> float:
    """Return the highest matrix rate that any cell found, in FLOP/s.

    A cell that found a lower one did so beside other work, which would make its share of that rate too high.
    """
    return max(record["flops_per_second"] for record in records)


def _conditions(records: Sequence[Record]) -> str:
    def between(name: str, unit: float) -> str:
        values = [record[name] / unit for record in records]
        return f"{min(values):.3g} to {max(values):.3g}"

    return f"matrix rate {between('flops_per_second', 1e9)} GFLOP/s, load {between('load', 1)}"


def _row(record: Record, plain: Record | None, rate: float) -> tuple[str, ...]:
    seconds = record["least_seconds"]
    return (
        *(str(record[name]) for name in ("config", "method", "lengths", "batch", "vocab", "system")),
        f"{seconds:.3g}",
        f"{record['median_seconds']:.3g}",
        f"{record['real_tokens'] / seconds:.0f}",
        f"{100 * (1 - record['real_positions'] / record['positions']):.1f} %",
        f"{record['peak_bytes'] / 1e9:.2f}",
        f"{100 * record['flops'] / seconds / rate:.1f} %",
        *_ratios(record, plain),
    )


def _ratios(record: Record, plain: Record | None) -> tuple[str, str]:
    if plain is None or record is plain:
        return "-", "-"
    mark = "" if record["run"] == plain["run"] else "*"
    speed, memory = plain["least_seconds"] / record["least_seconds"], record["peak_bytes"] / plain["peak_bytes"]
    return f"{speed:.2f}{mark}", f"{100 * memory:.0f} %"
