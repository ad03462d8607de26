"""How targets are predicted and corrupted in training: nothing of this matters to decoding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.objectives.corruption import Corruption
from s2sft_fairseq.objectives.objective import OBJECTIVES, Objective
from s2sft_fairseq.spans.span_file import load_spans


def make_corruption(options: Any, name: str, dictionary: PretrainedDictionary) -> Corruption:
    """Settle how sources and targets are corrupted.

    Args:
        options: of the task.
        name: of the fine-tuning method.
        dictionary: of the data.

    Raises:
        UserError: naming every option that is out of range or does nothing with this method.
    """
    objective = OBJECTIVES[name]
    problems = [
        f"{as_option(option)} is for --finetune-method {' or '.join(readers)}, but that is {name}"
        for option, (readers, unused) in _options_of_objectives().items()
        if name not in readers and getattr(options, option) not in (None, unused)
    ]
    symbol = options.noise_symbol
    if symbol is not None and symbol not in dictionary:
        problems.append(f"--noise-symbol must be a symbol of the dictionary, but {symbol!r} is not")
    names = ("target_mask_prob", "random_prob", "keep_prob", "source_mask_prob", "max_masked_tokens", "noise_prob")
    given = {option: value for option in names if (value := getattr(options, option)) is not None}
    corruption = replace(
        objective.corruption[str(options.corruption)],
        **given,
        noise_symbol=None if symbol is None else dictionary.index(symbol),
    )
    problems += corruption.problems()
    weight = options.word_flow_weight
    if weight is not None and not 0 <= weight <= 1:
        problems.append(f"--word-flow-weight must be between 0 and 1, but is {weight:g}")
    if options.span_vocab is None and weight not in (None, 1):
        problems.append(f"--word-flow-weight {weight:g} needs --span-vocab: without it there is one flow alone")
    if options.span_vocab is not None and not objective.takes_spans:
        names = [other for other in OBJECTIVES if OBJECTIVES[other].takes_spans]
        problems.append(f"--span-vocab is for --finetune-method {' or '.join(names)}, but that is {name}")
    if problems:
        raise UserError.of(problems)
    return corruption


def _options_of_objectives() -> dict[str, tuple[list[str], Any]]:
    """Return the options that some objectives read only: which do, and the value that asks for nothing."""
    found: dict[str, tuple[list[str], Any]] = {}
    for name, objective in OBJECTIVES.items():
        for option, unused in objective.options.items():
            found.setdefault(option, ([], unused))[0].append(name)
    return found


def make_objective(options: Any, name: str, dictionary: PretrainedDictionary) -> Objective:
    """Return the objective to train with, which reads the span vocabulary where one is named.

    Raises:
        UserError: naming what is wrong with the span vocabulary.
    """
    objective = OBJECTIVES[name]
    if options.span_vocab is None:
        return objective
    vocabulary = load_spans(Path(options.span_vocab), dictionary)
    return objective.with_spans(vocabulary.boundaries, options.word_flow_weight)
