"""Speed of data loading, from a binarized data set to batches, in one process and one thread, like one worker.

    python benchmarks/data_loading.py

Makes random pairs with the lengths of question generation, with sources of one field and of two. Prints examples per
second for each method and corruption, through ``dataset[i]`` and ``collater``, and then the seconds that ordering and
batching a large data set take. Seconds are CPU time of the fastest of several runs: other work on the machine can only
slow a run down.
"""

import argparse
import itertools
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from fairseq.data import ListDataset, indexed_dataset

from s2sft_fairseq.data.binarized_text import load_split
from s2sft_fairseq.data.dictionary import BERT_SYMBOLS
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.packed_dataset import PackedPairDataset
from s2sft_fairseq.objectives.objective import CORRUPTIONS, OBJECTIVES
from s2sft_fairseq.objectives.sequence_form import SequenceForm, SourceFields

VOCABULARY = 30522
# The second has the options of question generation in docs/s2s-ft.md.
FIELDS = {
    "one": SourceFields(),
    "two": SourceFields(segments=(0, 1), truncation=("right", "right"), limits=(0, 32)),
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--examples", type=int, default=20000, metavar="N", help="that are loaded")
    parser.add_argument("--batched-examples", type=int, default=1_000_000, metavar="N", help="that are only batched")
    parser.add_argument("--max-tokens", type=int, default=8192, metavar="N", help="packed positions of a batch")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    options = parser.parse_args()
    torch.set_num_threads(1)
    print(f"load of the machine {os.getloadavg()[0]:.1f}")
    with tempfile.TemporaryDirectory() as folder:
        dictionary = write_pairs(Path(folder), options.examples)
        pairs = load_split(Path(folder), "train", "src", "tgt", dictionary, None, combine=False)
        for fields, preset, method in itertools.product(FIELDS, CORRUPTIONS, OBJECTIVES):
            objective = OBJECTIVES[method]
            form = make_form(method, dictionary, FIELDS[fields])
            data = PackedPairDataset(*pairs, form, objective, objective.corruption[preset])
            batches = data.batch_by_size(data.ordered_indices(), options.max_tokens, None, 8)
            seconds = fastest(lambda data=data, batches=batches: load(data, batches), options.repeats)
            speed = options.examples / seconds
            print(f"fields: {fields:3}  --corruption {preset:8}  {method:13}  {speed:9,.0f} examples/s")
    lengths = random_lengths(options.batched_examples)
    method = OBJECTIVES["pseudo_masked"]
    data = PackedPairDataset(
        *(ListDataset([None] * len(each), each) for each in lengths),
        make_form("pseudo_masked", dictionary, SourceFields()),
        method,
        OBJECTIVES["pseudo_masked"].corruption["paper"],
        shuffle=True,
    )
    seconds = fastest(lambda: data.batch_by_size(data.ordered_indices(), options.max_tokens, None, 8), options.repeats)
    print(f"{options.batched_examples:,} examples are ordered and batched in {seconds:.2f} s")


def random_lengths(count: int) -> tuple[np.ndarray, np.ndarray]:
    """Draw the lengths of sources and targets in ids, the final eos included; (count,) each."""
    rng = np.random.default_rng(1)
    sources = rng.normal(150, 30, count).clip(60, 200).astype(np.int64)
    return sources, rng.integers(8, 25, count)


def write_pairs(folder: Path, count: int) -> FairseqDictionary:
    """Write random pairs, binarized as by fairseq-preprocess; sources have a ``[SEP]`` before their last ten ids."""
    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, VOCABULARY))]
    dictionary = FairseqDictionary([(symbol, 1) for symbol in symbols], BERT_SYMBOLS)
    rng = np.random.default_rng(2)
    for side, lengths in zip(("src", "tgt"), random_lengths(count), strict=True):
        prefix = str(folder / f"train.src-tgt.{side}")
        builder = indexed_dataset.make_builder(prefix + ".bin", "mmap", vocab_size=VOCABULARY)
        for length in lengths:
            ids = rng.integers(5, VOCABULARY, length)
            ids[-1] = dictionary.eos()
            if side == "src":
                ids[-11] = dictionary.eos()
            builder.add_item(torch.from_numpy(ids))
        builder.finalize(prefix + ".idx")
    return dictionary


def make_form(method: str, dictionary: FairseqDictionary, fields: SourceFields) -> SequenceForm:
    return SequenceForm(
        cls=dictionary.bos(),
        sep=dictionary.eos(),
        pad=dictionary.pad(),
        placeholder=dictionary.index("[MASK]"),
        vocab_size=len(dictionary),
        starts_with=OBJECTIVES[method].starts_with,
        fields=fields,
        max_source=384,
        max_target=32,
    )


def load(data: PackedPairDataset, batches: list[np.ndarray]) -> None:
    for batch in batches:
        data.collater([data[index] for index in batch])


def fastest(call: Callable[[], object], repeats: int) -> float:
    """Return the CPU seconds of the fastest of several calls."""
    seconds = []
    for _ in range(repeats):
        start = time.process_time()
        call()
        seconds.append(time.process_time() - start)
    return min(seconds)


if __name__ == "__main__":
    main()
