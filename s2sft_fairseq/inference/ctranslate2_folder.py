"""Check a folder of CTranslate2 before CTranslate2 opens it: its vocabulary, its settings, the sizes of its weights.

CTranslate2 reads its own vocabulary and its own settings, which decide what the ids of this package mean to it.
"""

import struct
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from s2sft_fairseq.checkpoints.deltalm_as_bart import EPSILON
from s2sft_fairseq.checkpoints.model_folder import CONFIG, ENGINES
from s2sft_fairseq.data.bounded_files import read_json
from s2sft_fairseq.data.dictionary import DICTIONARY, PretrainedDictionary
from s2sft_fairseq.errors import UserError, shown

VOCABULARY = "shared_vocabulary.json"
"""The file of the vocabulary that the export writes."""
_FORMAT = "TransformerSpec"
_TOKENS, _POSITIONS = "embeddings", "position_encodings/encodings"
_LONGEST_NAME = 1_000  # bytes
_MOST_TENSORS = 1_000_000


def settings(dictionary: PretrainedDictionary) -> dict[str, Any]:
    """Return the settings of CTranslate2 for models of this package, by the names in its ``config.json``."""
    return {
        "add_source_bos": False,
        "add_source_eos": False,
        "bos_token": dictionary.bos_word,
        "eos_token": dictionary.eos_word,
        "unk_token": dictionary.unk_word,
        "decoder_start_token": dictionary.eos_word,
        "layer_norm_epsilon": EPSILON,
    }


def check_folder(folder: Path, config: Mapping[str, Any], dictionary: PretrainedDictionary) -> None:
    """Check a folder that ``s2sft export --format ctranslate2`` wrote.

    Args:
        folder: the folder.
        config: its ``config.json``.
        dictionary: its ``dict.txt``.

    Raises:
        UserError: naming everything that is wrong.
    """
    problems = [*_vocabulary_problems(folder, dictionary.symbols), *_setting_problems(folder, config, dictionary)]
    problems += _size_problems(folder / ENGINES["ctranslate2"], config["cfg"]["model"], len(dictionary))
    if problems:
        raise UserError.of(problems)


def _vocabulary_problems(folder: Path, symbols: Sequence[str]) -> Iterator[str]:
    for path in sorted(folder.iterdir()):
        if path.name != VOCABULARY and ("vocabulary" in path.name or path.name == "vmap.txt"):
            yield f"{path}: ctranslate2 would read this vocabulary, but the folder must have {VOCABULARY} alone"
    path = folder / VOCABULARY
    if not path.is_file():
        yield f"{path} is missing"
        return
    tokens = read_json(path)
    if not isinstance(tokens, list) or len(tokens) != len(symbols):
        what = f"{len(tokens)}" if isinstance(tokens, list) else shown(tokens)
        yield f"{path} must be a list of the {len(symbols)} symbols of {DICTIONARY}, but is {what}"
        return
    for number, (token, symbol) in enumerate(zip(tokens, symbols, strict=True)):
        if token != symbol:
            yield f"{path}: symbol {number} must be {symbol}, as in {DICTIONARY}, but is {shown(token)}"
            return


def _setting_problems(folder: Path, config: Mapping[str, Any], dictionary: PretrainedDictionary) -> Iterator[str]:
    for name, value in settings(dictionary).items():
        found = config.get(name)
        if type(found) is not type(value) or found != value:
            yield f"{folder / CONFIG}: {name} must be {shown(value)}, but is {shown(found)}"
    if config.get("multi_query_attention", False) is not False:
        yield f"{folder / CONFIG}: multi_query_attention must be false, but is {shown(config['multi_query_attention'])}"


def _size_problems(file: Path, sizes: Mapping[str, Any], symbols: int) -> Iterator[str]:
    """Yield how the shapes of the weights contradict the sizes of the model."""
    try:
        shapes = read_shapes(file)
    except (OSError, ValueError, struct.error) as error:
        yield f"{file} cannot be read by ctranslate2: {error}"
        return
    width, inner, layers = (sizes.get(f"encoder_{name}") for name in ("embed_dim", "ffn_embed_dim", "layers"))
    expected: dict[str, tuple[Any, ...]] = {}
    for side, tokens in (("encoder", f"{_TOKENS}_0"), ("decoder", _TOKENS)):
        expected[f"{side}/{tokens}/weight"] = (symbols, width)
        expected[f"{side}/{_POSITIONS}"] = (sizes.get("max_positions"), width)
        expected[f"{side}/layer_0/ffn/linear_0/weight"] = (inner, width)
    expected["decoder/projection/weight"] = (symbols, width)
    for name, shape in expected.items():
        found = shapes.get(name)
        if found is None or not _fits(found, shape):
            yield f"{file}: {name} must have the shape {shape}, as {CONFIG} and {DICTIONARY} say, but has {found}"
    decoder_layers = sizes.get("decoder_layers")
    # An interleaved layer of the decoder is two layers of CTranslate2's.
    of_decoder = 2 * decoder_layers if type(decoder_layers) is int else decoder_layers
    for side, count in (("encoder", layers), ("decoder", of_decoder)):
        of_side = {name.split("/")[1] for name in shapes if name.startswith(f"{side}/layer_")}
        if count is not None and len(of_side) != count:
            yield f"{file}: the {side} must have {count} layers, as {CONFIG} says, but has {len(of_side)}"


def _fits(found: Sequence[int], expected: Sequence[Any]) -> bool:
    """Return whether a shape is the expected one; None in it stands for a size that the configuration leaves open."""
    if len(found) != len(expected):
        return False
    return all(size is None or size == other for size, other in zip(expected, found, strict=True))


def read_shapes(file: Path) -> dict[str, tuple[int, ...]]:
    """Return the shapes of the tensors in a ``model.bin``, and of their further names.

    Raises:
        ValueError: the file has another format.
        struct.error: the file ends early.
        OSError: it cannot be read.
    """
    shapes: dict[str, tuple[int, ...]] = {}
    with file.open("rb") as stream:

        def number(kind: str) -> int:
            size = struct.calcsize(f"<{kind}")
            value: int = struct.unpack(f"<{kind}", stream.read(size))[0]
            return value

        def text() -> str:
            length = number("H")
            if length > _LONGEST_NAME:
                raise ValueError(f"a name of {length} bytes")
            return stream.read(length).rstrip(b"\0").decode("utf-8")

        number("I")  # the version of the format
        if (name := text()) != _FORMAT:
            raise ValueError(f"it must hold a {_FORMAT}, but holds a {name:.60}")
        number("I")  # the version of the specification
        count = number("I")
        if count > _MOST_TENSORS:
            raise ValueError(f"{count} tensors")
        for _ in range(count):
            name = text()
            shapes[name] = tuple(number("I") for _ in range(number("B")))
            number("B")  # the type of the numbers
            stream.seek(number("I"), 1)
        for _ in range(number("I")):
            alias, name = text(), text()
            if name in shapes:
                shapes[alias] = shapes[name]
    return shapes
