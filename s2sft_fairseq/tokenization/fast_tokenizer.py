"""Write the tokenizer of a folder as a ``tokenizer.json``, which also adds the special symbols of sources."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.library_tokenizer import (
    LibraryTokenizer,
    load_library_file,
    made_by_library,
    require_library,
)
from s2sft_fairseq.tokenization.symbols import read_symbol, write_symbol
from s2sft_fairseq.tokenization.vocabulary import (
    TOKENIZER_CONFIG,
    Vocabulary,
    load_sentencepiece,
    read_config,
    sentencepiece_pieces,
)
from s2sft_fairseq.tokenization.wordpiece import WordPiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

FAST = "tokenizer.json"
_SPACE = "\u2581"  # how SentencePiece writes a space
_UNIGRAM = 1


def write_fast_tokenizer(
    folder: Path, vocabulary: Vocabulary, destination: Path, prefix: Sequence[str], max_source: int
) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``: a text becomes ``prefix text eos``.

    Args:
        folder: the folder of the tokenizer's files.
        vocabulary: the vocabulary of that folder; symbol i has the id i.
        destination: the folder to write into.
        prefix: symbols that every source begins with.
        max_source: maximum number of positions of a source.

    Raises:
        UserError: a package is not installed, or such a file cannot describe the tokenizer.
    """
    dictionary = PretrainedDictionary.of(vocabulary.symbols)
    library = _library(folder, vocabulary, dictionary)
    from tokenizers import AddedToken, processors

    special = [dictionary.bos_word, dictionary.pad_word, dictionary.eos_word, dictionary.unk_word]
    special.append(dictionary.symbols[dictionary.mask()])
    library.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    library.add_tokens([AddedToken(token, normalized=False) for token in vocabulary.added if token not in special])
    ends = [*prefix, "$A", dictionary.eos_word]
    library.post_processor = processors.TemplateProcessing(
        single=ends,
        pair=[*ends, "$B", dictionary.eos_word],
        special_tokens=[(symbol, dictionary.index(symbol)) for symbol in {*prefix, dictionary.eos_word}],
    )
    _check_ids(folder, library, dictionary)
    library.save(str(destination / FAST))
    config = {name: value for name, value in read_config(folder).items() if not name.startswith("auto_map")}
    config |= {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_source,
        "model_input_names": ["input_ids", "attention_mask"],
        "clean_up_tokenization_spaces": False,
        "split_special_tokens": True,  # special symbols in a text are text
        **dict(zip(("bos_token", "pad_token", "eos_token", "unk_token", "mask_token"), special, strict=True)),
        "cls_token": dictionary.bos_word,
        "sep_token": dictionary.eos_word,
    }
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (destination / TOKENIZER_CONFIG).write_text(text, encoding="utf-8")


def _library(folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> "Library":
    if vocabulary.scheme == "sentencepiece":
        return _unigram(folder / vocabulary.files[0], dictionary)
    if vocabulary.files[0] == FAST:
        return load_library_file(folder / FAST)
    opened = open_tokenizer(folder)
    if not isinstance(opened, LibraryTokenizer):
        raise UserError(f"{folder} has a tokenizer ({vocabulary.scheme}) that {FAST} cannot describe")
    if isinstance(opened, WordPiece):
        from tokenizers import decoders

        opened.library.decoder = decoders.WordPiece()
    return opened.library


def _check_ids(folder: Path, library: "Library", dictionary: PretrainedDictionary) -> None:
    """Check that the library gives tokens the ids of the model."""
    for token, number in library.get_vocab(with_added_tokens=True).items():
        if number >= len(dictionary) or dictionary.symbols[number] != write_symbol(token):
            raise UserError(
                f"{folder} has a tokenizer whose ids are not those of the model, which {FAST} cannot describe: {token} "
                f"has the id {number}"
            )


def _unigram(path: Path, dictionary: PretrainedDictionary) -> "Library":
    """Return the tokenizer of SentencePiece's Unigram model, with the ids of the dictionary."""
    require_library(path)
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library

    model = load_sentencepiece(path)
    described = _fields(path, model.serialized_model_proto())
    trainer, normalizer = (_fields(path, described.get(number, b"")) for number in (2, 3))
    if trainer.get(3, _UNIGRAM) != _UNIGRAM:
        raise UserError(f"{path} is no Unigram model, which {FAST} cannot describe")
    pieces = {piece: model.get_score(number) for number, piece in enumerate(sentencepiece_pieces(model, path))}
    scores = [(token, pieces.get(token, 0.0)) for token in map(read_symbol, dictionary.symbols)]
    library = Library(made_by_library(path, models.Unigram, scores, dictionary.unk(), False))
    steps: list[Any] = [normalizers.Precompiled(normalizer[2])] if normalizer.get(2) else []
    library.normalizer = normalizers.Sequence([*steps, normalizers.Replace(Regex(" {2,}"), " ")])
    spaces: dict[str, Any] = {"replacement": _SPACE, "prepend_scheme": "always"}
    # SentencePiece takes no text for a special symbol, but the library's model takes all of its pieces.
    special = [re.fullmatch(r"(\W*)(.*)", symbol, re.S) for symbol in sorted(dictionary.special_symbols())]
    within = "|".join(f"{re.escape(found[1])}(?={re.escape(found[2])})" for found in special if found)
    library.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.WhitespaceSplit(),
            pre_tokenizers.Metaspace(**spaces),
            pre_tokenizers.Split(Regex(within), "merged_with_previous"),
        ]
    )
    library.decoder = decoders.Metaspace(**spaces)
    return library


def _fields(path: Path, message: bytes) -> Mapping[int, Any]:
    """Return the fields of a protocol buffer message by number; if a field is repeated, its last value.

    The numbers are those of ``sentencepiece_model.proto``.

    Raises:
        UserError: the bytes are not such a message.
    """
    try:
        return dict(_read_fields(message))
    except (IndexError, ValueError):
        raise UserError(f"{path} must be a SentencePiece model, but is damaged") from None


def _read_fields(message: bytes) -> Iterator[tuple[int, Any]]:
    at = 0

    def number() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at, value, shift = at + 1, value | (byte & 0x7F) << shift, shift + 7
            if byte < 0x80:
                return value

    while at < len(message):
        tag = number()
        kind = tag & 7
        value: Any
        if kind == 0:
            value = number()
        elif kind in (1, 2, 5):
            length = {1: 8, 5: 4}.get(kind) or number()
            value, at = message[at : at + length], at + length
        else:
            raise ValueError(f"wire type {kind}")
        yield tag >> 3, value
