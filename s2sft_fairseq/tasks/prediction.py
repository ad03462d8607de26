"""Predict with models that are fine-tuned for understanding, and write the predictions to files."""

import argparse
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils

from s2sft_fairseq.checkpoints.finite_weights import check_half_precision
from s2sft_fairseq.data.text_datasets import LabelledDataset
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.inference.rules import NotANumberError
from s2sft_fairseq.models.encoder_with_head import EncoderWithHead
from s2sft_fairseq.progress import bar, sentence_progress, step
from s2sft_fairseq.question_answering.questions import Answers, find_answers
from s2sft_fairseq.tasks.understanding import UnderstandingTask, UnilmClassificationTask, UnilmQuestionAnsweringTask

TASKS = ("unilm_classification", "unilm_question_answering")
_OF_ANSWERS = ("null_odds", "null_threshold", "n_best_file")


def predict(options: argparse.Namespace) -> None:
    """Write the predictions of a model for a split of binarized data.

    Args:
        options: the options of ``s2sft predict``.

    Raises:
        UserError: the data or the checkpoint is wrong, or options do not fit it.
    """
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    model, task = load(options.path, {**options.model_overrides, "data": str(options.data)})
    if problems := list(_problems(task, options)):
        raise UserError.of(problems)
    if options.fp16 or options.bf16:
        model.to(torch.float16 if options.fp16 else torch.bfloat16)
        check_half_precision(model)
    task.load_dataset(options.subset)
    where = f"text {{}} of --subset {options.subset}, counted from 0"
    dataset, model = task.dataset(options.subset), model.to(device).eval()
    logits = logits_of(task, model, dataset, options.max_tokens, options.batch_size, where=where)
    if isinstance(task, UnilmQuestionAnsweringTask):
        _write_answers(task, logits, options)
    else:
        _write_table(task, logits, options)


def load(path: Path, overrides: dict[str, Any]) -> tuple[EncoderWithHead, UnderstandingTask]:
    """Load a checkpoint and set up its task.

    Args:
        path: the checkpoint.
        overrides: options of its task and model by name.

    Raises:
        UserError: it is a checkpoint of another task, or data and checkpoint do not fit each other.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path), overrides)
    name = (state.get("cfg") or {}).get("task", {}).get("_name")
    if name not in TASKS:
        raise UserError(f"--path must be a checkpoint of {' or '.join(TASKS)}, but {path} is one of {name}")
    with step(f"load {path}"):
        (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides, state=state)
    return model, task


@torch.no_grad()
def logits_of(
    task: UnderstandingTask,
    model: EncoderWithHead,
    dataset: LabelledDataset,
    max_tokens: int,
    batch_size: int | None = None,
    *,
    where: str,
    bar: bool = True,
) -> list[np.ndarray]:
    """Return the logits, float32, of each text of a data set, in its order.

    Args:
        task: the task of the model.
        model: the model, on its device.
        dataset: the texts.
        max_tokens: maximum number of positions of a batch.
        batch_size: maximum number of texts of a batch.
        where: the name of a text in messages; {} is replaced by its number.
        bar: show progress.

    Raises:
        UserError: a single text has more than `max_tokens` positions, or the logits of a text are NaN or infinite.
    """
    found: dict[int, np.ndarray] = {}
    with sentence_progress(len(dataset), 0, bar=bar) as progress:
        for indices in dataset.batch_by_size(dataset.ordered_indices(), max_tokens, batch_size):
            sample = dataset.collater([dataset[index] for index in indices.tolist()])
            net_input = sample["net_input"]
            if next(model.parameters()).is_cuda:
                net_input = utils.move_to_cuda(net_input)
            logits = model(**net_input).float().cpu().numpy()
            lengths = [sum(blocks) for blocks in net_input["lengths"]]
            found |= zip(indices.tolist(), task.split_logits(logits, lengths), strict=True)
            for place, index in enumerate(indices.tolist()):
                if not np.isfinite(found[index]).all():
                    dtype = next(model.parameters()).dtype
                    raise NotANumberError(place, dtype).at(where.format(index))
            progress.update(len(indices))
    return [found[index] for index in range(len(dataset))]


def _write_table(task: UnilmClassificationTask, logits: Sequence[np.ndarray], options: argparse.Namespace) -> None:
    predictions = task.predictions(logits)
    if options.clip:
        low, high = options.clip
        predictions = [f"{min(max(float(text), low), high):.4f}" for text in predictions]
    count = write_lines(
        options.output,
        ["index\tprediction", *(f"{number}\t{prediction}" for number, prediction in enumerate(predictions))],
    )
    told = f"{options.output}: {count - 1:,} predictions"
    if task.classes:
        counts = Counter(predictions)
        told += f" ({', '.join(f'{name} {counts[name]:,}' for name in task.classes)})"
    print(told)


def _write_answers(task: UnilmQuestionAnsweringTask, logits: Sequence[np.ndarray], options: argparse.Namespace) -> None:
    questions = task.questions(options.subset, len(logits))
    if lacking := sum(question.offsets is None for question in questions):
        raise UserError(
            f"--subset {options.subset} has {lacking:,} questions without their passages, which s2sft prepare squad "
            "writes for the development set alone"
        )
    found: dict[str, Answers] = {}
    start = 0
    for question in bar(questions, "choose the answers", " questions"):
        end = start + len(question.windows)
        count = options.n_best if options.n_best_file else 1
        found[question.id] = find_answers(question, logits[start:end], options.max_answer, count)
        start = end
    threshold = float("inf")
    if options.null_odds:
        threshold = 0.0 if options.null_threshold is None else options.null_threshold
    texts = {name: answers.text(threshold) for name, answers in found.items()}
    _write_json(options.output, texts)
    empty = sum(not text for text in texts.values())
    print(f"{options.output}: {len(texts):,} answers, {empty:,} of them empty")
    if options.null_odds:
        _write_json(options.null_odds, {name: answers.null_odds for name, answers in found.items()})
        print(
            f"{options.null_odds}: the odds that there is no answer; answers are empty if they are above {threshold:g}"
        )
    if options.n_best_file:
        _write_json(options.n_best_file, {name: [asdict(a) for a in answers.best] for name, answers in found.items()})
        print(f"{options.n_best_file}: the best {options.n_best} spans of each question")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_lines(path, [json.dumps(values, ensure_ascii=False)])


def _problems(task: UnderstandingTask, options: argparse.Namespace) -> Iterator[str]:
    """Yield a sentence for each option that has no effect with the task of the checkpoint."""
    if isinstance(task, UnilmQuestionAnsweringTask):
        if options.clip:
            yield "--clip is for regression, but --path is a checkpoint of question answering"
        if options.null_threshold is not None and not options.null_odds:
            yield "--null-threshold needs --null-odds, the file of the odds that it is compared with"
    else:
        for name in _OF_ANSWERS:
            if getattr(options, name) is not None:
                yield f"{as_option(name)} is for question answering, but --path is one of classification"
        if options.clip and not task.cfg.regression:
            yield "--clip is for regression, but --path is a checkpoint of classification"
