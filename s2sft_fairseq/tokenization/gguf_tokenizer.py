"""Write the tokenizer that a GGUF file holds in its metadata as a ``tokenizer.json``.

llama.cpp has two kinds of the language models that this package reads: ``gpt2``, byte-level BPE with the merges and the
name of its way to split texts into words, and ``llama``, BPE of SentencePiece with the score of each piece and pieces
for single bytes.
"""

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sft_fairseq.checkpoints.gguf_file import GgufFile
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.tokenization.library_tokenizer import load_library_file
from s2sft_fairseq.tokenization.vocabulary import FAST, TOKENIZER_CONFIG

_PREFIX = "tokenizer.ggml."
_UNKNOWN, _CONTROL, _USER_DEFINED, _UNUSED, _BYTE = 2, 3, 4, 5, 6
"""Types of tokens; 1 is a normal one. Text becomes user-defined ones before all merges."""
_BLANK = "\u2581"  # SentencePiece's
_MOST_CHARACTERS = 10_000_000  # of all pieces, which are tried in all places; Gemma's have a fifth of it

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_REST = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_LLAMA3 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{{1,3}}{_REST}"
_QWEN2 = rf"{_CONTRACTIONS}|[^\r\n\p{{L}}\p{{N}}]?\p{{L}}+|\p{{N}}{_REST}"


def _byte_level(regex: bool) -> dict[str, Any]:
    return {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": regex}


def _by_pattern(pattern: str) -> list[dict[str, Any]]:
    split = {"type": "Split", "pattern": {"Regex": pattern}, "behavior": "Isolated", "invert": False}
    return [split, _byte_level(regex=False)]


_LLAMA3_SPLIT = (None, _by_pattern(_LLAMA3), True)
_SPLITS: Mapping[str, tuple[dict[str, Any] | None, list[dict[str, Any]], bool]] = {
    "gpt-2": (None, [_byte_level(regex=True)], False),
    "smollm": (None, [{"type": "Digits", "individual_digits": True}, _byte_level(regex=True)], False),
    "qwen2": ({"type": "NFC"}, _by_pattern(_QWEN2), False),
    **dict.fromkeys(("llama-bpe", "llama3", "llama-v3", "smaug-bpe"), _LLAMA3_SPLIT),
}
"""Ways to split texts into words: the normalizer, the steps, and whether a word that is a token needs no merges.
SmolLM3 has Llama 3's, which its files call smaug-bpe."""


def write_gguf_tokenizer(path: Path, folder: Path) -> None:
    """Write ``tokenizer.json`` and ``tokenizer_config.json``.

    Args:
        path: the GGUF file.
        folder: the folder to write into.

    Raises:
        UserError: the file is damaged, or holds another tokenizer, or none.
    """
    metadata = GgufFile(path).metadata
    settings = {name.removeprefix(_PREFIX): value for name, value in metadata.items() if name.startswith(_PREFIX)}
    makers = {"gpt2": _byte_level_bpe, "llama": _sentencepiece_bpe}
    stated = settings.get("model")
    kind = str(stated)
    if kind not in makers:
        raise UserError(f"{path}: {_PREFIX}model must be one of {', '.join(makers)}, but is {shown(stated)}")
    tokens, types = _tokens(path, settings)
    document = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": _added(tokens, types),
        **makers[kind](path, settings, tokens, types),
    }
    roles = _roles(settings, tokens)
    if settings.get("add_bos_token", kind == "llama") is True and "bos_token" in roles:
        document["post_processor"] = _begins_with(roles["bos_token"], tokens)
    (folder / FAST).write_text(json.dumps(document, ensure_ascii=False), encoding="utf-8")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "clean_up_tokenization_spaces": False, **roles}
    if isinstance(template := metadata.get("tokenizer.chat_template"), str):
        config["chat_template"] = template
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (folder / TOKENIZER_CONFIG).write_text(text, encoding="utf-8")
    try:
        load_library_file(folder / FAST)
    except UserError as error:
        raise UserError(f"{path}: its tokenizer cannot be used: {error}") from None


def _tokens(path: Path, settings: Mapping[str, Any]) -> tuple[list[str], list[int]]:
    """Return the tokens and their types, without unused tokens at the end, which only fill the matrix.

    Raises:
        UserError: they are missing, of wrong kinds, of different numbers, or repeated.
    """
    tokens = _array(settings, "tokens", str)
    if not tokens:
        raise UserError(f"{path}: {_PREFIX}tokens must be an array of texts, but is {shown(settings.get('tokens'))}")
    types = _array({"token_type": [1] * len(tokens), **settings}, "token_type", int)
    if len(types) != len(tokens):
        raise UserError(f"{path}: {_PREFIX}token_type must have a whole number for each of {len(tokens)} tokens")
    if len(set(tokens)) < len(tokens):
        [(token, _)] = Counter(tokens).most_common(1)
        raise UserError(f"{path}: {_PREFIX}tokens must hold each token once, but has {shown(token)} again")
    used = len(tokens)
    while used > 1 and types[used - 1] == _UNUSED:
        used -= 1
    return tokens[:used], types[:used]


def _array(settings: Mapping[str, Any], name: str, kind: type) -> list[Any]:
    """Return an array of one kind of values; [] if it is anything else."""
    value = settings.get(name)
    return value if isinstance(value, list) and all(type(item) is kind for item in value) else []


def _added(tokens: Sequence[str], types: Sequence[int]) -> list[dict[str, Any]]:
    """Return the tokens that texts are split at: control tokens, which are special, and user-defined ones."""
    plain = {"single_word": False, "lstrip": False, "rstrip": False}
    return [
        {"id": number, "content": token, **plain, "normalized": kind == _USER_DEFINED, "special": kind != _USER_DEFINED}
        for number, (token, kind) in enumerate(zip(tokens, types, strict=True))
        if kind in (_CONTROL, _USER_DEFINED, _UNKNOWN) and token
    ]


def _roles(settings: Mapping[str, Any], tokens: Sequence[str]) -> dict[str, str]:
    """Return the special tokens by the names of ``tokenizer_config.json``."""
    names = {"bos_token": "bos", "eos_token": "eos", "pad_token": "padding", "unk_token": "unknown"}
    ids = {role: settings.get(f"{name}_token_id") for role, name in names.items()}
    return {role: tokens[at] for role, at in ids.items() if type(at) is int and 0 <= at < len(tokens)}


def _begins_with(token: str, tokens: Sequence[str]) -> dict[str, Any]:
    """Return the post-processor that puts a token before each text."""
    first, text, other = {"SpecialToken": {"id": token, "type_id": 0}}, _sequence("A", 0), _sequence("B", 1)
    return {
        "type": "TemplateProcessing",
        "single": [first, text],
        "pair": [first, text, {"SpecialToken": {"id": token, "type_id": 1}}, other],
        "special_tokens": {token: {"id": token, "ids": [tokens.index(token)], "tokens": [token]}},
    }


def _sequence(name: str, number: int) -> dict[str, Any]:
    return {"Sequence": {"id": name, "type_id": number}}


def _byte_level_bpe(
    path: Path, settings: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Any]:
    """Return the parts of a ``tokenizer.json`` for byte-level BPE."""
    name = str(settings.get("pre"))
    if name not in _SPLITS:
        raise UserError(f"{path}: {_PREFIX}pre must be one of {', '.join(_SPLITS)}, but is {shown(name)}")
    merges = _array(settings, "merges", str)
    if not merges:
        raise UserError(f"{path}: {_PREFIX}merges must be an array of texts, but is {shown(settings.get('merges'))}")
    pairs = [merge.split(" ") for merge in merges]
    if wrong := next((merge for merge, pair in zip(merges, pairs, strict=True) if len(pair) != 2), None):
        raise UserError(f"{path}: {_PREFIX}merges must hold two pieces each, but has {shown(wrong)}")
    normalizer, steps, ignores_merges = _SPLITS[name]
    return {
        "normalizer": normalizer,
        "pre_tokenizer": {"type": "Sequence", "pretokenizers": steps},
        "post_processor": None,
        "decoder": _byte_level(regex=True),
        "model": _bpe(tokens, pairs, ignore_merges=ignores_merges),
    }


def _sentencepiece_bpe(
    path: Path, settings: Mapping[str, Any], tokens: Sequence[str], types: Sequence[int]
) -> dict[str, Any]:
    """Return the parts of a ``tokenizer.json`` for BPE of SentencePiece."""
    if settings.get("precompiled_charsmap") or settings.get("remove_extra_whitespaces"):
        raise UserError(f"{path}: {_PREFIX}model llama must not change texts, but has a normalizer of its own")
    scores = _array(settings, "scores", float)
    if len(scores) < len(tokens):
        raise UserError(f"{path}: {_PREFIX}scores must have a number for each of {len(tokens)} tokens")
    if (total := sum(map(len, tokens))) > _MOST_CHARACTERS:
        raise UserError(
            f"{path}: {_PREFIX}tokens must have at most {_MOST_CHARACTERS:,} characters, but have {total:,}"
        )
    begins_with_blank = settings.get("add_space_prefix", True) is True
    steps: list[dict[str, Any]] = [{"type": "Replace", "pattern": {"String": " "}, "content": _BLANK}]
    last: list[dict[str, Any]] = []
    if begins_with_blank:
        steps.insert(0, {"type": "Prepend", "prepend": _BLANK})
        last = [{"type": "Strip", "content": " ", "start": 1, "stop": 0}]
    to_blank = {"type": "Replace", "pattern": {"String": _BLANK}, "content": " "}
    unknown = next((token for token, kind in zip(tokens, types, strict=True) if kind == _UNKNOWN), None)
    return {
        "normalizer": {"type": "Sequence", "normalizers": steps},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": {"type": "Sequence", "decoders": [to_blank, {"type": "ByteFallback"}, {"type": "Fuse"}, *last]},
        "model": _bpe(
            tokens, _merges(tokens, types, scores), unk_token=unknown, fuse_unk=True, byte_fallback=_BYTE in types
        ),
    }


def _merges(tokens: Sequence[str], types: Sequence[int], scores: Sequence[float]) -> list[list[str]]:
    """Return the pairs of pieces that make another one, those of the highest scores first, as SentencePiece merges."""
    known = {token: number for number, token in enumerate(tokens) if types[number] == 1}
    found = []
    for token, number in known.items():
        for cut in range(1, len(token)):
            first, second = known.get(token[:cut]), known.get(token[cut:])
            if first is not None and second is not None:
                found.append((-scores[number], number, first, second))
    # By score; the same piece in the order of its parts.
    return [[tokens[first], tokens[second]] for _, _, first, second in sorted(found)]


def _bpe(tokens: Sequence[str], merges: Sequence[Sequence[str]], **options: Any) -> dict[str, Any]:
    usual: dict[str, Any] = dict.fromkeys(("dropout", "unk_token", "continuing_subword_prefix", "end_of_word_suffix"))
    usual |= {"fuse_unk": False, "byte_fallback": False, "ignore_merges": False}
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return {"type": "BPE", **usual, **options, "vocab": vocabulary, "merges": merges}
