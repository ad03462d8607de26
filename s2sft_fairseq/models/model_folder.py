"""Write the model folder of a checkpoint, with its tokenizer and a model card."""

import logging
import math
import shutil
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.model_folder import CARD, CONFIG, WEIGHTS, is_model_folder, write_model
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checksums import CHECKSUMS
from s2sft_fairseq.data.dictionary import DICTIONARY, symbols_fingerprint
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.source_names import NAMES
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import DiskError, new_folder
from s2sft_fairseq.models.model_card import model_card
from s2sft_fairseq.models.pretrained_checkpoint import section, without_adapters
from s2sft_fairseq.tokenization.vocabulary import Vocabulary, read_vocabulary

logger = logging.getLogger(__name__)


def export_folder(
    checkpoint: Path,
    destination: Path,
    tokenizer_dir: Path | None = None,
    *,
    pretrained: Path | None = None,
    search: Mapping[str, Any] | None = None,
    facts: Mapping[str, Any] | None = None,
    source_names: Sequence[str] = (),
    replaceable: Collection[str] = (),
) -> None:
    """Write a model folder.

    Args:
        checkpoint: a checkpoint file of this plugin, or another model folder.
        destination: the folder to write.
        tokenizer_dir: the folder of the tokenizer; None: the model folder's own, or the folder of the encoder that a
            checkpoint with adapters names.
        pretrained: the folder of the encoder of a checkpoint with adapters, if it has moved.
        search: recommended options of ``s2sft generate``, by name.
        facts: facts of the training that the checkpoint does not have, by name, such as ``encoder`` and ``scores``.
        source_names: the names of the fields of a source in their order; none: those that a model folder has.
        replaceable: names of files in `destination` that may be replaced.

    Raises:
        UserError: naming everything that is missing or does not match.
    """
    folder = tokenizer_dir or (checkpoint if is_model_folder(checkpoint) else _encoder_of_adapters(checkpoint))
    if folder is None:
        raise UserError(
            f"--tokenizer-dir is needed for {checkpoint}: the folder of the encoder that it was trained from"
        )
    state = load_checkpoint(checkpoint, lazily=True)
    if not isinstance(state.get("cfg"), dict) or "model" not in state:
        raise UserError(f"{checkpoint} must be a checkpoint of s2sft train or a model folder, but is neither")
    check_finite(checkpoint, state["model"])
    state = without_adapters(state, checkpoint, pretrained)
    if source_names:
        state[NAMES] = list(source_names)
    vocabulary = read_vocabulary(folder, to_copy=True)
    rows = len(_token_embedding(checkpoint, state["model"]))
    if len(vocabulary.symbols) != rows:
        raise UserError(f"{folder} has {len(vocabulary.symbols)} symbols, but {checkpoint} was trained with {rows}")
    symbols = (state.get("task_state") or {}).get("symbols")
    if symbols and symbols_fingerprint(vocabulary.symbols) != symbols:
        raise UserError(f"{folder} has other symbols than {checkpoint} was trained with, or the same in another order")
    known = {**_training(state), **(facts or {})}
    with new_folder(destination, "--to", replaceable) as staging:
        config = write_model(state, staging, search or state.get("search") or {}, known)
        _write_tokenizer(folder, vocabulary, staging)
        parameters = sum(value.numel() for value in state["model"].values())
        (staging / CARD).write_text(model_card(config, parameters), encoding="utf-8")


def export_after_training(save_dir: Path, suffix: str, pretrained: str | None) -> None:
    """Write ``SAVE_DIR/model`` from the best checkpoint, or else from the last one.

    Args:
        save_dir: the folder of the checkpoints.
        suffix: suffix of the names of the checkpoints.
        pretrained: the encoder that the training began with; its tokenizer is copied. None: keep the tokenizer that an
            earlier run wrote.

    Raises:
        UserError: the folder could not be written, whatever the reason. The training is complete.
    """
    made = save_dir / "model"
    try:
        _export_after_training(save_dir, made, suffix, pretrained)
    except Exception as error:
        what = str(error) if isinstance(error, DiskError) else f"{made} could not be written: {error}"
        raise UserError(
            f"{what}; the training is complete, and its checkpoints are in {save_dir}: the same command, or s2sft "
            "export, writes the folder"
        ) from error


def _export_after_training(save_dir: Path, made: Path, suffix: str, pretrained: str | None) -> None:
    names = [save_dir / f"checkpoint_{kind}{suffix}.pt" for kind in ("best", "last")]
    checkpoint = next((path for path in names if path.is_file()), None)
    tokenizers = [made] if pretrained is None else [Path(pretrained), Path(pretrained).parent]
    folder = next((path for path in tokenizers if has_tokenizer(path)), None)
    if checkpoint is None:
        return
    if folder is None:
        logger.info(
            f"{made} is not written, for the tokenizer is not known: s2sft export {checkpoint} --tokenizer-dir DIR "
            "--to MODEL makes a folder of this model"
        )
        return
    # Other files in the folder belong to the user: they are kept, and an error names them.
    ours = [WEIGHTS, CONFIG, CARD, CHECKSUMS, DICTIONARY]
    replaceable = [*ours, *read_vocabulary(made).files] if is_model_folder(made) else []
    export_folder(checkpoint, made, folder, replaceable=replaceable)
    logger.info(f"wrote {made}: the model of {checkpoint.name} as a folder, with its tokenizer")


def has_tokenizer(folder: Path) -> bool:
    """Return whether a folder holds all files of a tokenizer."""
    try:
        return read_vocabulary(folder).scheme is not None
    except UserError:
        return False


def _encoder_of_adapters(checkpoint: Path) -> Path | None:
    """Return the folder of the encoder that a checkpoint with adapters names, if it exists."""
    options = section(load_checkpoint(checkpoint, lazily=True), "model")
    path = options.get("pretrained") if options.get("lora_rank") else None
    return Path(path) if path and has_tokenizer(Path(path)) else None


def _token_embedding(checkpoint: Path, weights: Mapping[str, Tensor]) -> Tensor:
    for name in ("embeddings.tokens.weight", "encoder.embeddings.tokens.weight", "encoder.embed_tokens.weight"):
        if name in weights:
            return weights[name]
    raise UserError(f"{checkpoint} must be a checkpoint of a model of this plugin, but has no token embedding")


def _training(state: Mapping[str, Any]) -> dict[str, Any]:
    """Return the facts of the training that a checkpoint holds."""
    optimization = section(state, "optimization")
    history = (state.get("optimizer_history") or [{}])[-1]
    # Of several ranks, earlier versions saved tensors.
    extra = {name: _number(value) for name, value in (state.get("extra_state") or {}).items()}
    facts = {
        "updates": history.get("num_updates") or None,
        "learning_rate": optimization.get("lr"),
        "seconds": round(extra.get("previous_training_time") or 0) or None,
        "held_out_loss": extra.get("val_loss"),
    }
    # Leave NaN out: JSON does not support it.
    return {name: value for name, value in facts.items() if isinstance(value, int | str | list) or _is_finite(value)}


def _number(value: Any) -> Any:
    """Return the number in a tensor that has one; any other value as it is."""
    return value.item() if isinstance(value, Tensor) and value.numel() == 1 else value


def _is_finite(value: Any) -> bool:
    return isinstance(value, float) and math.isfinite(value)


def _write_tokenizer(folder: Path, vocabulary: Vocabulary, destination: Path) -> None:
    for name in vocabulary.files:
        shutil.copyfile(folder / name, destination / name)
    FairseqDictionary.of(vocabulary.symbols, vocabulary.special).save(str(destination / DICTIONARY))
