"""Tokenizers that use Hugging Face's `tokenizers`: byte-level BPE, and those that a ``tokenizer.json`` describes.

GPT-2 and RoBERTa have byte-level BPE, which encodes every text, and decodes to exactly the same text. The symbols of
Hugging Face's RoBERTa are the pieces; those of fairseq's, in its ``dict.txt``, are GPT-2's numbers of the pieces. A
``tokenizer.json`` describes the BPE of ModernBERT and mmBERT or the Unigram model of XLM-R. The module `wordpiece` has
WordPiece.
"""

import json
import logging
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.samples import SAMPLES
from s2sft_fairseq.tokenization.symbols import Pieces, read_symbol, write_symbol
from s2sft_fairseq.tokenization.vocabulary import Vocabulary, read_config, read_ids, read_tokenizer_json

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


logger = logging.getLogger(__name__)


class LibraryTokenizer:
    """A tokenizer of the library that encodes raw lines to symbols of the dictionary, and decodes symbols to text."""

    def __init__(
        self,
        path: Path,
        dictionary: PretrainedDictionary,
        library: "Library",
        whole: Iterable[str],
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Wrap a tokenizer of the library.

        Args:
            path: the tokenizer's file, for errors.
            dictionary: the model's dictionary; a token that it lacks, or that is special, becomes its unknown symbol.
            library: the tokenizer, as `load_library_file` returns it.
            whole: tokens that are not split in raw text.
            names: the symbols of tokens whose symbol differs from the token.
        """
        from tokenizers import AddedToken, pre_tokenizers

        self.path = path
        self.dictionary = dictionary
        self.library = library
        library.add_tokens([AddedToken(token, normalized=False) for token in whole])
        names, special = names or {}, dictionary.special_symbols()
        ids = library.get_vocab(with_added_tokens=True)
        # The symbol of each id of the library. Its ids may differ from the dictionary's.
        self.symbols = [dictionary.unk_word] * (max(ids.values()) + 1)
        for token, number in ids.items():
            symbol = names.get(token) or write_symbol(token)
            if symbol in dictionary and symbol not in special:
                self.symbols[number] = symbol
        # The input of the library's decoder for a symbol, if it is not the symbol's token.
        self.pieces = {symbol: token for token, symbol in names.items()}
        if "ByteLevel(" in repr(library.decoder):
            # The decoder expects spelled bytes, but added tokens and special ones are plain text.
            spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            added = (token.content for token in library.get_added_tokens_decoder().values())
            for token in (*added, *map(read_symbol, special)):
                self.pieces[write_symbol(token)] = spelling.pre_tokenize_str(token)[0][0]
        self._check_samples()

    def _check_samples(self) -> None:
        """Check that not every text becomes nothing.

        Raises:
            UserError: no sample has a symbol, or no symbol of one a text.
        """
        encoded = decoded = False
        for sample in SAMPLES:
            text = "".join(sample.split())  # runs of blanks may be added tokens, which stay in any case
            try:
                # One text at a time: batches start the library's threads, after which processes should not fork.
                ids = made_by_library(self.path, self.library.encode, text, add_special_tokens=False).ids
                encoded |= bool(ids)
                decoded |= bool(self.decode(" ".join(self.symbols[number] for number in ids)))
            except UserError:  # an error for some texts is no loss of all
                return
            if encoded and decoded:
                return
        lost = "its normalizer or pre-tokenizer removes all texts" if not encoded else "its decoder returns no text"
        raise UserError(f"{self.path} cannot be used: {lost}")

    def encode(self, line: str) -> str:
        """Return the symbols of a raw line."""
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[str]:
        """Encode many lines, on all cores unless TOKENIZERS_PARALLELISM is false in the environment.

        Raises:
            UserError: the library cannot encode a line, because the tokenizer has no token for unknown text.
        """
        symbol_of = self.symbols.__getitem__
        encodings = made_by_library(self.path, self.library.encode_batch_fast, lines, add_special_tokens=False)
        return [" ".join(map(symbol_of, encoding.ids)) for encoding in encodings]

    def encode_pieces(self, lines: Sequence[str]) -> list[Pieces]:
        """Encode many lines, with the offsets of each symbol.

        Raises:
            UserError: as `encode_batch`.
        """
        encodings = made_by_library(self.path, self.library.encode_batch, lines, add_special_tokens=False)
        return [Pieces([self.symbols[number] for number in found.ids], found.offsets) for found in encodings]

    def decode(self, tokens: str) -> str:
        """Return the text of symbols.

        Raises:
            UserError: the tokenizer's decoder fails.
        """
        pieces = [self.pieces.get(symbol) or read_symbol(symbol) for symbol in tokens.split()]
        if not self.library.decoder:
            return " ".join(pieces)
        return str(made_by_library(self.path, self.library.decoder.decode, pieces))


def require_library(path: Path) -> None:
    """Check that the library can be imported.

    Raises:
        UserError: it is not installed.
    """
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"{path} needs the package tokenizers, which is not installed: pip install tokenizers"
        ) from error


def load_library_file(path: Path, special: Collection[str] | None = None) -> "Library":
    """Load a ``tokenizer.json`` without its layout of sequences and its random choices.

    Args:
        path: the file.
        special: tokens that no text becomes, besides those that the file calls special; None: text becomes both.

    Raises:
        UserError: the library cannot read it.
    """
    require_library(path)
    from tokenizers import Tokenizer as Library

    document = {**_settled(read_tokenizer_json(path)), **_LAYOUT}
    if special is not None:
        document = made_by_library(path, _for_texts, document, special)
    return made_by_library(path, Library.from_str, json.dumps(document))


_LAYOUT = dict.fromkeys(("truncation", "padding", "post_processor"))
"""Parts of a ``tokenizer.json`` that lay sequences out, which this package does itself."""


_RANDOM = ("dropout", "alpha", "nbest_size")
"""Settings of a model that give a text other pieces each time."""


def copy_tokenizer_json(source: Path, destination: Path) -> None:
    """Copy a ``tokenizer.json``, without settings that make other programs lose texts or split them at random.

    Raises:
        UserError: the library cannot read it.
    """
    document = read_tokenizer_json(source)
    problems = [f"model.{name} is {document['model'][name]}" for name in _RANDOM if document["model"].get(name)]
    if _loses_texts(document.get("post_processor")):
        problems.append("post_processor puts no text into the sequence")
    if not problems:
        shutil.copyfile(source, destination)
        return
    logger.warning("%s: left out: %s", source, ", ".join(problems))
    destination.write_text(json.dumps(_settled(document), ensure_ascii=False), encoding="utf-8")


def _settled(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return a ``tokenizer.json`` without random choices, and without a post-processor that loses texts."""
    processor = document.get("post_processor")
    model = {**document["model"], **{name: None for name in _RANDOM if name in document["model"]}}
    return {**document, "model": model, "post_processor": None if _loses_texts(processor) else processor}


def _loses_texts(processor: Any) -> bool:
    """Return whether a post-processor, or a step of it, has a template that lacks the text."""
    if not isinstance(processor, dict):
        return False
    steps = processor.get("processors")
    if isinstance(steps, list):
        return any(map(_loses_texts, steps))
    template = processor.get("single")
    return isinstance(template, list) and not any(isinstance(part, dict) and "Sequence" in part for part in template)


def _for_texts(document: dict[str, Any], special: Collection[str]) -> dict[str, Any]:
    """Return a ``tokenizer.json`` whose special tokens no text can become.

    The library matches them in text; a Unigram model does so even if they are no added tokens.
    """
    added = document.get("added_tokens") or []
    hidden = {*special, *(token["content"] for token in added if token.get("special"))}
    names = {token: f"{_HIDDEN}{token}" for token in hidden}
    model = dict(document["model"])
    vocabulary = model["vocab"]
    if isinstance(vocabulary, dict):
        model["vocab"] = {names.get(token, token): number for token, number in vocabulary.items()}
    else:
        model["vocab"] = [(names.get(token, token), score) for token, score in vocabulary]
    if model.get("unk_token") in names:
        model["unk_token"] = names[model["unk_token"]]
    if model["type"] == "BPE" and not model.get("unk_token"):
        # Without such a token the library leaves characters out that are no pieces.
        model["unk_token"] = f"{_HIDDEN}unknown"
        model["vocab"] = {**model["vocab"], model["unk_token"]: 1 + max(model["vocab"].values(), default=-1)}
    if "merges" in model:
        model["merges"] = [pair for pair in model["merges"] if not hidden.intersection(_merged(pair))]
    return {**document, "model": model, "added_tokens": [token for token in added if token["content"] not in hidden]}


_HIDDEN = "\U0010ffff"  # no character of any text


def _merged(pair: str | Sequence[str]) -> tuple[str, ...]:
    """Return the pieces of a merge, and what it makes of them."""
    parts = pair.split(" ") if isinstance(pair, str) else pair
    return (*parts, "".join(parts))


def made_by_library(path: Path, make: Any, *arguments: Any, **options: Any) -> Any:
    """Return ``make(...)``. The library has no exceptions of its own: blame any error on the file `path`.

    Raises:
        UserError: the library raised an exception.
    """
    try:
        return make(*arguments, **options)
    except BaseException as error:
        # A panic of the library's Rust code is not an `Exception`, and its class cannot be imported.
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise UserError(f"{path} cannot be used by the package tokenizers: {error}") from error


class TokenizerJson(LibraryTokenizer):
    """A tokenizer that its file describes completely, including normalization and decoding."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load the tokenizer.

        Raises:
            UserError: `tokenizers` is not installed, or cannot read the file.
        """
        path = folder / vocabulary.files[0]
        library = load_library_file(path, set(map(read_symbol, dictionary.special_symbols())))
        super().__init__(path, dictionary, library, vocabulary.whole_tokens(dictionary))


class ByteLevelBpe(LibraryTokenizer):
    """GPT-2's tokenizer; the symbols of the dictionary are its pieces or their numbers."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load pieces and merges.

        Raises:
            UserError: `tokenizers` is not installed, or the files are damaged.
        """
        ids_path, merges_path = (folder / name for name in vocabulary.files[:2])
        require_library(ids_path)
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers

        ids = read_ids(ids_path)
        # For vocabularies that lack some bytes. Those of GPT-2 and RoBERTa have all.
        ids.setdefault(dictionary.unk_word, max(ids.values()) + 1)
        model = made_by_library(
            merges_path, models.BPE, vocab=ids, merges=_read_merges(merges_path), unk_token=dictionary.unk_word
        )
        self.prefix_space = bool(read_config(folder).get("add_prefix_space", False))
        library = Library(model)
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.prefix_space)
        library.decoder = decoders.ByteLevel()
        whole = vocabulary.whole_tokens(dictionary)
        pieces = sum(write_symbol(piece) in dictionary for piece in ids)
        numbers = {piece: str(number) for piece, number in ids.items() if str(number) in dictionary}
        # Some numbers are pieces, too: a dictionary of pieces also has a few hundred numbers.
        super().__init__(ids_path, dictionary, library, whole, names=numbers if len(numbers) > pieces else None)

    def decode(self, tokens: str) -> str:
        """Return the text of symbols."""
        text = super().decode(tokens)
        return text.removeprefix(" ") if self.prefix_space else text


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Read the pairs of pieces to merge, in the order of priority."""
    try:
        lines = list(read_lines(path))
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot be read as UTF-8 text: {error}") from None
    merges, problems = [], []
    for number, line in enumerate(lines, 1):
        pair = line.split(" ")
        if len(pair) == 2 and all(pair) and not (number == 1 and line.startswith("#version")):
            merges.append((pair[0], pair[1]))
        elif line and number > 1:
            problems.append(f"{path}, line {number}: needs two pieces to merge, found {line[:60]!r}")
    if problems:
        raise UserError.of(problems, f"{len(problems)} malformed lines in {path}:", most=10)
    return merges
