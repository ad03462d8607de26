"""BERT's WordPiece tokenization, and detokenization that restores the spaces of ordinary text.

The pieces of a line equal those of BERT's own tokenizer: control characters are removed, text is split at white space,
punctuation and every Chinese character, and each word is split into the longest pieces of the vocabulary.
"""

import json
import logging
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sft_fairseq.data.dictionary import BERT_SYMBOLS, PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.library_tokenizer import LibraryTokenizer, load_library_file, require_library
from s2sft_fairseq.tokenization.symbols import read_symbol
from s2sft_fairseq.tokenization.vocabulary import Vocabulary, read_config, read_vocab_txt

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
_TINY = 1000  # pieces of the vocabulary of `train_wordpiece`

_CLOSING = frozenset(".,;:!?)]}%”’»…")
_OPENING = frozenset("([{“«¿¡$£€¥@")
_QUOTES = frozenset("\"'")
_INSIDE_WORDS = frozenset("-\u2010\u2011\u2013\u2014_/^\u2019")  # with typographic hyphens, dashes and apostrophe
_CONTRACTIONS = frozenset({"s", "t", "re", "ve", "ll", "d", "m"})
_ORDINALS = frozenset({"st", "nd", "rd", "th", "s"})
_DOMAINS = frozenset({"com", "org", "net", "edu", "gov"})
_ELIDED = frozenset({"o", "d", "l"})  # o'clock, d'accord, l'eau
# The characters that BERT splits off, and kana and punctuation, which have no spaces around them either.
UNSPACED = re.compile("[\u3001-\u30ff\u3400-\u4dbf\u4e00-\u9fff\uf900-\ufaff\uff01-\uff65\U00020000-\U0002fa1f]")
_SPECIAL = re.compile(r"\[[A-Z]+\]")


class WordPiece(LibraryTokenizer):
    """A tokenizer that encodes raw lines to word pieces, and decodes pieces to readable text."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load the vocabulary.

        Raises:
            UserError: `tokenizers` is not installed, or the vocabulary lacks a special token.
        """
        path = folder / vocabulary.files[0]
        special = _special_tokens(dictionary)
        if path.name == "tokenizer.json":
            library = load_library_file(path, special)
        else:
            library = _make_library(path, special, bool(vocabulary.lower), read_config(folder))
        super().__init__(path, dictionary, library, vocabulary.whole_tokens(dictionary))

    def decode(self, tokens: str) -> str:
        """Join pieces to words with the spaces of ordinary text; case and accents that were removed stay lost."""
        words: list[str] = []
        for piece in map(read_symbol, tokens.split()):
            if piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION) and words:
                words[-1] += piece.removeprefix(CONTINUATION)
            else:
                words.append(piece)
        return detokenize(words)


def _special_tokens(dictionary: PretrainedDictionary) -> list[str]:
    """Return the special tokens: `SPECIAL_TOKENS`, or those that MPNet has in their places."""
    words = (dictionary.pad_word, dictionary.unk_word, dictionary.bos_word, dictionary.eos_word)
    return [*map(read_symbol, words), read_symbol(dictionary.symbols[dictionary.mask()])]


def _make_library(path: Path, special: list[str], lower: bool, config: dict[str, Any]) -> "Library":
    """Return the tokenizer of a ``vocab.txt``.

    Raises:
        UserError: the vocabulary lacks a special token.
    """
    require_library(path)
    from tokenizers import Tokenizer as Library
    from tokenizers import models, normalizers, pre_tokenizers

    # A repeated token has its last id, as in BERT.
    ids = {token: number for number, token in enumerate(read_vocab_txt(path))}
    if missing := [token for token in special if token not in ids]:
        raise UserError(f"{path}: a WordPiece vocabulary needs {', '.join(special)}, but it lacks {', '.join(missing)}")
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
    # NFC as in transformers' own Python tokenizer: in cased vocabularies a letter with its accent is one character.
    # strip_accents=None removes accents only together with lower-casing, as BERT does.
    bert = normalizers.BertNormalizer(
        lowercase=lower,
        strip_accents=config.get("strip_accents"),
        handle_chinese_chars=config.get("tokenize_chinese_chars") is not False,
    )
    library.normalizer = normalizers.Sequence([normalizers.NFC(), bert])
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return library


def detokenize(words: list[str]) -> str:
    """Join words and punctuation marks, with spaces where ordinary text has them.

    BERT's tokenizer splits at every punctuation mark and Chinese character, and drops the spaces. The rules restore the
    most frequent spelling in English text.
    """
    padded = ["", *words, "", ""]
    # joined[i]: whether token i has no space before it, and whether it has no space after it
    joined = [_joined(*padded[at : at + 4]) for at in range(len(words))]
    quotes = [at for at, word in enumerate(words) if word in _QUOTES and joined[at] != (True, True)]
    last = {words[at]: at for at in quotes}
    open_quotes: set[str] = set()
    for at in quotes:
        word = words[at]
        plural = word == "'" and at and at == last[word] and words[at - 1].endswith("s")  # as in the readers' own
        joined[at] = (True, False) if plural or word in open_quotes else (False, True)
        if not plural:
            open_quotes ^= {word}
    text = words[:1]
    for at in range(1, len(words)):
        text += [words[at]] if joined[at][0] or joined[at - 1][1] else [" ", words[at]]
    return "".join(text)


def _joined(before: str, word: str, after: str, second: str) -> tuple[bool, bool]:
    """Return whether `word` has no space before it, and whether it has no space after it.

    Args:
        before: the token before `word`, "" at the start.
        word: the token.
        after: the token after it, "" at the end.
        second: the token after that.
    """
    if _SPECIAL.fullmatch(word):
        return False, False
    if word == "#":  # a masked digit, as in #.# or ##th, or the sign before a number
        return before == "#", after == "#" or after.isdigit() or (before == "#" and after in _ORDINALS)
    within_word = _is_letter(before[-1:]) and _is_letter(after[:1])
    within_number = _in_number(before) and _in_number(after)
    if (word in _INSIDE_WORDS and within_word) or word == "—":
        return True, True
    if word == "'" and within_word and (after.lower() in _CONTRACTIONS or before.lower() in _ELIDED):
        return True, True
    thousands = len(after) == 3 or after == second == "#"
    if within_number and (word in (".", ":") or (word == "," and thousands)):  # 3.14, 10:30, 1,000
        return True, True
    if word == "." and within_word and len(before) == len(after) == 1 and second == ".":  # e.g.
        return True, True
    if word == "." and within_word and (before == "www" or after in _DOMAINS):
        return True, True
    if word == ":" and ":" in (before, after):  # at::native
        return True, True
    if word == "_":
        return before[:1].isalnum() or before == "_", True
    if word == "-" and before == "-":
        return True, False
    if word == "-" and after.isdigit():  # a negative number
        return False, True
    if word in _CLOSING:
        return not _SPECIAL.fullmatch(before), False
    if word in _OPENING:
        return word == "(" and after == ")", True  # f()
    return bool(UNSPACED.match(word) and UNSPACED.match(before)), False


def _is_letter(character: str) -> bool:
    return character.isalnum() or character == "#"


def _in_number(token: str) -> bool:
    return token.isdigit() or token == "#"


def train_wordpiece(folder: Path, texts: Iterable[Path], kept: Iterable[str]) -> None:
    """Train a tiny vocabulary, for trials without a pretrained encoder.

    It consists of ``vocab.txt``, ``added_tokens.json``, and ``dict.txt``, fairseq's dictionary of both.

    Args:
        folder: the folder to create.
        texts: files of raw text.
        kept: tokens that must not be split.
    """
    from tokenizers import BertWordPieceTokenizer

    tokenizer = BertWordPieceTokenizer()
    files = [str(path) for path in texts]
    tokenizer.train(files, vocab_size=_TINY, min_frequency=1, special_tokens=[*SPECIAL_TOKENS], show_progress=False)
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
