"""Correctness and speed of this package on a GPU: the parts of `scripts/gpu_check.sh`.

    python benchmarks/gpu.py training --out out     # one part; a second run measures the cells that are missing
    python benchmarks/gpu.py report out             # all results, compared with the bars, as Markdown
    python benchmarks/gpu.py training --out out --device cpu --tiny    # to find mistakes without a GPU

The parts are environment, parity, training, decoding, memory and resume, each in its own file (`gpu_part_PART.py`).
Weights and words are random: no part needs a network or files. A part measures one cell after the other, the most
telling first, and writes out/gpu.json after each. It begins no cell that may not end within --seconds.

Exit status: 0: no cell is missing; 3: the time ran out before all cells were measured; 75: an error left the GPU
unusable for this process, run the part again.
"""

import argparse
import logging
import sys
import time
import traceback
from collections.abc import Callable, Iterable
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

import gpu_report
from records import commit, read_records, write_records

Record = dict[str, Any]

PARTS = {"environment": 20, "parity": 45, "training": 45, "decoding": 90, "memory": 120, "resume": 60}
"""The parts, and the seconds that a cell is expected to take. A longer cell of this run raises the estimate."""
TRIES = 2
"""Attempts at a cell whose process dies while it is measured."""
LEFT, POISONED = 3, 75


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("part", choices=(*PARTS, "report"))
    add("folder", nargs="?", type=Path, help="of a report: the folder, or a file of records")
    add("--out", type=Path, default=Path("gpu-out"), help="folder of gpu.json (default: gpu-out)")
    add("--device", default="cuda", choices=("cuda", "cpu"))
    add("--tiny", action="store_true", help="tiny sizes, to find mistakes")
    add("--seconds", type=float, default=480.0, help="begin no cell that may end later than this (default: 480)")
    add("--only", default="", metavar="TEXT", help="only cells whose name has this in it")
    add("--again", action="store_true", help="measure again what failed")
    options = parser.parse_args()
    if options.part == "report":
        print(gpu_report.report(read_records(gpu_report.records_file(options.folder or options.out))))
        return 0
    start = time.monotonic()  # imports count too
    import s2sft_fairseq.plugin  # noqa: F401  patches fairseq, so it comes before modules that import fairseq

    # isort: split
    import torch
    from gpu_timing import Settings

    if options.device == "cuda" and not torch.cuda.is_available():
        parser.error("--device is cuda, but PyTorch finds no GPU")
    logging.disable(logging.WARNING)
    options.out.mkdir(parents=True, exist_ok=True)
    return run_part(
        options.part,
        Settings(options.device, options.tiny),
        options.out / "gpu.json",
        until=start + options.seconds,
        only=options.only,
        again=options.again,
    )


def run_part(
    part: str, settings: Any, file: Path, *, until: float = float("inf"), only: str = "", again: bool = False
) -> int:
    """Measure the missing cells of a part, and write each record at once.

    Args:
        part: name of the part.
        settings: `gpu_timing.Settings`.
        file: file of the records of all parts.
        until: the end of the available time, on the clock of `time.monotonic`.
        only: measure only cells whose names contain this text.
        again: measure cells again that failed.

    Returns:
        The exit status.
    """
    module = import_module(f"gpu_part_{part}")
    records = {(record["part"], record["name"]): record for record in read_records(file)}
    about = {"part": part, "device": settings.device, "tiny": settings.tiny, **origin(settings)}
    cells = [cell for cell in module.cells(settings) if only in cell["name"]]
    missing = [cell for cell in cells if is_missing(records.get((part, cell["name"])), again)]
    say(f"{part}: {len(cells)} cells, {len(cells) - len(missing)} are there already")
    longest: float = 0.0 if settings.tiny else PARTS[part]
    for number, cell in enumerate(missing):
        key, begun = (part, cell["name"]), time.monotonic()
        if begun + longest > until:
            tell_left(part, missing[number:])
            return LEFT

        def keep(key: tuple[str, str] = key, cell: Record = cell, **found: Any) -> None:
            records[key] = {**about, **cell, **found}
            write_records(file, records.values())

        if reason := why_unavailable(module, cell, settings):
            keep(state="skipped", reason=reason)
            say(f"{part}: {cell['name']}: skipped: {reason}")
            continue
        tries = records.get(key, {}).get("tries", 0) + 1
        if tries > TRIES and not again:
            keep(state="failed", reason=f"the process ended {TRIES} times within it")
            continue
        keep(state="begun", tries=tries)
        usable = measure(module, cell, settings, keep)
        longest = max(longest, time.monotonic() - begun)
        say(f"{part}: {cell['name']}: {gpu_report.summary(records[key])} ({time.monotonic() - begun:.0f} s)")
        if not usable:
            return POISONED
    failed = sum(records[part, cell["name"]]["state"] == "failed" for cell in cells)
    say(f"{part}: nothing is missing" + (f"; {failed} cells failed, --again measures them again" if failed else ""))
    return 0


def measure(module: ModuleType, cell: Record, settings: Any, keep: Callable[..., None]) -> bool:
    """Measure a cell, and keep its figures or its error; return whether the device can still be used."""
    from gpu_timing import is_usable, release

    begun = time.monotonic()
    try:
        found = module.measure(cell, settings)
    except Exception as error:  # any error: other cells may still work
        where = traceback.extract_tb(error.__traceback__)[-1]
        message = f"{type(error).__name__}: {error}"[:500]
        keep(state="failed", reason=message, where=f"{Path(where.filename).name}:{where.lineno}")
        traceback.print_exc()
    else:
        keep(state="measured", **found, cell_seconds=round(time.monotonic() - begun, 1))
    usable = is_usable(settings.device)
    if usable:
        release(settings.device)
    return usable


def is_missing(record: Record | None, again: bool) -> bool:
    """Return whether a cell must be measured. A cell that was skipped may be available by now."""
    return record is None or record["state"] in ("begun", "skipped") or (again and record["state"] == "failed")


def why_unavailable(module: ModuleType, cell: Record, settings: Any) -> str | None:
    """Return why a cell cannot be measured with this version and device, as its part says; None if it can."""
    ask = getattr(module, "unavailable", None)
    return ask(cell, settings) if ask is not None else None


def origin(settings: Any) -> Record:
    """Return the device, the versions and the time of a record."""
    import torch

    name = torch.cuda.get_device_name(0) if settings.device == "cuda" else "CPU"
    return {
        "device_name": name,
        "torch": torch.__version__,
        "commit": commit(),
        "run": time.strftime("%Y-%m-%dT%H:%M:%S"),
    }


def tell_left(part: str, cells: Iterable[Record]) -> None:
    """Print which cells are left."""
    names = [cell["name"] for cell in cells]
    say(f"{part}: no time is left for {len(names)} cells; run it again to go on with: {'; '.join(names)}")


def say(text: str) -> None:
    """Print progress to stderr."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
