"""The counts of work, compared with counts pair by pair; test_training_plain.py counts the products of layers."""

import pytest
from roofline import Sizes
from training_work import block_scores, update_flops


@pytest.mark.parametrize("blocks", [(7,), (5, 3), (6, 2, 2), (1, 4, 4)])
def test_scores_of_blocks(blocks):
    block_of = [index for index, length in enumerate(blocks) for _ in range(length)]
    assert block_scores(blocks) == sum(key <= query for query in block_of for key in block_of)


def test_an_update_of_one_layer_by_hand():
    # Width 2, inner width 3, vocabulary 5; 4 positions with 10 scores, 1 label. The products: query, key, value,
    # output; the two of the feed-forward network; scores and sums; head and output. Each is computed once forward and
    # twice backward.
    forward = 4 * (4 * 2 * 2 + 2 * 2 * 3) + 10 * 2 * 2 + 1 * (2 * 2 + 2 * 5)
    assert update_flops(Sizes(1, 2, 3, 5), positions=4, scores=10, labels=1) == 3 * 2 * forward
