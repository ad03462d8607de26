"""Which symbols of a language model's vocabulary serve as this package's special symbols.

A language model has a symbol that ends texts, often one that begins them, and rarely an unknown, a padding or a mask
symbol: byte-level BPE spells every text. Vocabularies reserve symbols for later uses, however. This module decides
once, when a model is converted; the ``dict.txt`` of the converted folder states the result.

* ``eos`` is the end symbol that the model's own tokenizer states: of a base model the end of a document, of one that
  learned to answer the end of a turn. The model writes it after a whole text, and other programs stop there.
* ``bos`` is the model's own, or a reserved symbol if it has none, or its end symbol takes this place too.
* ``pad`` is the model's own if it is neither of these: what pads gets no gradient.
* ``mask``, the placeholder, and ``unk`` are the model's own, or reserved symbols.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields
from itertools import chain
from typing import Any

from s2sft_fairseq.data.dictionary import SpecialSymbols
from s2sft_fairseq.errors import UserError

_RESERVED = (
    re.compile(r"<\|reserved_special_token_\d+\|>|[<\[]unused_?\d+[>\]]"),
    # Code, images and repositories: SmolLM2, Qwen.
    re.compile(
        r"<\|?(repo_?name|file_?sep|filename|gh_stars|issue_\w+|jupyter_\w+|empty_output|fim_\w+|object_ref_\w+|box_\w+"
        r"|quad_\w+|vision_\w+|image_pad|video_pad)\|?>"
    ),
    re.compile(r"madeupword\d+"),  # rows of the matrix beyond the tokenizer
)
"""Symbols that texts do not need, by preference."""
_USUAL = {
    "bos": ("<s>", "<bos>"),
    "pad": ("<pad>", "<|pad|>", "<|finetune_right_pad_id|>"),
    "mask": ("<mask>", "<|mask|>"),
    "unk": ("<unk>", "<|unk|>"),
}
"""Names that vocabularies give to special symbols which no file states. The first is that of one that is added."""


def begins_with_end(stated: Mapping[str, str], symbols: Sequence[str], config: Mapping[str, Any]) -> bool:
    """Return whether texts of a language model begin with the symbol that ends them; arguments as below."""
    names = _stated(stated, symbols, config)
    return names.get("bos") is not None and names.get("bos") == names.get("eos")


def language_model_symbols(
    stated: Mapping[str, str], symbols: Sequence[str], config: Mapping[str, Any]
) -> SpecialSymbols:
    """Choose the special symbols of a language model. Those that the vocabulary lacks must be added to it.

    Args:
        stated: the special symbols of the tokenizer's settings, see `vocabulary.stated_symbols`.
        symbols: the symbol of each row of the model.
        config: the model's configuration, whose ids count where the tokenizer states nothing.

    Raises:
        UserError: no file says which symbol ends texts.
    """
    own, known = _stated(stated, symbols, config), set(symbols)
    if "eos" not in own:
        raise UserError(
            "the tokenizer of a language model must state the symbol that ends texts (eos_token in "
            "tokenizer_config.json, or eos_token_id in the configuration), but states none"
        )
    chosen: dict[str, str] = {}
    for role in ("eos", "bos", "pad", "mask", "unk"):
        if role in own and own[role] not in chosen.values():
            chosen[role] = own[role]
    for role, names in _USUAL.items():
        free = [name for name in names if name in known and name not in chosen.values()]
        if role not in chosen and free:
            chosen[role] = free[0]
    spare = _reserved(symbols, set(chosen.values()))
    for role in ("bos", "mask", "pad", "unk"):
        if role not in chosen:
            chosen[role] = next(spare, _USUAL[role][0])
    return SpecialSymbols(**chosen)


def _stated(stated: Mapping[str, str], symbols: Sequence[str], config: Mapping[str, Any]) -> dict[str, str]:
    """Return the symbols that files state, by the names of `SpecialSymbols`."""
    found = {}
    for role in (field.name for field in fields(SpecialSymbols)):
        number = config.get(f"{role}_token_id")
        if isinstance(number, list):  # models that answer may end in several symbols; the first ends a text
            number = next(iter(number), None)
        if (symbol := stated.get(f"{role}_token")) is not None and symbol in symbols:
            found[role] = symbol
        elif type(number) is int and 0 <= number < len(symbols):
            found[role] = symbols[number]
    return found


def _reserved(symbols: Sequence[str], taken: set[str]) -> Iterator[str]:
    """Yield the reserved symbols of a vocabulary that are not taken."""
    found = chain.from_iterable(filter(pattern.fullmatch, symbols) for pattern in _RESERVED)
    return (symbol for symbol in found if symbol not in taken)
