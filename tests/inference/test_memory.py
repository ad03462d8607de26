"""Batches for decoding: each sentence once, within the limits, and as large as possible; free memory."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from pretended_gpu import counting, moved, upload
from tiny import ENCODERS, FIRST_WORD, VOCAB_SIZE, tiny_form, tiny_model

from s2sft_fairseq.inference import memory as planning
from s2sft_fairseq.inference.decoder import IncrementalDecoder
from s2sft_fairseq.inference.memory import UNKNOWN, BatchMemory, free_memory, memory_for, plan_batches, useful_sentences
from s2sft_fairseq.inference.step_graphs import batch_size


def memory(budget, **costs):
    settings = {"beam": 3, "max_tokens": 9, "cached_position": 7, "read_position": 11, "read_pair": 2}
    return BatchMemory(budget, **{**settings, "scored_row": 100, "scored_pair": 5, **costs})


def fits(batch, lengths, positions, max_tokens, max_sentences, estimate):
    """Return whether a batch keeps the limits, spelled out."""
    return (
        (max_tokens is None or len(batch) * max(positions[i] for i in batch) <= max_tokens)
        and (max_sentences is None or len(batch) <= max_sentences)
        and (estimate is None or len(batch) * estimate.of_sentence(max(lengths[i] for i in batch)) <= estimate.budget)
    )


@pytest.mark.parametrize("seed", range(30))
def test_every_sentence_once_in_batches_as_large_as_the_limits_allow(seed):
    rng = np.random.default_rng(seed)
    lengths = rng.integers(1, 40, size=rng.integers(1, 60))
    positions = lengths + rng.integers(0, 20, size=len(lengths)) if seed % 2 else lengths
    limits = (
        int(rng.integers(10, 400)) if rng.random() < 0.7 else None,
        int(rng.integers(1, 12)) if rng.random() < 0.7 else None,
        memory(int(rng.integers(100, 60_000))) if rng.random() < 0.7 else None,
    )
    max_tokens, max_sentences, estimate = limits
    batches = plan_batches(
        lengths,
        max_tokens=max_tokens,
        max_sentences=max_sentences,
        memory=estimate,
        positions=positions if seed % 2 else None,
    )
    assert sorted(np.concatenate(batches).tolist()) == list(range(len(lengths)))
    in_order = [lengths[index] for batch in batches for index in batch]
    assert in_order == sorted(lengths, reverse=True)
    for batch, following in zip(batches, [*batches[1:], []], strict=True):
        assert len(batch) == 1 or fits(batch, lengths, positions, *limits)
        assert not len(following) or not fits([*batch, following[0]], lengths, positions, *limits)


def test_no_limits_and_no_sentences():
    assert [batch.tolist() for batch in plan_batches(np.array([3, 9, 3]))] == [[1, 0, 2]]
    assert plan_batches(np.array([], dtype=np.int64), max_tokens=10, memory=memory(100)) == []


def test_the_cache_reading_and_scoring():
    cache, reading, scoring = (4 + 2 * 3) * 7, 4 * 11 + 16 * 2, 2 * (100 + 10 * 5)
    assert memory(0, beam=2, max_tokens=2).of_sentence(4) == cache + reading + scoring
    assert memory(400).most_sentences(1000) == 1


@pytest.mark.parametrize("encoder", ENCODERS)
def test_the_cache_is_counted_to_the_byte(encoder):
    model, sources = tiny_model(**ENCODERS[encoder]), torch.full((3, 8), FIRST_WORD)
    state = IncrementalDecoder(model, tiny_form(), sources, max_tokens=9, beams=2).state
    taken = sum(part.numel() * part.element_size() for layer in state.layers for part in (layer.key, layer.value))
    assert taken == memory_for([model], 2, 9, 0).cached_position * len(sources) * state.capacity


@pytest.mark.parametrize(("sources", "beam"), [(8, 1), (70, 1), (8, 5), (70, 5)])
def test_the_cache_of_a_gpu_is_no_larger_than_estimated(sources, beam):
    """On a GPU, slots are allocated by 64, and all get memory at the start."""
    model, form = moved(tiny_model(max_positions=128)), tiny_form(max_source=100)
    source = upload(torch.full((3, sources), FIRST_WORD))
    with torch.inference_mode(), counting():
        state = IncrementalDecoder(model, form, source, max_tokens=9, beams=beam).state
    estimate = memory_for([model], beam, 9, 0)
    taken = estimate.cached_position * state.capacity
    assert (
        0 < taken <= replace(estimate, read_position=0, read_pair=0, scored_row=0, scored_pair=0).of_sentence(sources)
    )


def test_graphs_fill_batches_up():
    """Only as far as the batch still fits."""
    for budget in range(1, 5000, 7):
        plain, graphed = (memory(budget, scored_row=0, cuda_graphs=graphs) for graphs in (False, True))
        assert batch_size(graphed.most_sentences(1)) <= plain.most_sentences(1)


def test_half_precision_halves_the_cache():
    whole, half = (memory_for([model], 5, 9, 0) for model in (tiny_model(), tiny_model().half()))
    assert half.cached_position * 2 == whole.cached_position
    assert half.scored_row == whole.scored_row > 3 * 4 * VOCAB_SIZE  # always float32


def test_an_ensemble_keeps_a_cache_for_each_model():
    one, two = (memory_for([tiny_model()] * count, 5, 9, 0) for count in (1, 2))
    assert two.cached_position == 2 * one.cached_position
    assert two.read_position == one.read_position


def test_relative_positions_take_a_bias_for_each_head():
    plain, relative = (memory_for([tiny_model(relative=given)], 5, 9, 0) for given in (False, True))
    assert relative.scored_pair == 2 * plain.scored_pair
    assert relative.read_pair > 0


def test_only_masks_need_pairs_of_positions_of_sources():
    local = {**ENCODERS["modernbert"], "max_positions": 8192}
    in_blocks, padded = (memory_for([tiny_model(**local, attention=how)], 5, 9, 0) for how in ("auto", "padded"))
    assert (in_blocks.read_pair, padded.read_pair > 0) == (0, True)
    assert memory_for([moved(tiny_model(**local))], 5, 9, 0).read_pair == padded.read_pair


def test_by_default_a_share_of_free_memory(monkeypatch):
    monkeypatch.setattr(planning, "free_memory", lambda device: {"cpu": 1000}[device.type])
    assert memory_for([tiny_model()], 5, 9).budget == 600


def test_the_cpu_has_a_largest_useful_number_of_sentences():
    cpu, gpu = torch.device("cpu"), torch.device("cuda")
    assert useful_sentences(cpu, 1) == 5 * useful_sentences(cpu, 5)
    assert useful_sentences(cpu, 10_000) == 1
    assert useful_sentences(gpu, 5) is None


CPU = torch.device("cpu")
KIB = 1024


def system(root, groups="", **files):
    (root / "proc/self").mkdir(parents=True)
    (root / "proc/meminfo").write_text("MemTotal:  9000 kB\nMemAvailable:   5000 kB\nHugePages_Total: 0\n")
    (root / "proc/self/cgroup").write_text(groups)
    for name, text in files.items():
        write(root, name, text)
    return root


def write(root, name, text):
    file = root / "sys/fs/cgroup" / name
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")


def test_memory_that_the_kernel_calls_available(tmp_path):
    assert free_memory(CPU, system(tmp_path)) == 5000 * KIB


def test_a_limit_of_version_2(tmp_path):
    root = system(tmp_path, "0::/job/step\n")
    write(root, "job/step/memory.max", "max")
    write(root, "job/step/memory.current", 10)
    assert free_memory(CPU, root) == 5000 * KIB
    write(root, "job/memory.max", 3000)
    write(root, "job/memory.current", 1000)
    assert free_memory(CPU, root) == 2000
    write(root, "job/memory.stat", "anon 500\ninactive_file 400\n")
    assert free_memory(CPU, root) == 2400


def test_a_limit_of_version_1_in_a_container_that_sees_its_group_as_the_root(tmp_path):
    root = system(tmp_path, "5:cpu:/docker/1\n4:memory:/docker/1\n0::/\n")
    write(root, "memory/memory.limit_in_bytes", 3000)
    write(root, "memory/memory.usage_in_bytes", 1000)
    write(root, "memory/memory.stat", "inactive_file 1\ntotal_inactive_file 50\n")
    assert free_memory(CPU, root) == 2050


@pytest.mark.parametrize("used", [2000, 4000])
def test_more_used_than_allowed(tmp_path, used):
    root = system(tmp_path, "0::/\n")
    write(root, "memory.max", 2000)
    write(root, "memory.current", used)
    assert free_memory(CPU, root) == 0


def test_systems_without_this_information(tmp_path):
    assert free_memory(CPU, tmp_path) == UNKNOWN
    assert free_memory(torch.device("mps")) == UNKNOWN


def test_this_system():
    assert free_memory(CPU) > 2**20
