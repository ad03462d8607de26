"""The incremental state: what is kept, what follows the search, what leaves with a sentence."""

import torch

from s2sft_fairseq.modules.incremental_state import IncrementalState, LayerCache

SENTENCES, HEADS, SOURCE, SIZE = 3, 2, 4, 5


def keys(rows, length, start=0.0):
    """Keys that tell the row, head and position they stand at: (rows, h, length, d)."""
    values = torch.arange(rows * HEADS * length * SIZE, dtype=torch.float32) + start
    return values.view(rows, HEADS, length, SIZE)


def filled_cache(beams=2, capacity=6):
    cache = LayerCache()
    cache.store_source(keys(SENTENCES, SOURCE), keys(SENTENCES, SOURCE, 1000))
    cache.allocate(SENTENCES * beams, capacity)
    return cache


def test_append_writes_behind_what_is_kept():
    cache = filled_cache()
    first = keys(6, 2), keys(6, 2, 1000)
    out = cache.append(*first, num_cached=0)
    torch.testing.assert_close(out, first)
    # Only the first of the two was kept: the second, a placeholder, is written over.
    second = keys(6, 2, 5000), keys(6, 2, 6000)
    key, value = cache.append(*second, num_cached=1)
    torch.testing.assert_close(key, torch.cat([first[0][:, :, :1], second[0]], dim=2))
    torch.testing.assert_close(value, torch.cat([first[1][:, :, :1], second[1]], dim=2))


def test_reorder_follows_the_hypotheses_and_leaves_the_source():
    cache = filled_cache()
    first = keys(6, 3), keys(6, 3, 1000)
    cache.append(*first, num_cached=0)
    # Cycles and repetitions: no row may be overwritten before it is read.
    rows = torch.tensor([1, 0, 3, 3, 5, 4])
    cache.reorder(rows, num_cached=3)
    torch.testing.assert_close(cache.generated_key[:, :, :3], first[0][rows])
    torch.testing.assert_close(cache.generated_value[:, :, :3], first[1][rows])
    torch.testing.assert_close(cache.source_key, keys(SENTENCES, SOURCE))


def test_sentences_leave_with_all_their_hypotheses():
    layers = [filled_cache(), filled_cache()]
    lengths = torch.tensor([4, 2, 3])
    padding = torch.arange(SOURCE) >= lengths.unsqueeze(1)
    bias = torch.zeros(SENTENCES, 1, 1, SOURCE).masked_fill(padding[:, None, None], float("-inf"))
    state = IncrementalState(layers, bias, lengths, beams=2, num_cached=1)
    generated = keys(6, 1), keys(6, 1, 1000)
    for layer in layers:
        layer.append(*generated, num_cached=0)
    rows = torch.tensor([0, 1, 4, 5])
    state.keep_sentences(torch.tensor([0, 2]), rows)
    for layer in layers:
        torch.testing.assert_close(layer.source_key, keys(SENTENCES, SOURCE)[[0, 2]])
        torch.testing.assert_close(layer.source_value, keys(SENTENCES, SOURCE, 1000)[[0, 2]])
        torch.testing.assert_close(layer.generated_key[:, :, :1], generated[0][rows])
        torch.testing.assert_close(layer.generated_value[:, :, :1], generated[1][rows])
    assert state.source_lengths.tolist() == [4, 3]
    torch.testing.assert_close(state.source_bias, bias[[0, 2]])


def test_allocate_makes_room_for_every_hypothesis():
    layers = [LayerCache()]
    layers[0].store_source(keys(SENTENCES, SOURCE), keys(SENTENCES, SOURCE))
    state = IncrementalState(layers, torch.zeros(SENTENCES, 1, 1, SOURCE), torch.full((SENTENCES,), SOURCE))
    state.allocate(beams=4, capacity=7)
    assert state.beams == 4
    assert layers[0].generated_key.shape == layers[0].generated_value.shape == (12, HEADS, 7, SIZE)
