"""Measure one cell of `generate.py` in its own process: read its JSON from stdin, write its record to stdout.

A step begins when a system calls ``tick``. The prefill is the time before the first call: the encoding of the source
and, for the original's loop, the first step, which is in the same pass.
"""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from generation_grid import Cell
from generation_systems import CLS, CONFIGURATIONS, FIRST_WORD, PAD, SEP, Decode, Setting, ours, prepare, unilm_model
from process_facts import facts, memory
from roofline import Sizes, Work, least_seconds, measure_rates, needed_work, synchronize
from torch import Tensor

from s2sft_fairseq.errors import UserError

EDGE_STEPS = 10  # at most, at each end of a hypothesis


class Timing(NamedTuple):
    """Times of one batch, in seconds."""

    prefill: float
    steps: list[float]

    @property
    def total(self) -> float:
        """Time of the whole batch."""
        return self.prefill + sum(self.steps)


def make_sources(cell: Cell) -> list[Tensor]:
    """Draw sources of random words; return them in batches (N, S), the longest first, as decoding sorts them."""
    generator = torch.Generator().manual_seed(cell.seed)
    low, high = cell.source_lengths
    lengths = torch.randint(low, high + 1, (cell.sentences,), generator=generator).sort(descending=True).values.tolist()
    rows = [torch.randint(FIRST_WORD, cell.vocab, (length,), generator=generator) for length in lengths]
    for row in rows:
        row[0], row[-1] = CLS, SEP
    batches = [rows[start : start + cell.batch] for start in range(0, len(rows), cell.batch)]
    padded = torch.nn.utils.rnn.pad_sequence
    return [padded(batch, batch_first=True, padding_value=PAD).to(cell.device) for batch in batches]


def spread_steps(steps: int, number: int) -> list[int]:
    """Return ``number`` steps, spread evenly from the second to the last; the first one is part of the prefill."""
    return sorted({round(step) for step in np.linspace(1, steps - 1, number).tolist()})


def run_batch(decode: Decode, source: Tensor, cell: Cell, measured: Sequence[int] | None) -> tuple[Timing, Tensor]:
    """Time a batch; the times of steps that were not measured are interpolated linearly."""
    device = source.device
    stamps: list[float] = []

    def tick() -> None:
        synchronize(device)
        stamps.append(time.perf_counter())

    tick()
    tokens = decode(source, tick)
    tick()
    prefill, *steps = np.diff(stamps).tolist()
    first = 1 if cell.system == "original" else 0
    if len(steps) != cell.target_length - first or tokens.shape != (len(source), cell.target_length):
        raise RuntimeError(f"{cell}: {len(steps)} steps were counted and tokens {tuple(tokens.shape)} came")
    if measured is not None:
        seconds = [steps[step - first] for step in measured]
        steps = np.interp(range(first, cell.target_length), measured, seconds).tolist()
    return Timing(prefill, steps), tokens


def make_system(cell: Cell, measured: Sequence[int] | None) -> Decode:
    """Make the system of a cell; load no library that only another system needs."""
    setting = Setting(
        config=cell.config,
        vocab=cell.vocab,
        max_source=cell.source_lengths[1],
        steps=cell.target_length,
        beam=cell.beam,
        device=torch.device(cell.device),
        seed=cell.seed,
    )
    if cell.system == "ours":
        model = unilm_model(setting)
        prepare(model, cell.precision)
        return ours(setting, model)
    from generation_baselines import bert2bert, original

    return original(setting, unilm_model(setting), measured) if cell.system == "original" else bert2bert(setting)


def measure(cell: Cell) -> dict[str, Any]:
    """Run a cell and return its figures."""
    measured = spread_steps(cell.target_length, cell.baseline_steps) if cell.baseline_steps else None
    decode = make_system(cell, measured)
    sources = make_sources(cell)
    loaded = memory("VmRSS")
    runs = [[run_batch(decode, source, cell, measured) for source in sources] for _ in range(cell.repeats)]
    peak = torch.cuda.max_memory_allocated() if cell.device.startswith("cuda") else memory("VmHWM")
    totals = [sum(timing.total for timing, _ in run) for run in runs]
    best = runs[totals.index(min(totals))]
    timings = [timing for timing, _ in best]
    record = {
        **times(timings, cell.sentences),
        "seconds": totals,
        "loaded_bytes": loaded,
        "peak_bytes": peak,
        "extrapolated": f"from {len(measured)} of {cell.target_length - 1} steps" if measured else None,
        "tokens": None if measured else [row for _, tokens in best for row in tokens.tolist()],
    }
    # After the peak was read: this takes memory too.
    rates = measure_rates(torch.device(cell.device))
    record |= {"flops_per_second": rates.flops, "bytes_per_second": rates.bytes}
    if cell.system != "bert2bert":  # the work of that model is not counted
        least = sum(least_seconds(work, rates) for work in batch_works(cell, sources))
        record["roofline_share"] = least / min(totals)
    return record


def times(timings: Sequence[Timing], sentences: int) -> dict[str, float]:
    """Return the speed of a run in sentences/s, and means over its batches in ms."""
    edge = min(EDGE_STEPS, len(timings[0].steps) // 2) or 1
    first = statistics.mean(statistics.median(timing.steps[:edge]) for timing in timings)
    last = statistics.mean(statistics.median(timing.steps[-edge:]) for timing in timings)
    return {
        "sentences_per_second": sentences / sum(timing.total for timing in timings),
        "prefill_ms": 1000 * statistics.mean(timing.prefill for timing in timings),
        "step_ms": 1000 * statistics.mean(statistics.mean(timing.steps) for timing in timings),
        "first_steps_ms": 1000 * first,
        "last_steps_ms": 1000 * last,
    }


def batch_works(cell: Cell, sources: Sequence[Tensor]) -> list[Work]:
    """Count the work that each batch needs."""
    architecture = CONFIGURATIONS[cell.config]
    sizes = Sizes(
        architecture["encoder_layers"],
        architecture["encoder_embed_dim"],
        architecture["encoder_ffn_embed_dim"],
        cell.vocab,
    )
    lengths = [(source != PAD).sum(dim=1).tolist() for source in sources]
    return [needed_work(sizes, batch, cell.target_length, cell.beam) for batch in lengths]


def main() -> None:
    cell = Cell(**json.load(sys.stdin))
    if cell.config not in CONFIGURATIONS:
        raise SystemExit(f"--config must be one of {', '.join(CONFIGURATIONS)}, but is {cell.config}")
    torch.set_num_threads(cell.threads)
    before = facts()
    try:
        json.dump({**before, **measure(cell)}, sys.stdout)
    except UserError as error:  # not possible on this machine
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
