"""``s2sft convert``: make a pretrained encoder usable."""

import argparse
import json
import logging
import shutil
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from torch import Tensor

from s2sft_fairseq.checkpoints.bert import Conversion, convert_bert
from s2sft_fairseq.checkpoints.pretrained import DICTIONARY, write_pretrained, write_whole
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.head_initialization import fit_transform, log_frequencies
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes

logger = logging.getLogger(__name__)

TOKENIZER_FILES = ("vocab.txt", "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json")


def convert(source: Path, destination: Path, *, fit_head: Path | None = None, output_prior: Path | None = None) -> None:
    """Convert the Hugging Face folder of a BERT encoder to one for ``--pretrained``.

    Args:
        source: the folder to convert.
        destination: the folder to write.
        fit_head: tokenized text to which the head's dense layer is fitted, for an encoder that has none.
        output_prior: tokenized text whose symbol frequencies become the output bias of an encoder that has none.

    Raises:
        UserError: naming what is missing or does not fit.
    """
    if destination.resolve() == source.resolve():
        raise UserError(f"--to must be another folder than the source, whose config.json it would overwrite: {source}")
    config = _read_config(source)
    dictionary = PretrainedDictionary.from_vocabulary(source / "vocab.txt")
    conversion = convert_bert(_read_weights(source), config)
    if len(dictionary) != config["vocab_size"]:
        raise UserError(
            f"{source / 'vocab.txt'} has {len(dictionary)} tokens, "
            f"but the checkpoint was made with {config['vocab_size']}"
        )
    initialize_head(conversion, dictionary, fit_head, output_prior)
    write_pretrained(destination, conversion)
    write_whole(destination / DICTIONARY, lambda path: dictionary.save(str(path)))
    for name in TOKENIZER_FILES:
        if (source / name).is_file():
            write_whole(destination / name, partial(shutil.copyfile, source / name))
    print(f"wrote {destination}: {len(conversion.weights)} parameters, {len(dictionary)} symbols")
    if conversion.unused:
        print(f"unused: {', '.join(conversion.unused)}")
    if conversion.missing:
        print(f"not in the source, initialised when training starts: {', '.join(conversion.missing)}")


def initialize_head(
    conversion: Conversion, dictionary: PretrainedDictionary, fit_head: Path | None, output_prior: Path | None
) -> None:
    """Compute what the encoder lacks of a language model head, as far as it is asked for.

    Raises:
        UserError: if the encoder has that part, naming each option for which this is so.
    """
    parts = {"--fit-head": ("lm_head.dense.weight", fit_head), "--output-prior": ("lm_head.bias", output_prior)}
    if problems := [
        f"{option} is for encoders without {name}, but this one has it"
        for option, (name, text) in parts.items()
        if text is not None and name not in conversion.missing
    ]:
        raise UserError.of(problems)
    fitted = {}
    if fit_head is not None:
        config = UnilmConfig(dropout=0.0, attention_dropout=0.0)
        complete_sizes(config, conversion.sizes)
        model = UnilmModel(config, vocab_size=len(dictionary), pad=dictionary.pad())
        model.load_state_dict(conversion.weights, strict=False)
        weight, bias = fit_transform(model, fit_head, dictionary)
        fitted |= {"lm_head.dense.weight": weight, "lm_head.dense.bias": bias}
    if output_prior is not None:
        fitted["lm_head.bias"] = log_frequencies(output_prior, dictionary)
    conversion.weights.update(fitted)
    conversion.missing[:] = [name for name in conversion.missing if name not in fitted]


def _read_config(source: Path) -> dict[str, Any]:
    path = source / "config.json"
    if not path.is_file():
        raise UserError(f"{source} must be a folder with config.json, vocab.txt and weights, but lacks config.json")
    try:
        config = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise UserError(f"{path} must be JSON: {error}") from None
    if not isinstance(config, dict):
        raise UserError(f"{path} must hold a JSON object, but holds a {type(config).__name__}")
    if config.get("model_type", "bert") != "bert":
        raise UserError(f"{path}: model_type must be 'bert', but is {config['model_type']!r}")
    return config


def _read_weights(source: Path) -> dict[str, Tensor]:
    """Read ``model.safetensors`` or ``pytorch_model.bin``."""
    if (source / "model.safetensors").is_file():
        try:
            from safetensors import SafetensorError
            from safetensors.torch import load_file
        except ImportError:
            raise UserError("reading .safetensors needs the package safetensors: pip install safetensors") from None
        try:
            return load_file(source / "model.safetensors")
        except SafetensorError as error:
            raise UserError(f"{source / 'model.safetensors'} is damaged or no safetensors file: {error}") from None
    if (source / "pytorch_model.bin").is_file():
        return load_checkpoint(source / "pytorch_model.bin")
    found = ", ".join(sorted(path.name for path in source.iterdir()))
    raise UserError(f"{source} must hold model.safetensors or pytorch_model.bin, but holds {found}")


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="s2sft convert", description=__doc__)
    parser.add_argument("source", type=Path, help="Hugging Face folder: config.json, vocab.txt, model.safetensors")
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where to write the converted encoder")
    parser.add_argument(
        "--fit-head",
        type=Path,
        metavar="FILE",
        help="tokenized sources: the head's dense layer, where the encoder has none, is fitted by least squares to "
        "read each token off its final state",
    )
    parser.add_argument(
        "--output-prior",
        type=Path,
        metavar="FILE",
        help="tokenized targets: the frequencies of their symbols become the output bias, where the encoder has none",
    )
    options = parser.parse_args(arguments)
    convert(options.source, options.to, fit_head=options.fit_head, output_prior=options.output_prior)
