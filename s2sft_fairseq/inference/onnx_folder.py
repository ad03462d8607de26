"""Check ONNX graphs of a received folder, before onnxruntime opens them and before a search runs them.

A graph names the files of its weights, which onnxruntime opens wherever they are. And a graph may have other inputs and
outputs than the search uses.
"""

import mmap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from s2sft_fairseq.checkpoints.model_folder import CONFIG, ENGINES
from s2sft_fairseq.data.protobuf import bytes_of, read_fields, text_of
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.models.onnx_encoder_decoder import ENCODER
from s2sft_fairseq.models.onnx_graph import slot_names
from s2sft_fairseq.received import part, part_problems

IDS, MASK, STATES = "tensor(int64)", "tensor(bool)", "tensor(float)"
"""The types of inputs and outputs, as onnxruntime writes them."""

Sizes = Sequence[int | None]
"""A shape; None stands for a dimension that differs from call to call."""

# Messages of onnx.proto: for each field that can lead to a tensor, its number and its message.
_MESSAGES: Mapping[str, Mapping[int, str]] = {
    "model": {7: "graph", 20: "training", 25: "function"},
    "training": {1: "graph", 2: "graph"},
    "function": {7: "node", 11: "attribute"},
    "graph": {1: "node", 5: "tensor", 15: "sparse"},
    "node": {5: "attribute"},
    "attribute": {5: "tensor", 6: "graph", 10: "tensor", 11: "graph", 22: "sparse", 23: "sparse"},
    "sparse": {1: "tensor", 2: "tensor"},
    "tensor": {13: "external"},
}
_SHOWN = 10  # problems
_DEEPEST = 50  # messages within messages; graphs of this package have 6


def check_graph_file(file: Path) -> None:
    """Check that a graph reads its weights from files of its own folder alone.

    Raises:
        UserError: naming every other file; or if the graph is damaged or no regular file.
    """
    part(file)
    try:
        with file.open("rb") as stream:
            content = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
        locations = sorted(set(_locations(content)))
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be read by onnxruntime: {error}") from None
    elsewhere = [name for name in locations if not name or Path(name).name != name]
    problems = [f"{file}: its weights must be in files of its folder, but are in {shown(name)}" for name in elsewhere]
    paths = [file.parent / name for name in locations if name not in elsewhere]
    problems += [f"{path}, which has weights of {file.name}, is missing" for path in paths if not path.exists()]
    problems += part_problems(paths)
    if problems:
        raise UserError.of(problems)


def _locations(message: memoryview, kind: str = "model", depth: int = 0) -> Iterator[str]:
    """Yield the names of the files of external tensors."""
    if depth > _DEEPEST:
        raise ValueError("its graphs are nested too deeply")
    for number, value in read_fields(message):
        within = _MESSAGES[kind].get(number)
        if within == "external":
            entry = dict(read_fields(bytes_of(value)))
            if text_of(entry.get(1, memoryview(b""))) == "location":
                yield text_of(entry.get(2, memoryview(b"")))
        elif within is not None:
            yield from _locations(bytes_of(value), within, depth + 1)


class Graphs:
    """The graphs of a folder, each with its session of onnxruntime, which are checked against its other files."""

    def __init__(self, folder: Path, sizes: Mapping[str, Any], symbols: int) -> None:
        """Take the folder, the sizes in its configuration, and the number of symbols of its dictionary.

        Raises:
            UserError: naming every size that is no whole number from 1 on; `head_dim` may be 0 or missing.
        """
        self.folder, self.symbols = folder, symbols
        names = ("encoder_layers", "encoder_embed_dim", "encoder_attention_heads", "max_positions", "decoder_layers")
        self.sizes = {name: sizes[name] for name in names if name in sizes}
        place = f"{folder / CONFIG}: cfg.model"
        problems = [
            f"{place}.{name} must be a whole number from 1 on, but is {shown(value)}"
            for name, value in self.sizes.items()
            if type(value) is not int or value < 1
        ]
        problems += [f"{place}.{name} is missing" for name in names[:4] if name not in self.sizes]
        head_dim = sizes.get("head_dim") or 0
        if type(head_dim) is not int or head_dim < 0:
            problems.append(f"{place}.head_dim must be a whole number from 0 on, but is {shown(head_dim)}")
        if problems:
            raise UserError.of(problems)
        self.heads = self.sizes["encoder_attention_heads"]
        self.head_dim = head_dim or self.sizes["encoder_embed_dim"] // self.heads

    def check_encoder_only(self, session: Any) -> None:
        """Check the graph of an encoder-only generator, also by scoring the last symbol at the last position.

        N: sentences, A: new tokens of each, P: tokens to predict, C: slots, V: vocabulary; h: heads, d: width of a
        head.

        Raises:
            UserError: naming everything that differs from what the search needs.
        """
        file, layers = self.folder / ENGINES["onnx"], self.sizes["encoder_layers"]
        ids = (IDS, (None, None))
        inputs: dict[str, tuple[str, Sizes]] = {
            **dict.fromkeys(("tokens", "positions", "segments", "slot_positions"), ids),
            "predicted": (IDS, (None,)),
            **dict.fromkeys(("visible", "seen"), (MASK, (None, None, None))),
        }
        # A graph has no input that its model does not use.
        needed = ["tokens", "predicted", *self._layer_names(file, session, layers)]
        inputs |= dict.fromkeys(needed[2:], (STATES, (None, self.heads, None, self.head_dim)))
        outputs = {"logits": STATES, **dict.fromkeys(slot_names(layers, "new_"), STATES)}
        check_interface(file, session, inputs, needed, outputs)
        zeros = np.zeros((1, 1), dtype=np.int64)
        nothing = np.zeros((1, self.heads, 1, self.head_dim), dtype=np.float32)
        trial = {
            "tokens": zeros + self.symbols - 1,
            "positions": zeros + self.sizes["max_positions"] - 1,
            "segments": zeros,
            "slot_positions": zeros,
            "predicted": zeros[0],
            "visible": np.ones((1, 1, 1), dtype=bool),
            "seen": np.zeros((1, 1, 1), dtype=bool),
            **dict.fromkeys(needed[2:], nothing),
        }
        # (N, P, V), (N, h, A, d)
        expected: dict[str, Sequence[int]] = {"logits": (1, 1, self.symbols)}
        for name in slot_names(layers, "new_"):
            expected[name] = nothing.shape
        check_trial(file, session, trial, expected)

    def check_encoder_decoder(self, encoder: Any, step: Any) -> None:
        """Check the two graphs of an encoder-decoder, also by reading and scoring the last symbol.

        N: sentences, K: hypotheses of each, S: source positions, P: earlier tokens, V: vocabulary; h: heads, d: width
        of a head.

        Raises:
            UserError: naming everything that differs from what the search needs.
        """
        reads, steps = self.folder / ENCODER, self.folder / ENGINES["onnx"]
        layers = self.sizes["decoder_layers"]
        names = self._layer_names(steps, step, layers)
        of_source = slot_names(layers, "source_")
        outputs = {"padding": MASK, **dict.fromkeys(of_source, STATES)}
        check_interface(reads, encoder, {"tokens": (IDS, (None, None))}, ["tokens"], outputs)
        inputs: dict[str, tuple[str, Sizes]] = {
            "tokens": (IDS, (None, None)),
            "position": (IDS, (1,)),
            "padding": (MASK, (None, None)),
            **dict.fromkeys(of_source, (STATES, (None, self.heads, None, self.head_dim))),
            **dict.fromkeys(names, (STATES, (None, None, self.heads, None, self.head_dim))),
        }
        new = slot_names(layers, "new_")
        check_interface(steps, step, inputs, list(inputs), {"logits": STATES, **dict.fromkeys(new, STATES)})
        token = np.full((1, 1), self.symbols - 1, dtype=np.int64)
        state = np.zeros((1, self.heads, 1, self.head_dim), dtype=np.float32)
        # (N, S), (N, h, S, d)
        read: dict[str, Sequence[int]] = {"padding": (1, 1)}
        for name in of_source:
            read[name] = state.shape
        check_trial(reads, encoder, {"tokens": token}, read)
        trial = {
            "tokens": token,
            "position": token[0] * 0 + self.sizes["max_positions"] - 1,
            "padding": np.zeros((1, 1), dtype=bool),
            **dict.fromkeys(of_source, state),
            **dict.fromkeys(names, state[None, :, :, :0]),
        }
        # (N, K, V), (N, K, h, P + 1, d)
        expected: dict[str, Sequence[int]] = {"logits": (1, 1, self.symbols)}
        for name in new:
            expected[name] = (1, *state.shape)
        check_trial(steps, step, trial, expected)

    def _layer_names(self, file: Path, session: Any, layers: int) -> list[str]:
        """Return the names of the keys and values of all layers, after a check that the graph has as many layers.

        Raises:
            UserError: it has others.
        """
        found = sum(each.name.startswith("keys_") for each in session.get_inputs())
        if found != layers:
            raise UserError(f"{file} must have the keys of {layers} layers, as {CONFIG} says, but has those of {found}")
        return slot_names(layers)


def check_interface(
    file: Path,
    session: Any,
    inputs: Mapping[str, tuple[str, Sizes]],
    needed: Iterable[str],
    outputs: Mapping[str, str],
) -> None:
    """Check the names, the types and the shapes of a graph's inputs, and the names and types of its outputs.

    Args:
        file: the file of the graph, for messages.
        session: the session of onnxruntime.
        inputs: the type and the shape of each input that the graph may have.
        needed: the inputs that it must have.
        outputs: the type of each output that it must have.

    Raises:
        UserError: naming everything that differs.
    """
    found = {each.name: each for each in session.get_inputs()}
    types = {each.name: each.type for each in session.get_outputs()}
    problems = [f"{file} must have no input {shown(name)}" for name in found if name not in inputs]
    problems += [f"{file} must have the input {name}, but lacks it" for name in needed if name not in found]
    problems += [f"{file} must have the output {name}, but lacks it" for name in outputs if name not in types]
    problems += [
        f"{file}: the output {name} must be a {type_}, but is a {types[name]}"
        for name, type_ in outputs.items()
        if types.get(name, type_) != type_
    ]
    for name, each in found.items():
        type_, shape = inputs.get(name, (each.type, None))
        if each.type != type_ or (shape is not None and not _fits(each.shape, shape)):
            problems.append(
                f"{file}: the input {name} must be a {type_} of {_written(shape or each.shape)}, but is a {each.type} "
                f"of {_written(each.shape)}"
            )
    if problems:
        raise UserError.of(problems, most=_SHOWN)


def check_trial(
    file: Path, session: Any, inputs: Mapping[str, np.ndarray], shapes: Mapping[str, Sequence[int]]
) -> None:
    """Run a graph once, and check the shapes of its outputs.

    Args:
        file: the file of the graph, for messages.
        session: the session of onnxruntime.
        inputs: the values; those of inputs that the graph does not have are left out.
        shapes: the shape of each output.

    Raises:
        UserError: the graph cannot be run, or naming the outputs of another shape.
    """
    has = {each.name for each in session.get_inputs()}
    found = run_graph(file, session, list(shapes), {name: value for name, value in inputs.items() if name in has})
    problems = [
        f"{file}: the output {name} must have the shape {tuple(shape)} in a trial, but has {value.shape}"
        for (name, shape), value in zip(shapes.items(), found, strict=True)
        if value.shape != tuple(shape)
    ]
    if problems:
        raise UserError.of(problems, most=_SHOWN)


def run_graph(
    file: Path | str, session: Any, outputs: Sequence[str], inputs: Mapping[str, np.ndarray]
) -> list[np.ndarray]:
    """Run a graph, and return the named outputs.

    Raises:
        UserError: onnxruntime fails.
    """
    try:
        return list(session.run(list(outputs), dict(inputs)))
    except Exception as error:  # onnxruntime has one class for each kind of failure, without a common base class
        raise UserError(f"{file} cannot be run by onnxruntime: {' '.join(str(error).split()):.300}") from None


def _fits(shape: Sequence[Any], expected: Sizes) -> bool:
    if len(shape) != len(expected):
        return False
    pairs = zip(shape, expected, strict=True)
    return all(type(size) is not int if other is None else size == other for size, other in pairs)


def _written(shape: Sequence[Any]) -> str:
    return f"({', '.join('any' if type(size) is not int else str(size) for size in shape)})"
