"""Launches, waits and moved bytes of an update or of decoding, counted on the pretended GPU of the tests.

    python benchmarks/gpu_launches.py
    python benchmarks/gpu_launches.py --attention loop --precision float32
    python benchmarks/gpu_launches.py --decoding

Prints a Markdown table. An update is a whole update of fairseq's `Trainer`: forward pass with the loss, backward pass,
and the rest (norm, optimizer, meters). Batches have a similar number of positions, in a few long or many short
examples. A launch is an operator that computes (`tests/support/gpu_counts.py` says how operators on lists count). A
wait is a read by the host; reads for the log of every ``--log-interval``-th update are not counted. "moved" counts the
bytes that are written only to move slices. The model is as wide as a base model, but has few layers: launches and bytes
grow with each layer. Flash attention is an emulation of PyTorch's operators, with one launch each.

Decoding is beam search over all sources at once, in bfloat16. The table has the launches that read the sources, the
median of the launches of a step, and the waits of the host in 48 steps.

To count another commit, put its folder on ``PYTHONPATH``.
"""

import argparse
import logging
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests" / "support"))

import s2sft_fairseq.plugin  # noqa: F401  (patches fairseq, so it comes first)

# isort: split
from generation_systems import CONFIGURATIONS as SIZES_OF
from gpu_training import make_batch, make_trainer
from pretended_gpu import counting, moved, upload
from training_grid import CONFIGURATIONS, parse_lengths
from training_pairs import CLS, FIRST_WORD, MASK, PAD, SEP, SPECIAL_SYMBOLS, pair_lengths

from s2sft_fairseq.data.dictionary import BERT_SYMBOLS
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.search import BeamSearch
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.objectives.sequence_form import SequenceForm

BATCHES = {"464/48": 15, "squad_qg": 43, "30..50/8..16": 128}
"""Positions of sources and targets, by which a batch is named, and its number of examples."""
VOCABULARY = 30_522
STEPS = 48
"""Steps of decoding."""


def counted(function: Callable[..., Any], found: list[Any]) -> Callable[..., Any]:
    """Return a function that counts its own operators apart, and appends the counts to ``found``."""

    def call(*args: Any, **options: Any) -> Any:
        with counting() as counts:
            result = function(*args, **options)
        found.append(counts)
        return result

    return call


def make_dictionary() -> FairseqDictionary:
    """Return a dictionary of BERT's size."""
    words = (f"w{number}" for number in range(len(SPECIAL_SYMBOLS), VOCABULARY))
    return FairseqDictionary([(symbol, 1) for symbol in (*SPECIAL_SYMBOLS, *words)], BERT_SYMBOLS)


def count_updates(args: argparse.Namespace) -> None:
    """Print the table of updates."""
    dictionary = make_dictionary()
    sizes = ("--arch", "unilm_base", "--random-init", "--encoder-layers", args.layers, "--clip-norm", 1.0)
    print("| lengths | examples | positions | forward | backward | rest | launches | waits | moved, MB |")
    print("|---|---|---|---|---|---|---|---|---|", flush=True)
    for name, examples in BATCHES.items():
        lengths = pair_lengths(SimpleNamespace(batch=examples, shape=parse_lengths(name)))
        trainer = make_trainer(dictionary, *sizes, "--attention", args.attention, f"--{args.precision}")
        with counting():
            trainer.train_step([make_batch(trainer, lengths[:1])])  # creates the moments
        batch, parts = make_batch(trainer, lengths), []
        trainer.criterion.forward = counted(trainer.criterion.forward, parts)
        trainer.optimizer.backward = counted(trainer.optimizer.backward, parts)
        counted(trainer.train_step, parts)([batch])
        launches = [counts.launches.total() for counts in parts]
        waits = sum(counts.synchronisations.total() for counts in parts)
        moved = sum(counts.slice_bytes for counts in parts) / 1e6
        row = (name, examples, batch["net_input"]["tokens"].numel(), *launches, sum(launches), waits)
        print("|", " | ".join(str(each) for each in row), f"| {moved:,.0f} |", flush=True)


class Launched:
    """A recorded graph whose kernels launch together, as in a CUDA graph."""

    def __init__(self, graph: Any) -> None:
        self.graph = graph

    def replay(self) -> None:
        """Run the graph; the inner `counting` keeps its kernels out of the outer counts."""
        with counting():
            self.graph.replay()


def step_graphs(model: UnilmModel) -> Any:
    """Return the graphs of a model's steps, recorded by the recorder of the tests."""
    from recorded_graph import record

    from s2sft_fairseq.inference.step_graphs import StepGraphs

    return StepGraphs(model, lambda compute: Launched(record(compute)))


def count_decoding(args: argparse.Namespace) -> None:
    """Print the table of decoding: a pseudo-masked model, 5 hypotheses of each source, which never end."""
    torch.manual_seed(1)
    cfg = UnilmConfig(**{**SIZES_OF["unilm_base"], "encoder_layers": args.layers}, max_positions=512)
    complete_sizes(cfg)
    model = moved(UnilmModel(cfg, vocab_size=VOCABULARY, pad=PAD).eval(), torch.bfloat16)
    form = SequenceForm(CLS, SEP, PAD, MASK, VOCABULARY, max_source=464, max_target=STEPS + 1)
    options = SearchOptions(beam=5, max_len_b=STEPS, min_len=STEPS + 1)
    print(f"| lengths | sources | reading | waits | a step | waits in {STEPS} steps | moved by reading, MB |")
    print("|---|---|---|---|---|---|---|", flush=True)
    rng = np.random.default_rng(1)
    # Older commits have no graphs.
    graphs = {"graphs": [step_graphs(model)]} if args.cuda_graphs else {}
    for name, sources in BATCHES.items():
        lengths = pair_lengths(SimpleNamespace(batch=sources, shape=parse_lengths(name)))
        words = [rng.integers(FIRST_WORD, VOCABULARY, length - form.source_specials) for length, _ in lengths]
        rows = [torch.from_numpy(form.source(each)) for each in words]
        source = nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)
        with torch.inference_mode():
            with counting() as reading:
                search = BeamSearch([model], form, options, upload(source), **graphs)
            steps = []
            for _ in range(STEPS):
                counted(search.step, steps)()
        launches = median(counts.launches.total() for counts in steps)
        waits = [sum(counts.synchronisations.total() for counts in each) for each in ([reading], steps)]
        row = (name, sources, reading.launches.total(), waits[0], int(launches), waits[1])
        print("|", " | ".join(str(each) for each in row), f"| {reading.slice_bytes / 1e6:,.0f} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--attention", default="auto", help="as of s2sft train (default: auto)")
    parser.add_argument(
        "--precision", default="bf16", help="float32, bf16, fp16 or memory-efficient-bf16 (default: bf16)"
    )
    parser.add_argument("--layers", type=int, default=2, help="(default: 2)")
    parser.add_argument("--decoding", action="store_true", help="count decoding, not updates")
    parser.add_argument("--cuda-graphs", action="store_true", help="count what a step launches beside its graph")
    args = parser.parse_args()
    logging.disable(logging.INFO)
    print(f"`{' '.join(['python', *sys.argv])}`, {args.layers} layers of width {CONFIGURATIONS['unilm_base'].width}\n")
    if args.decoding:
        count_decoding(args)
    elif args.attention == "flash":
        from flash_kernel import emulated_kernel  # older commits have no flash attention

        with emulated_kernel():
            count_updates(args)
    else:
        count_updates(args)


if __name__ == "__main__":
    main()
