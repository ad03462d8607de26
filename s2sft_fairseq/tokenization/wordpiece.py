"""BERT's WordPiece tokenization.

The pieces of a line equal those of BERT's own tokenizer: text is cleaned of control characters, split at white space,
punctuation and every Chinese character, and each word into the longest pieces that the vocabulary holds.
"""

import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sft_fairseq.data.dictionary import BERT_SYMBOLS, PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.detokenization import detokenize
from s2sft_fairseq.tokenization.library_tokenizer import LibraryTokenizer, load_library_file, require_library
from s2sft_fairseq.tokenization.symbols import read_symbol
from s2sft_fairseq.tokenization.vocabulary import Vocabulary, read_config, read_vocab_txt

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"


class WordPiece(LibraryTokenizer):
    """Encode raw lines to word pieces, and decode generated pieces to readable text."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load the vocabulary.

        Raises:
            UserError: if `tokenizers` is not installed, or if the vocabulary lacks a special token.
        """
        path = folder / vocabulary.files[0]
        if path.name == "tokenizer.json":
            library = load_library_file(path)
        else:
            library = _make_library(path, bool(vocabulary.lower), read_config(folder))
        super().__init__(dictionary, library, [*SPECIAL_TOKENS, *vocabulary.added])

    def decode(self, tokens: str) -> str:
        """Join pieces to words and set the spaces as in ordinary text; what encoding dropped does not come back."""
        words: list[str] = []
        for piece in map(read_symbol, tokens.split()):
            if piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION) and words:
                words[-1] += piece.removeprefix(CONTINUATION)
            else:
                words.append(piece)
        return detokenize(words)


def _make_library(path: Path, lower: bool, config: dict[str, Any]) -> "Library":
    """Make the tokenizer of a ``vocab.txt``.

    Raises:
        UserError: if the vocabulary lacks a special token.
    """
    require_library(path)
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers

    # Of a token that comes twice, the last counts, as in BERT.
    ids = {token: number for number, token in enumerate(read_vocab_txt(path))}
    if missing := [token for token in SPECIAL_TOKENS if token not in ids]:
        raise UserError(
            f"{path}: a WordPiece vocabulary needs {', '.join(SPECIAL_TOKENS)}, but it lacks {', '.join(missing)}"
        )
    capitals = sum(token != token.lower() for token in ids if token not in SPECIAL_TOKENS)
    if lower and capitals > len(ids) // 100:
        logger.warning("%s holds capital letters, which lower-cased text never uses: is it a cased vocabulary?", path)
    if not lower and not capitals:
        logger.warning(
            "%s holds no capital letter, but do_lower_case in tokenizer_config.json is false: words with capitals "
            "become %s",
            path,
            BERT_SYMBOLS.unk,
        )
    library = Library(models.WordPiece(ids, unk_token=BERT_SYMBOLS.unk, max_input_chars_per_word=100))
    # NFC as in transformers' own Python tokenizer: a letter and its accent are one character in cased vocabularies.
    # strip_accents=None strips them with lower-casing only, as BERT does.
    bert = normalizers.BertNormalizer(
        lowercase=lower,
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars", True),
    )
    library.normalizer = normalizers.Sequence([normalizers.NFC(), bert])
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library
