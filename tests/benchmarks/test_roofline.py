"""The work that decoding needs, computed by hand, and the least time that it takes."""

from itertools import pairwise

import pytest
from roofline import Rates, Sizes, Work, least_seconds, needed_work

LAYERS, WIDTH, INNER, VOCAB_SIZE = 3, 16, 24, 50


def test_one_source_by_hand():
    """Two layers of width 2 and inner width 3, 5 symbols; a source of 4, 2 tokens, 3 beams; 2 FLOPs per product."""
    work = needed_work(Sizes(layers=2, width=2, ffn_width=3, vocab=5), (4,), 2, 3)
    square, ffn, head = 2 * 2, 2 * 3, 2 * 2 + 2 * 5
    layer = 4 * square + 2 * ffn  # query, key, value and output, and the feed-forward network
    # Four positions that see four in the first layer, and their keys and values in the second.
    assert work.prefill_flops == 2 * (4 * (layer + 2 * 4 * 2) + 4 * 2 * square)
    # The placeholder sees the source and itself, in both layers.
    first = 2 * (2 * (layer + 2 * 5 * 2) + head)
    # In each beam the last token sees five positions, the placeholder six; the second layer needs only key and value of
    # the token.
    second = 3 * 2 * (2 * layer + 2 * 5 * 2 + 2 * 6 * 2 + 2 * square + layer + 2 * 6 * 2 + head)
    assert work.step_flops == [first, second]
    # All weights, and keys and values of the source; no keys and values of tokens before the last one yet.
    assert work.step_bytes == [4 * (2 * layer + head + 2 * 2 * 2 * 4)] * 2


def test_steps_grow_by_the_attention_alone():
    flops = needed_work(Sizes(LAYERS, WIDTH, INNER, VOCAB_SIZE), (30,), 20, 2).step_flops[1:]
    # One more key, for two queries in each lower layer and one in the last, in each of two hypotheses.
    assert {after - before for before, after in pairwise(flops)} == {2 * 4 * WIDTH * (2 * LAYERS - 1)}


def test_a_step_takes_the_longer_of_computing_and_reading():
    work = Work(prefill_flops=1000, step_flops=[100, 300], step_bytes=[50, 60])
    assert least_seconds(work, Rates(flops=100, bytes=25)) == pytest.approx(10 + 2 + 3)
