"""Patches of fairseq's data: old names of NumPy, damaged files, data loading workers, binarizing, interactive text."""

import gc
import hashlib
import inspect
import logging
import math
import types
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq.binarizer import FileBinarizer
from fairseq.data import data_utils, iterators, language_pair_dataset, token_block_dataset
from fairseq.data.indexed_dataset import MMapIndexedDataset
from fairseq.tasks import FairseqTask
from fairseq_cli import interactive, train
from torch import Tensor

from s2sft_fairseq.data.text_files import not_utf8, streamed_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.progress import step
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)

_BATCH_LIMITS = ("max_tokens", "max_sentences", "required_batch_size_multiple")


def install() -> None:
    """Give three modules a NumPy with its old names, and patch the functions below."""
    numpy = numpy_with_old_names()
    for user in (data_utils, language_pair_dataset, token_block_dataset):
        user.np = numpy
    for kind in (MMapIndexedDataset, MMapIndexedDataset.Index):
        wrap(kind, "__del__", _close)
    iterators.EpochBatchIterator = EpochBatchIterator  # where `FairseqTask.get_batch_iterator` finds it
    wrap(FairseqTask, "get_batch_iterator", _make_iterator)
    iterators.GroupedIterator = GroupedIterator
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


def _make_iterator(make: Function, task: Any, dataset: Any, *args: Any, **options: Any) -> Any:
    """Patch ``FairseqTask.get_batch_iterator`` of fairseq/tasks/fairseq_task.py: keep how examples become batches.

    A training that resumes within an epoch with other options needs it, for the examples that are not read yet.
    """
    iterator = make(task, dataset, *args, **options)
    arguments = inspect.signature(make).bind(task, dataset, *args, **options).arguments
    limits = {name: arguments[name] for name in _BATCH_LIMITS if name in arguments}
    iterator.cut = partial(dataset.batch_by_size, **limits)
    return iterator


class PlaceError(UserError):
    """The place in the data that a checkpoint holds is not one in this data."""


class EpochBatchIterator(iterators.EpochBatchIterator):
    """The class of fairseq/data/iterators.py, with two changes.

    Workers end with their epoch unless the next one uses them. fairseq keeps them. If the next epoch has other batches,
    they are never used again: they run until Python's garbage collector finds them, which then waits 5 seconds for
    each.

    The place within an epoch is the set of examples that all ranks have read. fairseq saves how many batches each rank
    has read. With other batches or another number of ranks, it would read examples twice or never. Here a training that
    resumes with the same batches continues with the next one. Otherwise the unread examples become new batches.
    """

    cut: Callable[[np.ndarray], Sequence[Any]]
    """Cuts the indices of examples into batches, by the options of this training."""

    def __init__(self, dataset: Any, *args: Any, **options: Any) -> None:
        if not getattr(dataset, "can_reuse_epoch_itr_across_epochs", True):
            options.update(reuse_dataloader=False, persistent_workers=False)
        super().__init__(dataset, *args, **options)
        self._read_before: Tensor | None = None  # what was read of the resumed epoch under other options
        self._resumed_epoch = 0
        self._order: list[Any] = []  # the batches of all ranks in the current epoch

    def ordered_batches(self, epoch: int, fix_batches_to_gpus: bool, shuffle: bool) -> list[Any]:
        """Return the batches of this rank in an epoch, in fairseq's order."""
        if self._supports_prefetch:
            return super().ordered_batches(epoch, fix_batches_to_gpus, shuffle)
        self._order = self._batches_of_all_ranks(epoch, shuffle)
        return list(iterators.ShardedIterator(self._order, self.num_shards, self.shard_id, fill_value=[]))

    def _batches_of_all_ranks(self, epoch: int, shuffle: bool) -> list[Any]:
        batches = list(self.frozen_batches)
        if self._read_before is not None and epoch == self._resumed_epoch:
            unread = _without(batches, self._read_before)
            batches = list(self.cut(unread)) if len(unread) else []
        if not shuffle:
            return batches
        size = self.num_shards if self.grouped_shuffling else 1
        groups = [batches[start : start + size] for start in range(0, len(batches), size)]
        # As in fairseq, groups are whole.
        groups = [group for group in groups if len(group) == size]
        with data_utils.numpy_seed(self.seed + epoch):
            np.random.shuffle(groups)  # as fairseq does, a list in place
        return [batch for group in groups for batch in group]

    def state_dict(self) -> dict[str, Any]:
        """Return the place in the data: within an epoch, also the examples that all ranks have read."""
        state = {**super().state_dict(), "ranks": self.num_shards}
        if state["iterations_in_epoch"] == 0 or self._supports_prefetch:
            return state
        before = self._read_before if self.epoch == self._resumed_epoch else None
        read = self._order[: state["iterations_in_epoch"] * self.num_shards]
        place = {
            "examples": len(self.dataset),
            "batches": _fingerprint(self._order),
            "read": _as_bits(read, before),
            "read_before": before,
        }
        return {**state, **place}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Resume at a place in the data.

        Raises:
            PlaceError: the place is of other data, or there is no such place.
        """
        if state_dict.get("iterations_in_epoch", 0) == 0 or self._supports_prefetch:
            super().load_state_dict(state_dict)
            return
        epoch, ranks = state_dict["epoch"], state_dict.get("ranks", self.num_shards)
        saved, found = state_dict.get("examples"), len(self.dataset)
        if saved is not None and saved != found:
            raise PlaceError(
                f"the training set has {found:,} examples, but the checkpoint was saved within an epoch of {saved:,}: "
                "give the same data, or --reset-dataloader to begin with epoch 1 of this data"
            )
        self._resumed_epoch, self._read_before = epoch, state_dict.get("read_before")
        order = self._batches_of_all_ranks(epoch, state_dict.get("shuffle", True))
        read = state_dict["iterations_in_epoch"] * ranks
        is_same = state_dict.get("batches", _fingerprint(order)) == _fingerprint(order)
        if is_same:
            self._check_place(state_dict, order, read)
        if is_same and read % self.num_shards == 0:
            if ranks != self.num_shards:
                each = read // self.num_shards
                logger.info(f"saved by {ranks} ranks: these {self.num_shards} continue after {each} batches each")
            super().load_state_dict({**state_dict, "iterations_in_epoch": read // self.num_shards})
            return
        self._read_before = state_dict["read"] if "read" in state_dict else _as_bits(order[:read], None)
        unread = self._batches_of_all_ranks(epoch, state_dict.get("shuffle", True))
        if not unread:
            raise PlaceError(f"no example of epoch {epoch} is left to read with these options: give --reset-dataloader")
        logger.info(
            f"the batches of epoch {epoch} are not those of the checkpoint: {sum(map(len, unread)):,} examples that "
            f"were not read yet make {len(unread):,} new ones"
        )
        super().load_state_dict({**state_dict, "iterations_in_epoch": 0})

    def _check_place(self, state: dict[str, Any], order: list[Any], read: int) -> None:
        """Check that a place is within the epoch, and that its examples are those of its batches.

        Raises:
            PlaceError: they are not.
        """
        # With several ranks, the last turn may be incomplete.
        ranks: int = state.get("ranks") or self.num_shards
        last = len(order) + ranks - 1
        if read > last:
            raise PlaceError(
                f"train_iterator.iterations_in_epoch must be within epoch {state['epoch']}, which has {len(order):,} "
                f"batches, but {read:,} were read (the data or options are others: --reset-dataloader; or the file is "
                "damaged)"
            )
        if "read" in state and not torch.equal(state["read"], _as_bits(order[:read], self._read_before)):
            raise PlaceError("train_iterator.read must have the examples of the batches that were read, but has others")


class GroupedIterator(iterators.CountingIterator):
    """The class of fairseq/data/iterators.py, which returns the batches of an update, with the right number of updates.

    fairseq counts those of the whole epoch. If the batches that were read are not a multiple of ``--update-freq``, as
    it was another one, it would not make the last update, and begin the epoch again.
    """

    def __init__(self, iterable: Any, chunk_size: int, skip_remainder_batch: bool = False) -> None:
        read = getattr(iterable, "n", 0)
        left = len(iterable) - read
        updates = left // chunk_size if skip_remainder_batch else math.ceil(left / chunk_size)
        if skip_remainder_batch:
            iterable.take(read + updates * chunk_size)  # the epoch ends here
        groups = iterators._chunk_iterator(iterable, chunk_size, skip_remainder_batch)
        done = math.ceil(read / chunk_size)
        super().__init__(groups, start=done, total=done + updates)
        self.chunk_size = chunk_size


def _as_bits(batches: Iterable[Any], before: Tensor | None) -> Tensor:
    """Return the set of the examples in `batches` and in the set `before`: bit i stands for the example i."""
    ids = _indices(batches)
    if before is not None:
        ids = np.concatenate([ids, np.flatnonzero(np.unpackbits(before.numpy()))])
    is_read = np.zeros(ids.max(initial=-1) + 1, dtype=bool)
    is_read[ids] = True
    return torch.from_numpy(np.packbits(is_read))


def _without(batches: Iterable[Any], read: Tensor) -> np.ndarray:
    """Return the examples of `batches` that are not in the set `read`, each once, in the same order."""
    ids = _indices(batches)
    bits = np.unpackbits(read.numpy())
    is_read = np.zeros(max(ids.max(initial=-1) + 1, len(bits)), dtype=bool)
    is_read[: len(bits)] = bits
    first = np.sort(np.unique(ids, return_index=True)[1])
    ids = ids[first]
    return ids[~is_read[ids]]


def _indices(batches: Iterable[Any]) -> np.ndarray:
    return np.concatenate([np.zeros(0, dtype=np.int64), *(np.asarray(batch, dtype=np.int64) for batch in batches)])


def _fingerprint(batches: Sequence[Any]) -> str:
    """Return a text that differs for other batches or another order of them."""
    lengths = np.array([len(batch) for batch in batches], dtype=np.int64)
    digest = hashlib.blake2b(lengths.tobytes(), digest_size=16)
    digest.update(_indices(batches).tobytes())
    return digest.hexdigest()


def _binarize(binarize: Function, input_file: str, *args: Any, **options: Any) -> object:
    """Patch ``FileBinarizer.multiprocess_dataset`` of fairseq/binarizer.py: show which file is binarized.

    fairseq logs it at the end.
    """
    with step(f"binarize {input_file}"):
        return binarize(input_file, *args, **options)


def _read_interactive(read: Function, input: str, buffer_size: int) -> Iterator[list[str]]:
    """Patch ``buffered_read`` of fairseq_cli/interactive.py: read on after a line that is not UTF-8.

    fairseq fails with a traceback that names neither file nor line, and the lines that were read with it get no answer.
    Here such a line is answered with U+FFFD in place of its wrong bytes, so that answers keep the numbers of the lines.
    At the end an error names it.
    """
    buffer: list[str] = []
    wrong: dict[int, str] = {}
    for number, (text, problem) in enumerate(streamed_lines(input), 1):
        buffer.append(text.strip())
        if problem:
            wrong[number] = problem
            logger.warning(f"--input {input}, line {number}: {problem}: it is read as U+FFFD")
        if len(buffer) >= buffer_size:
            yield buffer
            buffer = []
    if buffer:
        yield buffer
    if wrong:
        raise not_utf8("--input", input, wrong)
