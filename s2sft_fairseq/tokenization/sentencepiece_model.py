"""Load models of SentencePiece, which only its own library can read."""

import re
from collections.abc import Collection
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError, package, shown
from s2sft_fairseq.tokenization.symbols import read_symbol

_CONTROL = 3  # the type of a control piece in sentencepiece_model.proto; 4: user-defined


def load_sentencepiece(path: Path, special: Collection[str] = ()) -> Any:
    """Load a `SentencePieceProcessor`.

    Args:
        path: the file of the model.
        special: pieces that no text becomes, also if they are "user-defined" in the model.

    Raises:
        UserError: `sentencepiece` is not installed, or the file is not one of its models.
    """
    processor = package("sentencepiece", str(path)).SentencePieceProcessor
    try:
        content = path.read_bytes()
        model = processor(model_proto=content)
        if special and (changed := _as_control(content, special)) != content:
            model = processor(model_proto=changed)
    except (OSError, RuntimeError):
        raise UserError(f"{path} must be a SentencePiece model, but is another file or damaged") from None
    if not 0 <= model.unk_id() < model.get_piece_size():
        raise UserError(
            f"{path} must have a piece for unknown text, but none of its {model.get_piece_size()} pieces is one"
        )
    return model


def _as_control(content: bytes, special: Collection[str]) -> bytes:
    """Return a SentencePiece model whose user-defined pieces are control pieces where they are special symbols.

    Text becomes the former, but never the latter. A piece is stored as its text, its score and its type.
    """
    changed = bytearray(content)
    for symbol in special:
        text = read_symbol(symbol).encode()
        named = b"\x0a" + bytes([len(text)]) + text
        for found in re.finditer(re.escape(named) + rb"\x15.{4}\x18\x04", content, re.S):
            changed[found.end() - 1] = _CONTROL
    return bytes(changed)


def sentencepiece_pieces(model: Any, path: Path) -> list[str]:
    """Return the pieces of a `SentencePieceProcessor` by id.

    Args:
        model: the processor.
        path: its file, for the message.

    Raises:
        UserError: a piece is not UTF-8.
    """
    pieces = []
    for number in range(model.get_piece_size()):
        try:
            pieces.append(model.id_to_piece(number))
        except UnicodeDecodeError as error:
            raise UserError(f"{path} must hold pieces in UTF-8, but piece {number} is {shown(error.object)}") from None
    return pieces
