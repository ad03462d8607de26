"""What a fine-tuned checkpoint must remember to be decoded: method, layout, placeholder.

It is kept in fairseq's task state, so that neither generating nor validating needs an option for it.
"""

import logging
from collections.abc import Mapping
from typing import Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.finetuning import METHODS
from s2sft_fairseq.objectives.sequence_form import SequenceForm

logger = logging.getLogger(__name__)

DEFAULTS: dict[str, Any] = {
    "finetune_method": "pseudo_masked",
    "max_source_positions": 464,
    "max_target_positions": 48,
    "source_segment": 0,
    "target_segment": 1,
    "placeholder": None,
}


def resolve_layout(options: Any, saved: Mapping[str, Any] | None, *, from_checkpoint: bool) -> dict[str, Any]:
    """Settle the layout: what the user gives, else what the checkpoint says, else the defaults.

    Raises:
        UserError: if a checkpoint is loaded that does not say how it was fine-tuned, and neither does the user.
    """
    given = {name: getattr(options, name) for name in DEFAULTS if getattr(options, name) is not None}
    if "finetune_method" in given:
        given["finetune_method"] = str(given["finetune_method"])
    saved = saved or {}
    if from_checkpoint and "finetune_method" not in {**saved, **given}:
        raise UserError(
            "the checkpoint does not say how it was fine-tuned (it has no task state): "
            f"give --finetune-method ({', '.join(sorted(METHODS))}) and what else its training was given"
        )
    for name in given.keys() & saved.keys():
        if given[name] != saved[name]:
            logger.warning(
                f"--{name.replace('_', '-')} {given[name]} overrides "
                f"what the checkpoint was fine-tuned with, {saved[name]}"
            )
    return {**DEFAULTS, **saved, **given}


def make_form(layout: Mapping[str, Any], dictionary: PretrainedDictionary, model: UnilmConfig) -> SequenceForm:
    """Make the form that objectives and decoder share.

    Raises:
        UserError: naming every option that does not fit the dictionary or the model.
    """
    problems = []
    symbol = layout["placeholder"]
    if symbol is not None and symbol not in dictionary:
        problems.append(f"--placeholder must be a symbol of the dictionary, but {symbol!r} is not")
    max_source, max_target = layout["max_source_positions"], layout["max_target_positions"]
    for name, least in (("max_source_positions", 3), ("max_target_positions", 2)):
        if layout[name] < least:
            problems.append(f"--{name.replace('_', '-')} must be at least {least}, but is {layout[name]}")
    if max_source + max_target > model.max_positions:
        problems.append(
            f"--max-source-positions ({max_source}) and --max-target-positions ({max_target}) must add up to "
            f"--max-positions of the model ({model.max_positions}) at most, but add up to {max_source + max_target}"
        )
    for name in ("source_segment", "target_segment"):
        if model.num_segments and not 0 <= layout[name] < model.num_segments:
            problems.append(
                f"--{name.replace('_', '-')} must be at least 0 and below --num-segments of the model "
                f"({model.num_segments}), but is {layout[name]}"
            )
    if problems:
        raise UserError.of(problems)
    return SequenceForm(
        cls=dictionary.bos(),
        sep=dictionary.eos(),
        pad=dictionary.pad(),
        placeholder=dictionary.mask() if symbol is None else dictionary.index(symbol),
        vocab_size=len(dictionary),
        shifted=METHODS[layout["finetune_method"]].shifted,
        source_segment=layout["source_segment"],
        target_segment=layout["target_segment"],
        max_source=max_source,
        max_target=max_target,
    )
