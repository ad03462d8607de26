"""Symbols with their places: the same symbols as without, and the text of each where it stands."""

import pytest
from tokenizer_folders import SENTENCES, WRITERS

from s2sft_fairseq.tokenization.folder import open_tokenizer

TEXTS = [*SENTENCES[:4], "", "  two  spaces\tand\u00a0more ", "Zürich [SEP] </s> naïve", "a\nb"]


@pytest.mark.parametrize("scheme", WRITERS)
def test_places(scheme, tmp_path):
    tokenizer = open_tokenizer(WRITERS[scheme](tmp_path / scheme))
    for text, pieces in zip(TEXTS, tokenizer.encode_pieces(TEXTS), strict=True):
        assert " ".join(pieces.symbols) == tokenizer.encode(text)
        assert len(pieces.offsets) == len(pieces.symbols)
        assert all(0 <= start <= end <= len(text) for start, end in pieces.offsets)
        # Nothing but white space is left out, and the pieces come in order.
        covered = {place for start, end in pieces.offsets for place in range(start, end)}
        assert not "".join(text[place] for place in range(len(text)) if place not in covered).strip()
        starts = [start for start, _ in pieces.offsets]
        assert starts == sorted(starts)


@pytest.mark.parametrize("scheme", ["wordpiece", "byte_level", "sentencepiece", "fastbpe"])
def test_the_text_of_a_word(scheme, tmp_path):
    tokenizer = open_tokenizer(WRITERS[scheme](tmp_path / scheme))
    text = "Naïve owners met, the quick dog"
    (pieces,) = tokenizer.encode_pieces([text])
    start = text.index("quick")
    inside = [place for place in pieces.offsets if place[0] < start + 5 and place[1] > start]
    assert text[inside[0][0] : inside[-1][1]].strip() == "quick"
