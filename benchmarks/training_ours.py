"""This package as users run it: `Trainer` of fairseq with our task, model, criterion and optimizer."""

import logging
from collections.abc import Sequence
from typing import Any

import s2sft_fairseq.plugin  # noqa: F401  (patches fairseq, so it comes first)

# isort: split
import numpy as np
import torch
from fairseq import options
from fairseq.data import ListDataset
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.trainer import Trainer
from torch import Tensor
from training_grid import FACTORED, FURTHEST_DISTANCE, MASKED_SHARE, RELATIVE_BINS, Cell
from training_pairs import (
    BETAS,
    CLIP_NORM,
    DROPOUT,
    EPSILON,
    FIRST_WORD,
    LABEL_SMOOTHING,
    LEARNING_RATE,
    SEP,
    SPECIAL_SYMBOLS,
    WEIGHT_DECAY,
    Outcome,
    Pair,
    System,
)

from s2sft_fairseq.data.dictionary import BERT_SYMBOLS
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.packed_dataset import PackedPairDataset
from s2sft_fairseq.tasks.unilm_seq2seq import UnilmSeq2SeqTask

NO_FOLDER = "/nonexistent"
"""A folder that does not exist: nothing is read from it, and nothing is saved, even if a cell fails."""


def command_line(cell: Cell, dropout: float) -> list[str]:
    """Return the arguments of ``s2sft train``."""
    words = [
        *(NO_FOLDER, "--save-dir", NO_FOLDER, "--batch-size", cell.batch, "--seed", cell.seed),
        *("--task", "unilm_seq2seq", "--arch", cell.config, "--max-positions", cell.positions),
        *("--finetune-method", cell.objective),
        *("--max-source-positions", cell.shape.max_source, "--max-target-positions", cell.shape.max_target),
        *("--dropout", dropout, "--attention-dropout", dropout),
        *("--criterion", "mask_attention", "--label-smoothing", LABEL_SMOOTHING),
        *("--optimizer", "fused_adamw", "--lr", LEARNING_RATE, "--adam-betas", BETAS, "--adam-eps", EPSILON),
        *("--weight-decay", WEIGHT_DECAY, "--clip-norm", CLIP_NORM, "--distributed-world-size", 1),
    ]
    if cell.objective == "masked":  # an exact number, so that updates have equal work; placeholders only
        words += ["--corruption", "original", "--target-mask-prob", MASKED_SHARE, "--random-prob", 0, "--keep-prob", 0]
    elif cell.objective == "pseudo_masked":  # the plain model reads the target as it is
        words += ["--target-mask-prob", 0]
    if cell.relative:
        words += ["--relative-position-bins", RELATIVE_BINS, "--max-relative-position", FURTHEST_DISTANCE]
    words.append(precision_option(cell))
    if cell.system == FACTORED:
        words.append("--factored-moments")
    if not cell.device.startswith("cuda"):
        words.append("--cpu")
    return [*(str(word) for word in words), *cell.extra.split()]


def precision_option(cell: Cell) -> str:
    """Return fairseq's option for a precision; ``bfloat16`` is ``--bf16`` on a GPU and ``--amp`` on a CPU."""
    if cell.precision == "bfloat16":
        return "--bf16" if cell.device.startswith("cuda") else "--amp"
    return f"--{cell.precision}"


def make_trainer(cell: Cell, dropout: float = DROPOUT) -> Trainer:
    """Return a trainer for a model with random weights."""
    arguments = options.parse_args_and_arch(options.get_training_parser(), command_line(cell, dropout))
    cfg = convert_namespace_to_omegaconf(arguments)
    words = (f"w{number}" for number in range(FIRST_WORD, cell.vocab))
    dictionary = FairseqDictionary([(symbol, 1) for symbol in (*SPECIAL_SYMBOLS, *words)], BERT_SYMBOLS)
    task = UnilmSeq2SeqTask(cfg.task, dictionary)
    torch.manual_seed(cell.seed)
    return Trainer(cfg, task, task.build_model(cfg.model), task.build_criterion(cfg.criterion))


def collate(task: UnilmSeq2SeqTask, pairs: Sequence[Pair], epoch: int) -> dict[str, Any]:
    """Lay the pairs out, corrupt them and collate them, as the data sets of the task do."""

    def with_eos(rows: Sequence[np.ndarray]) -> ListDataset:
        tensors: list[Tensor] = [torch.from_numpy(np.append(row, SEP)) for row in rows]
        return ListDataset(tensors, [len(tensor) for tensor in tensors])

    sources, targets, _ = zip(*pairs, strict=True)
    data = PackedPairDataset(
        with_eos(sources), with_eos(targets), task.form, task.objective, task.corruption, seed=task.cfg.seed
    )
    data.set_epoch(epoch)
    return data.collater([data[index] for index in range(len(data))])


def watch_loss(trainer: Trainer) -> list[Tensor]:
    """Return a list to which each batch appends its mean loss of a label in nats, a tensor on the device."""
    losses: list[Tensor] = []
    trainer.criterion.register_forward_hook(lambda module, given, found: losses.append(found[0].detach() / found[1]))
    return losses


def ours(cell: Cell) -> System:
    """Return the training of this package."""
    logging.disable(logging.INFO)
    trainer = make_trainer(cell)
    losses = watch_loss(trainer)

    def update(pairs: Sequence[Pair]) -> Outcome:
        batch = collate(trainer.task, pairs, epoch=trainer.get_num_updates() + 1)
        trainer.train_step([batch])
        return Outcome(float(losses.pop()), batch["net_input"]["tokens"].numel())

    return update
