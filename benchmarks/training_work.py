"""The work that an update needs, which its time is compared with.

Letters: L layers, H width, I inner width, V vocabulary.
"""

from collections.abc import Sequence

from roofline import Sizes


def update_flops(sizes: Sizes, positions: int, scores: int, labels: int) -> int:
    """Count the matrix products of an update; an addition and a multiplication are two FLOPs.

    The backward pass needs two products for each one of the forward pass: one for the gradient of each factor.

    Args:
        sizes: of the model, which has BERT's layers and a tied head.
        positions: that go through the layers.
        scores: pairs of a query and a key that meet, in one layer.
        labels: positions that go through the head.
    """
    layers, width, ffn_width, vocab = sizes
    linear = positions * (4 * width**2 + 2 * width * ffn_width)
    attention = scores * 2 * width
    head = labels * (width**2 + width * vocab)
    return 3 * 2 * (layers * (linear + attention) + head)


def block_scores(blocks: Sequence[int]) -> int:
    """Count the scores of one example whose queries meet the keys of their own block and of those before it.

    This is more than the visibility rule allows, by the upper triangle of the target and the other placeholders. It is
    less than the package scores, whose target meets its placeholders too, and than the square of the positions.
    """
    return sum(length * sum(blocks[: index + 1]) for index, length in enumerate(blocks))
