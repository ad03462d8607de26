"""Patches of fairseq's data: old names of NumPy, damaged files, data loading workers, binarizing, interactive text."""

import gc
import logging
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from fairseq.binarizer import FileBinarizer
from fairseq.data import data_utils, iterators, language_pair_dataset, token_block_dataset
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq_cli import interactive, train

from s2sft_fairseq.data.text_files import check_text
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import step
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)


def install() -> None:
    """Give three modules a NumPy with its old names, and patch the functions below."""
    numpy = numpy_with_old_names()
    for user in (data_utils, language_pair_dataset, token_block_dataset):
        user.np = numpy
    for kind in (MMapIndexedDataset, MMapIndexedDataset.Index):
        wrap(kind, "__del__", _close)
    iterators.EpochBatchIterator = EpochBatchIterator  # where `FairseqTask.get_batch_iterator` finds it
    wrap(train, "train", _epoch)
    wrap(FileBinarizer, "multiprocess_dataset", _binarize)
    wrap(interactive, "buffered_read", _read_interactive)


def numpy_with_old_names() -> types.ModuleType:
    """Return a copy of the module `numpy` with names that NumPy 2 removed; NumPy itself does not change.

    fairseq uses them in fairseq/data: ``np.percentile(interpolation=)`` (data_utils.py) and ``np.compat.long``
    (language_pair_dataset.py) for ``--num-batch-buckets``, ``np.compat.long`` (token_block_dataset.py) for
    ``--sample-break-mode eos``, and ``np.int`` (data_utils.py) for masks of spans.
    """
    module: Any = types.ModuleType("numpy")
    module.__dict__.update(vars(np))
    module.int = int
    module.compat = types.SimpleNamespace(long=int)
    module.percentile = _percentile
    return module


def _percentile(*args: Any, interpolation: str = "linear", **options: Any) -> np.ndarray:
    return np.percentile(*args, method=interpolation, **options)  # type: ignore[call-overload]  # of options by name


def _close(close: Function, dataset: Any) -> None:
    """Patch ``__del__`` of `MMapIndexedDataset` and of its index, in fairseq/data/indexed_dataset.py.

    If opening damaged data fails, the incomplete object fails again when it is deleted, and Python prints a traceback
    below the message about the file.
    """
    if hasattr(dataset, "_bin_buffer_mmap"):
        close(dataset)


def _epoch(run: Function, cfg: Any, trainer: Any, task: Any, *args: Any) -> Any:
    """Patch ``train`` of fairseq_cli/train.py, which trains an epoch: close the folder of the epoch before.

    Objects that refer to each other keep its files open: fairseq's sampler and its iterator, and the errors of
    omegaconf, with the functions that they passed. Python's garbage collector would find them many folders later.
    """
    if task.has_sharded_data("train"):
        gc.collect()
    return run(cfg, trainer, task, *args)


class EpochBatchIterator(iterators.EpochBatchIterator):
    """The class of fairseq/data/iterators.py, with two changes.

    Workers end with their epoch unless the next one uses them. fairseq keeps them. If the next epoch has other batches,
    they are never used again: they run until Python's garbage collector finds them, which then waits 5 seconds for
    each.

    A training resumes within an epoch with any number of ranks. Ranks take batches in turn, so what N ranks have read
    is the beginning of the epoch. fairseq saves how many batches each rank has read, and would read the first ones
    again or leave some out.
    """

    def __init__(self, dataset: Any, *args: Any, **options: Any) -> None:
        if not getattr(dataset, "can_reuse_epoch_itr_across_epochs", True):
            options.update(reuse_dataloader=False, persistent_workers=False)
        super().__init__(dataset, *args, **options)

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data, with the number of ranks."""
        return {**super().state_dict(), "ranks": self.num_shards}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at a place in the data. If it is within the turn of these ranks, they begin the turn again."""
        saved, read = state_dict.get("ranks", self.num_shards), state_dict.get("iterations_in_epoch", 0)
        if saved != self.num_shards:
            place = read * saved // self.num_shards
            logger.info(f"saved by {saved} ranks: these {self.num_shards} continue after {place} batches each")
            state_dict = {**state_dict, "iterations_in_epoch": place}
        super().load_state_dict(state_dict)


def _binarize(binarize: Function, input_file: str, *args: Any, **options: Any) -> object:
    """Patch ``FileBinarizer.multiprocess_dataset`` of fairseq/binarizer.py: show which file is binarized.

    fairseq logs it at the end.
    """
    with step(f"binarize {input_file}"):
        return binarize(input_file, *args, **options)


def _read_interactive(read: Function, input: str, buffer_size: int) -> Iterator[list[str]]:
    """Patch ``buffered_read`` of fairseq_cli/interactive.py: name the file and the lines that are not UTF-8.

    fairseq fails with a traceback that names neither.
    """
    try:
        yield from read(input, buffer_size)
    except UnicodeDecodeError as error:
        if input != "-":
            check_text(Path(input))  # its error names the lines
        raise UserError(f"--input {input}: must be UTF-8: {error}") from None
