"""BERT's WordPiece tokenization, with Hugging Face `tokenizers`, and as ``--bpe wordpiece`` of fairseq's commands.

The pieces of a line equal those of BERT's own tokenizer: text is cleaned of control characters, split at white space,
punctuation and every Chinese character, and each word into the longest pieces that the vocabulary holds.
"""

import logging
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import islice
from pathlib import Path
from typing import Optional

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass
from tqdm import tqdm

from s2sft_fairseq.data.detokenization import detokenize
from s2sft_fairseq.data.text_files import check_text, read_lines, write_lines
from s2sft_fairseq.errors import UserError

logger = logging.getLogger(__name__)

SPECIAL_TOKENS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
CONTINUATION = "##"
_LINES_A_BATCH = 1000


@dataclass
class WordPieceConfig(FairseqDataclass):
    """Options of ``--bpe wordpiece``."""

    wordpiece_vocab: Optional[str] = field(
        default=None, metadata={"help": "path of the pretrained model's vocab.txt, one token a line"}
    )
    wordpiece_lower: bool = field(
        default=False, metadata={"help": "lower-case the text and strip accents, as uncased models need"}
    )
    wordpiece_cased: bool = field(
        default=False, metadata={"help": "keep case and accents, as cased models need; this or --wordpiece-lower"}
    )


@register_bpe("wordpiece", dataclass=WordPieceConfig)
class WordPiece:
    """Encode raw lines to word pieces separated by spaces, and decode generated pieces to readable text."""

    def __init__(self, vocab: Path, lower: bool) -> None:
        """Load the vocabulary.

        Args:
            vocab: BERT's ``vocab.txt``, one token a line.
            lower: lower-case and strip accents before splitting; nothing in the file says whether a model needs it.

        Raises:
            UserError: if `tokenizers` is not installed, or if the vocabulary cannot be read, lacks a special token or
                does not go with `lower`.
        """
        try:
            from tokenizers import AddedToken, Tokenizer, models, normalizers, pre_tokenizers
        except ImportError as error:
            raise UserError(
                "WordPiece needs the package tokenizers, which is not installed: pip install tokenizers"
            ) from error

        ids = _load_vocab(vocab, lower)
        self.tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
        # NFC as in transformers' own Python tokenizer: a letter and its accent are one character in cased vocabularies.
        # strip_accents=None strips them with lower-casing only, as BERT does.
        self.tokenizer.normalizer = normalizers.Sequence(
            [normalizers.NFC(), normalizers.BertNormalizer(lowercase=lower, strip_accents=None)]
        )
        self.tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        self.tokenizer.add_special_tokens([AddedToken(token, special=True) for token in SPECIAL_TOKENS])

    @classmethod
    def build_bpe(cls, config: WordPieceConfig) -> "WordPiece":
        """Construct from the options of a fairseq command.

        Raises:
            UserError: if ``--wordpiece-vocab``, or one of ``--wordpiece-lower`` and ``--wordpiece-cased``, is missing.
        """
        problems = []
        if not config.wordpiece_vocab:
            problems.append("--bpe wordpiece needs --wordpiece-vocab, the path of a vocab.txt, found none")
        if config.wordpiece_lower == config.wordpiece_cased:
            found = "both" if config.wordpiece_lower else "neither"
            problems.append(f"--bpe wordpiece needs one of --wordpiece-lower and --wordpiece-cased, found {found}")
        if problems:
            raise UserError.of(problems)
        return cls(Path(config.wordpiece_vocab), config.wordpiece_lower)

    def encode(self, line: str) -> str:
        """Return the pieces of a raw line, separated by spaces."""
        return " ".join(self.tokenizer.encode(line, add_special_tokens=False).tokens)

    def encode_batch(self, lines: Sequence[str]) -> list[str]:
        """Encode many lines on all cores."""
        encodings = self.tokenizer.encode_batch(lines, add_special_tokens=False)
        return [" ".join(encoding.tokens) for encoding in encodings]

    def decode(self, tokens: str) -> str:
        """Join pieces to words and set the spaces as in ordinary text; what encoding dropped does not come back."""
        words: list[str] = []
        for piece in filter(None, tokens.split(" ")):  # the Chinese vocabulary holds other white space as tokens
            if piece.startswith(CONTINUATION) and len(piece) > len(CONTINUATION) and words:
                words[-1] += piece.removeprefix(CONTINUATION)
            else:
                words.append(piece)
        return detokenize(words)


def _load_vocab(path: Path, lower: bool) -> dict[str, int]:
    """Read the tokens with their line numbers from 0; of a token that comes twice, the last counts, as in BERT."""
    check_text(path, allow_crlf=True)
    ids = {token: number for number, token in enumerate(read_lines(path))}
    missing = [token for token in SPECIAL_TOKENS if token not in ids]
    if missing:
        raise UserError(
            f"{path}: a WordPiece vocabulary needs {', '.join(SPECIAL_TOKENS)}, but it lacks {', '.join(missing)}"
        )
    capitals = sum(token != token.lower() for token in ids if token not in SPECIAL_TOKENS)
    if not lower and not capitals:
        raise UserError(
            f"{path} holds no capital letter: an uncased vocabulary needs lower-cased text "
            "(--lower, --wordpiece-lower), but cased text was asked for"
        )
    if lower and capitals > len(ids) // 100:
        logger.warning("%s holds capital letters, which lower-cased text never uses: is it a cased vocabulary?", path)
    return ids


@dataclass(frozen=True)
class PieceStats:
    """What tokenizing a file gave: lengths are in word pieces a line."""

    lines: int
    mean: float
    percentile_95: int
    longest: int
    unknown: int

    def __str__(self) -> str:
        return (
            f"{self.lines:,} lines; pieces a line: mean {self.mean:.1f}, 95 % have at most {self.percentile_95}, "
            f"longest {self.longest:,}; {self.unknown:,} unknown words"
        )


def tokenize_file(wordpiece: WordPiece, source: Path, target: Path, lines: int) -> PieceStats:
    """Write the pieces of a checked raw text to `target`, line by line; it appears there only when complete.

    Args:
        lines: the number of lines, for the progress bar.
    """
    lengths: Counter[int] = Counter()
    unknown = 0

    def encoded() -> Iterator[str]:
        nonlocal unknown
        raw = read_lines(source)
        with tqdm(total=lines, desc=source.name, unit="line", unit_scale=True, mininterval=1) as progress:
            while batch := list(islice(raw, _LINES_A_BATCH)):
                for line in wordpiece.encode_batch(batch):
                    pieces = line.split(" ") if line else []
                    lengths[len(pieces)] += 1
                    unknown += pieces.count("[UNK]")
                    yield line
                progress.update(len(batch))

    count = write_lines(target, encoded())
    in_order = sorted(lengths.elements())
    return PieceStats(count, sum(in_order) / count, in_order[(95 * count - 1) // 100], in_order[-1], unknown)
