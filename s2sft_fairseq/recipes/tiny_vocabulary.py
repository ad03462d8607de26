"""A small WordPiece vocabulary of a corpus, for the recipes' --smoke without a pretrained encoder."""

import json
from collections.abc import Iterable
from pathlib import Path

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = 1000


def write_vocabulary(folder: Path, texts: Iterable[Path], kept: Iterable[str]) -> None:
    """Write ``vocab.txt``, ``added_tokens.json`` and ``dict.txt``, fairseq's dictionary of both.

    Args:
        folder: is made.
        texts: files of raw text.
        kept: tokens that are to stay whole.
    """
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    files = [str(path) for path in texts]
    tokenizer.train(files, vocab_size=PIECES, min_frequency=1, special_tokens=SPECIAL, show_progress=False)
    ids = tokenizer.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    added = {token: len(pieces) + number for number, token in enumerate(kept)}
    folder.mkdir(parents=True)
    for name, text in {
        "vocab.txt": "".join(f"{piece}\n" for piece in pieces),
        "dict.txt": "".join(f"{piece} 1\n" for piece in [*pieces, *added]),
        "added_tokens.json": json.dumps(added),
    }.items():
        (folder / name).write_text(text, encoding="utf-8")
