"""Models in onnxruntime: onnxruntime runs the model in this project's own search.

N: sentences, A: new tokens of each, C: slots, L: layers, V: vocabulary; h: heads, d: width of a head.
"""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from s2sft_fairseq.checkpoints.model_folder import ENGINES, read_config
from s2sft_fairseq.checkpoints.sizes import is_language_model
from s2sft_fairseq.data.dictionary import DICTIONARY, PretrainedDictionary
from s2sft_fairseq.errors import UserError, as_option, package
from s2sft_fairseq.inference.onnx_encoder_decoder import OnnxEncoderDecoder, run
from s2sft_fairseq.inference.onnx_folder import Graphs, check_graph_file
from s2sft_fairseq.models.onnx_encoder_decoder import ENCODER
from s2sft_fairseq.models.onnx_graph import slot_names
from s2sft_fairseq.models.unilm import PREFILL_POSITIONS
from s2sft_fairseq.modules.incremental_state import Allocate, IncrementalState, consecutive, source_places
from s2sft_fairseq.modules.step_layout import StepLayout
from s2sft_fairseq.received import part

NAME = "onnx"


def open_onnx(folder: Path) -> "OnnxEngine":
    """Open a folder that ``s2sft export --format onnx`` wrote, on the CPU, with as many threads as PyTorch has.

    Raises:
        UserError: if onnxruntime is not installed or cannot read the files, or if the graphs are of another model than
            the folder's configuration and dictionary say.
    """
    library = package("onnxruntime", str(folder))
    sizes = read_config(folder)["cfg"]["model"]
    dictionary = PretrainedDictionary.load(str(part(folder / DICTIONARY)))
    graphs = Graphs(folder, sizes, len(dictionary))
    options = library.SessionOptions()
    options.intra_op_num_threads = torch.get_num_threads()
    options.log_severity_level = 3

    def session(name: str) -> Any:
        file = folder / name
        check_graph_file(file)
        try:
            return library.InferenceSession(str(file), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime has one class for each kind of failure, without a common base class
            raise UserError(f"{file} cannot be read by onnxruntime: {error}") from None

    if "decoder_layers" in sizes:
        encoder, step = session(ENCODER), session(ENGINES[NAME])
        graphs.check_encoder_decoder(encoder, step)
        return OnnxEngine(OnnxEncoderDecoder(encoder, step, sizes))
    graph = session(ENGINES[NAME])
    graphs.check_encoder_only(graph)
    return OnnxEngine(OnnxModel(graph, sizes["max_positions"], causal_sources=is_language_model(sizes)))


class OnnxEngine:
    """A model that onnxruntime runs."""

    name = NAME

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    def build_generator(self, task: Any, args: Any) -> Any:
        """Return the generator of the task, the same as for PyTorch models; see `Engine`.

        Raises:
            UserError: naming every option that needs the model itself.
        """
        if problems := [
            f"{as_option(name)} is not supported by {NAME}: use the model that was exported"
            for name in ("score_reference", "print_alignment")
            if getattr(args, name, None)
        ]:
            raise UserError.of(problems)
        return task.build_generator([self.model], args)


class OnnxModel(nn.Module):
    """Reads sources and does decoding steps in a search, in place of `UnilmModel`."""

    def __init__(self, session: Any, max_positions: int, *, causal_sources: bool = False) -> None:
        """Take a session of onnxruntime, the number of positions, and whether sources are read from left to right."""
        super().__init__()
        self.session, self.max_positions, self.causal_sources = session, max_positions, causal_sources
        shapes = {each.name: each.shape for each in session.get_inputs()}
        self.inputs = set(shapes)
        self.num_layers = sum(name.startswith("keys_") for name in shapes)
        # (N, h, C, d)
        self.heads, self.head_dim = shapes["keys_0"][1], shapes["keys_0"][3]
        self.slot_names = slot_names(self.num_layers)
        self.new_names = slot_names(self.num_layers, "new_")

    def prefill(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        lengths: Sequence[int],
        *,
        num_tokens: int,
        hypotheses: int = 1,
        allocate: Allocate | None = None,
    ) -> IncrementalState:
        """Encode the sources once and keep their keys and values; see `UnilmModel.prefill`."""
        state = IncrementalState.begin(
            positions,
            lengths,
            layers=self.num_layers,
            heads=self.heads,
            head_dim=self.head_dim,
            num_tokens=num_tokens,
            hypotheses=hypotheses,
            dtype=torch.float32,
            # A step multiplies unused slots by 0. They must be zeros: 0 * NaN is NaN.
            allocate=torch.zeros,
        )
        slots = state.source_slots
        for sentences, some in consecutive(lengths, PREFILL_POSITIONS["cpu"]):
            part = lengths[sentences]
            longest = max(part)
            places = source_places(part, longest, tokens.device)

            def padded(column: Tensor, places: Tensor = places, size: tuple[int, int] = (len(part), longest)) -> Tensor:
                # (T,) -> (n, S), each source at the end of its row
                return column.new_zeros(size[0] * size[1]).index_copy_(0, places, column).view(size)

            real = padded(torch.ones_like(tokens[some], dtype=torch.bool))
            visible = real.unsqueeze(1).expand(-1, longest, -1)
            if self.causal_sources:
                # Padding sees itself: a query that sees nothing would have the weights NaN.
                visible = visible.tril() | torch.eye(longest, dtype=torch.bool)
            # The graph needs at least one slot: give one that no token sees.
            nothing = torch.zeros(len(part), self.heads, 1, self.head_dim)
            _, new = self._run(
                {
                    "tokens": padded(tokens[some]),
                    "positions": padded(positions[some]),
                    "segments": padded(segments[some]),
                    "predicted": torch.zeros(1, dtype=torch.long),
                    "visible": visible,
                    "seen": torch.zeros(len(part), longest, 1, dtype=torch.bool),
                    "slot_positions": torch.zeros(len(part), 1, dtype=torch.long),
                    **dict.fromkeys(self.slot_names, nothing),
                },
                self.new_names,
            )
            for layer, key, value in zip(state.layers, new[::2], new[1::2], strict=True):
                layer.key[sentences, :, slots - longest : slots] = key
                layer.value[sentences, :, slots - longest : slots] = value
        return state

    def step(self, state: IncrementalState, tokens: Tensor, segments: Tensor, layout: StepLayout) -> Tensor:
        """Score the vocabulary at the newest tokens, and keep their keys and values; see `UnilmModel.step`."""
        state.make_room(layout)
        positions = layout.positions(state.lengths, self.max_positions)
        count, new = tokens.shape
        slots = [tensor for layer in state.layers for tensor in (layer.key, layer.value)]
        logits, new_slots = self._run(
            {
                "tokens": tokens,
                "positions": positions,
                "segments": segments.expand_as(tokens),
                "predicted": torch.arange(new - layout.num_predicted, new),
                "visible": layout.visible.expand(count, -1, -1),
                "seen": state.seen[:, layout.hypotheses],
                "slot_positions": state.positions,
                **dict(zip(self.slot_names, slots, strict=True)),
            },
            ["logits", *self.new_names],
        )
        places = state.slots_of(layout)
        state.positions[:, places] = positions
        for layer, key, value in zip(state.layers, new_slots[::2], new_slots[1::2], strict=True):
            layer.write(key, value, places, places.stop)
        state.keep(layout)
        return logits if layout.wanted is None else logits[layout.wanted]

    def _run(self, inputs: dict[str, Tensor], outputs: list[str]) -> tuple[Tensor, list[Tensor]]:
        """Return logits (N, P, V), if wanted, and the keys and values of the new tokens, 2 L tensors (N, h, A, d)."""
        given = {name: each for name, each in inputs.items() if name in self.inputs}
        found = run(self.session, outputs, given)
        return (found[0], found[1:]) if outputs[0] == "logits" else (torch.empty(0), found)
