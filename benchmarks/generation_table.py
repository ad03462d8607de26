"""The table of `generate.py`."""

from collections.abc import Sequence
from typing import Any

from generation_grid import task_of

Record = dict[str, Any]
BASELINES = ("original", "bert2bert")
HEADINGS = (
    *("configuration", "lengths", "beam", "batch", "system", "sentences/s", "prefill ms", "step ms", "first", "last"),
    *("peak GB", "roofline", "/original", "/bert2bert", "same", "note"),
)


def table(records: Sequence[Record]) -> str:
    """Return the records as a table: one row per record, in their order, with a dash where a figure is missing."""
    tasks: dict[tuple[Any, ...], dict[str, Record]] = {}
    for record in records:
        tasks.setdefault(task_of(record), {})[_name(record)] = record
    rows = [HEADINGS, *(_row(record, tasks[task_of(record)]) for record in records)]
    widths = [max(len(row[column]) for row in rows) for column in range(len(HEADINGS))]
    lines = ("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)) for row in rows)
    return "\n".join([*(line.rstrip() for line in lines), _conditions(records)])


def _conditions(records: Sequence[Record]) -> str:
    def between(name: str, unit: float) -> str:
        values = [record[name] / unit for record in records]
        return f"{min(values):.3g} to {max(values):.3g}"

    return (
        f"matrix rate {between('flops_per_second', 1e9)} GFLOP/s, memory {between('bytes_per_second', 1e9)} GB/s, "
        f"load {between('load', 1)}"
    )


def _name(record: Record) -> str:
    return record["system"] if record["precision"] == "float32" else f"{record['system']} {record['precision']}"


def _row(record: Record, others: dict[str, Record]) -> tuple[str, ...]:
    share = record.get("roofline_share")
    return (
        *(str(record[name]) for name in ("config", "lengths", "beam", "batch")),
        _name(record),
        f"{record['sentences_per_second']:.3g}",
        *(f"{record[name]:.1f}" for name in ("prefill_ms", "step_ms", "first_steps_ms", "last_steps_ms")),
        f"{record['peak_bytes'] / 1e9:.2f}",
        "-" if share is None else f"{100 * share:.1f} %",
        *(_ratio(record, others.get(name)) for name in BASELINES),
        _same(record, others.get("ours")),
        f"extrapolated {record['extrapolated']}" if record["extrapolated"] else "",
    )


def _ratio(record: Record, baseline: Record | None) -> str:
    if record["system"] in BASELINES or baseline is None:
        return "-"
    ratio = record["sentences_per_second"] / baseline["sentences_per_second"]
    return f"{ratio:.2f}{'' if record['run'] == baseline['run'] else '*'}"


def _same(record: Record, ours: Record | None) -> str:
    if ours is None or record is ours or record["system"] == "bert2bert" or record["tokens"] is None:
        return "-"
    same = sum(one == other for one, other in zip(record["tokens"], ours["tokens"], strict=True))
    return f"{same}/{len(ours['tokens'])}"
