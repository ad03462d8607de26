"""A dictionary that keeps the ids of a pretrained vocabulary.

fairseq's own `Dictionary` puts four symbols of its own before every file. That is right for RoBERTa-like vocabularies,
whose embeddings were trained with it, and wrong for BERT-like ones, where row *i* of the embedding is line *i* of
``vocab.txt``. Which of the two a file holds is read off its symbols: a BERT-like one names
``[PAD]``, ``[CLS]`` and so on.
"""

import logging
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from fairseq.data import Dictionary

from s2sft_fairseq.errors import UserError

logger = logging.getLogger(__name__)


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


class PretrainedDictionary(Dictionary):
    """Symbol *i* is token *i* of the pretrained vocabulary; bos and eos are ``[CLS]`` and ``[SEP]`` or their like.

    Files have fairseq's format, ``<symbol> <count>`` a line. A symbol that comes twice keeps both ids, so that no later
    id shifts (``[unused99]`` in UniLM 1.2); text is encoded to the first.
    """

    def __init__(self, symbols: list[tuple[str, int]], special: SpecialSymbols) -> None:
        """Take all symbols with their counts, in the order of their ids.

        Raises:
            UserError: if a special symbol is missing.
        """
        super().__init__(bos=special.bos, pad=special.pad, eos=special.eos, unk=special.unk, add_special_symbols=False)
        # What save() leaves out: fairseq's four symbols, where they stand first.
        self.nspecial = 4 if special is ROBERTA_SYMBOLS else 0
        for symbol, count in symbols:
            self.indices.setdefault(symbol, len(self.symbols))
            self.symbols.append(symbol)
            self.count.append(count)
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

    def never_generated(self) -> list[int]:
        """Return the ids of the special symbols that no hypothesis may hold: all of them but eos."""
        return sorted({self.bos_index, self.pad_index, self.unk_index, self.mask_index})

    @classmethod
    def load(cls, f: str | IO[str], add_special_symbols: bool = True) -> "PretrainedDictionary":
        """Load a fairseq dictionary file.

        Raises:
            UserError: if the file is missing, not UTF-8, has malformed lines (the first ten are named with their
                numbers) or lacks a special symbol.
        """
        if not isinstance(f, str):
            return cls._parse(f.read(), getattr(f, "name", "dictionary"))
        return cls._parse(_read_text("dictionary", Path(f)), f)

    @classmethod
    def _parse(cls, text: str, name: str) -> "PretrainedDictionary":
        symbols: list[tuple[str, int]] = []
        problems: list[str] = []
        # Not splitlines(): some vocabularies hold U+2028 and its like as tokens.
        for number, line in enumerate(text.removesuffix("\n").split("\n"), start=1):
            symbol, _, count = line.removesuffix("\r").removesuffix(" #fairseq:overwrite").rpartition(" ")
            if symbol and count.isascii() and count.isdigit():
                symbols.append((symbol, int(count)))
            else:
                problems.append(f"{name}, line {number}: needs '<symbol> <count>', found {line[:60]!r}")
        if problems:
            raise UserError.of(problems[:10], f"{len(problems)} malformed lines in dictionary {name}:")
        names = {symbol for symbol, _ in symbols}
        try:
            # Any of them, so that a BERT-like file that lacks one is not taken for the other kind.
            if names & set(vars(BERT_SYMBOLS).values()):
                return cls(symbols, BERT_SYMBOLS)
            own = [ROBERTA_SYMBOLS.bos, ROBERTA_SYMBOLS.pad, ROBERTA_SYMBOLS.eos, ROBERTA_SYMBOLS.unk]
            if ROBERTA_SYMBOLS.mask not in names:
                symbols.append((ROBERTA_SYMBOLS.mask, 1))
            return cls([(symbol, 1) for symbol in own] + symbols, ROBERTA_SYMBOLS)
        except UserError as error:
            raise UserError(f"{name}: {error}") from None

    @classmethod
    def from_vocabulary(cls, path: Path) -> "PretrainedDictionary":
        """Load a BERT ``vocab.txt``, one token a line.

        Raises:
            UserError: if the file is missing, not UTF-8 or lacks a special symbol.
        """
        tokens = _read_text("vocabulary", path).removesuffix("\n").split("\n")
        try:
            return cls([(token.removesuffix("\r"), 1) for token in tokens], BERT_SYMBOLS)
        except UserError as error:
            raise UserError(f"{path}: {error}") from None

    def add_from_file(self, f: str | IO[str]) -> None:
        """Not supported: ids come from one file alone; use :meth:`load`."""
        raise NotImplementedError("ids of a pretrained vocabulary come from one file: use PretrainedDictionary.load")


def _read_text(what: str, path: Path) -> str:
    """Read a file as it is: line ends are not touched, for some vocabularies hold line separators as tokens."""
    try:
        return path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise UserError(f"{what} {path} does not exist") from None
    except IsADirectoryError:
        raise UserError(f"{what} {path} must be a file, but is a folder") from None
    except UnicodeDecodeError as error:
        raise UserError(f"{what} {path} must be UTF-8, but byte {error.start} is not") from None
