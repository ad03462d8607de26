"""Decoding steps as CUDA graphs: the kernels of a step are recorded once, and then launched together.

A step of decoding is a few hundred small kernels, which a GPU runs faster than the host launches them one by one. A
graph has fixed shapes and fixed addresses. So the state of a batch lies in memory that the next batch uses again, a
batch has one of few sizes, and sentences that are done stay in it until the next smaller size suffices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.modules.incremental_state import IncrementalState
from s2sft_fairseq.modules.visibility import StepLayout

MOST_GRAPHS = 128
"""That are kept. Each takes some MB for its kernels' arguments; their results share memory."""


class Graph(Protocol):
    """A recorded graph."""

    def replay(self) -> None:
        """Run its kernels again, on what their tensors hold now."""


Record = Callable[[Callable[[], Tensor]], tuple[Graph, Tensor]]
"""Runs a function while its kernels are recorded; returns the graph and the tensor with the results."""


class CudaRecorder:
    """Records on the current CUDA device. Graphs share memory: a result is valid until the next graph runs."""

    def __init__(self) -> None:
        self._pool: Any = torch.cuda.graph_pool_handle()

    def __call__(self, compute: Callable[[], Tensor]) -> tuple[Graph, Tensor]:
        """See `Record`. Other threads may use the GPU meanwhile."""
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, pool=self._pool, capture_error_mode="thread_local"):
            result = compute()
        return graph, result


class _Shape(NamedTuple):
    """What the kernels of a step depend on, beside the contents of tensors."""

    sentences: int
    hypotheses: int
    capacity: int
    end: int
    layout: int


@dataclass
class _RecordedStep:
    """A step of one shape, and the tensors that its graph reads."""

    tokens: Tensor
    """The new tokens, which are copied here (N, A)."""
    slots: Tensor
    """Those of the new tokens, which are written here (A,)."""
    offsets: Tensor
    """0, 1, ..., A - 1."""
    segments: Tensor
    layout: StepLayout
    graph: Graph | None = None
    logits: Tensor | None = None


class StepGraphs:
    """The steps of one model.

    One batch at a time uses it: `begin` starts the next one.

    N: sentences, A: new tokens of each, P: predictions of each, V: vocabulary.
    """

    def __init__(self, model: UnilmModel, record: Record) -> None:
        """Take the model, on its device and ready to decode, and what records."""
        self.model, self._record = model, record
        self._steps: dict[_Shape, _RecordedStep] = {}
        self._memory: list[Tensor] = []
        self._taken = 0

    def begin(self) -> None:
        """Let the next batch have the memory of the last one."""
        self._taken = 0

    def allocate(self, size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return a tensor for the state of a batch; the n-th one of each batch stands at the same address."""
        count = torch.Size(size).numel()
        if self._taken == len(self._memory):
            self._memory.append(torch.zeros(0, dtype=dtype, device=device))
        if self._memory[self._taken].numel() < count:
            self._steps.clear()  # they read the old memory
            self._memory[self._taken] = self._memory[self._taken][:0].clone()  # frees it first
            self._memory[self._taken] = torch.zeros(count, dtype=dtype, device=device)
        self._taken += 1
        return self._memory[self._taken - 1][:count].view(size)

    def step(self, state: IncrementalState, tokens: Tensor, segments: Tensor, layout: StepLayout) -> Tensor:
        """Do the same as `UnilmModel.step`: the first step of a shape kernel by kernel, the second one while it is
        recorded, all others by the graph.

        Args:
            state: of a batch since `begin`, allocated by `allocate`.
            tokens: and ``segments``, ``layout``: as for `UnilmModel.step`.

        Returns:
            Logits (N, P, V), valid until the next step.
        """
        capacity = state.capacity
        state.make_room(layout)
        if state.capacity > capacity:
            self._steps.clear()  # the state has left the memory that they read
        end = state.read_by(layout)
        shape = _Shape(len(tokens), state.hypotheses, state.capacity, end, id(layout))
        if shape not in self._steps:
            if len(self._steps) >= MOST_GRAPHS:
                self._steps.clear()
            offsets = torch.arange(tokens.size(1), device=tokens.device)
            self._steps[shape] = _RecordedStep(tokens.clone(), offsets + state.used, offsets, segments, layout)
            logits = self.model.score(state, tokens, segments, layout, state.slots_of(layout), end)
        else:
            logits = self._replayed(self._steps[shape], state, tokens, end)
        state.keep(layout)
        return logits

    def _replayed(self, step: _RecordedStep, state: IncrementalState, tokens: Tensor, end: int) -> Tensor:
        step.tokens.copy_(tokens)
        torch.add(step.offsets, state.used, out=step.slots)
        if step.graph is None:
            step.graph, step.logits = self._record(
                lambda: self.model.score(state, step.tokens, step.segments, step.layout, step.slots, end)
            )
        step.graph.replay()
        assert step.logits is not None
        return step.logits


def batch_size(sentences: int) -> int:
    """Return the size of the batch that so many sentences are decoded in: 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    size = 1 << max(0, sentences - 1).bit_length()
    if not sentences:
        return 0
    return size * 3 // 4 if size >= 4 and size * 3 // 4 >= sentences else size
