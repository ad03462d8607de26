"""Write a model in Hugging Face's format: a generator, a classifier, an answer finder, an encoder."""

import json
import shutil
from pathlib import Path
from typing import Any

from torch import Tensor

from s2sft_fairseq.checkpoints.conversion import Sizes, write
from s2sft_fairseq.checkpoints.families import family_of
from s2sft_fairseq.checkpoints.families.language_models import LANGUAGE_MODELS
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.model_folder import CONFIG, WEIGHTS, is_model_folder
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.safetensors_file import write_safetensors
from s2sft_fairseq.checkpoints.task_heads import UNILM_ALONE, TaskHead, read_head
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import check_replaceable, new_folder
from s2sft_fairseq.models.pretrained_checkpoint import section, weights_file, without_adapters
from s2sft_fairseq.models.unilm_config import SIZES
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.tokenization.library_tokenizer import copy_tokenizer_json
from s2sft_fairseq.tokenization.vocabulary import (
    FAST,
    TOKENIZER_CONFIG,
    Vocabulary,
    read_config,
    read_ids,
    read_vocabulary,
)


def export_to_hugging_face(
    checkpoint: Path, destination: Path, tokenizer_dir: Path | None = None, pretrained: Path | None = None
) -> None:
    """Write ``config.json``, ``model.safetensors`` and the tokenizer's files.

    Args:
        checkpoint: a checkpoint file of this plugin, a model folder, or the folder of a converted encoder.
        destination: the folder to write.
        tokenizer_dir: the folder of the tokenizer's files; None: `checkpoint`, which must be a folder.
        pretrained: the encoder of a checkpoint with adapters, if it was moved since the training.

    Raises:
        UserError: something is missing or does not fit.
    """
    check_replaceable(destination, "--to")
    folder = tokenizer_dir or (checkpoint if checkpoint.is_dir() else None)
    if folder is None:
        raise UserError(
            f"--tokenizer-dir is needed for {checkpoint}: the folder of the encoder that it was trained from"
        )
    is_converted = checkpoint.is_dir() and not is_model_folder(checkpoint)
    weights, sizes, head = read_model(weights_file(checkpoint), pretrained)
    vocabulary = read_vocabulary(folder, to_copy=True)
    rows = len(weights["embeddings.tokens.weight"])
    if len(vocabulary.symbols) > rows:
        raise UserError(f"{folder} has {len(vocabulary.symbols)} symbols, but {checkpoint} was trained with {rows}")
    family = family_of(sizes, SIZES, PretrainedDictionary.of(vocabulary.symbols, vocabulary.special).pad())
    if is_converted:
        layout = PretrainedEncoder.open(checkpoint).layout
    else:
        layout = (load_checkpoint(checkpoint, lazily=True).get("task_state") or {}).get("layout") or {}
    start = "eos" if layout.get("source_start") == "sep" else "bos"
    config = {**family.config(sizes), **_token_settings(vocabulary, rows, start)}
    if family in LANGUAGE_MODELS:  # whose programs know no other symbols than bos and eos
        del config["sep_token_id"]
        config["bos_token_id"] = config.pop("cls_token_id")
    if vocabulary.scheme == "sentencepiece" and config["model_type"] == "roberta":
        config |= {"model_type": "xlm-roberta", "architectures": ["XLMRobertaForMaskedLM"]}
    theirs = write(family, weights, sizes, config)
    if head is not None:
        theirs |= head.write(family.name)
        config |= {**head.settings, "architectures": [head.architecture(*config["architectures"])]}
    with new_folder(destination, "--to") as staging:
        write_safetensors(theirs, staging / WEIGHTS)
        write_tokenizer(folder, vocabulary, staging)
        (staging / CONFIG).write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    print(f"wrote {destination}: {config['architectures'][0]}, {len(theirs)} tensors, {rows} symbols")
    if family.name == "UniLM":
        print(f"{UNILM_ALONE}: this is UniLM's own format, for s2sft convert")
    if head is not None:
        _print_layout(family.name, head, vocabulary)
    if family in LANGUAGE_MODELS and (method := layout.get("finetune_method")):
        _print_prompt(method, start, vocabulary)


def read_model(checkpoint: Path, pretrained: Path | None = None) -> tuple[dict[str, Tensor], Sizes, TaskHead | None]:
    """Read the weights of a model, with adapters merged, its sizes, and its head.

    For a classifier or an answer finder, the weights are those of its encoder, and the head is separate. For other
    models the head is None.

    Args:
        checkpoint: the file.
        pretrained: the encoder of a checkpoint with adapters, if it was moved since the training.

    Raises:
        UserError: the file is not a checkpoint of this plugin, or is one of a dialogue model or of an unknown task, or
            the encoder is not the one that the adapters were trained with.
    """
    state = load_checkpoint(checkpoint, lazily=True)
    check_finite(checkpoint, state.get("model", {}))
    state = without_adapters(state, checkpoint, pretrained)
    values, weights = section(state, "model"), state.get("model", {})
    if values.get("num_roles"):
        raise UserError(f"{checkpoint} has role and turn embeddings (--num-roles), which no Hugging Face model has")
    head = read_head(state, str(checkpoint))
    if head is not None:
        weights = {
            name.removeprefix("encoder."): value for name, value in weights.items() if name.startswith("encoder.")
        }
    if "encoder_layers" not in values or "embeddings.tokens.weight" not in weights:
        raise UserError(
            f"{checkpoint} must be a checkpoint of s2sft train, or a folder of s2sft convert, but is neither"
        )
    sizes = {name: values.get(name) for name in SIZES}
    return weights, {name: SIZES[name] if value is None else value for name, value in sizes.items()}, head


def _print_layout(family: str, head: TaskHead, vocabulary: Vocabulary) -> None:
    """Print how the model's inputs differ from the pairs of texts of Hugging Face's tokenizers."""
    if family in ("RoBERTa", "MPNet"):
        eos = PretrainedDictionary.of(vocabulary.symbols, vocabulary.special).eos_word
        print(f"it was trained with one {eos} between two texts, where {family}'s tokenizer puts two")
    if head.source_segments not in (None, "0,1"):
        print(f"it was trained with --source-segments {head.source_segments}: give them as token_type_ids")


def _print_prompt(method: str, start: str, vocabulary: Vocabulary) -> None:
    """Print what a fine-tuned language model continues, if it predicts each token at the one before it."""
    symbols = PretrainedDictionary.of(vocabulary.symbols, vocabulary.special)
    if method not in OBJECTIVES or OBJECTIVES[method].starts_with != "sep":
        print(f"it was trained with {method}, which predicts at placeholders: other programs do not generate so")
        return
    first = symbols.eos_word if start == "eos" else symbols.bos_word
    print(f"as in training, give it {first}, the source and {symbols.eos_word}; its text ends with {symbols.eos_word}")


def _token_settings(vocabulary: Vocabulary, rows: int, start: str) -> dict[str, Any]:
    """Return a ``config.json``'s keys of the vocabulary; texts begin with the symbol `start`, ``bos`` or ``eos``."""
    dictionary = PretrainedDictionary.of(vocabulary.symbols, vocabulary.special)
    return {
        "vocab_size": rows,
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "cls_token_id": dictionary.bos() if start == "bos" else dictionary.eos(),
        "eos_token_id": dictionary.eos(),
        "sep_token_id": dictionary.eos(),
    }


def write_tokenizer(folder: Path, vocabulary: Vocabulary, destination: Path) -> None:
    """Copy the tokenizer's files. Write GPT-2's, whose tokens have other ids in fairseq, as RoBERTa's.

    A ``vocab.txt`` with capitals gets a setting that keeps them: transformers lower-cases if nothing is said.
    """
    for name in vocabulary.files:
        if name == "encoder.json":
            tokens = {str(number): token for token, number in read_ids(folder / name).items()}
            ids = {tokens.get(symbol, symbol): number for number, symbol in enumerate(vocabulary.symbols)}
            (destination / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
        elif name == FAST:
            copy_tokenizer_json(folder / name, destination / name)
        else:
            shutil.copyfile(folder / name, destination / {"vocab.bpe": "merges.txt"}.get(name, name))
    settings = read_config(folder)
    is_silent = settings.get("do_lower_case") is None and FAST not in vocabulary.files
    if vocabulary.lower is False and is_silent:
        text = json.dumps({**settings, "do_lower_case": False}, indent=2, ensure_ascii=False) + "\n"
        (destination / TOKENIZER_CONFIG).write_text(text, encoding="utf-8")
