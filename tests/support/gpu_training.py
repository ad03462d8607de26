"""fairseq's own `Trainer` on the pretended GPU, with our task, criterion and optimizer."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq import options, utils
from fairseq.data import ListDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from pretended_gpu import DEVICE, counting, moved, upload

from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.packed_dataset import PackedPairDataset
from s2sft_fairseq.tasks.unilm_seq2seq import UnilmSeq2SeqTask

NO_FOLDER = "/nonexistent"
"""A folder that does not exist: nothing is read from it or saved to it."""


def make_trainer(dictionary: FairseqDictionary, *words: object, on_gpu: bool = True) -> Trainer:
    """Return a trainer of a model with random weights, on the pretended GPU or on the CPU.

    Args:
        dictionary: of the model.
        words: the arguments of ``fairseq-train``, from ``--arch`` on.
        on_gpu: where the model is; its batches must be there too.
    """
    line = [NO_FOLDER, "--save-dir", NO_FOLDER, "--batch-size", 1, "--task", "unilm_seq2seq", "--cpu", *words]
    line += ["--criterion", "mask_attention", "--optimizer", "fused_adamw", "--lr", "1e-3"]
    arguments = options.parse_args_and_arch(options.get_training_parser(), [str(word) for word in line])
    cfg = convert_namespace_to_omegaconf(arguments)
    task = UnilmSeq2SeqTask(cfg.task, dictionary)
    torch.manual_seed(1)
    trainer = Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))
    if on_gpu:
        trainer._model, trainer.device = moved(trainer._model), DEVICE
        with counting():
            trainer.optimizer.get_lr()  # makes the optimizer, which tries its kernels on the device
    return trainer


def make_batch(trainer: Trainer, lengths: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Return a batch of random tokens on the trainer's device; `lengths` has the lengths of each source and target."""
    form, rng = trainer.task.form, np.random.default_rng(0)

    def texts(sizes: Sequence[int], specials: int) -> ListDataset:
        rows = [np.append(rng.integers(5, form.vocab_size, size - specials), form.sep) for size in sizes]
        return ListDataset([torch.from_numpy(row) for row in rows], [len(row) for row in rows])

    sources, targets = zip(*lengths, strict=True)
    data = PackedPairDataset(
        texts(sources, form.source_specials), texts(targets, 1), form, trainer.task.objective, trainer.task.corruption
    )
    batch: dict[str, Any] = data.collater([data[index] for index in range(len(data))])
    return batch if trainer.device.type == "cpu" else utils.apply_to_sample(upload, batch)
