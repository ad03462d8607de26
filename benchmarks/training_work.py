"""The work that an update needs.

Letters: L layers, H width, I inner width, V vocabulary.
"""

from collections.abc import Sequence

from roofline import Sizes


def update_flops(sizes: Sizes, positions: int, scores: int, labels: int) -> int:
    """Count the FLOPs of the matrix products of an update; an addition and a multiplication are two FLOPs.

    The backward pass needs two products for each product of the forward pass: one for the gradient of each factor.

    Args:
        sizes: sizes of the model, which has BERT's layers and a tied head.
        positions: number of positions that go through the layers.
        scores: number of pairs of a query and a key that are scored in one layer.
        labels: number of positions that go through the head.
    """
    layers, width, ffn_width, vocab = sizes
    linear = positions * (4 * width**2 + 2 * width * ffn_width)
    attention = scores * 2 * width
    head = labels * (width**2 + width * vocab)
    return 3 * 2 * (layers * (linear + attention) + head)


def block_scores(blocks: Sequence[int]) -> int:
    """Count the scores of one example if queries meet the keys of their own section and of the sections before it.

    Visibility allows fewer: it excludes the upper triangle of the target, and the other placeholders. The package
    computes more, because its target meets the placeholders too. The square of the positions is also more.
    """
    return sum(length * sum(blocks[: index + 1]) for index, length in enumerate(blocks))
