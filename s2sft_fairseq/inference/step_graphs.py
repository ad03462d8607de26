"""Decoding steps as CUDA graphs: the kernels of a step are recorded once, and then launched together.

A step of decoding runs a few hundred small kernels, and a GPU runs them faster than the host launches them one by one.
A graph has fixed shapes and fixed addresses. So each batch keeps its state in the memory of the last batch, a batch has
one of a few sizes, and done sentences stay in it until the rest fits into the next smaller size.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.modules.incremental_state import IncrementalState
from s2sft_fairseq.modules.step_layout import StepLayout

MOST_GRAPHS = 128
"""Most graphs that are kept. Each takes some MB for the arguments of its kernels; all share memory for results."""


class Graph(Protocol):
    """A recorded graph."""

    def replay(self) -> None:
        """Run the kernels again, on the present contents of their tensors."""


Record = Callable[[Callable[[], object]], Graph]
"""Records the kernels of a function. Its results are valid only after the graph is replayed."""


class CudaRecorder:
    """Records on a CUDA device. Graphs share memory: each replay may overwrite what other graphs computed there."""

    def __init__(self, device: torch.device) -> None:
        # PyTorch's default stream for recording belongs to the device that records first.
        self._stream = torch.cuda.Stream(device)
        self._pool = torch.cuda.graph_pool_handle()
        # This graph keeps the pool alive: PyTorch frees the pool with its last graph, and cannot use it again.
        self._keeps_the_pool = self(lambda: torch.zeros(1, device=device))

    def __call__(self, compute: Callable[[], object]) -> Graph:
        """Record the kernels of a function; see `Record`. Other threads may use the GPU at the same time.

        Raises:
            UserError: if CUDA cannot record it, for a reason other than too little memory.
        """
        graph = torch.cuda.CUDAGraph()
        try:
            with torch.cuda.graph(graph, pool=self._pool, stream=self._stream, capture_error_mode="thread_local"):
                compute()
        except torch.OutOfMemoryError:
            raise  # the batch is generated in halves
        except RuntimeError as error:
            raise UserError(f"CUDA cannot record a step of this model; give --cuda-graphs off: {error}") from error
        return graph


class _Shape(NamedTuple):
    """Everything that the kernels of a step depend on, besides the contents of tensors."""

    sentences: int
    hypotheses: int
    capacity: int
    end: int
    layout: int


@dataclass
class _RecordedStep:
    """A step of one shape, and the tensors that its graph reads and writes."""

    tokens: Tensor
    """Input of the graph: the new tokens (N, A)."""
    slots: Tensor
    """Input of the graph: the slots of the new tokens (A,)."""
    offsets: Tensor
    """0, 1, ..., A - 1."""
    segments: Tensor
    layout: StepLayout
    logits: Tensor
    """(N, P, V), in memory that the graphs of all shapes write to."""
    graph: Graph | None = None


class StepGraphs:
    """The decoding steps of one model, for one batch at a time: `begin` starts the next batch.

    N: sentences, A: new tokens of each, P: predictions of each, V: vocabulary.
    """

    def __init__(self, model: UnilmModel, record: Record) -> None:
        """Take the model, on its device and ready to decode, and a recorder."""
        self.model, self._record = model, record
        self.clear()

    def clear(self) -> None:
        """Forget the graphs, and free the memory of the state."""
        self._steps: dict[_Shape, _RecordedStep] = {}
        self._memory: list[Tensor] = []
        self._logits = self.model.embeddings.tokens.weight.new_zeros(0)
        self.begin()

    def begin(self) -> None:
        """Start the next batch, which reuses the memory of the last one."""
        self._taken = 0
        self._has_left = False

    def allocate(self, size: tuple[int, ...], *, dtype: torch.dtype, device: torch.device) -> Tensor:
        """Return zeros for the state of a batch; the n-th tensor of each batch has the same address."""
        count = math.prod(size)
        if self._taken == len(self._memory):
            self._memory.append(torch.zeros(0, dtype=dtype, device=device))
        if self._memory[self._taken].numel() < count:
            self._steps.clear()  # they read the old memory
            self._memory[self._taken] = self._memory[self._taken][:0].clone()  # frees the old memory first
            self._memory[self._taken] = torch.empty(count, dtype=dtype, device=device)
        self._taken += 1
        return self._memory[self._taken - 1][:count].zero_().view(size)

    def step(self, state: IncrementalState, tokens: Tensor, segments: Tensor, layout: StepLayout) -> Tensor:
        """Do a step as `UnilmModel.step` does, with a graph where possible.

        The first step of a shape runs kernel by kernel, the second one is recorded and then replayed, and all others
        replay the graph. A state that needs more room than it began with leaves the memory that graphs read: the rest
        of its batch runs kernel by kernel.

        Args:
            state: the state of the batch since `begin`, allocated by `allocate`.
            tokens: as for `UnilmModel.step`.
            segments: as for `UnilmModel.step`.
            layout: as for `UnilmModel.step`.

        Returns:
            Logits (N, P, V), valid until the next step.
        """
        capacity = state.capacity
        state.make_room(layout)
        self._has_left |= state.capacity > capacity
        end = state.read_by(layout)
        if self._has_left:
            logits = self.model.score(state, tokens, segments, layout, state.slots_of(layout), end)
        else:
            logits = self._score(state, tokens, segments, layout, end)
        state.keep(layout)
        return logits

    def _score(self, state: IncrementalState, tokens: Tensor, segments: Tensor, layout: StepLayout, end: int) -> Tensor:
        shape = _Shape(len(tokens), state.hypotheses, state.capacity, end, id(layout))
        if is_new := shape not in self._steps:
            if len(self._steps) >= MOST_GRAPHS:
                self._steps.clear()
            offsets = torch.arange(tokens.size(1), device=tokens.device)
            logits = self._room_for_logits(len(tokens), layout.num_predicted)
            self._steps[shape] = _RecordedStep(
                torch.empty_like(tokens), torch.empty_like(offsets), offsets, segments, layout, logits
            )
        step = self._steps[shape]
        step.tokens.copy_(tokens)
        torch.add(step.offsets, state.used, out=step.slots)

        def compute() -> Tensor:
            return step.logits.copy_(self.model.score(state, step.tokens, step.segments, step.layout, step.slots, end))

        # Kernels must run once before they are recorded: at the first run CUDA loads them and libraries plan.
        if is_new:
            return compute()
        if step.graph is None:
            step.graph = self._record(compute)
        step.graph.replay()
        return step.logits

    def _room_for_logits(self, sentences: int, predictions: int) -> Tensor:
        """Return memory for logits (N, P, V). Existing graphs keep the memory that they write to."""
        size = (sentences, predictions, len(self.model.embeddings.tokens.weight))
        if self._logits.numel() < math.prod(size):
            self._logits = self._logits.new_empty(math.prod(size))
        return self._logits[: math.prod(size)].view(size)


def batch_size(sentences: int) -> int:
    """Return the size of a batch for these sentences: the next of 0, 1, 2, 3, 4, 6, 8, 12, 16, 24, ..."""
    size = 1 << max(0, sentences - 1).bit_length()
    if not sentences:
        return 0
    return size * 3 // 4 if size >= 4 and size * 3 // 4 >= sentences else size


def largest_batch(most: int) -> int:
    """Return the largest of these sizes that is at most ``most``, which is at least 1."""
    size = 1 << most.bit_length() - 1
    return size * 3 // 2 if size * 3 // 2 <= most else size
