"""The report of `gpu.py`: its results compared with the bars, as Markdown. Needs only Python."""

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

Record = dict[str, Any]

# Dense matrix products with 16-bit factors, in FLOP/s, from NVIDIA's data sheets. The first name that the device's name
# contains counts.
PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H200 NVL": 835e12,
    "H100": 989e12,
    "H200": 989e12,
    "A100": 312e12,
}


class Bar(NamedTuple):
    """A condition that a figure should meet."""

    title: str
    wanted: str
    """``>= 30`` or ``<= 1.25``."""
    floor: str
    """A weaker condition: if it is missed too, something is badly wrong. Empty: no floor."""
    unit: str
    find: Callable[["Records"], float | None]
    """Returns the figure; None: not measured."""


class Records:
    """All records, and the measured ones by part and name."""

    def __init__(self, records: Iterable[Record]) -> None:
        self.every = list(records)
        self.measured = {(each["part"], each["name"]): each for each in self.every if each["state"] == "measured"}

    def of(self, part: str) -> list[Record]:
        """Return the measured records of a part."""
        return [record for (its, _), record in self.measured.items() if its == part]

    def get(self, part: str, name: str, field: str) -> float | None:
        """Return a figure."""
        return self.measured.get((part, name), {}).get(field)

    def peak(self) -> tuple[float | None, str]:
        """Return the rate that counts as 100 % MFU, in FLOP/s, and its origin."""
        names = [record["device_name"] for record in self.every]
        if names and (rate := data_sheet_rate(names[0])):
            return rate, "of the data sheet (16-bit factors, dense)"
        rate = self.get("environment", "matrices: large", "bfloat16_flops_per_second")
        return rate, "measured with large matrices in bfloat16"

    def mfu(self, name: str) -> float | None:
        """Return the MFU of a cell of ``training``, in percent of that rate."""
        found, (peak, _) = self.get("training", name, "flops_per_second"), self.peak()
        return 100 * found / peak if found and peak else None

    def worst(self, part: str, figure: Callable[[Record], float | None]) -> float | None:
        """Return the greatest figure of a part."""
        return max((value for record in self.of(part) if (value := figure(record)) is not None), default=None)


MIXES = ("464/48", "squad_qg", "30..50/8..16")


def training_bars() -> list[Bar]:
    """Return the bars of updates with ``--attention auto``."""
    shares = [("base 8k", 30, 25), ("base 32k", 34, 29), ("large 8k", 36, 31), ("large 32k", 40, 35)]
    shares.append(("minilm 32k", 20, 14))
    return [
        *(
            Bar(
                f"{task} {MIXES[0]}: MFU",
                f">= {wanted}",
                f">= {floor}",
                "%",
                lambda records, t=task: records.mfu(auto(t)),
            )
            for task, wanted, floor in shares
        ),
        Bar("base 8k: slowest of three length mixes to fastest, by positions", "<= 1.25", "", "x", spread),
        *(
            Bar(
                f"base 8k {mix}: real tokens/s to those of the faster padded Hugging Face BERT",
                *(">= 3", "", "x"),
                lambda records, m=mix: over_padded(records, m),
            )
            for mix in MIXES
        ),
    ]


def auto(task: str, mix: str = MIXES[0]) -> str:
    """Return the name of a cell of ``training`` with ``--attention auto``."""
    return f"{task} {mix}: auto"


def spread(records: Records) -> float | None:
    """Return the ratio of positions/s of the fastest length mix to the slowest one."""
    rates = [records.get("training", auto("base 8k", mix), "positions_per_second") for mix in MIXES]
    known = [rate for rate in rates if rate is not None]
    return max(known) / min(known) if len(known) == len(rates) else None


def over_padded(records: Records, mix: str) -> float | None:
    """Return the ratio of real tokens/s of ours to the faster baseline."""
    ours = records.get("training", auto("base 8k", mix), "tokens_per_second")
    theirs = [records.get("training", f"base 8k {mix}: {system}", "tokens_per_second") for system in ("plain", "sdpa")]
    known = [rate for rate in theirs if rate is not None]
    return ours / max(known) if ours and known else None


def decoding(records: Records, sentences: int, field: str) -> float | None:
    """Return the better figure of decoding, with or without CUDA graphs."""
    found = [records.get("decoding", f"N={sentences} 512/64: {system}", field) for system in ("eager", "graph")]
    known = [value for value in found if value is not None]
    return (min if field == "step_ms" else max)(known) if known else None


def over_generate(records: Records) -> float | None:
    """Return the ratio of sentences/s of ours to `generate` of `transformers`."""
    ours = decoding(records, 64, "sentences_per_second")
    theirs = records.get("decoding", "N=64 512/64: bert2bert", "sentences_per_second")
    return ours / theirs if ours and theirs else None


def rounding(record: Record) -> float | None:
    """Return the gradients' difference in bfloat16 over the CPU's own in bfloat16, or over 1e-2 if that is larger."""
    found = record.get("bfloat16")
    return found and found["gradient"] / max(1e-2, record["bfloat16_on_the_cpu"]["gradient"])


def other(name: str) -> Callable[[Records], float | None]:
    """Return a function that finds the largest value of a field of ``gradients``, named ``type.field``."""
    dtype, field = name.split(".")
    return lambda records: records.worst("parity", lambda record: record.get(dtype, {}).get(field))


def failures(records: Records) -> float | None:
    """Return how many cells of ``parity`` and ``resume`` failed."""
    checks = [record for record in records.every if record["part"] in ("parity", "resume")]
    return sum(record["state"] == "failed" for record in checks) if checks else None


BARS = [
    Bar("cells of parity and resume that failed", "<= 0", "", "", failures),
    Bar("float32 to the CPU: loss, the worst cell", "< 1e-3", "", "", other("float32.loss")),
    Bar("float32 to the CPU: gradient of the worst parameter", "< 1e-3", "", "", other("float32.worst_gradient")),
    Bar("bfloat16 to the CPU in float32: loss, the worst cell", "< 1e-2", "", "", other("bfloat16.loss")),
    Bar(
        "bfloat16: difference of all gradients, to 1e-2 or to the CPU's own in bfloat16",
        *("<= 2", "", "x"),
        lambda records: records.worst("parity", rounding),
    ),
    Bar(
        "rate of dropout, 0.1 wanted: the farthest",
        *("< 3e-3", "", ""),
        lambda records: records.worst("parity", lambda r: abs(r["rate"] - r["wanted"]) if "rate" in r else None),
    ),
    Bar(
        "weights that attention should not have",
        *("<= 0", "", ""),
        lambda records: records.worst("parity", lambda record: record.get("leaks")),
    ),
    Bar(
        "hypotheses that are not the CPU's",
        *("<= 0", "", ""),
        lambda records: records.worst("parity", lambda r: r["sentences"] - r["same"] if "same" in r else None),
    ),
    Bar(
        "losses of a training that is gone on with, beside two that are, the worst cell",
        *("< 1e-2", "", ""),
        lambda records: records.worst("resume", lambda r: max(0.0, r["difference"] - r["difference_of_two"])),
    ),
    *training_bars(),
    Bar("base, beam 5, 512/64, N=64", ">= 600", ">= 250", " sentences/s", lambda records: decoding(records, 64, RATE)),
    Bar("base, beam 5, 512/64, N=512", ">= 900", "", " sentences/s", lambda records: decoding(records, 512, RATE)),
    Bar("base, beam 5, 512/64, N=1: a step", "<= 1.5", "", " ms", lambda records: decoding(records, 1, "step_ms")),
    Bar("base, beam 5, 512/64, N=64: sentences/s to those of `generate`", ">= 10", "", "x", over_generate),
]
RATE = "sentences_per_second"


def judge(bar: Bar, found: float | None) -> str:
    """Return the verdict on a bar as text."""
    if found is None:
        return "not measured"
    if holds(found, bar.wanted):
        return "met"
    return "missed, the floor met" if bar.floor and holds(found, bar.floor) else "missed"


def holds(found: float, condition: str) -> bool:
    """Return whether a figure meets a condition such as ``>= 30``, ``<= 2`` or ``< 1e-3``."""
    sign, limit = condition.split()
    return {">=": found >= float(limit), "<=": found <= float(limit), "<": found < float(limit)}[sign]


def report(records: Sequence[Record]) -> str:
    """Return the report as Markdown: the bars, then the cells of each part, then devices and versions."""
    known = Records(records)
    peak, source = known.peak()
    bars = []
    for bar in BARS:
        found, floor = bar.find(known), bar.floor and bar.floor + bar.unit
        bars.append((bar.title, bar.wanted + bar.unit, floor, number(found, bar.unit), judge(bar, found)))
    lines = [f"MFU is the share of {peak / 1e12:.3g} TFLOP/s, {source}." if peak else "MFU is not known yet.", ""]
    lines += table_of(("", "wanted", "floor", "found", ""), bars)
    for part in dict.fromkeys(record["part"] for record in records):
        of_part = [record for record in records if record["part"] == part]
        lines += ["", f"### {part.capitalize()}", ""]
        lines += table_of(("cell", "found"), ((record["name"], summary(record)) for record in of_part))
    runs = {(r["device_name"], r["torch"], r["commit"] or "not known") for r in records}
    lines += ["", *(f"Measured on {name}, PyTorch {torch}, commit {commit}." for name, torch, commit in sorted(runs))]
    return "\n".join(lines)


def table_of(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    return [
        "| " + " | ".join(headings) + " |",
        "|" + "---|" * len(headings),
        *("| " + " | ".join(cell.replace("|", "/") for cell in row) + " |" for row in rows),
    ]


def number(found: float | None, unit: str = "") -> str:
    """Return a figure with three digits."""
    return "" if found is None else f"{found:.3g}{unit}"


SHOWN = {
    "ms": "{:.2f} ms",
    "positions_per_second": "{:,.0f} positions/s",
    "tokens_per_second": "{:,.0f} tokens/s",
    "sentences_per_second": "{:.1f} sentences/s",
    "step_ms": "{:.2f} ms a step",
    "launches": "{:,} launches",
    "waits": "{:,} waits",
    "device_ms": "device busy for {:.2f} ms",
    "largest": "{} examples",
    "peak_bytes": "{:.3g} bytes at most",
    "same": "{} the same",
    "rate": "rate {:.4f}",
    "difference": "differ by {:.1e}",
    "bfloat16_flops_per_second": "{:.3g} FLOP/s in bfloat16",
    "float32_flops_per_second": "{:.3g} FLOP/s in float32",
    "bytes_per_second": "{:.3g} bytes/s",
    "launch_seconds": "{:.2g} s a launch",
    "cuda": "CUDA {}",
    "nvidia_smi": "{}",
}


def summary(record: Record) -> str:
    """Return the most telling figures of a record on one line."""
    if record["state"] != "measured":
        return f"{record['state']}: {record.get('reason', 'its process has ended')}".replace("\n", " ")
    shown = [text.format(record[name]) for name, text in SHOWN.items() if record.get(name) is not None]
    for dtype in ("float32", "bfloat16"):
        if "gradient" in record.get(dtype, {}):
            shown.append(f"{dtype}: loss {record[dtype]['loss']:.1e}, gradient {record[dtype]['gradient']:.1e}")
        elif "taken" in record.get(dtype, {}):
            shown.append(f"{dtype}: {', '.join(record[dtype]['taken'])}")
    return ", ".join(shown).replace("\n", " ") or "measured"


def data_sheet_rate(name: str) -> float | None:
    """Return a device's rate of 16-bit matrix products from its data sheet, in FLOP/s; None: not known."""
    return next((rate for part, rate in PEAKS.items() if part in name), None)


def records_file(path: Path) -> Path:
    """Return the file of records: the path itself, or gpu.json in it if it is a folder."""
    return path / "gpu.json" if path.is_dir() else path
