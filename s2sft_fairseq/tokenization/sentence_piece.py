"""SentencePiece models, such as XLM-R's."""

from collections.abc import Iterator, Sequence
from pathlib import Path

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.tokenization.sentencepiece_model import load_sentencepiece, sentencepiece_pieces
from s2sft_fairseq.tokenization.symbols import KeptTokens, Pieces, write_symbol
from s2sft_fairseq.tokenization.vocabulary import Vocabulary


class SentencePiece:
    """A SentencePiece model. Pieces that the dictionary lacks become its unknown symbol."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load the model.

        Raises:
            UserError: `sentencepiece` is not installed, or cannot read the file.
        """
        self.dictionary = dictionary
        path = folder / vocabulary.files[0]
        self.model = load_sentencepiece(path, dictionary.special_symbols())
        pieces = [write_symbol(piece) for piece in sentencepiece_pieces(self.model, path)]
        special = dictionary.special_symbols()
        # A model of users' own symbols may match special ones in text.
        self.symbols = [
            piece if piece in dictionary and piece not in special else dictionary.unk_word for piece in pieces
        ]
        self.kept = KeptTokens(vocabulary.whole_tokens(dictionary), special)

    def encode(self, line: str) -> str:
        """Return the symbols of a raw line, separated by spaces."""
        return self.encode_batch([line])[0]

    def encode_batch(self, lines: Sequence[str]) -> list[str]:
        """Encode many lines, on one core."""
        return self.kept.encode_around(lines, self._encode_texts)

    def _encode_texts(self, texts: list[str]) -> Iterator[str]:
        symbol_of = self.symbols.__getitem__
        for ids in self.model.encode(texts, out_type=int, num_threads=1):
            yield " ".join(map(symbol_of, ids))

    def encode_pieces(self, lines: Sequence[str]) -> list[Pieces]:
        """Encode many lines, with the offsets of each symbol."""
        return [self.kept.pieces_around(line, self._pieces_of) for line in lines]

    def _pieces_of(self, text: str) -> Pieces:
        found = self.model.encode(text, return_type="offset_mapping")
        return Pieces([self.symbols[number] for number in found["ids"]], found["offsets"])

    def decode(self, tokens: str) -> str:
        """Return the text of symbols."""
        return self.kept.decode_around(tokens.split(), self.model.decode_pieces)
