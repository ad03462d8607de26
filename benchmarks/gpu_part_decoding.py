"""Part ``decoding`` of `gpu.py`: sentences/s and ms per step, compared with BERT2BERT of `transformers`.

Base size, bfloat16, beam search; the sentences of a cell are one batch, and each hypothesis has a fixed number of
tokens. The time of a step is the difference between decoding all tokens and decoding one, divided by the number of
further tokens.

Two cells decode many batches of different lengths once, as a user does: CUDA graphs are recorded within the time.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from statistics import median

import torch
from generation_baselines import bert2bert
from generation_cell import make_sources
from generation_grid import Cell
from generation_systems import Decode, Setting, ours, prepare, unilm_model
from gpu_timing import Record, Settings, peak_bytes, profiled, release, seconds_of, tally
from roofline import synchronize
from torch import Tensor

BEAM = 5
SENTENCES, LENGTHS = (64, 1, 512), ("512/64", "32..512/64")
TINY_SENTENCES, TINY_LENGTHS = (2,), ("12/4", "5..12/4")
BATCHES, TINY_BATCHES = 16, 3
"""Number of batches of the cells that decode many."""
SYSTEMS = ("eager", "graph", "bert2bert")


def cells(settings: Settings) -> Iterator[Record]:
    """Yield the cells, the most telling first; the baseline with 512 sentences takes longest."""
    tasks = [
        (sentences, lengths)
        for lengths in (TINY_LENGTHS if settings.tiny else LENGTHS)
        for sentences in (TINY_SENTENCES if settings.tiny else SENTENCES)
    ]
    sentences, lengths = tasks[len(tasks) // 2]  # the first of the mixed lengths
    batches = TINY_BATCHES if settings.tiny else BATCHES
    for system in SYSTEMS[:2]:
        task = {"sentences": sentences, "lengths": lengths, "system": system}
        yield {"name": f"{batches} batches of N={sentences} {lengths}: {system}", **task, "batches": batches}
    for system in SYSTEMS:
        for sentences, lengths in tasks:
            name = f"N={sentences} {lengths}: {system}"
            yield {"name": name, "sentences": sentences, "lengths": lengths, "system": system}


def unavailable(cell: Record, settings: Settings) -> str | None:
    """Return why a cell cannot be measured; None if it can."""
    if cell["system"] == "graph" and settings.device != "cuda":
        return "CUDA graphs need a GPU"
    return None


def measure(cell: Record, settings: Settings) -> Record:
    """Measure one cell."""
    task = Cell(
        config="unilm_tiny" if settings.tiny else "unilm_base",
        lengths=cell["lengths"],
        beam=2 if settings.tiny else BEAM,
        batch=cell["sentences"],
        system=cell["system"],
        precision="bfloat16",
        sentences=cell["sentences"] * cell.get("batches", 1),
        vocab=100 if settings.tiny else 30522,
        device=settings.device,
        threads=torch.get_num_threads(),
        seed=1,
        baseline_steps=0,
        repeats=1,
    )
    sources = make_sources(task)
    decoder = make_decoder(task)
    if "batches" in cell:
        return many_batches(sources, decoder, task)
    (source,) = sources
    is_ours = cell["system"] != "bert2bert"
    repeats = {"warm_up": 3 if is_ours else 1, "repeats": 5 if is_ours else 2}

    def run(decode: Decode, steps: int) -> tuple[float, Record]:
        """Return the seconds of a batch, its peak memory and, for ours, its calls of the driver."""
        call = partial(decode, source, no_tick)
        if (shape := tuple(call().shape)) != (cell["sentences"], steps):
            raise RuntimeError(f"{shape} tokens came")
        seconds = median(seconds_of(call, settings, **repeats))
        peak = peak_bytes(settings.device)
        return seconds, {"peak_bytes": peak, **(tally(profiled(call, settings.device)) if is_ours else {})}

    whole, counts = run(decoder(task.target_length), task.target_length)
    release(settings.device)
    one, _ = run(decoder(1), 1)
    steps = task.target_length - 1
    return {
        **counts,
        "seconds": whole,
        "seconds_of_one_token": one,
        "sentences_per_second": cell["sentences"] / whole,
        "step_ms": 1000 * (whole - one) / steps,
        "steps": steps,
    }


def many_batches(sources: Sequence[Tensor], decoder: Callable[[int], Decode], task: Cell) -> Record:
    """Decode all batches one after the other, twice, with a decoder that has not decoded before."""
    decoder(task.target_length)(sources[0], no_tick)  # loads the kernels
    decode, device = decoder(task.target_length), torch.device(task.device)

    def pass_seconds() -> float:
        synchronize(device)
        start = time.perf_counter()
        for source in sources:
            decode(source, no_tick)
        synchronize(device)
        return time.perf_counter() - start

    first = pass_seconds()
    return {
        "seconds": first,
        "seconds_again": pass_seconds(),
        "sentences_per_second": task.sentences / first,
        "peak_bytes": peak_bytes(task.device),
    }


def no_tick() -> None:
    """Ignore a step: nothing may wait for the device between two steps."""


def make_decoder(task: Cell) -> Callable[[int], Decode]:
    """Return a function that makes the decoding of a given number of tokens; ours shares one model for all."""
    setting = Setting(
        config=task.config,
        vocab=task.vocab,
        max_source=task.source_lengths[1],
        steps=task.target_length,
        beam=task.beam,
        device=torch.device(task.device),
        seed=task.seed,
    )
    if task.system == "bert2bert":
        return lambda steps: bert2bert(replace(setting, steps=steps), torch.bfloat16)
    model = unilm_model(setting)
    prepare(model, task.precision)
    graphs = task.system == "graph"
    return lambda steps: ours(replace(setting, steps=steps), model, cuda_graphs="on" if graphs else "off")
