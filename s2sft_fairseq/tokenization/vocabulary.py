"""The vocabulary of a tokenizer: the symbol of every id, read from the files of a folder.

This module imports no tokenizer library. `sentencepiece_model` imports SentencePiece, which alone can read its models.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import filterfalse, islice
from pathlib import Path
from typing import Any

from s2sft_fairseq.checksums import check_complete, check_files
from s2sft_fairseq.data.bounded_files import read_json, read_json_object, read_text, whole_number
from s2sft_fairseq.data.dictionary import (
    BERT_SYMBOLS,
    DICTIONARY,
    FAIRSEQ_SYMBOLS,
    ROBERTA_SYMBOLS,
    PretrainedDictionary,
    SpecialSymbols,
)
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.received import check_parts, check_regular
from s2sft_fairseq.tokenization.growth import check_growth
from s2sft_fairseq.tokenization.sentencepiece_model import load_sentencepiece, sentencepiece_pieces
from s2sft_fairseq.tokenization.stated_class import class_name, differences, refusals
from s2sft_fairseq.tokenization.symbols import read_symbol, spare_symbols, write_symbol

ADDED_TOKENS = "added_tokens.json"
TOKENIZER_CONFIG = "tokenizer_config.json"
SPECIAL_TOKENS_MAP = "special_tokens_map.json"
_MODEL_CONFIG = "config.json"  # in the folders of models and encoders, which come from others
FAST = "tokenizer.json"
XLMR_MODEL = "sentencepiece.bpe.model"
# Of a tokenizer.json; the library's time per word grows with its square, and all real files have 100.
LONGEST_WORD = 1_000
# Files that may accompany those of any scheme.
COMPANIONS = (TOKENIZER_CONFIG, SPECIAL_TOKENS_MAP, ADDED_TOKENS)
_NAMES = {"vocab.txt", "vocab.json", "merges.txt", "encoder.json", "vocab.bpe", FAST, *COMPANIONS}
FILE_SETS = (
    "vocab.txt (WordPiece)",
    "vocab.json and merges.txt, or encoder.json, vocab.bpe and dict.txt (byte-level BPE)",
    "sentencepiece.bpe.model or another *.model (SentencePiece)",
    "codes, bpecodes or *.codes, and dict.txt (fastBPE)",
    "tokenizer.json (any other)",
)

_SWITCHES = ("do_lower_case", "strip_accents", "tokenize_chinese_chars", "add_prefix_space")

_NAMED_ID = re.compile(r"(.*)\t([0-9]+)", re.S)
# [PAD], [unused1], <S>: these do not show whether text is lower-cased.
_BRACKETED = re.compile(r"\[.*\]|<.*>", re.S)


@dataclass(frozen=True)
class Vocabulary:
    """The symbols of a tokenizer, its scheme and its files.

    `scheme` is "wordpiece", "byte_level_bpe", "sentencepiece", "fastbpe" or "tokenizer_json". It is None for a folder
    with only a ``dict.txt``, which has the ids but cannot tokenize.
    """

    symbols: list[str]  # symbols of the ids 0, 1, 2 ..., as in dict.txt and in tokenized text
    scheme: str | None
    files: list[str]  # names of the files that the tokenizer needs
    lower: bool | None = None  # whether text is lower-cased; WordPiece only
    added: list[str] = field(default_factory=list)  # tokens that were added to those of the tokenizer's own files
    special: SpecialSymbols | None = None  # those of dict.txt; None: there is none, and the names of symbols tell

    def whole_tokens(self, dictionary: PretrainedDictionary) -> list[str]:
        """Return the added tokens that are not split in raw text: all but the special symbols, which are text there."""
        special = dictionary.special_symbols()
        return [token for token in self.added if write_symbol(token) not in special]


def read_vocabulary(folder: Path, *, to_copy: bool = False) -> Vocabulary:
    """Read the vocabulary of a tokenizer. If there is a ``dict.txt``, it determines the ids.

    Args:
        folder: the folder of the tokenizer, or of a model or encoder with its tokenizer.
        to_copy: the files will be copied: links that lead out of the folder are refused, as in the folder of a model.

    Raises:
        UserError: the folder holds no tokenizer, or its files are damaged, contradict each other or are refused by
            `s2sft_fairseq.received`.
    """
    if not folder.is_dir():
        raise UserError(f"tokenizer folder {folder} " + ("must be a folder" if folder.exists() else "does not exist"))
    scheme, files = find_files(folder, to_copy=to_copy)
    files = [*files, *(name for name in COMPANIONS if (folder / name).is_file())]
    check_files(*(folder / name for name in (DICTIONARY, *files)))
    known = _dictionary(folder)
    symbols = list(known.symbols) if known else _symbols(folder, scheme, files)
    added = _read_added_tokens(folder / ADDED_TOKENS)
    _extend(symbols, _written(added), folder / ADDED_TOKENS)
    if FAST not in files:
        added |= _stated_tokens(read_config(folder), symbols)
    return Vocabulary(
        symbols=symbols,
        scheme=scheme,
        files=files,
        lower=_is_lower_case(folder, files, symbols) if scheme == "wordpiece" else None,
        added=list(added),
        special=known.special if known else None,
    )


def one_of(alternatives: Sequence[str], heading: str, *further: str) -> UserError:
    """Return the error of a folder that lacks all alternatives: one problem, with a line for each alternative."""
    return UserError(str(UserError.of([*alternatives, *further], heading)))


def is_tokenizer_file(name: str) -> bool:
    """Return whether a file of this name may be part of a tokenizer."""
    return name in _NAMES or name.endswith(".model") or _is_codes(name)


def find_files(folder: Path, *, to_copy: bool = False) -> tuple[str | None, list[str]]:
    """Return the scheme of the tokenizer in a folder, and the names of its files.

    Args:
        folder: the folder.
        to_copy: the files will be copied; see `read_vocabulary`.

    Raises:
        UserError: there is no tokenizer, there are several files to choose from, or some are refused.
    """
    reserved = {*_NAMES, DICTIONARY}  # no folder may have such a name; one may be called codes
    names = sorted(path.name for path in folder.iterdir() if path.name in reserved or not path.is_dir())
    check = check_parts if to_copy or (folder / _MODEL_CONFIG).exists() else check_regular
    check(folder / name for name in names if is_tokenizer_file(name) or name == DICTIONARY)
    check_complete(folder, is_tokenizer_file)
    models = [XLMR_MODEL] if XLMR_MODEL in names else [name for name in names if name.endswith(".model")]
    codes = list(filter(_is_codes, names))
    for what, found in (("SentencePiece models", models), ("files of fastBPE codes", codes)):
        if len(found) > 1:
            raise UserError(f"tokenizer folder {folder} must hold one of its {len(found)} {what}: {', '.join(found)}")
    for scheme, files in (
        ("wordpiece", ["vocab.txt"]),
        ("byte_level_bpe", ["vocab.json", "merges.txt"]),
        ("byte_level_bpe", ["encoder.json", "vocab.bpe"]),
        ("sentencepiece", models),
        ("fastbpe", codes),
        ("tokenizer_json", ["tokenizer.json"]),
    ):
        if files and set(files) <= set(names):
            return _settled(folder, scheme, files)
    if DICTIONARY in names:
        return None, []
    raise one_of(FILE_SETS, f"{folder} must hold a tokenizer, one of:", f"found {', '.join(names) or 'no file'}")


def _settled(folder: Path, scheme: str, files: list[str]) -> tuple[str, list[str]]:
    """Return the scheme of these files, or that of the ``tokenizer.json`` beside them if they say less than it.

    Raises:
        UserError: naming what the configuration says that this package does not do.
    """
    config, model_config = read_config(folder), _model_config(folder)
    stated = {TOKENIZER_CONFIG: config, _MODEL_CONFIG: model_config}
    if problems := [text for name, each in stated.items() for text in refusals(each, folder / name)]:
        raise UserError.of(problems)
    # A dict.txt has the ids, which those of a tokenizer.json need not be.
    has_json = (folder / FAST).is_file() and not (folder / DICTIONARY).is_file()
    if files != [FAST]:
        problems = list(differences(config, scheme, folder / TOKENIZER_CONFIG))
        if class_name(config) is None:
            problems += differences(model_config, scheme, folder / _MODEL_CONFIG)
        if problems and not has_json:
            raise UserError.of(dict.fromkeys(problems), f"{folder} has another tokenizer than its files tell:")
        if not problems and not (has_json and _says_more(folder, scheme, files, config)):
            return scheme, files
    is_wordpiece = read_tokenizer_json(folder / FAST)["model"]["type"] == "WordPiece"
    return "wordpiece" if is_wordpiece else "tokenizer_json", [FAST]


def _says_more(folder: Path, scheme: str, files: Sequence[str], config: Mapping[str, Any]) -> bool:
    """Return whether a ``tokenizer.json`` has other ids than the files beside it, or alone tells the lower-casing.

    It also says more beside a language model's ``vocab.json``, which does not tell how texts are split into words.
    """
    if scheme not in ("wordpiece", "byte_level_bpe") or "encoder.json" in files:
        return False
    if scheme == "wordpiece" and config.get("do_lower_case") is None:
        return True
    symbols = _symbols(folder, scheme, files)
    added = _read_added_tokens(folder / ADDED_TOKENS)
    ids = {**{symbol: number for number, symbol in enumerate(symbols)}, **_written(added)}
    if not ids.keys() & {BERT_SYMBOLS.pad, ROBERTA_SYMBOLS.pad}:
        return True
    described = _written(_ids_of_tokenizer_json(folder / FAST))
    different = ids.items() ^ described.items()
    fillers = set(islice(spare_symbols(()), len(ids)))  # of empty lines and gaps
    return any(token not in fillers for token, _ in different)


def _written(ids: Mapping[str, int]) -> dict[str, int]:
    return {write_symbol(token): number for token, number in ids.items()}


def _model_config(folder: Path) -> dict[str, Any]:
    """Return the ``tokenizer_class`` of a model's ``config.json``, if there is one; other errors in it are not ours."""
    path = folder / _MODEL_CONFIG
    if not path.is_file():
        return {}
    try:
        config = read_json_object(path)
    except UserError:
        return {}
    return {"tokenizer_class": config["tokenizer_class"]} if "tokenizer_class" in config else {}


def _is_codes(name: str) -> bool:
    return name in ("codes", "bpecodes") or name.endswith((".codes", ".bpecodes"))


def _dictionary(folder: Path) -> PretrainedDictionary | None:
    path = folder / DICTIONARY
    return PretrainedDictionary.load(str(path)) if path.is_file() else None


def _symbols(folder: Path, scheme: str | None, files: Sequence[str]) -> list[str]:
    """Return the symbols of the files of a tokenizer, without those of a ``dict.txt``."""
    if scheme == "fastbpe" or "encoder.json" in files:
        raise UserError(f"{folder} must hold dict.txt beside {', '.join(files)}, which do not have the model's ids")
    path = folder / files[0]
    if scheme == "sentencepiece":
        return _symbols_of_model(path)
    readers: dict[str, Callable[[Path], list[str]]] = {
        "vocab.txt": read_vocab_txt,
        "vocab.json": lambda path: _in_order(read_ids(path), path),
        "tokenizer.json": _tokens_of_tokenizer_json,
    }
    return [write_symbol(token) for token in readers[path.name](path)]


def read_vocab_txt(path: Path) -> list[str]:
    """Read one token per line, which may be followed by a tab and its id, as in the vocabularies of Baidu's ERNIE.

    A repeated token is repeated in the result, too, so that later ids do not shift.

    Raises:
        UserError: the file is not text, or ids do not count up from 0.
    """
    # Not splitlines(): some vocabularies have tokens such as U+2028. Empty lines at the end are no tokens.
    lines = [line.removesuffix("\r") for line in read_text(path).rstrip("\r\n").split("\n")]
    named = [_NAMED_ID.fullmatch(line) for line in lines]
    if all(named):
        lines = [found[1] for found in named if found]
        for number, found in enumerate(named):
            if found and whole_number(found[2]) != number:
                raise UserError(
                    f"{path}, line {number + 1}: the id after the tab must be {number}, but is {found[2]:.40}"
                )
    return _without_gaps(lines)


def read_ids(path: Path) -> dict[str, int]:
    """Read a JSON object of tokens and their ids.

    Raises:
        UserError: the file holds anything else.
    """
    ids = read_json(path)
    needed = f"{path} must hold a JSON object of tokens and their ids, whole numbers from 0 on"
    if not isinstance(ids, dict):
        raise UserError(f"{needed}, but holds {shown(ids)}")
    for token, number in ids.items():
        if type(number) is not int or number < 0:
            raise UserError(f"{needed}, but {shown(token)} has {shown(number)}")
    return ids


def read_config(folder: Path) -> dict[str, Any]:
    """Read ``tokenizer_config.json``; return {} if there is none.

    Raises:
        UserError: the file is not a JSON object, or a setting of `_SWITCHES` is not true, false or null.
    """
    path = folder / TOKENIZER_CONFIG
    config = read_json_object(path) if path.is_file() else {}
    if problems := [
        f"{path}: {name} must be true, false or null, but is {shown(config[name])}"
        for name in _SWITCHES
        if not isinstance(config.get(name), bool | None)
    ]:
        raise UserError.of(problems)
    return config


def stated_symbols(folder: Path) -> dict[str, str]:
    """Return the special symbols that the settings of a tokenizer name, such as "sep_token".

    Raises:
        UserError: a file of them is damaged.
    """
    named = folder / SPECIAL_TOKENS_MAP
    settings = {**(read_json_object(named) if named.is_file() else {}), **read_config(folder)}
    found = {}
    for name in ("bos_token", "eos_token", "cls_token", "sep_token", "pad_token", "unk_token", "mask_token"):
        value = settings.get(name)
        token = value.get("content") if isinstance(value, dict) else value
        if isinstance(token, str):
            found[name] = write_symbol(token)
    return found


def special_tokens(folder: Path) -> set[str]:
    """Return the symbols of the tokens that a ``tokenizer.json`` calls special; none if there is no such file.

    Raises:
        UserError: it is damaged.
    """
    path = folder / FAST
    added = read_tokenizer_json(path).get("added_tokens") if path.is_file() else None
    tokens = [token for token in added or [] if isinstance(token, dict) and token.get("special") is True]
    return {write_symbol(str(token.get("content"))) for token in tokens}


def _tokens_of_tokenizer_json(path: Path) -> list[str]:
    return _in_order(_ids_of_tokenizer_json(path), path)


def _ids_of_tokenizer_json(path: Path) -> dict[str, int]:
    document = read_tokenizer_json(path)
    vocabulary = document["model"]["vocab"]
    try:
        if isinstance(vocabulary, list):  # Unigram: tokens with their scores
            vocabulary = {token: number for number, (token, _) in enumerate(vocabulary)}
        added = {token["content"]: token["id"] for token in document.get("added_tokens") or []}
        ids = {**vocabulary, **added}
    except (TypeError, ValueError, KeyError):
        raise UserError(f"{path} must hold the tokens of Hugging Face's tokenizers, but they are damaged") from None
    for token, number in ids.items():
        if not isinstance(token, str) or type(number) is not int or number < 0:
            raise UserError(
                f"{path} must hold texts as tokens with ids from 0 on, but {shown(token)} has {shown(number)}"
            )
    return ids


def read_tokenizer_json(path: Path) -> dict[str, Any]:
    """Read a ``tokenizer.json``, whose model has a ``type`` and a ``vocab``.

    Raises:
        UserError: the file holds anything else, or its steps take too long.
    """
    document = read_json(path)
    model = document.get("model") if isinstance(document, dict) else None
    if not isinstance(model, dict) or "vocab" not in model:
        raise UserError(f"{path} must be a file of Hugging Face's tokenizers, with a model and its vocab")
    check_growth(document, path)
    longest = model.get("max_input_chars_per_word")
    if type(longest) is int and longest > LONGEST_WORD:
        raise UserError(f"{path}: max_input_chars_per_word must be at most {LONGEST_WORD:,}, but is {longest}")
    # Old files do not name the type of the model: BPE has merges, WordPiece has this prefix.
    guess = "WordPiece" if "continuing_subword_prefix" in model and "merges" not in model else "BPE"
    return {**document, "model": {"type": guess, **model}}


def _symbols_of_model(path: Path) -> list[str]:
    """Return the pieces of a SentencePiece model: for XLM-R in the order of fairseq, else in the model's order."""
    pieces = [write_symbol(piece) for piece in sentencepiece_pieces(load_sentencepiece(path), path)]
    if path.name == XLMR_MODEL:
        first, others = pieces[:3], pieces[3:]
        if set(first) != {"<unk>", "<s>", "</s>"} or set(others) & {*FAIRSEQ_SYMBOLS}:
            raise UserError(
                f"{path} must have <unk>, <s>, </s> as its first pieces and none of {', '.join(FAIRSEQ_SYMBOLS)} after "
                f"them, as XLM-R's, but begins with {', '.join(pieces[:5])}"
            )
        return [*FAIRSEQ_SYMBOLS, *others, ROBERTA_SYMBOLS.mask]
    if BERT_SYMBOLS.pad in pieces and BERT_SYMBOLS.mask not in pieces:
        return [*pieces, BERT_SYMBOLS.mask]  # as DeBERTa's tokenizer does
    return pieces


def _stated_tokens(config: Mapping[str, Any], symbols: list[str]) -> dict[str, int]:
    """Append the tokens of ``added_tokens_decoder`` with the next ids, and return those that are not special.

    Other ids than those of the symbols, or the next, belong to another dictionary than the model's.
    """
    stated = config.get("added_tokens_decoder")
    found = {}
    for name, token in stated.items() if isinstance(stated, dict) else ():
        number = whole_number(name)
        content = token.get("content") if isinstance(token, dict) else None
        if number is not None and isinstance(content, str) and content:
            found[number] = (content, token.get("special") is True)
    whole = {}
    for number, (content, is_special) in sorted(found.items()):
        if number == len(symbols) and write_symbol(content) not in symbols:
            symbols.append(write_symbol(content))
        if number < len(symbols) and symbols[number] == write_symbol(content) and not is_special:
            whole[content] = number
    return whole


def _read_added_tokens(path: Path) -> dict[str, int]:
    return dict(sorted(read_ids(path).items(), key=lambda item: item[1])) if path.is_file() else {}


def _extend(symbols: list[str], added: Mapping[str, int], path: Path) -> None:
    """Append the added symbols whose ids follow the vocabulary, and check the ids of all."""
    problems = []
    for symbol, number in added.items():
        if number == len(symbols):
            symbols.append(symbol)
        elif number > len(symbols):
            free = str(len(symbols)) if number == len(symbols) + 1 else f"{len(symbols)} to {number - 1}"
            problems.append(
                f"{path}: {symbol} must have the next free id, {len(symbols)}, but has {number}, and no "
                f'token has {free}: if the model has these rows, name their tokens, such as "[unused]": {len(symbols)}'
            )
            break
        elif symbols[number] != symbol:
            problems.append(f"{path}: {symbol} has the id {number}, which is that of {symbols[number]}")
    if problems:
        raise UserError.of(problems)


def _in_order(ids: Mapping[str, int], path: Path) -> list[str]:
    """Return tokens in the order of their ids, with fillers for ids without a token."""
    last = max(ids.values(), default=-1)
    if last > 2 * len(ids) + 1000:
        raise UserError(f"{path} must give its {len(ids)} tokens ids from 0 on, but goes up to {last}")
    tokens = [""] * (last + 1)
    shared = []
    for token, number in ids.items():
        if tokens[number]:
            shared.append(f"{path}: {shown(tokens[number])} and {shown(token)} have the id {number}")
        tokens[number] = token
    if shared:
        raise UserError.of(shared, f"{len(shared)} ids of several tokens in {path}:", most=10)
    return _without_gaps(tokens)


def _without_gaps(tokens: Sequence[str]) -> list[str]:
    """Replace empty tokens by fillers, named as in fairseq's padding of a vocabulary."""
    spare = spare_symbols(tokens)
    return [token or next(spare) for token in tokens]


def _is_lower_case(folder: Path, files: Sequence[str], symbols: Sequence[str]) -> bool:
    """Return whether text must be lower-cased: as configured, or else if the vocabulary has no capital letters."""
    stated: bool | None = read_config(folder).get("do_lower_case")
    if FAST in files:
        normalizer = read_tokenizer_json(folder / "tokenizer.json").get("normalizer") or {}
        parts = normalizer.get("normalizers") or [normalizer] if isinstance(normalizer, dict) else []
        # Ignore malformed normalizers: the library refuses them when it loads the file.
        normalizers = [part for part in parts if isinstance(part, dict)] if isinstance(parts, list) else []
        lower = any(part.get("lowercase") is True or part.get("type") == "Lowercase" for part in normalizers)
        if stated is not None and stated != lower:
            raise UserError(
                f"{folder / TOKENIZER_CONFIG}: do_lower_case is {stated}, but the normalizer of {FAST} beside it says "
                f"{lower}: correct the wrong one"
            )
        return lower
    if stated is not None:
        return stated
    tokens = filterfalse(_BRACKETED.fullmatch, map(read_symbol, symbols))
    return all(token == token.lower() for token in tokens)
