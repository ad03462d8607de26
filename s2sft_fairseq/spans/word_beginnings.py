"""Which pieces of a tokenizer begin a word: those that white space stands before.

This is fairseq's convention for masking whole words. WordPiece marks the other pieces (``##ing``), byte-level BPE
(``Ġthe``) and SentencePiece (``▁the``) mark those that begin one. So punctuation is a word of its own with WordPiece
alone, and in scripts without spaces only WordPiece, which splits at every Chinese character, has words of any use.
"""

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.spans.words import WordRule
from s2sft_fairseq.tokenization.folder import Tokenizer
from s2sft_fairseq.tokenization.wordpiece import CONTINUATION, WordPiece

_BEGINNINGS = ("Ġ", "▁")
_LEAST_MARKED = 0.01  # of all pieces: other vocabularies may hold such a mark as a letter


def word_rule(tokenizer: Tokenizer) -> WordRule:
    """Tell the words of a tokenizer apart.

    Raises:
        UserError: if its pieces do not show where words begin, as those of fastBPE, which mark where words end.
    """
    symbols = tokenizer.dictionary.symbols
    if isinstance(tokenizer, WordPiece):
        continues = [symbol.startswith(CONTINUATION) and len(symbol) > len(CONTINUATION) for symbol in symbols]
    else:
        # fairseq's RoBERTa numbers its pieces: only its tokenizer knows how they are spelled.
        spelled = getattr(tokenizer, "pieces", {})
        pieces = [spelled.get(symbol, symbol) for symbol in symbols]
        mark = _mark(pieces)
        continues = [not piece.startswith(mark) for piece in pieces]
    return WordRule.of(tokenizer.dictionary, np.flatnonzero(continues))


def _mark(pieces: list[str]) -> str:
    counts = {mark: sum(piece.startswith(mark) for piece in pieces) for mark in _BEGINNINGS}
    mark = max(_BEGINNINGS, key=lambda mark: counts[mark])
    if counts[mark] < _LEAST_MARKED * len(pieces):
        raise UserError(
            "--tokenizer-dir needs pieces that show where words begin, by '##' (WordPiece), 'Ġ' (byte-level BPE) or "
            f"'▁' (SentencePiece), but of {len(pieces)} only {counts[mark]} begin with '{mark}'"
        )
    return mark
