"""A ``tokenizer.json`` of a few kB whose steps make a text of one letter too long for memory."""

import base64
import json

import pytest
from tokenizer_folders import write_gemma

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer


def replace(old: str, new: str, kind: str = "String") -> dict[str, object]:
    return {"type": "Replace", "pattern": {kind: old}, "content": new}


def without_type(step: dict[str, object]) -> dict[str, object]:
    return {name: value for name, value in step.items() if name != "type"}


def table(replacement: str) -> str:
    """Return a table of SentencePiece with one replacement; its index is empty."""
    return base64.b64encode(bytes(4) + replacement.encode() + b"\0").decode()


BYTE_LEVEL = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
STEPS = {
    "doubling": ("normalizer", [replace("a", "aa")] * 28),
    "two letters that become three": ("normalizer", [replace("aa", "aaa"), replace("a", "aa")] * 20),
    "steps without a type": ("normalizer", [without_type(replace("a", "aa"))] * 28),
    "steps of an unknown type": ("normalizer", [{**replace("a", "aa"), "type": "X"}] * 28),
    "an expression that matches everywhere": ("normalizer", [replace("", "a", "Regex")] * 28),
    "a text that is everywhere": ("normalizer", [replace("", "a")] * 28),
    "one long replacement": ("normalizer", [replace("a", "a" * 20_000)]),
    "one long beginning": ("normalizer", [{"type": "Prepend", "prepend": "a" * 20_000}]),
    "a table": ("normalizer", [{"type": "Precompiled", "precompiled_charsmap": table("a" * 20_000)}]),
    "a ligature": ("normalizer", [replace(" ", "\ufdfa"), {"type": "NFKC"}] * 14),
    "bytes of bytes": ("normalizer", [{"type": "ByteLevel"}] * 28),
    "bytes of bytes in words": ("pre_tokenizer", [BYTE_LEVEL] * 28),
    "decoding": ("decoder", [replace("a", "aa")] * 28),
    "a decoder of suffixes": ("decoder", [{"type": "BPEDecoder", "suffix": ""}] * 28),
}
LISTS = {"normalizer": "normalizers", "pre_tokenizer": "pretokenizers", "decoder": "decoders"}


@pytest.mark.parametrize("nested", [False, True])
@pytest.mark.parametrize("name", STEPS)
def test_steps_that_make_texts_too_long(tmp_path, name, nested):
    part, steps = STEPS[name]
    write_gemma(tmp_path)
    path = tmp_path / "tokenizer.json"
    document = json.loads(path.read_text())
    sequence = {"type": "Sequence", LISTS[part]: steps}
    document[part] = {"type": "Sequence", LISTS[part]: [sequence]} if nested else sequence
    path.write_text(json.dumps(document))
    assert path.stat().st_size < 50_000
    with pytest.raises(
        UserError, match=r"tokenizer\.json: the steps of normalizer, .* at most 10,000 times as long, but "
    ):
        open_tokenizer(tmp_path)
