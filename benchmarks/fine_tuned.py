"""A fine-tuned checkpoint and the test set of its data, for the benchmarks that need a real model."""

import argparse
import contextlib
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
from fairseq import checkpoint_utils
from fairseq.tasks import FairseqTask
from omegaconf import open_dict

from s2sft_fairseq.models.unilm import UnilmModel


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the options that name the checkpoint and its data."""
    parser.add_argument("--path", required=True, metavar="FILE", help="checkpoint")
    parser.add_argument("--data", required=True, metavar="DIR", help="binarized data")
    parser.add_argument("--sentences", type=int, default=500, metavar="N", help="spread over the test set")


def load(options: argparse.Namespace, **overrides: Any) -> tuple[UnilmModel, FairseqTask]:
    """Load the checkpoint and its task, and override some options of the task."""
    with open(os.devnull, "w") as nowhere, contextlib.redirect_stdout(nowhere):
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task(
            [options.path], arg_overrides={"data": options.data}
        )
    # fairseq overrides only options that the checkpoint has; an older checkpoint lacks newer options.
    with open_dict(task.cfg):
        task.cfg.update(overrides)
    return model, task


def batches(task: FairseqTask, sentences: int, batch_size: int) -> Iterator[dict[str, Any]]:
    """Yield batches of sentences spread evenly over the test set, the longest first."""
    task.load_dataset("test")
    dataset = task.dataset("test")
    chosen = np.linspace(0, len(dataset) - 1, min(sentences, len(dataset))).astype(int)
    ordered = chosen[np.argsort([-dataset.num_tokens(index) for index in chosen], kind="stable")]
    for first in range(0, len(ordered), batch_size):
        yield dataset.collater([dataset[index] for index in ordered[first : first + batch_size]])
