"""fairseq's datasets work with NumPy 2, fail once if they are damaged, and end their workers with an epoch.

Their place within an epoch is the examples that were read.
"""

import gc
import gzip
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
from fairseq.data import (
    Dictionary,
    FairseqDataset,
    LanguagePairDataset,
    ListDataset,
    TokenBlockDataset,
    data_utils,
    iterators,
)
from fairseq.data.indexed_dataset import MMapIndexedDataset, MMapIndexedDatasetBuilder
from fairseq.tasks import FairseqTask
from fairseq.trainer import Trainer
from fairseq_cli import interactive
from omegaconf import OmegaConf

from s2sft_fairseq.commands.fairseq_command import _forked_workers
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
        with _forked_workers():
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


# A training resumes within an epoch: each example is read once in it, whatever options differ.


class Lengths(Numbers):
    """Examples of different lengths, of which ``--max-tokens`` puts different numbers into a batch."""

    def __init__(self, length=40, sizes=7):
        super().__init__(False, length)
        self.sizes = np.arange(length) % sizes + 1

    def num_tokens(self, index):
        return int(self.sizes[index])

    size = num_tokens

    def num_tokens_vec(self, indices):
        return self.sizes[indices]

    def ordered_indices(self):
        return np.argsort(self.sizes, kind="stable")


def iterators_of(ranks=1, data=None, **options):
    """Return the iterator of each rank, by default over 13 batches of a number."""
    task, data = FairseqTask(OmegaConf.create({})), Numbers(False, 13) if data is None else data
    options = {"max_sentences": 1, "num_workers": 0, "seed": 3, "num_shards": ranks, **options}
    return [task.get_batch_iterator(data, **options, shard_id=rank) for rank in range(ranks)]


def read_of(epochs, count=None):
    """Read `count` batches on each rank, or all that are left; return the examples and the state of each rank."""
    read, states = [], []
    for epoch in epochs:
        batches = epoch.next_epoch_itr()
        for _ in range(len(batches) - batches.n if count is None else count):
            batch = next(batches)
            read += batch.tolist() if len(batch) else []
        states.append(epoch.state_dict())
    return read, states


def resumed(state, ranks=1, **options):
    epochs = iterators_of(ranks, **options)
    for epoch in epochs:
        epoch.load_state_dict(state)
    return epochs


@pytest.mark.parametrize(
    ("before", "read", "after"),
    [(2, 3, 2), (2, 4, 1), (1, 8, 4), (4, 1, 2), (2, 6, 3), (2, 5, 4), (1, 7, 4), (3, 1, 4)],
)
def test_ranks_continue_where_others_ended(before, read, after):
    """They read what is left, and nothing twice."""
    first, states = read_of(iterators_of(before), read)
    assert all(torch.equal(state.pop("read"), states[0]["read"]) for state in states[1:])
    assert all(state == {name: states[0][name] for name in state} for state in states[1:])
    left, _ = read_of(resumed(states[0], after))
    assert sorted(first + left) == list(range(13))


@pytest.mark.parametrize(
    "other",
    [
        {"max_tokens": 40},
        {"max_tokens": 10},
        {"max_tokens": 1000},
        {"max_sentences": 4},
        {"required_batch_size_multiple": 4},
        {"seed": 4},
        {"grouped_shuffling": True, "ranks": 2},
        {"ranks": 3, "max_tokens": 9},
        {"data": Lengths(sizes=3)},  # another --max-source-positions: the same examples of other lengths
    ],
)
def test_other_options_read_each_example_once(other):
    """Also if it is interrupted again in the same epoch, by which the same options read the same batches."""
    options = {"data": Lengths(), "max_tokens": 20, "max_sentences": None}
    other = {**options, **other}
    first, (state,) = read_of(iterators_of(**options), 3)
    assert 0 < len(first) < 40 and state["examples"] == 40
    rest, states = read_of(resumed(state, **other))
    # fairseq leaves out a last group of batches that is not whole, and the last examples below the multiple.
    leaves_out = not {"grouped_shuffling", "required_batch_size_multiple"}.isdisjoint(other)
    assert len(set(first + rest)) == len(first + rest) > 36
    assert leaves_out or sorted(first + rest) == list(range(40))
    assert (states[0]["epoch"], states[0]["iterations_in_epoch"], "read" in states[0]) == (2, 0, False)
    part, states = read_of(resumed(state, **other), 1)
    if len(part) == len(rest):
        return
    again, _ = read_of(resumed(states[0], **other))
    assert sorted(part + again) == sorted(rest)
    third, _ = read_of(resumed(states[0], **options))
    assert leaves_out or sorted(first + part + third) == list(range(40))


def test_the_same_options_read_the_same_batches():
    options = {"data": Lengths(), "max_tokens": 20, "max_sentences": None}
    whole, _ = read_of(iterators_of(**options))
    first, (state,) = read_of(iterators_of(**options), 4)
    second, (state,) = read_of(resumed(state, **options), 1)
    assert first + second + read_of(resumed(state, **options))[0] == whole


def test_the_epoch_after_the_resumed_one_is_whole():
    """Also if fairseq keeps the iterator."""
    options = {"data": Lengths(), "max_tokens": 20, "max_sentences": None}
    first, (state,) = read_of(iterators_of(**options), 4)
    (epoch,) = resumed(state, **{**options, "max_tokens": 30})
    assert sorted(first + read_of([epoch])[0]) == list(range(40))
    assert sorted(read_of([epoch])[0]) == list(range(40)) and epoch.epoch == 2


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"iterations_in_epoch": 60}, "iterations_in_epoch must be within epoch 1"),
        ({"iterations_in_epoch": 2}, "train_iterator.read must have the examples of the batches"),
        ({"examples": 41}, "has 40 examples, but the checkpoint .* epoch of 41: .* --reset-dataloader"),
        ({"batches": "other", "read": torch.full((5,), 255, dtype=torch.uint8)}, "no example .* --reset-dataloader"),
    ],
)
def test_a_place_that_does_not_exist(changes, message):
    options = {"data": Lengths(), "max_tokens": 20, "max_sentences": None}
    _, (state,) = read_of(iterators_of(**options), 4)
    with pytest.raises(UserError, match=message):
        resumed({**state, **changes}, **options)


def test_a_place_that_an_earlier_version_saved():
    """It has no examples: the batches are counted."""
    first, (state, _) = read_of(iterators_of(2), 3)
    earlier = {name: state[name] for name in ("version", "epoch", "iterations_in_epoch", "shuffle", "ranks")}
    for ranks in (1, 2, 4):
        left, _ = read_of(resumed(earlier, ranks))
        assert sorted(first + left) == list(range(13))


@pytest.mark.parametrize("read", range(9))
@pytest.mark.parametrize("chunk", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("skip", [True, False])
def test_groups_of_what_is_left(read, chunk, skip):
    """``--update-freq`` may differ from the one that the epoch began with."""
    batches = iterators.CountingIterator(range(read, 9), start=read)
    groups = list(iterators.GroupedIterator(batches, chunk, skip))
    expected = [list(range(start, min(start + chunk, 9))) for start in range(read, 9, chunk)]
    assert groups == [group for group in expected if len(group) == chunk or not skip]
    assert not batches.has_next()


# Text for ``fairseq-interactive`` that is not UTF-8.


def read(source):
    return list(interactive.buffered_read(str(source), 2))


def test_good_text(tmp_path):
    (tmp_path / "lines.txt").write_text("a\n\nü\n", encoding="utf-8")
    assert read(tmp_path / "lines.txt") == [["a", ""], ["ü"]]


def test_a_line_that_is_not_utf8_does_not_end_the_others(tmp_path):
    (tmp_path / "lines.txt").write_bytes(b"a\nb\nc\xfc\nd\n")
    answered = []
    with pytest.raises(UserError, match=r"lines\.txt: 1 line\(s\) are not valid UTF-8: line 3$"):
        answered.extend(interactive.buffered_read(str(tmp_path / "lines.txt"), 2))
    assert answered == [["a", "b"], ["c\ufffd", "d"]]


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_standard_input(monkeypatch, errors, caplog):
    text = b"\xef\xbb\xbfa\r\nx\xc3\xbc\xfc\nb\n\xed\xa0\x80\nlast"
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text), encoding="ascii", errors=errors))
    answered = []
    with pytest.raises(
        UserError, match=r"^--input -: must be UTF-8: line 2: can't decode byte 0xfc, byte 4 .*: line 2, 4$"
    ):
        answered.extend(interactive.buffered_read("-", 1))
    assert answered == [["a"], ["xü\ufffd"], ["b"], ["\ufffd\ufffd\ufffd"], ["last"]]
    assert "line 4: can't decode byte 0xed, byte 1" in caplog.text


def test_a_line_without_end(tmp_path, monkeypatch):
    monkeypatch.setattr("s2sft_fairseq.data.text_files.LONGEST_LINE", 100)
    (tmp_path / "lines.txt").write_text("a\n" + "b" * 101)
    with pytest.raises(UserError, match=r"lines\.txt, line 2: "):
        read(tmp_path / "lines.txt")


def test_a_compressed_file(tmp_path):
    content = gzip.compress("a\nü\n".encode())
    (tmp_path / "lines.gz").write_bytes(content)
    assert read(tmp_path / "lines.gz") == [["a", "ü"]]
    for damaged in (content[:-9], b"no gzip"):
        (tmp_path / "lines.gz").write_bytes(damaged)
        with pytest.raises(UserError, match=r"lines\.gz: cannot be read: "):
            read(tmp_path / "lines.gz")
