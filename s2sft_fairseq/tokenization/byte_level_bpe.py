"""The byte-level BPE of GPT-2 and RoBERTa: every text has pieces, and they give back exactly that text.

Hugging Face's RoBERTa names its pieces; fairseq's numbers them as GPT-2 does, and its ``dict.txt`` holds the numbers.
"""

from pathlib import Path

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.text_files import read_lines
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.library_tokenizer import LibraryTokenizer, made_by_library, require_library
from s2sft_fairseq.tokenization.symbols import write_symbol
from s2sft_fairseq.tokenization.vocabulary import Vocabulary, read_config, read_ids


class ByteLevelBpe(LibraryTokenizer):
    """GPT-2's tokenizer, with whichever symbols the dictionary has."""

    def __init__(self, folder: Path, vocabulary: Vocabulary, dictionary: PretrainedDictionary) -> None:
        """Load pieces and merges.

        Raises:
            UserError: if `tokenizers` is not installed or the files are damaged.
        """
        ids_path, merges_path = (folder / name for name in vocabulary.files[:2])
        require_library(ids_path)
        from tokenizers import Tokenizer as Library
        from tokenizers import decoders, models, pre_tokenizers

        ids = read_ids(ids_path)
        # Of a vocabulary that lacks some bytes; those of GPT-2 and RoBERTa have all.
        ids.setdefault(dictionary.unk_word, max(ids.values()) + 1)
        model = made_by_library(
            merges_path, models.BPE, vocab=ids, merges=_read_merges(merges_path), unk_token=dictionary.unk_word
        )
        self.prefix_space = bool(read_config(folder).get("add_prefix_space", False))
        library = Library(model)
        library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=self.prefix_space)
        library.decoder = decoders.ByteLevel()
        kept = [dictionary.eos_word, dictionary.symbols[dictionary.mask()], *vocabulary.added]
        pieces = sum(write_symbol(piece) in dictionary for piece in ids)
        numbers = {piece: str(number) for piece, number in ids.items() if str(number) in dictionary}
        # Some numbers are pieces too, so that a dictionary of pieces holds a few hundred of them.
        super().__init__(dictionary, library, kept, names=numbers if len(numbers) > pieces else None)

    def decode(self, tokens: str) -> str:
        """Return the text of symbols."""
        text = super().decode(tokens)
        return text.removeprefix(" ") if self.prefix_space else text


def _read_merges(path: Path) -> list[tuple[str, str]]:
    """Read the pairs of pieces that are merged, most urgent first."""
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
        raise UserError.of(problems[:10], f"{len(problems)} malformed lines in {path}:")
    return merges
