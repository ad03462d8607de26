"""``s2sft convert``: make a pretrained encoder, or DeltaLM, usable, whatever program it comes from."""

import argparse
import json
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from s2sft_fairseq.checkpoints.conversion import Conversion, read
from s2sft_fairseq.checkpoints.deltalm import COPIES, SENTINELS, is_deltalm
from s2sft_fairseq.checkpoints.embedding_tables import add_tokens, resize_positions
from s2sft_fairseq.checkpoints.families import recognize
from s2sft_fairseq.checkpoints.pretrained import CONFIG, MODEL, PretrainedEncoder, write_pretrained
from s2sft_fairseq.checkpoints.source_files import SourceCheckpoint, find_vocabulary, open_source
from s2sft_fairseq.data.binarized_text import LANGUAGE_TOKEN, parse_languages
from s2sft_fairseq.data.dictionary import DICTIONARY, ROBERTA_SYMBOLS, PretrainedDictionary
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.files import new_folder
from s2sft_fairseq.models.conversion import convert_deltalm, initialize_head, parameter_shapes
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.span_corruption import sentinel_symbols
from s2sft_fairseq.tokenization.symbols import spare_symbols
from s2sft_fairseq.tokenization.vocabulary import (
    ADDED_TOKENS,
    Vocabulary,
    find_files,
    is_tokenizer_file,
    read_vocabulary,
)


@dataclass(frozen=True)
class ConvertOptions:
    """What is asked for beyond the source and the destination; see the help of the command."""

    config: Path | None = None
    tokenizer_dir: Path | None = None
    add_token: Sequence[str] = ()
    add_language_tokens: str = ""
    sentinels: int = 0
    max_positions: int | None = None
    finetune_method: str | None = None
    fit_head: Path | None = None
    output_prior: Path | None = None


def convert(source: Path, destination: Path, options: ConvertOptions = ConvertOptions()) -> None:
    """Convert a checkpoint to a folder for ``--pretrained``, which appears only when it is whole.

    Args:
        source: a folder or a file, see `s2sft_fairseq.checkpoints.source_files`.
        destination: the folder to write.
        options: what else is asked for.

    Raises:
        UserError: naming what is missing or does not fit.
    """
    with new_folder(destination, "--to", _earlier_conversion(source, destination)) as staging:
        checkpoint, vocabulary = _read(source, options, staging)
        if is_deltalm(checkpoint.weights):
            _refuse_deltalm(checkpoint.file, options)
            conversion = convert_deltalm(checkpoint, vocabulary.symbols)
        else:
            family = recognize(checkpoint.weights, checkpoint.config)
            conversion = read(family, checkpoint.weights, checkpoint.config, parameter_shapes)
        dictionary = _finish(conversion, vocabulary, options, staging)
        dictionary.save(str(staging / DICTIONARY))
        files = sorted(path.name for path in staging.iterdir())
        write_pretrained(staging, conversion, files)
    report(destination, conversion, len(dictionary))


def report(destination: Path, conversion: Conversion, num_symbols: int) -> None:
    """Print what was written, and all that a user should know of it."""
    print(f"wrote {destination}: {conversion.family}, {len(conversion.weights)} parameters, {num_symbols} symbols")
    for note in conversion.notes:
        print(note)
    if conversion.unused:
        print(f"unused: {', '.join(conversion.unused)}")
    if conversion.missing:
        print(f"not in the source, initialised when training starts: {', '.join(conversion.missing)}")


def _earlier_conversion(source: Path, destination: Path) -> set[str]:
    """Return the names of the files in the destination that an earlier conversion wrote."""
    folder = source if source.is_dir() else source.parent
    if destination.resolve() == folder.resolve():
        raise UserError(f"--to must be another folder than the source, whose files it would overwrite: {folder}")
    try:
        listed = PretrainedEncoder.open(destination).files
    except UserError:  # no conversion
        return set()
    # What the list says is only believed of names that a conversion can have.
    return {MODEL, CONFIG, DICTIONARY, *filter(is_tokenizer_file, listed)}


def _read(source: Path, options: ConvertOptions, staging: Path) -> tuple[SourceCheckpoint, Vocabulary]:
    """Read weights and vocabulary, and copy the tokenizer's files."""
    problems: list[str] = []
    try:
        checkpoint = open_source(source, options.config)
    except UserError as error:
        problems += error.problems
    try:
        vocabulary = _read_tokenizer(source, options.tokenizer_dir, staging)
    except UserError as error:
        problems += error.problems
    if problems:
        raise UserError.of(problems)
    return checkpoint, vocabulary


def _read_tokenizer(source: Path, folder: Path | None, staging: Path) -> Vocabulary:
    """Read the vocabulary, from its folder or from copies of its files under the names that they should have."""
    beside = source if source.is_dir() else source.parent
    if folder is None and (named := find_vocabulary(source)):
        shutil.copyfile(named, staging / "vocab.txt")
        return read_vocabulary(staging)
    folder = folder or beside
    if (beside / DICTIONARY).is_file() and not (folder / DICTIONARY).is_file():
        # The ids of a fairseq checkpoint are in the dictionary beside it, wherever the tokenizer's own files are.
        for name in find_files(folder)[1]:
            shutil.copyfile(folder / name, staging / name)
        shutil.copyfile(beside / DICTIONARY, staging / DICTIONARY)
        return read_vocabulary(staging)
    vocabulary = read_vocabulary(folder)
    for name in vocabulary.files:
        shutil.copyfile(folder / name, staging / name)
    return vocabulary


def _refuse_deltalm(file: Path, options: ConvertOptions) -> None:
    """Refuse options that say nothing of an encoder-decoder."""
    names = ("finetune_method", "fit_head", "output_prior")
    if given := [as_option(name) for name in names if getattr(options, name) is not None]:
        raise UserError(f"{', '.join(given)}: for encoders that generate by themselves, but {file} is DeltaLM")


def _name_rows(conversion: Conversion, symbols: list[str]) -> list[str]:
    """Return a symbol for every row: those of the tokenizer, and further ones where there are more rows.

    Raises:
        UserError: if there are fewer rows.
    """
    rows = len(conversion.weights[conversion.tokens])
    if len(symbols) > rows:
        raise UserError(f"the tokenizer has {len(symbols)} tokens, but the checkpoint was made with {rows}")
    left = rows - len(symbols)
    sentinels = sentinel_symbols(SENTINELS) if conversion.model == "deltalm" and left >= SENTINELS else []
    spare = list(islice(spare_symbols(symbols), left - len(sentinels)))
    if spare:
        conversion.notes.append(f"{len(spare)} rows have no token; their symbols are {spare[0]} to {spare[-1]}")
    if sentinels:
        conversion.notes.append(
            f"the last {SENTINELS} rows are sentinels, {sentinels[0]} (id {rows - SENTINELS}) to {sentinels[-1]}"
        )
    return [*symbols, *spare, *sentinels]


def _finish(
    conversion: Conversion, vocabulary: Vocabulary, options: ConvertOptions, staging: Path
) -> PretrainedDictionary:
    """Do what the options ask for, and make the dictionary, with a symbol for every row."""
    symbols, requests = list(vocabulary.symbols), list(options.add_token)
    rows = len(conversion.weights[conversion.tokens])
    if conversion.model == "deltalm" and symbols[rows:] == [ROBERTA_SYMBOLS.mask]:
        # fairseq's translation needs no mask, and so a fine-tuned DeltaLM has no row for it.
        requests.insert(0, symbols.pop())
    requests += map(LANGUAGE_TOKEN.format, parse_languages(options.add_language_tokens, "--add-language-tokens"))
    requests += sentinel_symbols(options.sentinels)
    symbols = _name_rows(conversion, symbols)
    if vocabulary.scheme is None:
        conversion.notes.append(
            "no tokenizer: its files (encoder.json and vocab.bpe, or a SentencePiece model) belong beside dict.txt"
        )
    if options.max_positions is not None and options.max_positions != conversion.sizes["max_positions"]:
        conversion.notes.append(resize_positions(conversion.weights, conversion.sizes, options.max_positions))
    if options.sentinels < 0:
        raise UserError(f"--sentinels must be at least 0, but is {options.sentinels}")
    if added := add_tokens(conversion, symbols, requests):
        first = len(symbols) - len(added)
        ids = [f"{name} (id {first + at})" for at, name in enumerate(added)]
        shown = ids if len(ids) < 20 else [*ids[:3], f"{len(ids) - 4} more", ids[-1]]
        conversion.notes.append(f"added: {', '.join(shown)}")
        # The spare rows too, so that ids go on from those of the tokenizer without a gap.
        beyond = range(len(vocabulary.symbols), len(symbols))
        _write_added_tokens(staging / ADDED_TOKENS, {symbols[number]: number for number in beyond})
    dictionary = PretrainedDictionary.of(symbols)
    _settle_method(conversion, options.finetune_method)
    initialize_head(conversion, dictionary, fit_head=options.fit_head, output_prior=options.output_prior)
    if conversion.model == "deltalm":  # what a checkpoint of fairseq's holds too
        conversion.weights |= {name: conversion.weights[conversion.tokens] for name in COPIES}
    return dictionary


def _write_added_tokens(path: Path, ids: dict[str, int]) -> None:
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    path.write_text(json.dumps({**known, **ids}, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _settle_method(conversion: Conversion, method: str | None) -> None:
    """Say how a fine-tuned checkpoint is to be decoded; its own files do not say it."""
    if method is not None and conversion.missing:
        raise UserError(
            "--finetune-method is for checkpoints that are fine-tuned, "
            f"but this one lacks {', '.join(conversion.missing)}"
        )
    if method is None and conversion.finetuned:
        method = "pseudo_masked"
        conversion.notes.append(
            "fine-tuned, pseudo_masked: the program's default, and decoded as masked ones are; "
            "if it was causal (mask_way v0), give --finetune-method causal"
        )
    if method is not None:
        conversion.finetuned = True
        conversion.layout["finetune_method"] = method


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="s2sft convert", description=__doc__)
    parser.add_argument(
        "source",
        type=Path,
        help="a folder, or the file of the weights: Hugging Face's (config.json, tokenizer, model.safetensors or "
        "pytorch_model.bin, in shards too), UniLM's (NAME.bin, NAME-config.json, NAME-vocab.txt), fairseq's "
        "(model.pt, dict.txt), Baidu's ERNIE (*.pdparams), what s2s-ft fine-tuned, or DeltaLM (deltalm-base.pt, "
        "spm.model, dict.txt)",
    )
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where to write the folder")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration, where it is not beside the weights"
    )
    parser.add_argument(
        "--tokenizer-dir", type=Path, metavar="DIR", help="the tokenizer's files, where they are not beside the weights"
    )
    parser.add_argument(
        "--max-positions",
        type=int,
        metavar="N",
        help="make the position table longer, by tiling, or shorter, by cutting",
    )
    parser.add_argument(
        "--add-token",
        action="append",
        default=[],
        metavar="NAME[=OTHER]",
        help="add a token, which starts as the mean of all others, or as a copy of OTHER; may be given several times",
    )
    parser.add_argument(
        "--add-language-tokens",
        default="",
        metavar="en,de,...",
        help=f"add a token for each of these languages, {LANGUAGE_TOKEN.format('en')} and so on, which "
        f"--language-token '{LANGUAGE_TOKEN}' of s2sft train puts before the sources",
    )
    parser.add_argument(
        "--sentinels",
        type=int,
        default=0,
        metavar="N",
        help="add the tokens <extra_id_0> and so on, which stand for spans in the pre-training of DeltaLM; 100 are "
        "enough for texts of 512 tokens",
    )
    parser.add_argument(
        "--finetune-method",
        choices=sorted(OBJECTIVES),
        help="how a checkpoint that is fine-tuned already is to be decoded (default for s2s-ft's: pseudo_masked)",
    )
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
    options = vars(parser.parse_args(arguments))
    convert(options.pop("source"), options.pop("to"), ConvertOptions(**options))
