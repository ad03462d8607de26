"""The table of `train.py`."""

from collections.abc import Sequence
from typing import Any

from records import Record
from training_grid import system_of, task_of

HEADINGS = (
    *("configuration", "method", "lengths", "batch", "vocabulary", "system", "least s", "median s", "tokens/s"),
    *("padding", "peak GB", "MFU", "speed/plain", "memory/plain"),
)

RATES = {"float32": "flops_per_second", "bfloat16": "bf16_flops_per_second"}
"""Field of a record with the matrix rate of a precision."""


def table(records: Sequence[Record]) -> str:
    """Return the records as a table: one row per record, in their order, with a dash where a figure is missing."""
    tasks: dict[tuple[Any, ...], dict[tuple[str, str], Record]] = {}
    for record in records:
        tasks.setdefault(task_of(record), {})[system_of(record)] = record
    rows = [HEADINGS]
    for record in records:
        rate = sustained_rate(records, RATES[system_of(record)[1]])
        rows.append(_row(record, tasks[task_of(record)].get(("plain", "float32")), rate))
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join([*(line.rstrip() for line in lines), _conditions(records)])


def sustained_rate(records: Sequence[Record], name: str = RATES["float32"]) -> float:
    """Return the highest matrix rate in the field ``name`` of any record, in FLOP/s.

    A lower rate was measured while the machine did other work; MFU relative to it would be too high.
    """
    return max(record[name] for record in records if name in record)


def _conditions(records: Sequence[Record]) -> str:
    def between(name: str, unit: float) -> str:
        values = [record[name] / unit for record in records if name in record]
        return f"{min(values):.3g} to {max(values):.3g}"

    rates = (
        f"{between(name, 1e9)} GFLOP/s in {precision}"
        for precision, name in RATES.items()
        if any(name in record for record in records)
    )
    return f"matrix rate {', '.join(rates)}, load {between('load', 1)}"


def _row(record: Record, plain: Record | None, rate: float) -> tuple[str, ...]:
    seconds = record["least_seconds"]
    return (
        *(str(record[name]) for name in ("config", "method", "lengths", "batch", "vocab")),
        record["system"] if system_of(record)[1] == "float32" else " ".join(system_of(record)),
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
