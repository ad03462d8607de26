"""Speed and memory of fine-tuning, compared with BERT of `transformers` trained as in the original s2s-ft program.

    python benchmarks/train.py                                   # everything: about 40 minutes on 2 free cores
    python benchmarks/train.py --config unilm_base --method pseudo_masked --lengths 60..464/8..48
    python benchmarks/train.py --vocab 250002 --method pseudo_masked    # XLM-R's size
    python benchmarks/train.py --resume                          # continues after a stop
    python benchmarks/train.py --scaling scaling.png             # plot over lengths, vocabulary and examples

Weights and words are random. Both systems update on the same pairs, with the same dropout and the same settings of
AdamW. Each runs in its own process, which also measures the matrix rate of the machine (so run nothing else meanwhile):

* ours: `Trainer` of fairseq with task, model, criterion and optimizer of this package, as in ``s2sft train``
* plain: `transformers`, with every example padded to the maximum, dense scores with an additive mask, and the loss of
  the original; this package is not imported (`training_plain.py`)
* factored, on request: ours with ``--factored-moments``
* sdpa, on request: plain, but with PyTorch's scaled dot-product attention
* full_logits, on request: plain, but with the head at all positions, as in `BertForMaskedLM`

An update begins with ids: making the batch is part of it. The lengths of a batch represent the whole distribution, and
are the same in every update (`training_pairs.py`). ``squad_qg`` has the lengths of real question generation
(`training_grid.py`). The fastest of the timed updates counts; one warm-up update comes before them. In the table

* "tokens/s" counts real positions of sources and targets, with special symbols, without placeholders and padding
* "padding" is the share of padding in the positions that the layers compute
* "peak" is the peak resident memory of the process, libraries included (on a GPU the memory that PyTorch reserved)
* "MFU" is the useful share of the matrix rate: the FLOPs of real positions (`training_work.py`: forward, and twice that
  backward; scores between sections; the head at labels), divided by the time and by the highest rate that any cell of
  the table measured with any library of PyTorch, with factors of the same precision
* "bfloat16" means ``--amp`` for ours and autocast of PyTorch for plain: the factors of products are rounded; on a GPU
  it means ``--bf16`` for ours, with 16-bit weights and a copy in 32 bits. On a CPU without bfloat16 instructions ours
  computes in float32 instead
* "/plain" are ratios of tokens/s and of memory to plain in float32, with a * if the two were not measured in one run
"""

import argparse
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from records import measure_cells
from training_grid import (
    CONFIGURATIONS,
    DEFAULT_BATCH,
    FACTORED,
    FULL_LOGITS,
    METHODS,
    PRECISIONS,
    SDPA,
    SYSTEMS,
    Cell,
    describe,
    key_of,
    parse_lengths,
)
from training_pairs import FIRST_WORD
from training_scaling import TARGET, draw, sweep_cells
from training_table import table

LENGTHS = ("60..464/8..48", "464/48", "squad_qg")
BATCH = 4


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config", nargs="+", default=["minilm_l6_h384", "unilm_base"], choices=CONFIGURATIONS, help="architectures")
    add("--method", nargs="+", choices=METHODS, help="(default: all; with --scaling pseudo_masked)")
    add("--lengths", nargs="+", metavar="S/T", help=f"positions of sources / of targets (default: {' '.join(LENGTHS)})")
    add("--batch", nargs="+", type=int, metavar="N", help=f"examples of a batch (default: {BATCH}; 16 of squad_qg)")
    add("--system", nargs="+", default=list(SYSTEMS), choices=(*SYSTEMS, FULL_LOGITS, FACTORED, SDPA))
    add("--precision", nargs="+", default=["float32"], choices=PRECISIONS, help="of the factors of products")
    add("--vocab", nargs="+", type=int, default=[30522], metavar="V")
    add("--updates", type=int, default=3, metavar="N", help="timed ones")
    add("--threads", type=int, default=2, metavar="N")
    add("--device", default="cpu")
    add("--seed", type=int, default=1, help="of weights and words")
    add("--scaling", type=Path, metavar="PNG", help="vary lengths, vocabulary and examples instead, and draw that")
    add("--json", type=Path, default=Path("train.json"), metavar="FILE", help="records are added to what it has")
    add("--resume", action="store_true", help="leave out what FILE has")
    options = parser.parse_args()
    if problems := list(find_problems(options)):
        parser.error("; ".join(problems))
    if options.scaling is None:
        print(table(measure(make_cells(options), options)))
        return
    center = scaling_center(options)
    records = measure(sweep_cells(center, options.system), options)
    print(table(records))
    draw(records, center, options.scaling)


def measure(cells: list[Cell], options: argparse.Namespace) -> list[dict]:
    """Measure the cells, each in its own process."""
    return measure_cells(
        cells, "training_cell.py", options.json, resume=options.resume, key_of=key_of, describe=describe
    )


def find_problems(options: argparse.Namespace) -> Iterable[str]:
    """Yield every problem of the options."""
    for lengths in options.lengths or ():
        try:
            parse_lengths(lengths)
        except ValueError as error:
            yield f"--lengths: {error}"
    numbers = [
        *(("--batch", batch, 1) for batch in options.batch or ()),
        *(("--vocab", vocab, FIRST_WORD + 1) for vocab in options.vocab),
        ("--updates", options.updates, 1),
        ("--threads", options.threads, 1),
    ]
    for name, value, least in numbers:
        if value < least:
            yield f"{name} must be at least {least}, but is {value}"
    if options.scaling is not None and options.scaling.suffix != ".png":
        yield f"--scaling must end in .png, but is {options.scaling}"
    if options.scaling is not None and options.lengths:
        yield "--lengths must not be given with --scaling, which varies them"


def make_cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells of the grid; the systems of one task follow each other."""
    tasks = product(options.config, options.vocab, options.lengths or LENGTHS, options.method or METHODS)
    return [
        make_cell(
            options,
            config=config,
            vocab=vocab,
            lengths=lengths,
            method=method,
            batch=batch,
            system=system,
            precision=precision,
        )
        for config, vocab, lengths, method in tasks
        for batch in options.batch or [DEFAULT_BATCH.get(lengths, BATCH)]
        for precision in options.precision
        for system in options.system
    ]


def scaling_center(options: argparse.Namespace) -> Cell:
    """Return the cell that the sweeps vary; of options with several values it has the first."""
    return make_cell(
        options,
        config=options.config[0],
        vocab=options.vocab[0],
        lengths=f"512/{TARGET}",  # one of the lengths of the sweep
        method=options.method[0] if options.method else "pseudo_masked",
        batch=options.batch[0] if options.batch else BATCH,
        system="ours",
        precision=options.precision[0],
    )


def make_cell(options: argparse.Namespace, **fields: str | int) -> Cell:
    """Make a cell from its own fields and the options that all cells share."""
    common = {name: getattr(options, name) for name in ("device", "threads", "seed", "updates")}
    return Cell(**fields, **common)


if __name__ == "__main__":
    main()
