"""Tokenizers made with Hugging Face's `tokenizers`: what they share, and whatever a ``tokenizer.json`` describes.

Among the latter are ModernBERT's BPE, mmBERT's, and XLM-R's Unigram.
"""

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.symbols import Pieces, read_symbol, write_symbol
from s2sft_fairseq.tokenization.vocabulary import Vocabulary

if TYPE_CHECKING:
    from tokenizers import Tokenizer as Library


class LibraryTokenizer:
    """Encode raw lines to symbols of the dictionary, separated by spaces, and decode generated symbols to text."""

    def __init__(
        self,
        dictionary: PretrainedDictionary,
        library: "Library",
        kept: Iterable[str],
        names: Mapping[str, str] | None = None,
    ) -> None:
        """Take a tokenizer of the library.

        Args:
            dictionary: of the model; a token that it lacks is written as its unknown symbol.
            library: the tokenizer, without truncation and padding.
            kept: tokens that stay whole where raw text holds them.
            names: the symbols of tokens that are not written as themselves.
        """
        from tokenizers import AddedToken, pre_tokenizers

        self.dictionary = dictionary
        self.library = library
        library.add_special_tokens([AddedToken(token, special=True) for token in kept])
        names = names or {}
        ids = library.get_vocab(with_added_tokens=True)
        # The symbol of each id of the library, whose ids need not be the dictionary's.
        self.symbols = [dictionary.unk_word] * (max(ids.values()) + 1)
        for token, number in ids.items():
            symbol = names.get(token) or write_symbol(token)
            if symbol in dictionary:
                self.symbols[number] = symbol
        # What the library's decoder must be given for a symbol, where that is not its token.
        self.pieces = {symbol: token for token, symbol in names.items()}
        if "ByteLevel(" in repr(library.decoder):
            # Its pieces spell bytes, but tokens kept whole are plain text.
            spelling = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
            for token in map(str, library.get_added_tokens_decoder().values()):
                self.pieces[write_symbol(token)] = spelling.pre_tokenize_str(token)[0][0]

    def encode(self, line: str) -> str:
        """Return the symbols of a raw line."""
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[str]:
        """Encode many lines, on all cores unless TOKENIZERS_PARALLELISM is false in the environment."""
        symbol_of = self.symbols.__getitem__
        encodings = self.library.encode_batch_fast(lines, add_special_tokens=False)
        return [" ".join(map(symbol_of, encoding.ids)) for encoding in encodings]

    def encode_pieces(self, lines: Sequence[str]) -> list[Pieces]:
        """Encode many lines and tell where each symbol comes from."""
        encodings = self.library.encode_batch(lines, add_special_tokens=False)
        return [Pieces([self.symbols[number] for number in found.ids], found.offsets) for found in encodings]

    def decode(self, tokens: str) -> str:
        """Return the text of symbols."""
        pieces = [self.pieces.get(symbol) or read_symbol(symbol) for symbol in tokens.split()]
        return self.library.decoder.decode(pieces) if self.library.decoder else " ".join(pieces)


def require_library(path: Path) -> None:
    """Make sure that the library can be imported.

    Raises:
        UserError: if it is not installed.
    """
    try:
        import tokenizers  # noqa: F401
    except ImportError as error:
        raise UserError(
            f"{path} needs the package tokenizers, which is not installed: pip install tokenizers"
        ) from error


def load_library_file(path: Path) -> "Library":
    """Load a ``tokenizer.json``, without the truncation and padding that it may ask for.

    Raises:
        UserError: if the library cannot read it.
    """
    require_library(path)
    from tokenizers import Tokenizer as Library

    library = made_by_library(path, Library.from_file, str(path))
    library.no_truncation()
    library.no_padding()
    return library


def made_by_library(path: Path, make: Any, *arguments: Any, **options: Any) -> Any:
    """Return ``make(...)``; whatever the library, which has no exceptions of its own, finds wrong lies in `path`."""
    try:
        return make(*arguments, **options)
    except Exception as error:
        raise UserError(f"{path} cannot be used by the package tokenizers: {error}") from error


class TokenizerJson(LibraryTokenizer):
    """A tokenizer that does what its file says, normalization and decoding included."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load the tokenizer.

        Raises:
            UserError: if `tokenizers` is not installed or cannot read the file.
        """
        kept = [dictionary.eos_word, dictionary.symbols[dictionary.mask()], *vocabulary.added]
        super().__init__(dictionary, load_library_file(folder / vocabulary.files[0]), kept)
