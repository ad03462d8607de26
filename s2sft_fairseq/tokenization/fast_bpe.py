"""fastBPE's codes, applied by the package `fastBPE` or, if that is not installed, by `subword-nmt`."""

import io
import re
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from pathlib import Path

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.symbols import KeptTokens, Pieces
from s2sft_fairseq.tokenization.vocabulary import Vocabulary

CONTINUED = "@@"
_CACHED_WORDS = 2**18


class FastBpe:
    """A tokenizer that splits words, separated by white space, into pieces. All but a word's last end with ``@@``."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load the codes.

        Raises:
            UserError: neither package is installed, or the codes are damaged.
        """
        self.dictionary = dictionary
        self.special = dictionary.special_symbols()
        self.kept = KeptTokens(vocabulary.whole_tokens(dictionary), self.special)
        self._pieces_of = load_codes(folder / vocabulary.files[0])

        def symbols_of(word: str) -> str:
            return " ".join(map(self._symbol, self._pieces_of(word)))

        self._symbols_of = lru_cache(_CACHED_WORDS)(symbols_of)

    def encode(self, line: str) -> str:
        """Return the symbols of a raw line, separated by spaces."""
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[str]:
        """Encode many lines, on one core."""
        return self.kept.encode_around(lines, self._encode_texts)

    def _encode_texts(self, texts: list[str]) -> Iterator[str]:
        for text in texts:
            yield " ".join(map(self._symbols_of, text.split()))

    def encode_pieces(self, lines: Sequence[str]) -> list[Pieces]:
        """Encode many lines, with the offsets of each symbol."""
        return [self.kept.pieces_around(line, self._pieces_of_text) for line in lines]

    def _symbol(self, piece: str) -> str:
        """Return the symbol of a piece of text, which is never a special one."""
        known = piece in self.dictionary and piece not in self.special
        return piece if known else self.dictionary.unk_word

    def _pieces_of_text(self, text: str) -> Pieces:
        found = Pieces([], [])
        for word in re.finditer(r"\S+", text):
            end = word.start()
            for piece in self._pieces_of(word[0]):
                start, end = end, end + len(piece.removesuffix(CONTINUED))
                found.symbols.append(self._symbol(piece))
                found.offsets.append((start, end))
        return found

    def decode(self, tokens: str) -> str:
        """Return the words of symbols."""
        return self.kept.decode_around(tokens.split(), _join)


def _join(pieces: list[str]) -> str:
    return " ".join(pieces).replace(f"{CONTINUED} ", "").removesuffix(CONTINUED)


def load_codes(path: Path) -> Callable[[str], list[str]]:
    """Return the function that splits a word into its pieces.

    Raises:
        UserError: neither package is installed, or the codes are damaged.
    """
    pairs = read_pairs(path)
    try:
        from fastBPE import fastBPE
    except ImportError:
        return _with_subword_nmt(path, pairs)
    codes = fastBPE(str(path), "")
    return lambda word: codes.apply([word])[0].split(" ")


def _with_subword_nmt(path: Path, pairs: list[str]) -> Callable[[str], list[str]]:
    try:
        from subword_nmt.apply_bpe import BPE
    except ImportError:
        raise UserError(f"{path} needs the package subword-nmt, or fastBPE: pip install subword-nmt") from None
    # In version 0.2 the mark </w> is part of a word's last letter, as in fastBPE.
    codes = BPE(io.StringIO("\n".join(["#version: 0.2", *pairs])), separator=CONTINUED)

    def pieces_of(word: str) -> list[str]:
        codes.cache.clear()  # else it grows with every new word
        return codes.segment_tokens([word])

    return pieces_of


def read_pairs(path: Path) -> list[str]:
    """Read the pairs of codes, in the order of priority: ``a b`` from lines ``a b count``.

    Raises:
        UserError: the file cannot be read, is empty, or has malformed lines.
    """
    try:
        lines = list(read_lines(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    parts = [line.split(" ") for line in lines]
    problems = [
        f"{path}, line {number}: needs two pieces and a count, found {' '.join(part)[:60]!r}"
        for number, part in enumerate(parts, 1)
        if len(part) != 3 or not all(part) or not part[2].isdigit()
    ]
    if problems:
        raise UserError.of(problems, f"{len(problems)} malformed lines in {path}:", most=10)
    if not parts:
        raise UserError(f"{path} must hold pairs of pieces, a line each, but is empty")
    return [" ".join(part[:2]) for part in parts]
