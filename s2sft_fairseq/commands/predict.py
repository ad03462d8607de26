"""``s2sft predict``: what a model fine-tuned for understanding says of texts, in files for the official evaluators.

Classes and numbers become a table of GLUE's server, ``index<TAB>prediction``; answers JSON as SQuAD's evaluators take
it, ``{id: text}``, and with --null-odds a second file, ``{id: odds that there is no answer}``.
"""

import argparse
import ast
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
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.inference.files import sentence_progress
from s2sft_fairseq.inference.rules import NotANumberError
from s2sft_fairseq.models.encoder_with_head import EncoderWithHead
from s2sft_fairseq.question_answering.answers import Answers, find_answers
from s2sft_fairseq.tasks.understanding import UnderstandingTask, UnilmClassificationTask, UnilmQuestionAnsweringTask

TASKS = ("unilm_classification", "unilm_question_answering")
N_BEST = 20
_OF_ANSWERS = ("null_odds", "null_threshold", "n_best_file")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line.

    Raises:
        UserError: naming everything that is wrong with the options, the data or the checkpoint.
    """
    options = _parser().parse_args(arguments)
    if problems := list(_problems(options)):
        raise UserError.of(problems)
    device = "cuda" if torch.cuda.is_available() and not options.cpu else "cpu"
    model, task = load(options.path, {**options.model_overrides, "data": str(options.data)})
    if problems := list(_problems_of_task(task, options)):
        raise UserError.of(problems)
    if options.fp16 or options.bf16:
        model.to(torch.float16 if options.fp16 else torch.bfloat16)
        check_half_precision(model)
    logits = logits_of(task, model.to(device).eval(), options.subset, options.max_tokens, options.batch_size)
    if isinstance(task, UnilmQuestionAnsweringTask):
        _write_answers(task, logits, options)
    else:
        _write_table(task, logits, options)


def load(path: Path, overrides: dict[str, Any]) -> tuple[EncoderWithHead, UnderstandingTask]:
    """Load a checkpoint and set up the task that it was trained for.

    Args:
        path: of the checkpoint.
        overrides: options of its task and model by name.

    Raises:
        UserError: if it is one of another task, or data and checkpoint do not fit each other.
    """
    state = checkpoint_utils.load_checkpoint_to_cpu(str(path), overrides)
    name = (state.get("cfg") or {}).get("task", {}).get("_name")
    if name not in TASKS:
        raise UserError(f"--path must be a checkpoint of {' or '.join(TASKS)}, but {path} is one of {name}")
    (model,), _, task = checkpoint_utils.load_model_ensemble_and_task([str(path)], overrides, state=state)
    return model, task


@torch.no_grad()
def logits_of(
    task: UnderstandingTask, model: EncoderWithHead, subset: str, max_tokens: int, batch_size: int | None
) -> list[np.ndarray]:
    """Return the logits, float32, of each text of a split, in the order of the data.

    Raises:
        UserError: if the files of the split are missing or damaged, a text alone has more than `max_tokens`, or the
            model gives NaN or infinite logits for a text.
    """
    task.load_dataset(subset)
    dataset = task.dataset(subset)
    found: dict[int, np.ndarray] = {}
    with sentence_progress(len(dataset), 0) as progress:
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
                    raise NotANumberError(place, dtype, f"text {index} of --subset {subset}, counted from 0")
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
    for question in questions:
        end = start + len(question.windows)
        count = N_BEST if options.n_best_file else 1
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
        print(f"{options.null_odds}: the odds that there is no answer; predicted where they are above {threshold:g}")
    if options.n_best_file:
        _write_json(options.n_best_file, {name: [asdict(a) for a in answers.best] for name, answers in found.items()})
        print(f"{options.n_best_file}: the best {N_BEST} spans of each question")


def _write_json(path: Path, values: dict[str, Any]) -> None:
    write_lines(path, [json.dumps(values, ensure_ascii=False)])


def _problems_of_task(task: UnderstandingTask, options: argparse.Namespace) -> Iterator[str]:
    """Yield what does nothing with the task of the checkpoint."""
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


def _problems(options: argparse.Namespace) -> list[str]:
    found = []
    if options.fp16 and options.bf16:
        found.append("--fp16 and --bf16 exclude each other: give one of them")
    for name in ("max_tokens", "batch_size", "max_answer"):
        value = getattr(options, name)
        if value is not None and value < 1:
            found.append(f"{as_option(name)} must be at least 1, but is {value}")
    if options.clip and options.clip[0] > options.clip[1]:
        found.append(f"--clip must be a least and a greatest number, but is {options.clip[0]:g} {options.clip[1]:g}")
    if not options.path.is_file():
        found.append(f"--path must be a checkpoint file, but {options.path} is not one")
    return found


def _dictionary(text: str) -> dict[str, Any]:
    try:
        return dict(ast.literal_eval(text))
    except (ValueError, SyntaxError, TypeError):
        raise argparse.ArgumentTypeError(
            f"must be a dictionary such as {{'pretrained': 'DIR'}}, but is {text}"
        ) from None


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s2sft predict", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("data", type=Path, help="folder written by s2sft preprocess --only-source")
    parser.add_argument("--path", type=Path, required=True, metavar="FILE", help="the fine-tuned checkpoint")
    parser.add_argument("--subset", default="valid", metavar="NAME", help="the split (default: valid)")
    parser.add_argument("--output", type=Path, required=True, metavar="FILE", help="the file to write")
    parser.add_argument(
        "--clip", type=float, nargs=2, metavar=("LEAST", "MOST"), help="of a regression: the range of its numbers"
    )
    answers = parser.add_argument_group("question answering")
    answers.add_argument(
        "--max-answer", type=int, default=30, metavar="N", help="most tokens of an answer (default: 30)"
    )
    answers.add_argument(
        "--null-odds",
        type=Path,
        metavar="FILE",
        help="questions may have no answer, as in SQuAD v2.0: write the odds of that, score of [CLS] less score of the "
        "best answer",
    )
    answers.add_argument(
        "--null-threshold",
        type=float,
        metavar="X",
        help="odds above which there is no answer; inf: there always is one, to search the best threshold (default: 0)",
    )
    answers.add_argument(
        "--n-best-file", type=Path, metavar="FILE", help=f"write the best {N_BEST} spans with their scores, too"
    )
    parser.add_argument(
        "--max-tokens", type=int, default=8192, metavar="N", help="positions of a batch together (default: 8192)"
    )
    parser.add_argument("--batch-size", type=int, metavar="N", help="most texts of a batch")
    parser.add_argument("--cpu", action="store_true", help="compute on the CPU, though there is a GPU")
    parser.add_argument("--fp16", action="store_true", help="compute in float16")
    parser.add_argument("--bf16", action="store_true", help="compute in bfloat16")
    parser.add_argument(
        "--model-overrides",
        type=_dictionary,
        default={},
        metavar="DICT",
        help="other options of the model than those of the checkpoint, such as \"{'pretrained': 'DIR'}\"",
    )
    return parser
