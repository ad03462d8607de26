"""Whether parts fit: a model its own options and vocabulary, and all parts each other.

A model of a generation task is built as ``s2sft generate`` builds it, without memory for its weights.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from s2sft_fairseq import plugin  # noqa: F401  (patches fairseq, and therefore comes first)

# isort: split
from fairseq.tasks import TASK_REGISTRY

from s2sft_fairseq.api.loading import GENERATION_TASKS, configuration, model_words
from s2sft_fairseq.checkpoints.trusted_config import build_without_weights
from s2sft_fairseq.data.dictionary import symbols_fingerprint
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.diagnosis.parts import (
    CHECKPOINT,
    DATA,
    EMBEDDINGS,
    ENCODER,
    MODEL_FOLDER,
    Part,
    embedding_rows,
)
from s2sft_fairseq.diagnosis.report import Report
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.models.pretrained_checkpoint import check_fit, is_encoder, section
from s2sft_fairseq.models.unilm_config import SIZES
from s2sft_fairseq.tokenization.vocabulary import COMPANIONS, FILE_SETS


def check_parts(parts: Sequence[Part], report: Report) -> None:
    """Add what does not fit to a report."""
    if not parts:
        return
    reference = _reference(parts)
    for part in parts:
        report.problems += _vocabulary_problems(part)
        if part is not reference:
            report.problems += _differences(part, reference)
        if part.encoder is not None:
            with report.collected():
                _check_encoder(part)
        if part.state is not None:
            with report.collected():
                _check_model(part, reference, parts, report)


def _reference(parts: Sequence[Part]) -> Part:
    """Return the part that the others are compared with: an encoder, else a model, else a checkpoint, else data."""
    order = (ENCODER, MODEL_FOLDER, CHECKPOINT, DATA)
    return min(parts, key=lambda part: order.index(part.kind))


def _vocabulary_problems(part: Part) -> Iterator[str]:
    """Yield how the files of a tokenizer contradict the weights beside them."""
    if part.vocabulary is None:
        return
    if part.vocabulary.scheme is None:
        yield (
            f"{part.path} has dict.txt, but no files of a tokenizer: copy those of its encoder, one of these sets: "
            f"{'; '.join(FILE_SETS)}"
        )
    symbols = part.vocabulary.symbols
    remedy = "copy the tokenizer of the encoder that it was trained from"
    if len(symbols) != part.count:
        yield (
            f"{part.path} has files of a tokenizer with {len(symbols):,} symbols, but its model was made with "
            f"{part.count:,}: {remedy}"
        )
    elif symbols_fingerprint(symbols) != part.fingerprint:
        yield f"{part.path} has other symbols than its model was trained with, or the same in another order: {remedy}"


def _differences(part: Part, reference: Part) -> Iterator[str]:
    """Yield what tells a part from the reference, each with a remedy."""
    remedy = {
        DATA: f"binarize it again with the dict.txt of {reference.path} (--srcdict)",
        CHECKPOINT: f"give the encoder that it was trained from in place of {reference.path}",
        MODEL_FOLDER: f"give the encoder that it was trained from in place of {reference.path}",
        ENCODER: "give one encoder, that of the training",
    }[part.kind]
    if part.count != reference.count:
        yield f"{part.path} has {part.count:,} symbols, but {reference.path} has {reference.count:,}: {remedy}"
    elif part.fingerprint and reference.fingerprint and part.fingerprint != reference.fingerprint:
        pairs = enumerate(zip(part.symbols or (), reference.symbols or (), strict=False))
        first = next((f" (symbol {at} is {shown(a)}, not {shown(b)})" for at, (a, b) in pairs if a != b), "")
        yield f"{part.path} has other symbols than {reference.path}, or the same in another order{first}: {remedy}"
    own, others = _sizes(part), _sizes(reference)
    yield from (
        f"{part.path} has {name} {own[name]}, but {reference.path} has {others[name]}: {remedy}"
        for name in sorted(own.keys() & others.keys())
        if own[name] != others[name]
    )
    if part.vocabulary is None or reference.vocabulary is None:
        return
    for name in sorted({*part.vocabulary.files} & {*reference.vocabulary.files} - {*COMPANIONS}):
        if (part.path / name).read_bytes() != (reference.path / name).read_bytes():
            yield f"{part.path / name} differs from {reference.path / name}: copy one over the other, that of training"
    if part.vocabulary.scheme == reference.vocabulary.scheme and part.vocabulary.lower != reference.vocabulary.lower:
        yield (
            f"{part.path} lower-cases text: {part.vocabulary.lower}, but {reference.path}: "
            f"{reference.vocabulary.lower}: copy tokenizer_config.json of the training over the other"
        )


def _sizes(part: Part) -> dict[str, Any]:
    """Return the sizes of an encoder-only model; of others nothing."""
    is_unilm = part.encoder.model == "unilm" if part.encoder else is_encoder(part.state or {})
    # A dialogue model has roles in place of the segments of its encoder.
    named = {name for name in SIZES if not name.startswith("num_")}
    return {name: value for name, value in part.sizes.items() if name in named} if is_unilm else {}


def _check_encoder(part: Part) -> None:
    """Compare the weights of a converted encoder with its sizes.

    Raises:
        UserError: naming every parameter that is missing, unknown, not finite or of another shape.
    """
    encoder = part.encoder
    assert encoder is not None
    weights = encoder.read_weights()
    if encoder.model != "unilm":
        return
    shapes = parameter_shapes(encoder.sizes, encoder.vocab_size)
    needed = {name: torch.Size(shape) for name, shape in shapes.items() if name not in encoder.newly_initialized}
    try:
        check_fit(needed, {name: value for name, value in weights.items() if name not in encoder.newly_initialized})
    except UserError as error:
        raise UserError.of(f"{part.path}: {problem}; convert it again" for problem in error.problems) from None


def _check_model(part: Part, reference: Part, parts: Sequence[Part], report: Report) -> None:
    """Build a model without memory, which compares its options with each other and with its weights.

    Raises:
        UserError: naming what contradicts in its options, or every parameter that does not fit them.
    """
    state = part.state
    assert state is not None
    if (rows := embedding_rows(state["model"])) and rows != part.count:
        raise UserError(
            f"{part.path} has {rows:,} rows of embeddings, but {part.count:,} symbols: copy its files again, or give "
            "an earlier checkpoint"
        )
    name = str(section(state, "task").get("_name"))
    symbols, special = (part.symbols, part.special) if part.symbols else (reference.symbols, reference.special)
    if name not in GENERATION_TASKS:
        return
    if symbols is None:
        report.notes.append(f"{part.path}: its options are not checked without the dictionary: give its encoder too")
        return
    if len(symbols) != part.count or part.fingerprint not in ("", symbols_fingerprint(symbols)):
        return  # a problem already
    try:
        task = _built(part.path, name, FairseqDictionary.of(symbols, special), state)
    except UserError as error:
        raise UserError.of(f"{part.path}: {problem}" for problem in error.problems) from None
    for data in (each for each in parts if each.kind == DATA):
        report.notes += _cuts(data, part.path, task.form)


def _built(path: Path, name: str, dictionary: FairseqDictionary, state: Mapping[str, Any]) -> Any:
    """Return the task of a model that it was built for.

    Raises:
        UserError: as `_check_model`.
    """
    words = [*model_words(path, path, name, state), "--cpu"]
    task = TASK_REGISTRY[name](configuration(name, words).task, dictionary)
    task.load_state_dict(dict(state.get("task_state") or {}))
    model = build_without_weights(task, str(path), state)
    if state["model"]:  # the folder of an engine has no weights of PyTorch
        shapes = {key: value.shape for key, value in model.state_dict().items()}
        check_fit(shapes, dict(state["model"]), next(name for name in EMBEDDINGS if name in shapes))
    return task


def _cuts(data: Part, model: Path, form: Any) -> Iterator[str]:
    """Yield which share of the data a model cuts."""
    for split, (sources, targets) in data.lengths.items():
        sides = (
            ("sources", sources, form.source_specials, form.max_source),
            ("targets", targets, 1, form.max_target),
        )
        for side, lengths, specials, limit in sides:
            if lengths is not None and (share := np.mean(lengths + specials > limit)):
                yield f"{data.path}: {share:.2%} of the {side} of {split} are cut to the {limit} positions of {model}"
