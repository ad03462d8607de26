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
from s2sft_fairseq.objectives.source_fields import SIDES, SourceFields

logger = logging.getLogger(__name__)

DEFAULTS: dict[str, Any] = {
    "finetune_method": "pseudo_masked",
    "max_source_positions": 464,
    "max_target_positions": 48,
    "source_segments": "0",
    "source_truncation": "right",
    "source_field_positions": "0",
    "target_segment": 1,
    "placeholder": None,
}


def resolve_layout(
    options: Any, saved: Mapping[str, Any] | None, suggested: Mapping[str, Any], *, from_checkpoint: bool
) -> dict[str, Any]:
    """Settle the layout: what the user gives, else the checkpoint, else the pretrained encoder, else the defaults.

    Args:
        options: of the task.
        saved: the layout in the checkpoint, if there is any.
        suggested: what the pretrained encoder was trained with.
        from_checkpoint: whether a fine-tuned model is loaded.

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
    return {**DEFAULTS, **suggested, **saved, **given}


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
            f"--max-positions of the model ({model.max_positions}) at most, but add up to {max_source + max_target} "
            "(s2sft convert --max-positions gives an encoder more)"
        )
    try:
        fields = parse_source_fields(layout, model.num_segments)
    except UserError as error:
        problems += error.problems
    if model.num_segments and not 0 <= layout["target_segment"] < model.num_segments:
        problems.append(
            f"--target-segment must be at least 0 and below --num-segments of the model ({model.num_segments}), "
            f"but is {layout['target_segment']}"
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
        fields=fields,
        target_segment=layout["target_segment"],
        max_source=max_source,
        max_target=max_target,
    )


def parse_source_fields(layout: Mapping[str, Any], num_segments: int) -> SourceFields:
    """Read the options of the fields of a source, each a list with commas.

    Args:
        layout: the texts of ``source_segments``, ``source_truncation`` and ``source_field_positions``.
        num_segments: how many the model has; 0: none, and any will do.

    Raises:
        UserError: naming every option whose text is none of these, or whose numbers are out of range.
    """
    problems = []
    segments = _numbers(layout["source_segments"].removesuffix(",..."))
    if not segments:
        problems.append(
            "--source-segments must be numbers separated by commas, with ,... at the end if they are to take turns, "
            f"but is {layout['source_segments']!r}"
        )
    elif num_segments and not all(0 <= segment < num_segments for segment in segments):
        problems.append(
            f"--source-segments must be at least 0 and below --num-segments of the model ({num_segments}), "
            f"but is {layout['source_segments']}"
        )
    truncation = tuple(layout["source_truncation"].split(","))
    if not set(truncation) <= set(SIDES):
        problems.append(
            f"--source-truncation must be {' or '.join(SIDES)}, or several of them separated by commas, "
            f"but is {layout['source_truncation']!r}"
        )
    limits = _numbers(layout["source_field_positions"])
    if not limits or not all(limit == 0 or limit >= 2 for limit in limits):
        problems.append(
            "--source-field-positions must be numbers separated by commas, each 0 (no limit) or at least 2, "
            f"but is {layout['source_field_positions']!r}"
        )
    if problems:
        raise UserError.of(problems)
    return SourceFields(segments, layout["source_segments"].endswith(",..."), truncation, limits)


def _numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas; nothing if the text is anything else."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        return ()
