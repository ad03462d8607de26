"""A small WordPiece vocabulary of a corpus, for the recipes' --smoke without a pretrained encoder."""

import argparse
import json
from pathlib import Path

from tokenizers import BertWordPieceTokenizer

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
PIECES = 1000


def main() -> None:
    """Write ``vocab.txt``, ``added_tokens.json`` and ``dict.txt``, fairseq's dictionary of both."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--input", nargs="+", required=True, metavar="FILE", help="raw text")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="new folder to write to")
    parser.add_argument("--keep", nargs="*", default=[], metavar="TOKEN", help="tokens that are to stay whole")
    options = parser.parse_args()

    tokenizer = BertWordPieceTokenizer()
    tokenizer.train(options.input, vocab_size=PIECES, min_frequency=1, special_tokens=SPECIAL, show_progress=False)
    ids = tokenizer.get_vocab()
    pieces = sorted(ids, key=ids.__getitem__)
    added = {token: len(pieces) + number for number, token in enumerate(options.keep)}
    options.output.mkdir(parents=True)
    files = {
        "vocab.txt": "".join(f"{piece}\n" for piece in pieces),
        "dict.txt": "".join(f"{piece} 1\n" for piece in [*pieces, *added]),
        "added_tokens.json": json.dumps(added),
    }
    for name, text in files.items():
        (options.output / name).write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
