"""Pieces of a stream: text that was shown does not change later."""

import random

import pytest

from s2sft_fairseq.api.streaming import stable_part
from s2sft_fairseq.tokenization.wordpiece import detokenize

WORDS = (
    *("'", '"', "s", "readers", "own", "it", "t", "l", "o", "d", "clock", "re", "a", "x", "com", "th", "st"),
    *(",", ".", ":", "?", "!", "-", "/", "_", "^", "&", "#", "@", "=", "*", "(", ")", "$", "%", "\u2019"),
    *("5", "000", "30", "[UNK]", "\u4e2d", "\u570b", "\u3002"),
)


@pytest.mark.parametrize(
    ("text", "stable"),
    [
        ("", ""),
        ("un", ""),
        ("un chief", "un"),
        ("un chief ", "un"),
        ("un chief vis", "un chief"),
        ("the readers' own day", "the"),
        ("the readers's own day", "the readers's own"),
        ("don't go", "don't"),
        ("\u4e2d\u570b\u4eba", "\u4e2d\u570b"),
        ("in \u4e2d\u570b", "in \u4e2d"),
    ],
)
def test_stable_part(text, stable):
    assert stable_part(text) == stable


def test_every_longer_text_begins_with_the_stable_part():
    """For random words and punctuation marks in random order."""
    rng = random.Random(1)
    shown = 0
    for _ in range(10000):
        words = rng.choices(WORDS, k=rng.randint(2, 9))
        whole = detokenize(words)
        for size in range(1, len(words)):
            stable = stable_part(detokenize(words[:size]))
            assert whole.startswith(stable), (words, size)
            shown += len(stable) > 0
    assert shown > 10000
