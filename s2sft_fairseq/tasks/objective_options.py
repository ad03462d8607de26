"""Make the objective of a task from its options: the corruption, and how targets are predicted."""

import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.objectives.blocks import Blocks
from s2sft_fairseq.objectives.finetuning import Corruption
from s2sft_fairseq.objectives.objective import OBJECTIVES, Objective
from s2sft_fairseq.spans.vocabulary import load_spans
from s2sft_fairseq.tasks.options import symbol_problems


def make_corruption(options: Any, name: str, dictionary: FairseqDictionary) -> Corruption:
    """Return the corruption of sources and targets.

    Args:
        options: the options of the task.
        name: the name of the fine-tuning method.
        dictionary: the dictionary of the data.

    Raises:
        UserError: lists every option that is out of range or has no effect with this method.
    """
    objective = OBJECTIVES[name]
    problems = [
        f"{as_option(option)} is for --finetune-method {' or '.join(readers)}, but that is {name}"
        for option, (readers, unused) in _options_of_objectives().items()
        if name not in readers and getattr(options, option) not in (None, unused)
    ]
    symbol = options.noise_symbol
    problems += symbol_problems({"--noise-symbol": symbol}, dictionary)
    names = ("target_mask_prob", "random_prob", "keep_prob", "source_mask_prob", "max_masked_tokens", "noise_prob")
    given = {option: value for option in names if (value := getattr(options, option)) is not None}
    corruption = replace(
        objective.corruption[str(options.corruption)],
        **given,
        noise_symbol=None if symbol is None else dictionary.index(symbol),
        only_noised=str(options.loss_tokens) == "noised",
    )
    problems += corruption.problems()
    if not 0 <= options.source_loss_weight < math.inf:
        problems.append(f"--source-loss-weight must be at least 0 and finite, but is {options.source_loss_weight:g}")
    weight = options.word_flow_weight
    takes_weight = objective.cut is None  # `Blocks` checks that of blocks
    if takes_weight and weight is not None and not 0 <= weight <= 1:
        problems.append(f"--word-flow-weight must be between 0 and 1, but is {weight:g}")
    if takes_weight and options.span_vocab is None and weight not in (None, 1):
        problems.append(f"--word-flow-weight {weight:g} needs --span-vocab: without it there is only one flow")
    if options.span_vocab is not None and not objective.takes_spans:
        takers = [other for other in OBJECTIVES if OBJECTIVES[other].takes_spans]
        problems.append(f"--span-vocab is for --finetune-method {' or '.join(takers)}, but that is {name}")
    if problems:
        raise UserError.of(problems)
    return corruption


def _options_of_objectives() -> dict[str, tuple[list[str], Any]]:
    """Return the options that only some objectives read, with the names of these and the value without effect."""
    found: dict[str, tuple[list[str], Any]] = {}
    for name, objective in OBJECTIVES.items():
        for option, unused in objective.options.items():
            found.setdefault(option, ([], unused))[0].append(name)
    return found


def make_objective(options: Any, layout: Mapping[str, Any], dictionary: FairseqDictionary) -> Objective:
    """Return the objective of a training, with the span vocabulary if one is given.

    Raises:
        UserError: the span vocabulary or an option of blocks is wrong.
    """
    objective = OBJECTIVES[layout["finetune_method"]]
    if objective.cut is not None:
        schedule, weight = options.noise_schedule, options.block_loss_weight
        return objective.with_blocks(
            Blocks.of_options(layout["block_length"], options.word_flow_weight, schedule, weight)
        )
    if options.span_vocab is None:
        return objective
    vocabulary = load_spans(Path(options.span_vocab), dictionary)
    return objective.with_spans(vocabulary.boundaries, options.word_flow_weight)
