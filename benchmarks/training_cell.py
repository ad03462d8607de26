"""Measure one cell of `train.py` in its own process: read its JSON from stdin, write its record to stdout."""

import json
import statistics
import sys
import time
from collections.abc import Sequence
from typing import Any

import torch
from process_facts import facts, memory
from roofline import Sizes, measure_rates, synchronize
from training_grid import FACTORED, Cell
from training_pairs import Outcome, System, draw_pairs, pair_lengths
from training_work import block_scores, update_flops


def make_system(cell: Cell) -> System:
    """Make the system of a cell; import nothing that only another system needs."""
    if cell.system in ("ours", FACTORED):
        from training_ours import ours

        return ours(cell)
    from training_plain import plain

    return plain(cell)


def run_updates(cell: Cell, system: System) -> tuple[list[float], list[Outcome]]:
    """Run a warm-up update and the timed updates. Making the batch from pairs is part of an update.

    Returns:
        Seconds of the timed updates, and the outcomes of all updates.
    """
    device = torch.device(cell.device)
    seconds, outcomes = [], []
    for number in range(1, cell.updates + 2):
        pairs = draw_pairs(cell, number)
        synchronize(device)
        start = time.perf_counter()
        outcomes.append(system(pairs))
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return seconds[1:], outcomes


def measure(cell: Cell) -> dict[str, Any]:
    """Run a cell and return its figures."""
    system = make_system(cell)
    loaded = memory("VmRSS")
    seconds, outcomes = run_updates(cell, system)
    # fairseq resets PyTorch's peak at every update. Reserved memory is not returned to the device in between.
    peak = torch.cuda.memory_reserved() if cell.device.startswith("cuda") else memory("VmHWM")
    record = {
        **amounts(cell, pair_lengths(cell)),
        "seconds": seconds,
        "least_seconds": min(seconds),
        "median_seconds": statistics.median(seconds),
        "first_loss": outcomes[0].loss,
        "positions": outcomes[0].positions,
        "loaded_bytes": loaded,
        "peak_bytes": peak,
    }
    # After the peak was read: this takes memory too.
    rates = measure_rates(torch.device(cell.device))
    return record | {
        "flops_per_second": rates.flops,
        "bf16_flops_per_second": rates.bf16_flops,
        "bytes_per_second": rates.bytes,
    }


def amounts(cell: Cell, lengths: Sequence[tuple[int, int]]) -> dict[str, int]:
    """Return the amounts of work that an update needs in any system."""
    blocks = [cell.blocks(source, target) for source, target in lengths]
    real_positions = sum(map(sum, blocks))
    labels = sum(cell.labels(target) for _, target in lengths)
    encoder = cell.encoder
    sizes = Sizes(encoder.layers, encoder.width, encoder.ffn_width, cell.vocab)
    return {
        "real_tokens": sum(map(sum, lengths)),
        "real_positions": real_positions,
        "labels": labels,
        "flops": update_flops(sizes, real_positions, sum(map(block_scores, blocks)), labels),
    }


def main() -> None:
    cell = Cell(**json.load(sys.stdin))
    torch.set_num_threads(cell.threads)
    before = facts()
    json.dump({**before, **measure(cell)}, sys.stdout)


if __name__ == "__main__":
    main()
