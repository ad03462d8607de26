"""Measure one cell of `language_models.py`: read its JSON from stdin, write its record to stdout.

Training and generation run in processes of their own, so that each has its own peak of memory.
"""

import json
import shutil
import statistics
import subprocess
import sys
import time
from dataclasses import asdict
from pathlib import Path
from types import ModuleType
from typing import Any

import torch
from language_models_task import Cell, evenly, load
from process_facts import facts, memory

PHASES = ("train", "generate")


def program(cell: Cell) -> ModuleType:
    """Return the module of a cell's program; load no library that only another one needs."""
    if cell.system == "ours":
        import language_models_ours

        return language_models_ours
    import language_models_plain

    return language_models_plain


def train(cell: Cell, folder: Path) -> dict[str, Any]:
    """Train the model of a cell."""
    if cell.system == "llama.cpp":
        return {"updates": 0, "training_seconds": 0.0, "whole_seconds": 0.0, "training_peak_bytes": 0}
    found: dict[str, Any] = program(cell).train(cell, load(cell), folder)
    return {**found, "training_peak_bytes": memory("VmHWM")}


def generate(cell: Cell, folder: Path) -> dict[str, Any]:
    """Generate the texts of a cell, some of them once more alone, and measure."""
    used = program(cell)
    sources = load(cell).sources
    texts_of = used.load(cell, folder)
    texts_of(sources[: cell.batch], cell.batch)  # what the first call prepares is not measured
    began = time.perf_counter()
    texts = texts_of(sources, cell.batch)
    together = (time.perf_counter() - began) / len(sources)
    seconds, words = [], []
    for source in evenly(sources, cell.alone):
        began = time.perf_counter()
        (text,) = texts_of([source], 1)
        seconds.append(time.perf_counter() - began)
        words.append(len(text.split()))
    (Path(cell.output) / "texts").mkdir(exist_ok=True)
    written = Path(cell.output) / "texts" / f"{cell.name}.txt"
    written.write_text("".join(f"{' '.join(text.split())}\n" for text in texts), encoding="utf-8")
    return {
        "text_seconds": statistics.mean(seconds),
        "words": statistics.mean(words),
        "batch_text_seconds": together,
        "peak_bytes": memory("VmHWM"),
        "disk_bytes": disk_bytes(used.files(cell, folder)),
    }


def disk_bytes(path: Path) -> int:
    """Return the size of a file, or of all files of a folder."""
    files = [path] if path.is_file() else [file for file in path.rglob("*") if file.is_file()]
    return sum(file.stat().st_size for file in files)


def in_own_process(cell: Cell, phase: str) -> dict[str, Any]:
    """Run a phase, and return its figures."""
    words = [sys.executable, __file__, phase]
    done = subprocess.run(words, input=json.dumps(asdict(cell)), stdout=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise SystemExit(f"error: {phase} ended with status {done.returncode}")
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return found


def measure(cell: Cell, run: Any = in_own_process) -> dict[str, Any]:
    """Run both phases. What was trained is removed at the end, or by the next try; its texts stay."""
    folder = Path(cell.output) / "models" / cell.name
    shutil.rmtree(folder, ignore_errors=True)
    folder.parent.mkdir(parents=True, exist_ok=True)
    before = facts()
    record = {**before, **run(cell, "train"), **run(cell, "generate")}
    shutil.rmtree(folder, ignore_errors=True)
    return record


def main() -> None:
    fields = json.load(sys.stdin)
    cell = Cell(**{**fields, "options": tuple(fields["options"])})
    torch.set_num_threads(cell.threads)
    if len(sys.argv) == 1:
        json.dump(measure(cell), sys.stdout)
        return
    own, sys.stdout = sys.stdout, sys.stderr  # what commands print is no record
    phase = {"train": train, "generate": generate}[sys.argv[1]]
    json.dump(phase(cell, Path(cell.output) / "models" / cell.name), own)


if __name__ == "__main__":
    main()
