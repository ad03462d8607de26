"""fairseq's datasets work with NumPy 2, fail once if they are damaged, and end their workers with an epoch.

Their place within an epoch is kept for any number of ranks.
"""

import gc
import io
import multiprocessing
import os
import shutil
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from fairseq.data import Dictionary, FairseqDataset, LanguagePairDataset, ListDataset, TokenBlockDataset, data_utils
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from fairseq_cli import interactive
from omegaconf import OmegaConf

from s2sft_fairseq.errors import UserError

# pytest turns an exception in a `__del__` into the first of these warnings.
pytestmark = [
    pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning"),
    pytest.mark.filterwarnings("ignore:'pin_memory' argument is set"),
]


# Parts of fairseq's datasets that NumPy 2 breaks work again.


def make_pairs():
    dictionary = Dictionary()
    sentences = [torch.arange(4, 4 + length) for length in (1, 2, 3, 4, 5, 9)]
    sizes = [len(sentence) for sentence in sentences]
    return ListDataset(sentences, sizes), np.array(sizes), dictionary


def test_numpy_itself_is_left_alone():
    assert not hasattr(np, "compat")
    assert not hasattr(np, "int")


def test_buckets_of_lengths():
    assert data_utils.get_buckets(np.array([1, 2, 3, 4, 5, 9]), 3).tolist() == [2, 4, 9]


def test_num_batch_buckets():
    data, sizes, dictionary = make_pairs()
    pairs = LanguagePairDataset(data, sizes, dictionary, data, sizes, dictionary, num_buckets=3)
    assert pairs.src_sizes.tolist() == [2, 2, 4, 4, 9, 9]
    assert pairs.bucketed_num_tokens.tolist() == [2, 2, 4, 4, 9, 9]


def test_blocks_that_end_with_the_sentence():
    data, sizes, dictionary = make_pairs()
    blocks = TokenBlockDataset(data, sizes, None, dictionary.pad(), dictionary.eos(), break_mode="eos")
    assert [len(block) for block in blocks] == sizes.tolist()


def test_span_masks():
    with data_utils.numpy_seed(1):
        mask = data_utils.compute_mask_indices((4, 40), None, 0.5, 4, mask_type="static")
    assert mask.shape == (4, 40)
    assert mask.any(axis=1).all()


# A damaged dataset fails when it is opened, and not again when it is deleted.


@pytest.fixture
def prefix(tmp_path):
    prefix = str(tmp_path / "data")
    builder = MMapIndexedDatasetBuilder(prefix + ".bin", dtype=np.int32)
    builder.add_item(torch.tensor([1, 2, 3]))
    builder.finalize(prefix + ".idx")
    return prefix


@pytest.mark.parametrize(("end", "size"), [("bin", 0), ("idx", 0), ("idx", 20), ("idx", 30)])
def test_damaged(prefix, end, size):
    with open(f"{prefix}.{end}", "r+b") as file:
        file.truncate(size)
    with pytest.raises(Exception, match=r"empty file|unpack requires|buffer is smaller|doesn't match"):
        MMapIndexedDataset(prefix)
    gc.collect()


def test_whole(prefix):
    data = MMapIndexedDataset(prefix)
    assert data.sizes.tolist() == [3]
    file, index = data._bin_buffer_mmap._mmap, data._index._bin_buffer_mmap._mmap
    del data
    gc.collect()
    assert file.closed and index.closed


# Data loading workers end with the epoch for which they were started.


class Numbers(FairseqDataset):
    def __init__(self, reusable, length=4):
        self.can_reuse_epoch_itr_across_epochs = reusable
        self.length = length

    can_reuse_epoch_itr_across_epochs = None

    def __getitem__(self, index):
        return index

    def __len__(self):
        return self.length

    def collater(self, samples):
        return torch.tensor(samples)

    def num_tokens(self, index):
        return 1

    size = num_tokens


def workers_after_an_epoch(reusable):
    """Return the processes alive after a fully read epoch, without the help of the garbage collector."""
    gc.collect()
    gc.disable()
    try:
        task = FairseqTask(OmegaConf.create({}))
        epoch = task.get_batch_iterator(Numbers(reusable), max_sentences=2, num_workers=1, data_buffer_size=1)
        assert sorted(torch.cat(list(epoch.next_epoch_itr())).tolist()) == [0, 1, 2, 3]
        deadline = time.monotonic() + 4
        while (alive := multiprocessing.active_children()) and not reusable and time.monotonic() < deadline:
            time.sleep(0.05)
        return alive
    finally:
        gc.enable()


def test_a_training_on_many_folders_has_the_files_of_one_open(
    call_command, tiny_data, tiny_options, tmp_path, monkeypatch
):
    """Also if Python's garbage collector does not run by itself."""
    folders = [tmp_path / f"shard{number}" for number in range(5)]
    for folder in folders:
        shutil.copytree(tiny_data, folder)
    step, opened = Trainer.train_step, []

    def train_step(trainer, *args, **options):
        links = [Path(os.path.realpath(link)) for link in Path("/proc/self/fd").iterdir()]
        opened.append({path.parent.name for path in links if path.parent in folders and path.name.startswith("train.")})
        return step(trainer, *args, **options)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    words = (":".join(map(str, folders)), *tiny_options.training, "--max-epoch", 5, "--save-dir", "run")
    gc.collect()
    gc.disable()
    try:
        call_command("train", *words)
    finally:
        gc.enable()
    assert opened == [{folder.name} for folder in folders for _ in range(7)]  # 50 pairs in batches of 8


@pytest.mark.process
def test_workers_end_with_an_epoch_whose_batches_are_not_reused():
    assert workers_after_an_epoch(reusable=False) == []


@pytest.mark.process
def test_workers_stay_if_the_next_epoch_uses_them():
    (worker,) = workers_after_an_epoch(reusable=True)
    worker.terminate()


@pytest.mark.parametrize("reusable", [True, False])
def test_epochs_follow_each_other(reusable):
    task = FairseqTask(OmegaConf.create({}))
    epoch = task.get_batch_iterator(Numbers(reusable), max_sentences=2, num_workers=0)
    for number in (1, 2):
        assert sum(len(batch) for batch in epoch.next_epoch_itr()) == 4
        assert epoch.epoch == number


# A training resumes within an epoch with another number of ranks.


def iterators_of(ranks):
    """Return the iterator of each rank, over 13 batches of a number."""
    task, data = FairseqTask(OmegaConf.create({})), Numbers(False, 13)
    options = {"max_sentences": 1, "num_workers": 0, "seed": 3, "num_shards": ranks}
    return [task.get_batch_iterator(data, **options, shard_id=rank) for rank in range(ranks)]


@pytest.mark.parametrize(
    ("before", "read", "after", "twice"),
    [(2, 3, 2, 0), (2, 4, 1, 0), (1, 8, 4, 0), (4, 1, 2, 0), (2, 6, 3, 0), (2, 5, 4, 2), (1, 7, 4, 3), (3, 1, 4, 3)],
)
def test_ranks_continue_where_others_ended(before, read, after, twice):
    """They read what is left, and if their turn had begun, the batches of this turn again."""
    states, first = [], []
    for iterator in iterators_of(before):
        batches = iterator.next_epoch_itr()
        first += [int(next(batches)) for _ in range(read)]
        states.append(iterator.state_dict())
    assert all(state == states[0] for state in states)
    left = []
    for iterator in iterators_of(after):
        iterator.load_state_dict(states[0])
        left += [int(batch) for batch in iterator.next_epoch_itr() if len(batch)]
    assert set(first) | set(left) == set(range(13))
    assert len(left) == 13 - before * read + twice


# Text for ``fairseq-interactive`` that is not UTF-8.


def read(source):
    return list(interactive.buffered_read(str(source), 2))


def test_good_text(tmp_path):
    (tmp_path / "lines.txt").write_text("a\n\nü\n", encoding="utf-8")
    assert read(tmp_path / "lines.txt") == [["a", ""], ["ü"]]


def test_names_file_and_line(tmp_path):
    (tmp_path / "lines.txt").write_bytes(b"a\nb\n\xfc\n")
    with pytest.raises(UserError, match=r"lines\.txt: 1 line\(s\) are not valid UTF-8: line 3$"):
        read(tmp_path / "lines.txt")


def test_standard_input(monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a\n\xfc\n"), encoding="utf-8"))
    with pytest.raises(UserError, match=r"^--input -: must be UTF-8: .*can't decode byte 0xfc"):
        read("-")
