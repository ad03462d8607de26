"""Decoding with recorded graphs: the same hypotheses as without, batch after batch in the same memory."""

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from pretended_gpu import counting, moved, upload
from recorded_graph import record
from searches import LENGTHS, SEARCHES, assert_same, batch_of, search_options, sources
from tiny import ENCODERS, tiny_form, tiny_model

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference import step_graphs
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.step_graphs import CudaRecorder, StepGraphs, batch_size, largest_batch
from s2sft_fairseq.modules import incremental_state
from s2sft_fairseq.modules.incremental_state import IncrementalState

pytestmark = pytest.mark.rounding

BATCHES = (LENGTHS, (4, 4), (20, 18, 16, 11, 9, 9, 2), LENGTHS, (1,), (30,) * 3, LENGTHS)
"""Lengths of sources: larger and smaller batches, and repeated ones."""
# Samples depend on the size of the batch; drafts and blocks are refused.
GRAPHED = [name for name in SEARCHES if not name.startswith(("sampling", "drafts", "blocks"))]


class Decoders:
    """One decoder that runs kernel by kernel, and one that records its steps."""

    def __init__(self, form, search, *models):
        self.form, options = form, search_options(**SEARCHES[search])
        self.plain, self.graphed = (
            SequenceGenerator([moved(model) for model in models], form, options) for _ in range(2)
        )
        self.graphed.graphs = [StepGraphs(model, record) for model in self.graphed.models]

    def assert_same(self, batches=BATCHES):
        for lengths in batches:
            found = []
            for generator in (self.plain, self.graphed):
                with counting():
                    found.append(generator.generate([], batch_of(upload(sources(self.form, lengths)))))
            assert_same(found[1], found[0])

    def recorded(self):
        """Return the shapes for which the first model has graphs."""
        return [shape for shape, step in self.graphed.graphs[0]._steps.items() if step.graph is not None]


@pytest.mark.parametrize("search", GRAPHED)
def test_every_search(search):
    decoders = Decoders(tiny_form("pseudo_masked"), search, tiny_model(1))
    decoders.assert_same()
    assert decoders.recorded()


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize(
    "method", ["pseudo_masked", *(pytest.param(method, marks=pytest.mark.slow) for method in ("causal", "infilling"))]
)
def test_every_encoder(encoder, method):
    Decoders(tiny_form(method), "all of the beam", tiny_model(1, **encoder)).assert_same(BATCHES[:4])


def test_ensembles():
    Decoders(tiny_form("pseudo_masked"), "beam", tiny_model(1), tiny_model(2)).assert_same()


def test_slots_of_one_size_have_one_graph():
    """Here sizes and capacity do not change within a batch, nor in the next equal batch."""
    decoders = Decoders(tiny_form("pseudo_masked"), "keep unfinished", tiny_model(1))
    decoders.assert_same([LENGTHS] * 3)
    whole = [shape for shape in decoders.recorded() if shape.sentences == batch_size(len(LENGTHS))]
    # A step with one hypothesis, and steps with three.
    assert sorted(shape.hypotheses for shape in whole) == [1, 3]


def test_slots_that_are_moved_and_more_room(monkeypatch):
    """Slots are compacted at each step; there are few at first, and few are read at a time."""
    monkeypatch.setattr(incremental_state, "STEPS_BETWEEN_COMPACTIONS", 1)
    monkeypatch.setattr(incremental_state, "SLOTS_AT_A_TIME", 2)
    monkeypatch.setattr("s2sft_fairseq.inference.decoder.STEPS_BETWEEN_COMPACTIONS", -1)
    decoders = Decoders(tiny_form("pseudo_masked"), "no repeated n-grams", tiny_model(1))
    decoders.assert_same()


def test_a_state_that_leaves_its_memory(monkeypatch):
    """Graphs of a state that moved would read freed memory in a later batch of the same capacity."""
    monkeypatch.setattr(incremental_state, "SLOTS_AT_A_TIME", 1)
    monkeypatch.setattr("s2sft_fairseq.inference.decoder.STEPS_BETWEEN_COMPACTIONS", -1)
    decoders = Decoders(tiny_form("pseudo_masked"), "no repeated n-grams", tiny_model(1))
    decoders.assert_same([LENGTHS] * 2)
    (graphs,) = decoders.graphed.graphs
    *_, positions, _ = graphs._memory
    assert graphs._has_left
    assert {shape.capacity for shape in graphs._steps} == {len(positions) // batch_size(len(LENGTHS))}


def test_attention_reads_a_multiple_of_slots(monkeypatch):
    """Also if a state often needs more capacity: the kernels would copy masks with rows that are not aligned."""
    monkeypatch.setattr(incremental_state, "SLOTS_AT_A_TIME", 4)
    monkeypatch.setattr("s2sft_fairseq.inference.decoder.STEPS_BETWEEN_COMPACTIONS", -1)
    widths, capacities, seen_by = set(), set(), IncrementalState.seen_by

    def watched(state, layout, slots, end):
        widths.add(end)
        capacities.add(state.capacity)
        return seen_by(state, layout, slots, end)

    monkeypatch.setattr(IncrementalState, "seen_by", watched)
    Decoders(tiny_form("pseudo_masked"), "no repeated n-grams", tiny_model(1)).assert_same([LENGTHS])
    assert len(capacities) > 1
    assert not any(width % 4 for width in widths | capacities)


def test_results_share_memory():
    """Memory for the results of the largest batch exists once, however many graphs there are."""
    decoders = Decoders(tiny_form("pseudo_masked"), "beam", tiny_model(1))
    decoders.assert_same([LENGTHS] * 2)
    (graphs,) = decoders.graphed.graphs
    assert len(decoders.recorded()) > 1
    with counting():
        addresses = {step.logits.held.data_ptr() for step in graphs._steps.values() if step.layout.num_predicted == 3}
    assert len(addresses) == 1


def test_nan_left_by_a_failed_batch():
    """Unused slots are read too, so a NaN in them would spread: 0 * NaN is NaN."""
    decoders = Decoders(tiny_form("pseudo_masked"), "beam", tiny_model(1))
    (graphs,) = decoders.graphed.graphs
    decoders.assert_same([LENGTHS] * 2)
    with torch.inference_mode(), counting():
        for memory in graphs._memory:
            if memory.is_floating_point():
                memory.fill_(float("nan"))
    decoders.assert_same([LENGTHS])


def test_memory_that_runs_out(monkeypatch):
    """Halves of a batch start without allocated memory; the memory of the whole batch would leave them none."""
    decoders, taken = Decoders(tiny_form("pseudo_masked"), "beam", tiny_model(1)), []
    (graphs,) = decoders.graphed.graphs
    begin = IncrementalState.begin

    def begin_small(positions, lengths, *, allocate, **options):
        taken.append(sum(memory.numel() for memory in graphs._memory) if allocate is not None else None)
        state = begin(positions, lengths, allocate=allocate, **options)
        if allocate is not None and len(lengths) > 4:
            raise torch.OutOfMemoryError("CUDA out of memory")
        return state

    monkeypatch.setattr(IncrementalState, "begin", begin_small)
    decoders.assert_same([LENGTHS])
    assert [count for count in taken if count is not None][:2] == [0, 0]


def test_few_graphs_are_kept(monkeypatch):
    monkeypatch.setattr(step_graphs, "MOST_GRAPHS", 2)
    decoders = Decoders(tiny_form("pseudo_masked"), "beam", tiny_model(1))
    decoders.assert_same()
    assert len(decoders.recorded()) <= 2


def test_needs_a_gpu():
    with pytest.raises(UserError) as error:
        SequenceGenerator([tiny_model(1)], tiny_form("causal"), search_options(cuda_graphs="on"))
    assert "--cuda-graphs" in str(error.value)
    assert "cpu" in str(error.value)


class Pools:
    """PyTorch's rule for memory that graphs share: it ends with the last graph, and cannot be used again."""

    def __init__(self):
        self.users, self.ended, self.devices = Counter(), set(), set()

    def install(self, patch):
        pools = self

        class Graph:
            pool = None

            def __del__(self):
                pools.users[self.pool] -= 1
                if not pools.users[self.pool]:
                    pools.ended.add(self.pool)

        @contextmanager
        def capture(graph, *, pool, stream, capture_error_mode):
            assert pool not in pools.ended, "INTERNAL ASSERT FAILED: use_count > 0"
            pools.users[pool] += 1
            pools.devices.add(stream)
            graph.pool = pool
            yield

        patch.setattr(torch.cuda, "CUDAGraph", Graph)
        patch.setattr(torch.cuda, "graph", capture)
        patch.setattr(torch.cuda, "Stream", lambda device: device)
        patch.setattr(torch.cuda, "graph_pool_handle", lambda: "a pool")


def test_recorder_when_no_graph_is_left(monkeypatch):
    """When memory grows, all graphs are dropped and recorded again, on the device of the model."""
    pools = Pools()
    pools.install(monkeypatch)
    recorder = CudaRecorder(torch.device("cpu"))
    for _ in range(2):
        graph = recorder(lambda: None)
        assert graph.pool == "a pool"
        del graph
    assert pools.devices == {torch.device("cpu")}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_on_a_gpu(encoder):
    """With CUDA's own graphs."""
    form, model = tiny_form("pseudo_masked"), tiny_model(1, **encoder).cuda()
    plain, graphed = (
        SequenceGenerator([model], form, search_options(beam=3, cuda_graphs=graphs)) for graphs in ("off", "on")
    )
    for lengths in BATCHES:
        batch = batch_of(sources(form, lengths).cuda())
        assert_same(graphed.generate([], batch), plain.generate([], batch))


def test_a_step_that_cannot_be_recorded(monkeypatch):
    Pools().install(monkeypatch)
    recorder = CudaRecorder(torch.device("cpu"))

    def fails():
        raise RuntimeError("operation not permitted when stream is capturing")

    with pytest.raises(UserError) as error:
        recorder(fails)
    assert "--cuda-graphs off" in str(error.value) and "not permitted when stream is capturing" in str(error.value)

    def is_too_large():
        raise torch.OutOfMemoryError("CUDA out of memory")

    with pytest.raises(torch.OutOfMemoryError):
        recorder(is_too_large)


def test_batch_sizes():
    """A size exceeds the number of sentences by at most half."""
    sizes = [batch_size(sentences) for sentences in range(50)]
    assert sorted(set(sizes)) == [0, 1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64]
    assert all(sentences <= size <= 1.5 * sentences for sentences, size in enumerate(sizes))
    assert sizes == sorted(sizes)
    for most in range(1, 50):
        assert largest_batch(most) == max(size for size in sizes if size <= most)
