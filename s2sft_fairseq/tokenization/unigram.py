"""SentencePiece's Unigram models as tokenizers of Hugging Face's library, with the same ids for every text."""

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.protobuf import bytes_of, number_of, read_fields, text_of
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.library_tokenizer import made_by_library, require_library
from s2sft_fairseq.tokenization.sentencepiece_model import load_sentencepiece, sentencepiece_pieces
from s2sft_fairseq.tokenization.symbols import read_symbol

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

_SPACE = "\u2581"  # how SentencePiece writes a space
# Numbers of the fields of sentencepiece_model.proto, and values of its enumerations.
_PIECES, _TRAINER, _NORMALIZER, _DENORMALIZER = 1, 2, 3, 5
_PIECE, _KIND, _NORMAL, _USER_DEFINED = 1, 3, 1, 4
_MODEL_TYPE, _UNIGRAM, _SUFFIX, _BYTE_FALLBACK = 3, 1, 24, 35
_RULE, _CHARACTER_MAP, _DUMMY_PREFIX, _EXTRA_WHITESPACE, _ESCAPE = 1, 2, 3, 4, 5
_NFKC = ("nfkc", "nfkc_cf", "nmt_nfkc", "nmt_nfkc_cf")
"""SentencePiece's rules of normalization that begin with Unicode's NFKC."""
# Neither is a character of texts: one stands for a full-width tilde, the other keeps a mark apart from its letter.
_TILDE, _APART = "\ufdd0", "\U000e0fff"


@dataclass
class UnigramModel:
    """What the file of a SentencePiece model says beside the scores of its pieces."""

    model_type: int = _UNIGRAM
    rule: str = ""
    """The name of the normalization."""
    character_map: bytes = b""
    """The normalization of characters, compiled; empty: none."""
    problems: list[str] = field(default_factory=list)
    """The settings that a ``tokenizer.json`` cannot describe."""
    normal: set[str] = field(default_factory=set)
    """The pieces that text can have."""

    @classmethod
    def read(cls, path: Path, message: bytes) -> "UnigramModel":
        """Read a serialized model.

        Raises:
            UserError: the bytes are no such model.
        """
        try:
            return cls._read(memoryview(message))
        except ValueError:
            raise UserError(f"{path} must be a SentencePiece model, but is damaged") from None

    @classmethod
    def _read(cls, message: memoryview) -> "UnigramModel":
        found = cls()
        user_defined = []
        for number, value in read_fields(message):
            if number == _PIECES:
                piece = dict(read_fields(bytes_of(value)))
                kind = number_of(piece.get(_KIND, _NORMAL))
                if kind == _NORMAL:
                    found.normal.add(text_of(piece.get(_PIECE, memoryview(b""))))
                elif kind == _USER_DEFINED:
                    user_defined.append(text_of(piece.get(_PIECE, memoryview(b""))))
            elif number == _TRAINER:
                found._take_trainer(dict(read_fields(bytes_of(value))))
            elif number == _NORMALIZER:
                found._take_normalizer(dict(read_fields(bytes_of(value))))
            elif number == _DENORMALIZER and dict(read_fields(bytes_of(value))).get(_CHARACTER_MAP):
                found.problems.append("a denormalization of decoded text (denormalizer_spec)")
        if user_defined:
            names = ", ".join(user_defined[:5])
            found.problems.append(f"{len(user_defined)} user-defined symbols (user_defined_symbols), such as {names}")
        return found

    def _take_trainer(self, settings: dict[int, int | memoryview]) -> None:
        self.model_type = number_of(settings.get(_MODEL_TYPE, _UNIGRAM))
        if settings.get(_BYTE_FALLBACK):
            self.problems.append("bytes in place of unknown characters (byte_fallback=true)")
        if settings.get(_SUFFIX):
            self.problems.append("blanks at the ends of words (treat_whitespace_as_suffix=true)")

    def _take_normalizer(self, settings: dict[int, int | memoryview]) -> None:
        self.rule = text_of(settings.get(_RULE, memoryview(b"")))
        self.character_map = bytes(bytes_of(settings.get(_CHARACTER_MAP, memoryview(b""))))
        if self.character_map and self.rule not in _NFKC:
            rules = ", ".join((*_NFKC, "identity"))
            self.problems.append(f"a normalization other than {rules} (normalization_rule_name={self.rule})")
        for number, problem in (
            (_DUMMY_PREFIX, "texts that begin without a blank (add_dummy_prefix=false)"),
            (_EXTRA_WHITESPACE, "blanks that are not merged (remove_extra_whitespaces=false)"),
            (_ESCAPE, "blanks that are not written as U+2581 (escape_whitespaces=false)"),
        ):
            if settings.get(number, 1) == 0:
                self.problems.append(problem)


def unigram_library(path: Path, dictionary: PretrainedDictionary) -> "Library":
    """Return the tokenizer of SentencePiece's Unigram model, with the ids of the dictionary.

    Raises:
        UserError: naming all settings of the model that a ``tokenizer.json`` cannot describe.
    """
    require_library(path)
    from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
    from tokenizers import Tokenizer as Library

    model = load_sentencepiece(path, dictionary.special_symbols())
    described = UnigramModel.read(path, model.serialized_model_proto())
    if described.model_type != _UNIGRAM:
        raise UserError(f"{path} is no Unigram model, which tokenizer.json cannot describe")
    if described.problems:
        lines = [f"{path} has {problem}" for problem in described.problems]
        raise UserError.of(lines, "tokenizer.json cannot describe this tokenizer:")
    pieces = {piece: model.get_score(number) for number, piece in enumerate(sentencepiece_pieces(model, path))}
    tokens = [read_symbol(symbol) for symbol in dictionary.symbols]
    scores = [(token, pieces.get(token, 0.0)) for token in tokens]
    library = Library(made_by_library(path, models.Unigram, scores, dictionary.unk(), False))
    steps = list(_normalization(described))
    # SentencePiece's own rule: only U+0020 is a blank, there are none at the ends of a text, and one is put before it.
    steps += [normalizers.Replace(Regex(" {2,}"), " "), normalizers.Replace(Regex("^ | $"), "")]
    steps += [normalizers.Prepend(_SPACE), normalizers.Replace(" ", _SPACE)]
    library.normalizer = normalizers.Sequence(steps)
    hidden = _boundaries(set(tokens) - described.normal, described.normal)
    splits = [pre_tokenizers.Split(Regex(pattern), "merged_with_next") for pattern in hidden]
    if not any(_SPACE in piece[1:] for piece in described.normal):  # else pieces may have several words
        splits.insert(0, pre_tokenizers.Split(_SPACE, "merged_with_next"))
    library.pre_tokenizer = pre_tokenizers.Sequence(splits)
    library.decoder = decoders.Metaspace(replacement=_SPACE, prepend_scheme="always")
    return library


def _normalization(described: UnigramModel) -> Iterator[Any]:
    """Yield the steps that normalize characters.

    The library applies a compiled map to a letter with its marks as a whole: it drops marks after mapped letters, and
    does not compose Hangul. So Unicode's own NFKC comes first, and then the map sees every character alone.
    """
    from tokenizers import Regex, normalizers

    if not described.character_map:
        return
    keeps_tilde = described.rule.startswith("nmt")  # unlike NFKC
    if keeps_tilde:
        yield normalizers.Replace("\uff5e", _TILDE)
    yield normalizers.NFKC()
    if keeps_tilde:
        yield normalizers.Replace(_TILDE, "\uff5e")
    yield normalizers.Replace(Regex("(?<=[\\s\\S])(?=[\\p{M}\u200d])"), _APART)
    yield normalizers.Precompiled(described.character_map)
    yield normalizers.Replace(_APART, "")


def _boundaries(symbols: Iterable[str], pieces: Collection[str]) -> Iterator[str]:
    """Yield patterns that split symbols in text: the second part of each, after its first part.

    The library finds every token of its vocabulary in text, SentencePiece only its normal pieces. A boundary within
    a symbol hides it from the library. No piece may cross the boundary, and neither may unknown characters, which
    become one token together.
    """
    parts: list[tuple[str, str]] = []
    candidates = sorted({symbol.replace(" ", _SPACE) for symbol in symbols if len(symbol) > 1})
    crossing = _PiecesByPair(pieces, candidates)
    for symbol in candidates:
        known = [character in pieces for character in symbol]
        places = (at for at in range(1, len(symbol)) if known[at - 1] or known[at])
        free = (at for at in places if not crossing.any(symbol, at))
        if (at := next(free, None)) is not None:
            parts.append((symbol[:at], symbol[at:]))
    for before, same in groupby(sorted(parts), key=lambda part: part[0]):
        after = "|".join(re.escape(part[1]) for part in same)
        yield f"(?<={re.escape(before)})(?:{after})"


class _PiecesByPair:
    """Pieces by the pairs of characters that symbols have."""

    def __init__(self, pieces: Iterable[str], symbols: Iterable[str]) -> None:
        pairs = {symbol[at - 1 : at + 1] for symbol in symbols for at in range(1, len(symbol))}
        self.found: dict[str, list[tuple[str, int]]] = {pair: [] for pair in pairs}
        for piece in pieces:
            for at in range(1, len(piece)):
                if piece[at - 1 : at + 1] in pairs:
                    self.found[piece[at - 1 : at + 1]].append((piece, at))

    def any(self, symbol: str, at: int) -> bool:
        """Return whether some piece fits a text with the symbol, and crosses the place `at` of the symbol."""
        return any(_fits(piece, place - at, symbol) for piece, place in self.found[symbol[at - 1 : at + 1]])


def _fits(piece: str, start: int, symbol: str) -> bool:
    """Return whether a piece equals a symbol where they overlap; the symbol begins at `start` in the piece."""
    first = max(0, start)
    end = min(len(piece), start + len(symbol))
    return piece[first:end] == symbol[first - start : end - start]
