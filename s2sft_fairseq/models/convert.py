"""Convert a pretrained encoder or DeltaLM from the files of other programs."""

import json
import logging
import shutil
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from fairseq.data import Dictionary

from s2sft_fairseq.checkpoints.conversion import Conversion, Sizes, read
from s2sft_fairseq.checkpoints.deltalm import COPIES, SENTINELS, fit_problems, is_deltalm, read_deltalm
from s2sft_fairseq.checkpoints.deltalm_as_bart import KEY, is_bart, read_bart
from s2sft_fairseq.checkpoints.embedding_tables import add_tokens, resize_positions
from s2sft_fairseq.checkpoints.families import recognize, within
from s2sft_fairseq.checkpoints.pretrained import CONFIG, MODEL, PretrainedEncoder, write_pretrained
from s2sft_fairseq.checkpoints.sizes import is_language_model
from s2sft_fairseq.checkpoints.source_files import SourceCheckpoint, find_gguf, find_vocabulary, open_source
from s2sft_fairseq.checkpoints.state_checks import layout_problems
from s2sft_fairseq.checksums import CHECKSUMS
from s2sft_fairseq.data.binarized_text import parse_languages
from s2sft_fairseq.data.dictionary import (
    BERT_SYMBOLS,
    DICTIONARY,
    FAIRSEQ_SYMBOLS,
    LANGUAGE_TOKEN,
    ROBERTA_SYMBOLS,
    SpecialSymbols,
)
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.files import new_folder
from s2sft_fairseq.models.deltalm import DeltaLMConfig, DeltaLMModel
from s2sft_fairseq.models.head_initialization import initialize_head
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.objectives.span_corruption import sentinel_symbols
from s2sft_fairseq.received import has_part
from s2sft_fairseq.tokenization.folder import first_difference
from s2sft_fairseq.tokenization.gguf_tokenizer import write_gguf_tokenizer
from s2sft_fairseq.tokenization.language_models import begins_with_end, language_model_symbols
from s2sft_fairseq.tokenization.library_tokenizer import copy_tokenizer_json
from s2sft_fairseq.tokenization.symbols import spare_symbols
from s2sft_fairseq.tokenization.vocabulary import (
    ADDED_TOKENS,
    COMPANIONS,
    FAST,
    Vocabulary,
    find_files,
    is_tokenizer_file,
    read_ids,
    read_vocabulary,
    special_tokens,
    stated_symbols,
)

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class ConvertOptions:
    """The options of a conversion besides source and destination; see the help of the command."""

    config: Path | None = None
    tokenizer_dir: Path | None = None
    add_token: Sequence[str] = ()
    add_language_tokens: str = ""
    sentinels: int = 0
    layers: int | None = None
    max_positions: int | None = None
    local_attention_window: int | None = None
    global_attention_every: int = 3
    finetune_method: str | None = None
    fit_head: Path | None = None
    output_prior: Path | None = None


def convert(source: Path, destination: Path, options: ConvertOptions = ConvertOptions()) -> None:
    """Convert a checkpoint to a folder for ``--pretrained``. The folder appears only when it is complete.

    Args:
        source: a folder or a file, see `s2sft_fairseq.checkpoints.source_files`.
        destination: the folder to write.
        options: further options.

    Raises:
        UserError: naming everything that is missing or does not match.
    """
    with new_folder(destination, "--to", _earlier_conversion(source, destination)) as staging:
        checkpoint, vocabulary = _read(source, options, staging)
        if is_deltalm(checkpoint.weights):
            _refuse_deltalm(checkpoint.file, options)
            conversion = convert_deltalm(checkpoint, vocabulary.symbols)
        elif is_bart(checkpoint.config):
            _refuse_deltalm(checkpoint.file, options)
            conversion = convert_bart(checkpoint, vocabulary.symbols)
        else:
            config = checkpoint.config
            conversion = convert_encoder(checkpoint)
            if not is_language_model(conversion.sizes):
                conversion.notes += compare_ids(config, conversion.padding, vocabulary.symbols)
                conversion.notes += compare_symbols(stated_symbols(staging), vocabulary.symbols)
        dictionary = _finish(conversion, vocabulary, options, staging, checkpoint.config)
        dictionary.save(str(staging / DICTIONARY))
        files = sorted(path.name for path in staging.iterdir())
        write_pretrained(staging, conversion, files)
    report(destination, conversion, len(dictionary))


def parameter_shapes(sizes: Mapping[str, Any], vocab_size: int) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a `unilm` model of these sizes.

    Raises:
        UserError: if the sizes contradict each other.
    """
    cfg = UnilmConfig()
    complete_sizes(cfg, dict(sizes))
    with torch.device("meta"):
        model = UnilmModel(cfg, vocab_size=max(1, vocab_size), pad=0)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def convert_encoder(checkpoint: SourceCheckpoint) -> Conversion:
    """Convert an encoder of a known family. The weights are removed from `checkpoint`.

    Raises:
        UserError: if the checkpoint is of no known family; otherwise naming every setting and parameter that is missing
            or wrong.
    """
    weights, config = checkpoint.weights, checkpoint.config
    prefix = within(weights, config)
    outside = [name for name in weights if not name.startswith(prefix)]
    if prefix:
        weights = {name.removeprefix(prefix): weights.pop(name) for name in list(weights) if name not in outside}
    try:
        conversion = read(recognize(weights, config), weights, config, parameter_shapes)
    except UserError as error:
        raise UserError(f"{checkpoint.file}: {error}") from None
    if prefix:
        conversion.notes.append(f"the encoder is {prefix.removesuffix('.')} of a larger module")
        conversion.unused += outside
    return conversion


def compare_ids(config: Mapping[str, Any], padding: int | None, symbols: Sequence[str]) -> list[str]:
    """Compare the ids of special symbols in a configuration with those of the tokenizer.

    Args:
        config: the configuration.
        padding: the id that counts for no position in the source, see `Conversion`.
        symbols: the symbols of the tokenizer.

    Returns:
        A note for each other id.

    Raises:
        UserError: a symbol of every text would have no position.
    """
    dictionary = FairseqDictionary.of(symbols)
    ids = {"mask_token_id": dictionary.mask(), "sep_token_id": dictionary.eos()}
    if config.get("cls_token_id") != config.get("sep_token_id"):  # mmBERT's, which begins texts with [SEP]
        ids["cls_token_id"] = dictionary.bos()
    if padding is not None:
        ids["pad_token_id"] = dictionary.pad()
        if padding in (dictionary.bos(), dictionary.eos()):
            raise UserError(
                f"the configuration's pad_token_id must be {dictionary.pad()}, the id of {dictionary.pad_word} in the "
                f"tokenizer, but is {padding}, that of {symbols[padding]}: the symbol would have no position"
            )
    notes = []
    for name, number in ids.items():
        stated = padding if name == "pad_token_id" else config.get(name)
        if type(stated) is int and stated != number:
            notes.append(
                f"the configuration's {name} is {stated}, but {symbols[number]} has the id {number} in the tokenizer, "
                "which is used"
            )
    return notes


def compare_symbols(stated: Mapping[str, str], symbols: Sequence[str]) -> list[str]:
    """Return a note for each special symbol of the tokenizer's settings that sequences do not have here.

    Args:
        stated: see `s2sft_fairseq.tokenization.vocabulary.stated_symbols`.
        symbols: the symbols of the tokenizer.
    """
    dictionary = FairseqDictionary.of(symbols)
    ours = {"sep_token": dictionary.eos(), "mask_token": dictionary.mask()}
    if stated.get("cls_token") != stated.get("sep_token"):
        ours["cls_token"] = dictionary.bos()
    return [
        f"the tokenizer's {name} is {stated[name]}, but {symbols[number]} is used"
        for name, number in ours.items()
        if stated.get(name, symbols[number]) != symbols[number]
    ]


def convert_deltalm(checkpoint: SourceCheckpoint, symbols: Sequence[str]) -> Conversion:
    """Convert an official DeltaLM checkpoint, or one that the official program or this plugin trained.

    Args:
        checkpoint: the checkpoint.
        symbols: the symbols of its dictionary, as fairseq reads it, in the order of their ids.

    Raises:
        UserError: if the dictionary is not DeltaLM's; otherwise naming every parameter that is missing, unknown or of
            another shape.
    """
    # A model of this plugin may start from BERT and have its ids. Official files, without options, have fairseq's ids.
    is_official = checkpoint.config.keys() <= {"_name"}
    if symbols[:4] != FAIRSEQ_SYMBOLS and (is_official or BERT_SYMBOLS.pad not in symbols):
        raise UserError(
            f"{checkpoint.file} needs its own {DICTIONARY} beside it: the first symbols of DeltaLM are "
            f"{', '.join(FAIRSEQ_SYMBOLS)}, but those of the tokenizer {', '.join(symbols[:4])}"
        )
    try:
        conversion = read_deltalm(checkpoint.weights, checkpoint.config, FairseqDictionary.of(symbols).pad())
    except UserError as error:
        raise UserError(f"{checkpoint.file}: {error}") from None
    if problems := fit_problems(_shapes(conversion.sizes), conversion.weights):
        raise UserError.of(problems, f"{checkpoint.file} does not match the sizes of its own layers and tables:")
    return conversion


def convert_bart(checkpoint: SourceCheckpoint, symbols: Sequence[str]) -> Conversion:
    """Convert a BART that `s2sft export` wrote from a DeltaLM.

    Args:
        checkpoint: the checkpoint.
        symbols: the symbols of its tokenizer, in the order of their ids.

    Raises:
        UserError: if it is any other BART, or its layout, such as languages and lengths, is damaged.
    """
    try:
        pad = FairseqDictionary.of(symbols).pad()
        weights, options = read_bart(checkpoint.weights, checkpoint.config, pad)
    except UserError as error:
        raise UserError(f"{checkpoint.file}: {error}") from None
    conversion = convert_deltalm(SourceCheckpoint(checkpoint.file, weights, options), symbols)
    if layout := checkpoint.config[KEY].get("layout"):
        if problems := list(layout_problems(layout, f"{KEY}.layout")):
            raise UserError.of(f"{checkpoint.file}: {problem}" for problem in problems)
        conversion.layout, conversion.finetuned = layout, True
    return conversion


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a `deltalm` model of these sizes, with an empty dictionary."""
    symbols = Dictionary()
    with torch.device("meta"):
        task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
        model = DeltaLMModel.build_model(DeltaLMConfig(**sizes), task)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}


def report(destination: Path, conversion: Conversion, num_symbols: int) -> None:
    """Print what was written, and notes for the user."""
    print(f"wrote {destination}: {conversion.family}, {len(conversion.weights)} tensors, {num_symbols} symbols")
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
        listed = PretrainedEncoder.open(destination, checked=False).files
    except UserError:  # no conversion
        return set()
    # Trust the list only for file names that a conversion can write.
    return {MODEL, CONFIG, DICTIONARY, CHECKSUMS, *filter(is_tokenizer_file, listed)}


def _read(source: Path, options: ConvertOptions, staging: Path) -> tuple[SourceCheckpoint, Vocabulary]:
    """Read weights and vocabulary, and copy the files of the tokenizer."""
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
        raise UserError.of(dict.fromkeys(problems))  # both may name a file that neither can open
    return checkpoint, vocabulary


def _read_tokenizer(source: Path, folder: Path | None, staging: Path) -> Vocabulary:
    """Copy the files of the tokenizer, under their usual names, and read the vocabulary."""
    beside = source if source.is_dir() else source.parent
    if folder is None and (named := find_vocabulary(source)):
        shutil.copyfile(named, staging / "vocab.txt")
        return read_vocabulary(staging)
    if folder is None and (file := find_gguf(source)):
        write_gguf_tokenizer(file, staging)
        return read_vocabulary(staging)
    folder = folder or beside
    if has_part(beside / DICTIONARY) and not has_part(folder / DICTIONARY):
        # The dictionary beside a fairseq checkpoint has its ids; the files of the tokenizer may be in another folder.
        for name in find_files(folder, to_copy=True)[1]:
            shutil.copyfile(folder / name, staging / name)
        shutil.copyfile(beside / DICTIONARY, staging / DICTIONARY)
        return read_vocabulary(staging)
    vocabulary = read_vocabulary(folder, to_copy=True)
    for name in vocabulary.files:
        copy = copy_tokenizer_json if name == FAST else shutil.copyfile
        copy(folder / name, staging / name)
    if not has_part(folder / DICTIONARY) and has_part(folder / FAST) and FAST not in vocabulary.files:
        return _compared(folder, vocabulary, staging)
    return vocabulary


def _compared(folder: Path, vocabulary: Vocabulary, staging: Path) -> Vocabulary:
    """Compare a tokenizer with the ``tokenizer.json`` beside it, and return the one that the model has.

    Raises:
        UserError: a file of them cannot be used.
    """
    different = first_difference(staging, vocabulary, folder / FAST)
    if different is None:
        return vocabulary
    what = f"{folder}: {different.text!r} becomes {different.ours} by {', '.join(vocabulary.files[:2])}, but "
    what += f"{different.theirs} by {FAST}"
    if vocabulary.scheme == "sentencepiece":  # the program of the training; the other file imitates it
        logger.warning("%s, which is not used", what)
        return vocabulary
    logger.warning("%s, which is used", what)
    for name in set(vocabulary.files) - {*COMPANIONS}:
        (staging / name).unlink()
    copy_tokenizer_json(folder / FAST, staging / FAST)
    return read_vocabulary(staging)


def _refuse_deltalm(file: Path, options: ConvertOptions) -> None:
    """Raise an error for options that do not apply to an encoder-decoder."""
    names = ("finetune_method", "fit_head", "output_prior", "local_attention_window", "layers")
    if given := [as_option(name) for name in names if getattr(options, name) is not None]:
        raise UserError(f"{', '.join(given)}: only for encoder-only models, but {file} is DeltaLM")


def _name_rows(conversion: Conversion, symbols: list[str]) -> list[str]:
    """Return a symbol for every row: those of the tokenizer, then spare symbols and sentinels for further rows.

    Raises:
        UserError: if there are fewer rows than symbols.
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


def _with_rows(conversion: Conversion, symbols: list[str], rows: int, staging: Path) -> list[str]:
    """Leave out special tokens that a language model has no rows for: Gemma's tokenizer has one for images.

    Args:
        conversion: the conversion, which gets a note.
        symbols: the symbols of the tokenizer.
        rows: the rows of the model.
        staging: the folder with copies of the tokenizer's files.
    """
    beyond = symbols[rows:]
    if not beyond or not set(beyond) <= special_tokens(staging):
        return symbols
    if (path := staging / ADDED_TOKENS).exists():
        ids = {token: number for token, number in read_ids(path).items() if number < rows}
        _write_json(path, ids)
    conversion.notes.append(f"tokens without a row in the model: {', '.join(beyond)}")
    return symbols[:rows]


def _choose_symbols(
    conversion: Conversion, symbols: Sequence[str], staging: Path, config: Mapping[str, Any]
) -> SpecialSymbols:
    """Choose the special symbols of a language model; arguments as of `_finish`, symbols of all rows."""
    stated = stated_symbols(staging)
    special = language_model_symbols(stated, symbols, config)
    if begins_with_end(stated, symbols, config):
        conversion.layout["source_start"] = "sep"
        conversion.notes.append(f"texts begin with {special.eos}, which also ends them")
    uses = f"{special.eos} ends texts, {special.bos} begins them, {special.mask} is the placeholder"
    conversion.notes.append(f"{uses}, {special.pad} the padding, {special.unk} the unknown symbol")
    return special


def _finish(
    conversion: Conversion,
    vocabulary: Vocabulary,
    options: ConvertOptions,
    staging: Path,
    config: Mapping[str, Any],
) -> FairseqDictionary:
    """Apply the options to the conversion, and return the dictionary, with a symbol for every row.

    Args:
        conversion: the conversion, which is changed.
        vocabulary: the vocabulary of the tokenizer.
        options: the options.
        staging: the folder that is written.
        config: the configuration of the source.
    """
    special: SpecialSymbols | None = None
    symbols, requests = list(vocabulary.symbols), list(options.add_token)
    rows = len(conversion.weights[conversion.tokens])
    if conversion.model == "deltalm" and symbols[rows:] == [ROBERTA_SYMBOLS.mask]:
        # fairseq's translation task uses no mask, so a fine-tuned DeltaLM may have no row for it: add one.
        requests.insert(0, symbols.pop())
    requests += map(LANGUAGE_TOKEN.format, parse_languages(options.add_language_tokens, "--add-language-tokens"))
    requests += sentinel_symbols(options.sentinels)
    if is_language_model(conversion.sizes):
        symbols = _with_rows(conversion, symbols, rows, staging)
    symbols = _name_rows(conversion, symbols)
    if is_language_model(conversion.sizes):
        special = _choose_symbols(conversion, symbols, staging, config)
        requests = [*(symbol for symbol in vars(special).values() if symbol not in symbols), *requests]
    if vocabulary.scheme is None:
        conversion.notes.append(
            "no tokenizer: its files (encoder.json and vocab.bpe, or a SentencePiece model) belong beside dict.txt"
        )
    if options.layers is not None:
        conversion.notes.append(_keep_layers(conversion, options.layers))
    if options.max_positions is not None and options.max_positions != conversion.sizes["max_positions"]:
        conversion.notes.append(resize_positions(conversion.weights, conversion.sizes, options.max_positions))
    if options.local_attention_window is not None:
        conversion.notes.append(_make_local(conversion, options.local_attention_window, options.global_attention_every))
    if options.sentinels < 0:
        raise UserError(f"--sentinels must be at least 0, but is {options.sentinels}")
    if added := add_tokens(conversion, symbols, requests):
        first = len(symbols) - len(added)
        ids = [f"{name} (id {first + at})" for at, name in enumerate(added)]
        shown = ids if len(ids) < 20 else [*ids[:3], f"{len(ids) - 4} more", ids[-1]]
        conversion.notes.append(f"added: {', '.join(shown)}")
        # Include the spare rows, so that ids continue those of the tokenizer without a gap.
        beyond = range(len(vocabulary.symbols), len(symbols))
        _write_added_tokens(staging / ADDED_TOKENS, {symbols[number]: number for number in beyond})
    dictionary = FairseqDictionary.of(symbols, special)
    _settle_method(conversion, options.finetune_method)
    initialize_head(conversion, dictionary, fit_head=options.fit_head, output_prior=options.output_prior)
    if conversion.model == "deltalm":  # the copies that a checkpoint of fairseq has
        conversion.weights |= {name: conversion.weights[conversion.tokens] for name in COPIES}
    return dictionary


def _keep_layers(conversion: Conversion, number: int) -> str:
    """Remove all layers but the first ones, in place, and return a note.

    Raises:
        UserError: the encoder has fewer layers.
    """
    layers = conversion.sizes["encoder_layers"]
    if not 1 <= number <= layers:
        raise UserError(f"--layers must be from 1 to {layers}, the layers of this encoder, but is {number:,}")
    prefixes = tuple(f"layers.{layer}." for layer in range(number, layers))
    for name in [name for name in conversion.weights if name.startswith(prefixes)]:
        del conversion.weights[name]
    conversion.sizes["encoder_layers"] = number
    return f"layers: the first {number} of {layers}"


def _make_local(conversion: Conversion, window: int, every: int) -> str:
    """Give local attention to all layers except every ``every``-th one, and return a note about it.

    Longformer was made from RoBERTa in this way, with longer position tables (Beltagy et al., 2020, section 5).
    """
    problems = []
    if window < 2:
        problems.append(f"--local-attention-window must be at least 2, but is {window}")
    if every < 1:
        problems.append(f"--global-attention-every must be at least 1, but is {every}")
    if has := conversion.sizes.get("local_attention_window"):
        problems.append(f"--local-attention-window is for encoders without local layers, but this one has {has}")
    if conversion.sizes.get("disentangled_attention", "none") != "none":
        problems.append("--local-attention-window is not for encoders with disentangled attention")
    if problems:
        raise UserError.of(problems)
    conversion.sizes |= {"local_attention_window": window, "global_attention_every": every}
    return f"local attention: {window // 2} positions to either side, in all layers but 0, {every}, {2 * every} ..."


def _write_added_tokens(path: Path, ids: dict[str, int]) -> None:
    known = read_ids(path) if path.exists() else {}
    _write_json(path, {**known, **ids})


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


def _settle_method(conversion: Conversion, method: str | None) -> None:
    """Record the fine-tuning method of a checkpoint, which its own files do not tell: decoding depends on it."""
    if method is not None and conversion.missing:
        raise UserError(
            "--finetune-method is for checkpoints that are fine-tuned, "
            f"but this one lacks {', '.join(conversion.missing)}"
        )
    if method is None and conversion.finetuned and conversion.model == "unilm":
        method = "pseudo_masked"
        conversion.notes.append(
            "taken as fine-tuned with pseudo_masked, the program's default, which is decoded like masked; "
            "if it was causal (mask_way v0), give --finetune-method causal"
        )
    if method is not None:
        conversion.finetuned = True
        conversion.layout["finetune_method"] = method
