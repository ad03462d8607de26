"""What a command leaves behind in its process, and the next one does not see."""

import gc
import logging
import os
import sys
import weakref

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics
from fairseq_cli import train

from s2sft_fairseq.recipes.in_process import like_a_process


class Cycle:
    """What only the garbage collector frees."""

    def __init__(self):
        self.itself = self


def test_nothing_is_left(tmp_path, monkeypatch):
    monkeypatch.setenv("BEFORE", "1")
    monkeypatch.setattr(sys, "argv", ["before"])
    logger = logging.getLogger("fairseq_cli.train")
    root = logging.getLogger()
    before = (root.level, root.handlers[:], logger.handlers[:])
    gc.disable()
    with pytest.raises(KeyboardInterrupt), like_a_process():
        os.environ["AFTER"] = os.environ.pop("BEFORE")
        sys.argv = ["after"]
        handler = logging.FileHandler(tmp_path / "train.log")
        logger.addHandler(handler)
        logging.basicConfig(level=logging.ERROR, force=True)
        freed = weakref.ref(Cycle())
        raise KeyboardInterrupt
    gc.enable()
    assert os.environ["BEFORE"] == "1" and "AFTER" not in os.environ
    assert sys.argv == ["before"]
    assert (root.level, root.handlers, logger.handlers) == before
    assert handler.stream is None  # it is closed
    assert freed() is None


def test_a_training_knows_nothing_of_one_before():
    drawn = []
    for _ in range(2):
        checkpoint_utils.save_checkpoint.best = train.should_stop_early.best = 1.0
        with like_a_process():
            assert not hasattr(checkpoint_utils.save_checkpoint, "best")
            assert not hasattr(train.should_stop_early, "best")
            assert metrics.get_meter("default", "loss") is None
            with metrics.aggregate("train"):
                metrics.log_scalar("loss", 1)
            drawn.append(torch.rand(3))
    assert torch.equal(*drawn)
