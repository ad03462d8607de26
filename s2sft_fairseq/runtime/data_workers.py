"""Data loading workers of data sets whose batches are made anew in every epoch.

fairseq keeps the workers of an epoch for the next one. Where the next epoch has batches of its own, they are never used
again: they stay until Python's garbage collector finds them, which then waits 5 seconds for each of them in vain.
"""

from fairseq.data import iterators


class EpochBatchIterator(iterators.EpochBatchIterator):
    """fairseq's, whose workers end with their epoch unless the next epoch uses them."""

    def __init__(self, dataset: object, *args: object, **kwargs: object) -> None:
        if not getattr(dataset, "can_reuse_epoch_itr_across_epochs", True):
            kwargs.update(reuse_dataloader=False, persistent_workers=False)
        super().__init__(dataset, *args, **kwargs)


def apply() -> None:
    """Put this iterator in the place where `FairseqTask.get_batch_iterator` finds fairseq's."""
    iterators.EpochBatchIterator = EpochBatchIterator
