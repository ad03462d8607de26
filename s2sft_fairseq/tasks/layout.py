"""The layout of sources and targets, determined from options, checkpoint and model.

A fine-tuned checkpoint stores its method, layout and placeholder in fairseq's task state, so that generation and
validation need no options for them.
"""

import logging
from collections.abc import Mapping
from typing import Any

from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.objective import OBJECTIVES, Objective
from s2sft_fairseq.objectives.sequence_form import KNOWLEDGE_ROLE, SIDES, SequenceForm, SourceFields
from s2sft_fairseq.tasks.options import symbol_problems

logger = logging.getLogger(__name__)

DEFAULTS: dict[str, Any] = {
    "finetune_method": "pseudo_masked",
    "block_length": None,
    "max_source_positions": 464,
    "max_target_positions": 48,
    "source_start": "cls",
    "source_segments": "0",
    "source_truncation": "right",
    "source_field_positions": "0",
    "target_segment": 1,
    "placeholder_segment": None,
    "placeholder": None,
}
DIALOGUE = "dialogue"
"""The value of ``--source-segments`` for dialogues. With it, the defaults are those of `_DIALOGUE_DEFAULTS`."""
_DIALOGUE_DEFAULTS = {"source_truncation": "right,left", "target_segment": 0}


def resolve_layout(
    options: Any, saved: Mapping[str, Any] | None, suggested: Mapping[str, Any], *, from_checkpoint: bool
) -> dict[str, Any]:
    """Return the layout: each value is from the user, else the checkpoint, else the pretrained encoder, else a default.

    Args:
        options: the options of the task.
        saved: the layout in the checkpoint, if there is one.
        suggested: the layout that the pretrained encoder was trained with.
        from_checkpoint: whether a fine-tuned model is loaded.

    Raises:
        UserError: the checkpoint does not have the method of its fine-tuning and the user does not give it, or the
            method is unknown.
    """
    given = {name: getattr(options, name) for name in DEFAULTS if getattr(options, name) is not None}
    known = ", ".join(sorted(OBJECTIVES))
    if (method := given.get("finetune_method")) is not None and method not in OBJECTIVES:
        raise UserError(f"--finetune-method must be one of {known}, or of your own with --user-dir, but is {method}")
    saved = saved or {}
    if from_checkpoint and "finetune_method" not in {**saved, **given}:
        raise UserError(
            "the checkpoint does not say how it was fine-tuned (it has no task state): "
            f"give --finetune-method ({known}) and what else its training was given"
        )
    for name in given.keys() & saved.keys():
        if given[name] != saved[name]:
            logger.warning(
                f"{as_option(name)} {given[name]} overrides what the checkpoint was fine-tuned with, {saved[name]}"
            )
    layout = {**DEFAULTS, **suggested, **saved, **given}
    if layout["finetune_method"] not in OBJECTIVES:
        raise UserError(
            f"the checkpoint was fine-tuned with the method {layout['finetune_method']!r:.40}, but known are {known}: "
            "give the --user-dir that registers it, or update the package"
        )
    has_source_limit = "max_source_positions" in {**suggested, **saved, **given}
    if OBJECTIVES[layout["finetune_method"]].own_start and not has_source_limit:
        layout["max_source_positions"] -= 1  # the start of the target needs one of the usual 512 positions
    if layout["source_segments"] == DIALOGUE:
        # Ignore the encoder's suggestions, which are about segments: a dialogue has roles and turns instead.
        layout |= {**_DIALOGUE_DEFAULTS, **saved, **given}
    return layout


def make_form(layout: Mapping[str, Any], dictionary: FairseqDictionary, model: UnilmConfig) -> SequenceForm:
    """Return the layout that objectives and decoder share.

    Raises:
        UserError: lists every option that does not fit the dictionary or the model.
    """
    problems: list[str] = []
    objective = OBJECTIVES[layout["finetune_method"]]
    symbol = layout["placeholder"]
    problems += symbol_problems({"--placeholder": symbol}, dictionary)
    max_source, max_target = layout["max_source_positions"], layout["max_target_positions"]
    for name, least in (("max_source_positions", 3), ("max_target_positions", 2)):
        if layout[name] < least:
            problems.append(f"{as_option(name)} must be at least {least}, but is {layout[name]}")
    needed = max_source + max_target + objective.own_start
    if needed > model.max_positions:
        of_start = ", with one for the start of the target," if objective.own_start else ""
        problems.append(
            f"--max-source-positions ({max_source}) and --max-target-positions ({max_target}){of_start} must add up to "
            f"--max-positions of the model ({model.max_positions}) at most, but add up to {needed} "
            "(s2sft convert --max-positions gives an encoder more)"
        )
    try:
        fields = parse_source_fields(layout, model.num_segments, model.num_roles, model.num_turns)
    except UserError as error:
        problems += error.problems
    for name in ("target_segment", "placeholder_segment"):
        segment = layout.get(name)
        count, of_model = _segment_ids(model.num_segments, model.num_roles, model.num_turns)
        if count and segment is not None and not 0 <= segment < count:
            problems.append(f"{as_option(name)} must be at least 0 and below {of_model}, but is {segment}")
    if problems:
        raise UserError.of(problems)
    return SequenceForm(
        cls=dictionary.eos() if str(layout["source_start"]) == "sep" else dictionary.bos(),
        sep=dictionary.eos(),
        pad=dictionary.pad(),
        placeholder=placeholder_id(symbol, objective, dictionary),
        vocab_size=len(dictionary),
        starts_with=objective.starts_with,
        fields=fields,
        target_segment=layout["target_segment"],
        placeholder_segment=_either(layout.get("placeholder_segment"), layout["target_segment"]),
        max_source=max_source,
        max_target=max_target,
    )


def make_text_form(
    dictionary: FairseqDictionary,
    model: UnilmConfig,
    max_source: int,
    *,
    source_segments: str | None,
    **field_options: str,
) -> SequenceForm:
    """Return the layout of texts for understanding.

    Args:
        dictionary: the dictionary of the data.
        model: the options of the model.
        max_source: maximum number of positions of a text.
        source_segments: the option; None: the default.
        field_options: the other options that `parse_source_fields` reads.

    Raises:
        UserError: lists every option that does not fit the model.
    """
    problems = []
    if not 3 <= max_source <= model.max_positions:
        problems.append(
            f"--max-source-positions must be at least 3 and at most --max-positions of the model "
            f"({model.max_positions}), but is {max_source}"
        )
    try:
        segments = ("0" if model.num_segments == 1 else "0,1") if source_segments is None else source_segments
        fields = parse_source_fields(
            {"source_segments": segments, **field_options}, model.num_segments, model.num_roles, model.num_turns
        )
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError.of(problems)
    return SequenceForm(
        cls=dictionary.bos(),
        sep=dictionary.eos(),
        pad=dictionary.pad(),
        placeholder=dictionary.mask(),
        vocab_size=len(dictionary),
        fields=fields,
        max_source=max_source,
    )


def placeholder_id(symbol: str | None, objective: Objective, dictionary: FairseqDictionary) -> int:
    """Return the id of the placeholder: the given symbol, else the objective's if it is known, else the mask."""
    if symbol is None and objective.placeholder in dictionary:
        symbol = objective.placeholder
    return dictionary.mask() if symbol is None else dictionary.index(symbol)


def _either(given: int | None, default: int) -> int:
    return default if given is None else given


def _segment_ids(num_segments: int, num_roles: int, num_turns: int) -> tuple[int, str]:
    """Return the number of segment ids of a model, 0 if it has none, and a description for messages."""
    if num_roles:
        return num_roles * num_turns, f"--num-roles times --num-turns of the model ({num_roles * num_turns})"
    return num_segments, f"--num-segments of the model ({num_segments})"


def parse_source_fields(
    layout: Mapping[str, Any], num_segments: int, num_roles: int = 0, num_turns: int = 0
) -> SourceFields:
    """Read the options of the fields of a source, which are lists separated by commas.

    Args:
        layout: the texts of ``source_segments``, ``source_truncation`` and ``source_field_positions``.
        num_segments: number of segments of the model; 0: it has no segments, and any number is accepted.
        num_roles: number of roles of the model, which replace segments; 0: it has no roles.
        num_turns: number of turns of the model; 0: it has no turns.

    Raises:
        UserError: lists every option that is malformed, or has numbers out of range.
    """
    problems = []
    is_dialogue = layout["source_segments"] == DIALOGUE
    segments = (0,) if is_dialogue else _numbers(layout["source_segments"].removesuffix(",..."))
    count, of_model = _segment_ids(num_segments, num_roles, num_turns)
    if is_dialogue and (num_roles <= KNOWLEDGE_ROLE or num_turns < 2):
        problems.append(
            f"--source-segments dialogue needs a model with --num-roles of at least {KNOWLEDGE_ROLE + 1} and "
            f"--num-turns of at least 2, but it has {num_roles} and {num_turns}"
        )
    if not segments:
        problems.append(
            "--source-segments must be dialogue, or numbers separated by commas, with ,... at the end if they are to "
            f"take turns, but is {layout['source_segments']!r}"
        )
    elif count and not all(0 <= segment < count for segment in segments):
        problems.append(
            f"--source-segments must be at least 0 and below {of_model}, but is {layout['source_segments']}"
        )
    truncation = tuple(layout["source_truncation"].split(","))
    if not set(truncation) <= set(SIDES):
        problems.append(
            f"--source-truncation must be {' or '.join(SIDES)}, or several of them separated by commas, "
            f"but is {layout['source_truncation']!r}"
        )
    elif is_dialogue and (truncation[-1] != "left" or len(truncation) > 2):
        problems.append(
            "--source-truncation must be left, or with a side of the knowledge right,left or left,left, with "
            f"--source-segments dialogue, but is {layout['source_truncation']!r}"
        )
    limits = _numbers(layout["source_field_positions"])
    if not limits or not all(limit == 0 or limit >= 2 for limit in limits):
        problems.append(
            "--source-field-positions must be numbers separated by commas, each 0 (no limit) or at least 2, "
            f"but is {layout['source_field_positions']!r}"
        )
    if problems:
        raise UserError.of(problems)
    dialogue = (num_roles, num_turns) if is_dialogue else None
    return SourceFields(segments, layout["source_segments"].endswith(",..."), truncation, limits, dialogue)


def _numbers(text: str) -> tuple[int, ...]:
    """Read whole numbers separated by commas; return () for any other text."""
    try:
        return tuple(int(number) for number in text.split(","))
    except ValueError:
        return ()
