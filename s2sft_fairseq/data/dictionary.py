"""A dictionary that keeps the ids of a pretrained vocabulary; it needs neither PyTorch nor fairseq.

fairseq's `Dictionary` adds four symbols before those of a file. This is right for RoBERTa-like vocabularies, whose
embeddings were trained with it, and wrong for others, where row *i* of the embedding is line *i* of ``vocab.txt``. The
symbols of a file tell which of the two it is: a file that has its padding symbol, or says which symbols are special,
has all of them.
"""

import hashlib
import logging
import os
import re
from collections.abc import Collection, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import IO, Self

from s2sft_fairseq.data.bounded_files import read_text, whole_number
from s2sft_fairseq.errors import UserError, shown

logger = logging.getLogger(__name__)

DICTIONARY = "dict.txt"  # the name of the dictionary file in the folder of a model


@dataclass(frozen=True)
class SpecialSymbols:
    """The names that a family of vocabularies gives to its special symbols."""

    bos: str
    pad: str
    eos: str
    unk: str
    mask: str


BERT_SYMBOLS = SpecialSymbols(bos="[CLS]", pad="[PAD]", eos="[SEP]", unk="[UNK]", mask="[MASK]")
ROBERTA_SYMBOLS = SpecialSymbols(bos="<s>", pad="<pad>", eos="</s>", unk="<unk>", mask="<mask>")
# BERT's vocabulary behind fairseq's first symbols: BERT's own symbols but [UNK] are in no sequence.
MPNET_SYMBOLS = SpecialSymbols(bos="<s>", pad="<pad>", eos="</s>", unk="[UNK]", mask="<mask>")
GEMMA_SYMBOLS = SpecialSymbols(bos="<bos>", pad="<pad>", eos="<eos>", unk="<unk>", mask="<mask>")  # also mmBERT's
LLAMA_BOS = "<|begin_of_text|>"
_LLAMA_RESERVED = re.compile(r"<\|reserved_special_token_\d+\|>")

_OVERWRITE = " #fairseq:overwrite"  # at the end of a line of fairseq's: a symbol that has an id gets another one
_ROLE = " #s2sft:"  # at the end of a line, before the use of its symbol: a name of `SpecialSymbols`
# The first symbols of fairseq's dictionaries, which their files leave out.
FAIRSEQ_SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>"]

# ERNIE-GEN's placeholder and noise, which an encoder gets as added tokens.
PLACEHOLDERS = ("[ATTN]", "[NOISE]")

LANGUAGE_TOKEN = "__{}__"
"""The first symbol of sources for targets in a language; ``s2sft convert --add-language-tokens`` adds it."""


def symbols_fingerprint(symbols: Sequence[str]) -> str:
    """Return a fingerprint of symbols and their order, which checkpoints keep."""
    return hashlib.sha256("\n".join(symbols).encode("utf-8", "surrogateescape")).hexdigest()[:16]


class PretrainedDictionary:
    """A dictionary in which symbol *i* is entry *i* of the pretrained vocabulary.

    bos and eos are ``[CLS]`` and ``[SEP]``, or the corresponding symbols of other vocabularies. Files have fairseq's
    format, ``<symbol> <count>`` on each line; where the names do not tell which symbols are special, as in vocabularies
    of language models, their lines end in ``#s2sft:bos``, ``#s2sft:pad`` and so on. A symbol that occurs twice keeps
    both ids, so that no later id shifts (``[unused99]`` in UniLM 1.2); text is encoded to the last, as by the programs
    of BERT, ERNIE and fairseq.
    """

    def __init__(self, symbols: list[tuple[str, int]], special: SpecialSymbols) -> None:
        """Take all symbols with their counts, in the order of their ids.

        Raises:
            UserError: if a special symbol is missing.
        """
        self.special = special
        self.bos_word, self.pad_word, self.eos_word, self.unk_word = special.bos, special.pad, special.eos, special.unk
        self.symbols = [symbol for symbol, _ in symbols]
        self.count = [count for _, count in symbols]
        self.indices: dict[str, int] = {symbol: number for number, symbol in enumerate(self.symbols)}
        self.is_stated = special != _special_symbols(symbols)
        # save() leaves out fairseq's four symbols if they come first. MPNet's file has all, as [PAD] says to load().
        has_all = self.is_stated or special == MPNET_SYMBOLS
        self.nspecial = 4 if self.symbols[:4] == FAIRSEQ_SYMBOLS and not has_all else 0
        missing = [symbol for symbol in vars(special).values() if symbol not in self.indices]
        if missing:
            raise UserError(
                f"the dictionary must hold {', '.join(vars(special).values())}, but lacks {', '.join(missing)}"
            )
        self.bos_index = self.indices[special.bos]
        self.pad_index = self.indices[special.pad]
        self.eos_index = self.indices[special.eos]
        self.unk_index = self.indices[special.unk]
        self.mask_index = self.indices[special.mask]

    def mask(self) -> int:
        """Return the id of ``[MASK]``."""
        return self.mask_index

    def special_symbols(self) -> frozenset[str]:
        """Return the symbols that a model lays sequences out with: raw text that spells one of them is text."""
        words = (self.bos_word, self.pad_word, self.eos_word, self.unk_word, self.symbols[self.mask_index])
        return frozenset({*words, *(symbol for symbol in PLACEHOLDERS if symbol in self.indices)})

    def never_generated(self) -> list[int]:
        """Return the ids of the special symbols that no hypothesis may hold: all of them but eos."""
        return sorted({self.bos_index, self.pad_index, self.unk_index, self.mask_index})

    def __len__(self) -> int:
        """Return the number of ids."""
        return len(self.symbols)

    def __contains__(self, symbol: str) -> bool:
        """Return whether a symbol has an id."""
        return symbol in self.indices

    def index(self, symbol: str) -> int:
        """Return the id of a symbol; that of ``[UNK]`` if it has none."""
        return self.indices.get(symbol, self.unk_index)

    def bos(self) -> int:
        """Return the id of ``[CLS]``."""
        return self.bos_index

    def pad(self) -> int:
        """Return the id of ``[PAD]``."""
        return self.pad_index

    def eos(self) -> int:
        """Return the id of ``[SEP]``."""
        return self.eos_index

    def unk(self) -> int:
        """Return the id of ``[UNK]``."""
        return self.unk_index

    @classmethod
    def load(cls, f: str | IO[str], add_special_symbols: bool = True) -> Self:
        """Load a fairseq dictionary file.

        Raises:
            UserError: if the file is missing, not UTF-8, has malformed lines (the first ten are named with their
                numbers) or lacks a special symbol.
        """
        if not isinstance(f, str):
            return cls._parse(f.read(), getattr(f, "name", "dictionary"))
        if not os.path.exists(f):
            raise UserError(f"dictionary {f} does not exist")
        if os.path.isdir(f):
            raise UserError(f"dictionary {f} must be a file, but is a folder")
        try:
            text = read_text(Path(f))
        except UserError as error:
            raise UserError(f"dictionary {error}") from None
        return cls._parse(text, f)

    @classmethod
    def _parse(cls, text: str, name: str) -> Self:
        symbols: list[tuple[str, int]] = []
        problems: list[str] = []
        # Not splitlines(): some vocabularies have U+2028 and other line separators as symbols.
        flagged: set[int] = set()
        roles: list[tuple[str, str]] = []
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            plain, mark, role = line.removesuffix("\r").partition(_ROLE)
            symbol, _, count = plain.removesuffix(_OVERWRITE).rpartition(" ")
            if symbol and "\r" not in symbol and (counted := whole_number(count)) is not None:
                symbols.append((symbol, counted))
            else:
                problems.append(f"{name}, line {number}: needs '<symbol> <count>', found {shown(line)}")
            if plain.endswith(_OVERWRITE):
                flagged.add(number)
            if mark:
                roles.append((role, symbol))
        if problems:
            raise UserError.of(problems, f"{len(problems)} malformed lines in dictionary {name}:", most=10)
        if roles:
            return cls(symbols, _stated_symbols(roles, name))
        _check_overwritten([symbol for symbol, _ in symbols], flagged, name)
        if not {BERT_SYMBOLS.pad, ROBERTA_SYMBOLS.pad, LLAMA_BOS} & {symbol for symbol, _ in symbols}:
            _check_repeated([symbol for symbol, _ in symbols], flagged, name)
            symbols = _as_fairseq_reads(symbols)
        try:
            return cls(symbols, _special_symbols(symbols))
        except UserError as error:
            raise UserError(f"{name}: {error}") from None

    def save(self, f: str | IO[str]) -> None:
        """Write a file; create its folder if it is missing."""
        if isinstance(f, str):
            os.makedirs(os.path.dirname(os.path.abspath(f)), exist_ok=True)
            with open(f, "w", encoding="utf-8") as file:
                self.save(file)
            return
        roles = vars(self.special) if self.is_stated else {}
        marks = {self.indices[symbol]: f"{_ROLE}{role}" for role, symbol in roles.items()}
        for number in range(self.nspecial, len(self.symbols)):
            mark = marks.get(number, "")
            print(f"{self.symbols[number]} {self.count[number]}{mark}", file=f)

    @classmethod
    def of(cls, symbols: Sequence[str], special: SpecialSymbols | None = None) -> Self:
        """Make a dictionary of all symbols of a vocabulary, in the order of their ids.

        Args:
            symbols: the symbols.
            special: its special symbols; None: those that the names of its family tell.

        Raises:
            UserError: if a special symbol is missing.
        """
        counted = [(symbol, 1) for symbol in symbols]
        return cls(counted, special or _special_symbols(counted))


def _stated_symbols(roles: Sequence[tuple[str, str]], name: str) -> SpecialSymbols:
    """Return the special symbols that a dictionary file states.

    Args:
        roles: the uses of symbols, and these symbols.
        name: the file.

    Raises:
        UserError: a use is unknown, missing or stated twice, or a symbol has several.
    """
    found = dict(roles)
    needed = [field.name for field in fields(SpecialSymbols)]
    if sorted(role for role, _ in roles) != sorted(needed) or len(set(found.values())) < len(found):
        stated = ", ".join(f"{symbol} as {role}" for role, symbol in roles[:10])
        raise UserError(
            f"dictionary {name} must state another symbol for each of {', '.join(needed)} (lines that end "
            f"in{_ROLE}bos and so on), but states {shown(stated)}"
        )
    return SpecialSymbols(**found)


def _check_overwritten(symbols: Sequence[str], flagged: Collection[int], name: str) -> None:
    """Check that no line of a dictionary file gives one of fairseq's first symbols another id.

    Args:
        symbols: the symbol of each line.
        flagged: the numbers of the lines, from 1, with fairseq's flag, which replaces the id of a symbol.
        name: the file.

    Raises:
        UserError: naming such lines.
    """
    problems = [
        f"{name}, line {number}: {symbol} has the flag{_OVERWRITE}"
        for number, symbol in enumerate(symbols, 1)
        if symbol in FAIRSEQ_SYMBOLS and number in flagged
    ]
    if problems:
        heading = f"dictionary {name} gives symbols that fairseq puts first another id, which this package cannot read:"
        raise UserError.of(problems, heading)


def _check_repeated(symbols: Sequence[str], flagged: Collection[int], name: str) -> None:
    """Check that symbols of a file of fairseq come again only with its flag; the arguments are as above.

    Raises:
        UserError: naming the first ten others.
    """
    known, problems = set(FAIRSEQ_SYMBOLS), []
    for number, symbol in enumerate(symbols, 1):
        if symbol in known and number not in flagged:
            problems.append(f"{name}, line {number}: {symbol} has an id already")
        known.add(symbol)
    if problems:
        raise UserError.of(problems, f"dictionary {name} repeats symbols without the flag{_OVERWRITE}:", most=10)


def _as_fairseq_reads(symbols: list[tuple[str, int]]) -> list[tuple[str, int]]:
    """Add the symbols that fairseq adds to those of a file: its four symbols before, and RoBERTa's mask after them."""
    masks = [] if any(symbol == ROBERTA_SYMBOLS.mask for symbol, _ in symbols) else [ROBERTA_SYMBOLS.mask]
    return [(symbol, 1) for symbol in FAIRSEQ_SYMBOLS] + symbols + [(symbol, 1) for symbol in masks]


def _special_symbols(symbols: list[tuple[str, int]]) -> SpecialSymbols:
    """Return the special symbols of a vocabulary's family, which any one of them identifies if others are missing."""
    names = {symbol for symbol, _ in symbols}
    if names.issuperset([*vars(MPNET_SYMBOLS).values(), BERT_SYMBOLS.pad]):
        return MPNET_SYMBOLS
    if names & set(vars(BERT_SYMBOLS).values()):
        return BERT_SYMBOLS
    if LLAMA_BOS in names:
        return _llama_symbols([symbol for symbol, _ in symbols])
    return GEMMA_SYMBOLS if GEMMA_SYMBOLS.bos in names else ROBERTA_SYMBOLS


def _llama_symbols(symbols: Sequence[str]) -> SpecialSymbols:
    """Return the special symbols of EuroBERT, whose vocabulary is Llama's.

    EuroBERT pads with its end symbol, which targets need as well, and has no unknown symbol. Here two reserved symbols
    are the padding and the unknown symbol.
    """
    reserved = [symbol for symbol in symbols if _LLAMA_RESERVED.fullmatch(symbol)]
    pad, unk = (*reserved, "<|reserved_special_token_0|>", "<|reserved_special_token_1|>")[:2]
    return SpecialSymbols(bos=LLAMA_BOS, pad=pad, eos="<|end_of_text|>", unk=unk, mask="<|mask|>")
