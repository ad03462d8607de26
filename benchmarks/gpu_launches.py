"""What a GPU is asked to do in an update, counted on the pretended GPU of the tests, as a table in Markdown.

    python benchmarks/gpu_launches.py
    python benchmarks/gpu_launches.py --attention loop --precision float32

A whole update of fairseq's `Trainer`: forward pass with the loss, backward pass, and the rest (norm, optimizer,
meters). Batches have about as many positions each, of few long examples or of many short ones. A launch is an operator
that computes (`tests/support/gpu_counts.py` says how lists count), a wait is what the host reads; numbers of every
``--log-interval``-th update are not among them. Moved are the bytes that are written only to move slices. The model is
as wide as a base model, but has few layers: launches and bytes grow by the layer.

To count another commit, put its folder on ``PYTHONPATH``.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import s2sft_fairseq.plugin  # noqa: F401  (patches fairseq, and therefore comes first)

# isort: split
from gpu_training import make_batch, make_trainer
from pretended_gpu import counting
from training_grid import CONFIGURATIONS, parse_lengths
from training_pairs import SPECIAL_SYMBOLS, pair_lengths

from s2sft_fairseq.data.dictionary import BERT_SYMBOLS
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary

BATCHES = {"464/48": 15, "squad_qg": 43, "30..50/8..16": 128}
"""Positions of sources and targets, and the number of examples."""
VOCABULARY = 30_522


def counted(function: Callable[..., Any], found: list[Any]) -> Callable[..., Any]:
    """Return a function that counts apart what is asked within it."""

    def call(*args: Any, **options: Any) -> Any:
        with counting() as counts:
            result = function(*args, **options)
        found.append(counts)
        return result

    return call


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", default="auto", help="as of s2sft train (default: auto)")
    parser.add_argument(
        "--precision", default="bf16", help="float32, bf16, fp16 or memory-efficient-bf16 (default: bf16)"
    )
    parser.add_argument("--layers", type=int, default=2, help="(default: 2)")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    words = (f"w{number}" for number in range(len(SPECIAL_SYMBOLS), VOCABULARY))
    dictionary = FairseqDictionary([(symbol, 1) for symbol in (*SPECIAL_SYMBOLS, *words)], BERT_SYMBOLS)
    size = CONFIGURATIONS["unilm_base"]
    sizes = ("--arch", "unilm_base", "--random-init", "--encoder-layers", args.layers, "--clip-norm", 1.0)
    print(f"`{' '.join(['python', *sys.argv])}`, {args.layers} layers of width {size.width}\n")
    print("| lengths | examples | positions | forward | backward | rest | launches | waits | moved, MB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name, examples in BATCHES.items():
        lengths = pair_lengths(SimpleNamespace(batch=examples, shape=parse_lengths(name)))
        trainer = make_trainer(dictionary, *sizes, "--attention", args.attention, f"--{args.precision}")
        with counting():
            trainer.train_step([make_batch(trainer, lengths[:1])])  # which makes the moments
        batch, parts = make_batch(trainer, lengths), []
        trainer.criterion.forward = counted(trainer.criterion.forward, parts)
        trainer.optimizer.backward = counted(trainer.optimizer.backward, parts)
        counted(trainer.train_step, parts)([batch])
        launches = [counts.launches.total() for counts in parts]
        waits = sum(counts.synchronisations.total() for counts in parts)
        moved = sum(counts.slice_bytes for counts in parts) / 1e6
        row = (name, examples, batch["net_input"]["tokens"].numel(), *launches, sum(launches), waits)
        print("|", " | ".join(str(each) for each in row), f"| {moved:,.0f} |", flush=True)


if __name__ == "__main__":
    main()
