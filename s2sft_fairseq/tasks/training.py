"""How targets are predicted and corrupted in training: nothing of this matters to decoding."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.corruption import PRESETS, Corruption
from s2sft_fairseq.objectives.methods import METHODS, SPAN_METHODS, Method
from s2sft_fairseq.spans.span_file import load_spans

# What does nothing with other methods, and has a value that says so.
_OF_INFILLING = {"noise_prob": 0, "noise_symbol": None, "word_flow_weight": None}
# And what does nothing with infilling.
_OF_OTHERS = ("target_mask_prob", "max_masked_tokens")


def make_corruption(options: Any, name: str, dictionary: PretrainedDictionary) -> Corruption:
    """Settle how sources and targets are corrupted.

    Args:
        options: of the task.
        name: of the fine-tuning method.
        dictionary: of the data.

    Raises:
        UserError: naming every option that is out of range or does nothing with this method.
    """
    problems = [
        f"--{option.replace('_', '-')} is for --finetune-method infilling, but that is {name}"
        for option, unused in _OF_INFILLING.items()
        if name != "infilling" and getattr(options, option) != unused
    ]
    problems += [
        f"--{option.replace('_', '-')} does nothing with --finetune-method infilling: --noise-prob replaces targets"
        for option in _OF_OTHERS
        if name == "infilling" and getattr(options, option)
    ]
    symbol = options.noise_symbol
    if symbol is not None and symbol not in dictionary:
        problems.append(f"--noise-symbol must be a symbol of the dictionary, but {symbol!r} is not")
    names = ("target_mask_prob", "random_prob", "keep_prob", "source_mask_prob", "max_masked_tokens", "noise_prob")
    given = {option: value for option in names if (value := getattr(options, option)) is not None}
    corruption = replace(
        PRESETS[str(options.corruption)][name],
        **given,
        noise_symbol=None if symbol is None else dictionary.index(symbol),
    )
    problems += corruption.problems()
    weight = options.word_flow_weight
    if weight is not None and not 0 <= weight <= 1:
        problems.append(f"--word-flow-weight must be between 0 and 1, but is {weight:g}")
    if options.span_vocab is None and weight not in (None, 1):
        problems.append(f"--word-flow-weight {weight:g} needs --span-vocab: without it there is one flow alone")
    if options.span_vocab is not None and name not in SPAN_METHODS:
        problems.append(f"--span-vocab is for --finetune-method {' or '.join(SPAN_METHODS)}, but that is {name}")
    if problems:
        raise UserError.of(problems)
    return corruption


def make_method(options: Any, name: str, dictionary: PretrainedDictionary) -> Method:
    """Return the method to train with, which reads the span vocabulary where one is named.

    Raises:
        UserError: naming what is wrong with the span vocabulary.
    """
    method = METHODS[name]
    if options.span_vocab is None:
        return method
    vocabulary = load_spans(Path(options.span_vocab), dictionary)
    return method.with_spans(vocabulary.boundaries, options.word_flow_weight)
