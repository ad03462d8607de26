"""Data loading workers do not outlive the epoch that they were made for."""

import gc
import multiprocessing
import time

import pytest
import torch
from fairseq.data import FairseqDataset
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

pytestmark = pytest.mark.filterwarnings("ignore:'pin_memory' argument is set")


class Numbers(FairseqDataset):
    def __init__(self, reusable):
        self.can_reuse_epoch_itr_across_epochs = reusable

    can_reuse_epoch_itr_across_epochs = None

    def __getitem__(self, index):
        return index

    def __len__(self):
        return 4

    def collater(self, samples):
        return torch.tensor(samples)

    def num_tokens(self, index):
        return 1

    size = num_tokens


def workers_after_an_epoch(reusable):
    """Processes that are alive after an epoch in which everything was read, with no help by the garbage collector."""
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


def test_workers_end_with_an_epoch_whose_batches_are_not_used_again():
    assert workers_after_an_epoch(reusable=False) == []


def test_workers_stay_where_the_next_epoch_uses_them():
    (worker,) = workers_after_an_epoch(reusable=True)
    worker.terminate()


@pytest.mark.parametrize("reusable", [True, False])
def test_epochs_follow_each_other(reusable):
    task = FairseqTask(OmegaConf.create({}))
    epoch = task.get_batch_iterator(Numbers(reusable), max_sentences=2, num_workers=0)
    for number in (1, 2):
        assert sum(len(batch) for batch in epoch.next_epoch_itr()) == 4
        assert epoch.epoch == number
