"""How much longer a ``tokenizer.json`` may make a text.

Each step of its normalizer may double the text: 28 steps, a file of 12 kB, make 268 million letters of one.
"""

import base64
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError

MOST_GROWTH = 10_000
"""How many times as long a text may become. By this estimate mmBERT has 1, BERT and ModernBERT have 48, XLM-R has 144,
and ALBERT 5,184."""
_PARTS = ("normalizer", "pre_tokenizer", "decoder")
_KEEP_LENGTH = (
    *("Sequence", "Replace", "Prepend", "Precompiled", "Strip", "StripAccents", "Nmt"),
    *("BertPreTokenizer", "CharDelimiterSplit", "Digits", "FixedLength", "Punctuation", "Split", "UnicodeScripts"),
    *("Whitespace", "WhitespaceSplit", "ByteFallback", "Fuse"),
)
# Characters that a step makes of one character at most: the bytes of a character, 18 letters of an Arabic ligature.
_GROWTH = {
    **dict.fromkeys(_KEEP_LENGTH, 1),
    **{"ByteLevel": 4, "Lowercase": 2, "Metaspace": 2, "NFC": 3, "NFD": 4, "NFKC": 18, "NFKD": 18},
    **{"BertNormalizer": 24, "WordPiece": 2, "BPEDecoder": 3, "CTC": 3},
}
_UNKNOWN = max(_GROWTH.values())  # of a step without a type, which the library guesses


def check_growth(document: Mapping[str, Any], path: Path) -> None:
    """Check that the steps of a ``tokenizer.json`` do not make texts too long.

    Args:
        document: its content.
        path: the file, for the message.

    Raises:
        UserError: they may become more than `MOST_GROWTH` times as long.
    """
    growth = math.prod(_growth(step) for part in _PARTS for step in _steps(document.get(part)))
    if growth > MOST_GROWTH:
        raise UserError(
            f"{path}: the steps of {', '.join(_PARTS)} must make a text at most {MOST_GROWTH:,} times as long, but may "
            f"make it {growth:.3g} times as long"
        )


def _steps(part: Any) -> Iterator[dict[str, Any]]:
    """Yield the steps of a part, which may have steps of its own."""
    if isinstance(part, dict):
        yield part
        for name in ("normalizers", "pretokenizers", "decoders"):
            for each in part[name] if isinstance(part.get(name), list) else ():
                yield from _steps(each)


def _growth(step: Mapping[str, Any]) -> float:
    """Return how many characters a step makes of one character at most; the library refuses values of other types."""
    growth: float = _GROWTH.get(str(step.get("type")), _UNKNOWN)
    if isinstance(content := step.get("content"), str):
        pattern = step.get("pattern")
        replaced = pattern.get("String") if isinstance(pattern, dict) else None
        if isinstance(replaced, str) and replaced:
            growth *= max(1, len(content) / len(replaced))
        else:  # an expression may match between all characters
            growth *= 1 + len(content)
    if isinstance(prepended := step.get("prepend"), str):
        growth *= 1 + len(prepended)
    if isinstance(table := step.get("precompiled_charsmap"), str):
        growth *= _longest(table)
    return growth


def _longest(table: str) -> int:
    """Return the length of the longest replacement in a table of SentencePiece."""
    try:
        content = base64.b64decode(table)
    except ValueError:  # the library refuses it
        return 1
    start = 4 + int.from_bytes(content[:4], "little")  # after the index of what is replaced
    return max(map(len, content[start:].decode("utf-8", "replace").split("\0")))
