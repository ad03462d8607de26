"""Speed and memory of generation, compared with the original s2s-ft program and with BERT2BERT of `transformers`.

    python benchmarks/generate.py                       # everything: many hours, most of them for the original
    python benchmarks/generate.py --baseline-steps 6    # run only 6 steps of each batch of the original
    python benchmarks/generate.py --config unilm_base --lengths 60..464/48 --beam 5 --batch 4
    python benchmarks/generate.py --resume              # continues after a stop

Weights and sources are random, and each hypothesis has a fixed number of tokens. All systems decode the same sentences,
the longest first, in all batch sizes:

* ours: `SequenceGenerator`
* original: decoding as in the original s2s-ft program (`original_decoding.py`), with the same weights
* bert2bert: `EncoderDecoderModel.generate` with its cache; another model, with encoder and decoder of the size of ours

Each system decodes each cell of the grid in its own process, which also measures the rates of the machine. The fastest
of several repeats counts. In the table

* "prefill" is the encoding of a batch (for the original it includes the first step, which is in the same pass), "step"
  the mean of the further steps, "first" and "last" the medians of the first and the last 10 of them; all in ms
* "peak" is the peak resident memory of the process, libraries included; the baselines also load transformers (on a GPU
  it is the peak that PyTorch allocated)
* "roofline" is the shortest possible time of the work (`roofline.py`), in float32 for every precision, divided by the
  measured time; the last line has the rates and the load that were measured: rates that were measured while other
  processes were busy make these shares too high
* "/original" and "/bert2bert" are ratios of sentences/s, with a * if the two were not measured in one run
* "same" is the number of best hypotheses that are equal to ours in float32; other precisions soon differ, because
  random weights make the next tokens almost equally probable (`quantized_quality.py` measures a trained model)
"""

import argparse
from collections.abc import Iterable
from itertools import product
from pathlib import Path

from generation_grid import PRECISIONS, SYSTEMS, Cell, key_of, parse_lengths
from generation_table import table
from records import measure_cells


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add = parser.add_argument
    add("--config", nargs="+", default=["minilm_l6_h384", "unilm_base"], metavar="NAME", help="architectures")
    add("--lengths", nargs="+", default=["60..464/48", "608/160"], metavar="S/T", help="positions of sources / tokens")
    add("--beam", nargs="+", type=int, default=[1, 5], metavar="K")
    add("--batch", nargs="+", type=int, default=[1, 4, 16], metavar="N", help="sentences of a batch")
    add("--system", nargs="+", default=list(SYSTEMS), choices=SYSTEMS)
    add("--precision", nargs="+", default=["float32"], choices=PRECISIONS, help="of ours; the others run in float32")
    add("--sentences", type=int, default=16, metavar="N", help="to decode in each cell, in one batch or several")
    add("--vocab", type=int, default=30522, metavar="V")
    add("--threads", type=int, default=2, metavar="N")
    add("--device", default="cpu")
    add("--seed", type=int, default=1, help="of weights and sources")
    add("--repeats", type=int, default=3, metavar="N")
    add("--baseline-repeats", type=int, default=1, metavar="N", help="of the original's loop")
    add("--baseline-steps", type=int, default=0, metavar="N", help="run only so many steps of the original's loop")
    add("--json", type=Path, default=Path("generate.json"), metavar="FILE", help="records are added to what it has")
    add("--resume", action="store_true", help="leave out what FILE has")
    options = parser.parse_args()
    if problems := list(find_problems(options)):
        parser.error("; ".join(problems))
    records = measure_cells(
        make_cells(options),
        "generation_cell.py",
        options.json,
        resume=options.resume,
        key_of=key_of,
        describe=lambda cell: (
            f"{cell.config} {cell.lengths} beam {cell.beam} batch {cell.batch} {cell.system} {cell.precision}"
        ),
    )
    print(table(records))


def find_problems(options: argparse.Namespace) -> Iterable[str]:
    """Yield every problem of the options."""
    for lengths in options.lengths:
        try:
            parse_lengths(lengths)
        except ValueError as error:
            yield f"--lengths: {error}"
    numbers = [
        *(("--beam", beam, 1) for beam in options.beam),
        *(("--batch", batch, 1) for batch in options.batch),
        ("--sentences", options.sentences, 1),
        ("--vocab", options.vocab, 10),
        ("--threads", options.threads, 1),
        ("--repeats", options.repeats, 1),
        ("--baseline-repeats", options.baseline_repeats, 1),
    ]
    for name, value, least in numbers:
        if value < least:
            yield f"{name} must be at least {least}, but is {value}"
    for batch in options.batch:
        if batch > 0 and options.sentences % batch:
            yield f"--sentences must be a multiple of every --batch ({batch}), but is {options.sentences}"
    if options.baseline_steps < 0 or options.baseline_steps == 1:
        yield f"--baseline-steps must be at least 2, or 0 for all, but is {options.baseline_steps}"


def make_cells(options: argparse.Namespace) -> list[Cell]:
    """Return the cells of the grid; the systems of one task follow each other."""
    cells = []
    for config, lengths, beam, batch in product(options.config, options.lengths, options.beam, options.batch):
        for system in options.system:
            for precision in options.precision if system == "ours" else ["float32"]:
                cell = Cell(
                    config=config,
                    lengths=lengths,
                    beam=beam,
                    batch=batch,
                    system=system,
                    precision=precision,
                    sentences=options.sentences,
                    vocab=options.vocab,
                    device=options.device,
                    threads=options.threads,
                    seed=options.seed,
                    baseline_steps=options.baseline_steps if system == "original" else 0,
                    repeats=options.baseline_repeats if system == "original" else options.repeats,
                )
                cells.append(cell)
    return cells


if __name__ == "__main__":
    main()
