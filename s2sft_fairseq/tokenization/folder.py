"""Open the tokenizer of a folder, whose scheme is recognized by its files."""

import unicodedata
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple, Protocol

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.fast_bpe import FastBpe
from s2sft_fairseq.tokenization.library_tokenizer import (
    ByteLevelBpe,
    LibraryTokenizer,
    TokenizerJson,
    load_library_file,
)
from s2sft_fairseq.tokenization.samples import samples
from s2sft_fairseq.tokenization.sentence_piece import SentencePiece
from s2sft_fairseq.tokenization.symbols import Pieces, read_symbol
from s2sft_fairseq.tokenization.vocabulary import FILE_SETS, Vocabulary, one_of, read_vocabulary, stated_symbols
from s2sft_fairseq.tokenization.wordpiece import WordPiece


class Tokenizer(Protocol):
    """Converts raw lines to symbols of a dictionary, separated by spaces, and back."""

    dictionary: PretrainedDictionary

    def encode(self, line: str) -> str:
        """Return the symbols of a raw line; all are in the dictionary."""

    def encode_batch(self, lines: Sequence[str]) -> list[str]:
        """Return the symbols of many lines."""

    def encode_pieces(self, lines: Sequence[str]) -> list[Pieces]:
        """Return the symbols of many lines, with the offsets of each symbol."""

    def decode(self, tokens: str) -> str:
        """Return the text of symbols."""


_SCHEMES: dict[str, Callable[[Path, Vocabulary, PretrainedDictionary], Tokenizer]] = {
    "wordpiece": WordPiece,
    "byte_level_bpe": ByteLevelBpe,
    "sentencepiece": SentencePiece,
    "fastbpe": FastBpe,
    "tokenizer_json": TokenizerJson,
}


class Difference(NamedTuple):
    """A text that two tokenizers split into other symbols."""

    text: str
    ours: str
    theirs: str


def first_difference(folder: Path, vocabulary: Vocabulary, path: Path) -> Difference | None:
    """Compare the tokenizer of a folder with a ``tokenizer.json`` on `samples`; None: they are equal.

    Texts that Unicode's NFC changes may differ: BERT's tokenizers in Python and in `tokenizers` do.

    Raises:
        UserError: one of them cannot be used.
    """
    ours = _opened(folder, vocabulary)
    dictionary = ours.dictionary
    special = set(map(read_symbol, dictionary.special_symbols()))
    theirs = LibraryTokenizer(path, dictionary, load_library_file(path, special), vocabulary.whole_tokens(dictionary))
    texts = samples(dictionary)
    composed = theirs.encode_batch([unicodedata.normalize("NFC", text) for text in texts])
    for found in map(Difference, texts, ours.encode_batch(texts), theirs.encode_batch(texts)):
        if found.ours != found.theirs and found.ours != composed[texts.index(found.text)]:
            return found
    return None


def open_tokenizer(folder: Path) -> Tokenizer:
    """Return the tokenizer of a folder.

    Raises:
        UserError: the folder holds no tokenizer, its files are damaged, or a library that they need is not installed.
    """
    return _opened(folder, read_vocabulary(folder))


def _opened(folder: Path, vocabulary: Vocabulary) -> Tokenizer:
    if vocabulary.scheme is None:
        raise one_of(FILE_SETS, f"{folder} holds dict.txt, but to tokenize it needs one of these beside it:")
    try:
        dictionary = PretrainedDictionary.of(vocabulary.symbols, vocabulary.special)
    except UserError as error:
        raise UserError(f"{folder}: {error}") from None
    unknown = stated_symbols(folder).get("unk_token", dictionary.unk_word)
    if not dictionary.is_stated and unknown in dictionary and unknown != dictionary.unk_word:
        raise UserError(f"{folder}: the tokenizer's unk_token must be {dictionary.unk_word}, but is {unknown}")
    return _SCHEMES[vocabulary.scheme](folder, vocabulary, dictionary)
