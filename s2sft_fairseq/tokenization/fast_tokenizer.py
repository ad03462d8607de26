"""Write the tokenizer of a folder as a ``tokenizer.json``, which also adds the special symbols of sources."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.library_tokenizer import LibraryTokenizer, load_library_file, made_by_library
from s2sft_fairseq.tokenization.samples import ids_of, samples
from s2sft_fairseq.tokenization.symbols import write_symbol
from s2sft_fairseq.tokenization.unigram import unigram_library
from s2sft_fairseq.tokenization.vocabulary import FAST, TOKENIZER_CONFIG, Vocabulary, read_config
from s2sft_fairseq.tokenization.wordpiece import WordPiece

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


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
    dictionary = PretrainedDictionary.of(vocabulary.symbols, vocabulary.special)
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
    _check_samples(folder, library)
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
        return unigram_library(folder / vocabulary.files[0], dictionary)
    if vocabulary.files[0] == FAST:
        return load_library_file(folder / FAST)
    opened = open_tokenizer(folder)
    if not isinstance(opened, LibraryTokenizer):
        raise UserError(f"{folder} has a tokenizer ({vocabulary.scheme}) that {FAST} cannot describe")
    if isinstance(opened, WordPiece):
        from tokenizers import decoders

        opened.library.decoder = decoders.WordPiece()
    return opened.library


def _check_samples(folder: Path, library: "Library") -> None:
    """Check that the library gives sample texts the ids that the tokenizer of the folder gives them."""
    ours = open_tokenizer(folder)
    library.encode_special_tokens = True  # as split_special_tokens has transformers do
    for text in samples(ours.dictionary):
        expected = ids_of(ours, text)
        found = made_by_library(folder / FAST, library.encode, text, add_special_tokens=False).ids
        if found != expected:
            symbols = ours.dictionary.symbols
            read, own = (" ".join(symbols[number] for number in ids) for ids in (found, expected))
            raise UserError(
                f"{folder} has a tokenizer that {FAST} cannot describe: {text!a} would be read as {read}, but is {own}"
            )


def _check_ids(folder: Path, library: "Library", dictionary: PretrainedDictionary) -> None:
    """Check that the library gives tokens the ids of the model."""
    for token, number in library.get_vocab(with_added_tokens=True).items():
        if number >= len(dictionary) or dictionary.symbols[number] != write_symbol(token):
            raise UserError(
                f"{folder} has a tokenizer whose ids are not those of the model, which {FAST} cannot describe: {token} "
                f"has the id {number}"
            )
