"""The layouts of decoding steps, compared with matrices written by hand."""

import torch

from s2sft_fairseq.modules.step_layout import block_layout, drafted_layout, next_token_layout


def layout(hypotheses, new, placeholder):
    return next_token_layout(hypotheses, new, placeholder=placeholder, device=torch.device("cpu"))


def test_one_token_and_a_placeholder():
    found = layout(1, 1, True)
    assert found.visible.int().tolist() == [[1, 0], [1, 1]]
    assert (found.offsets.tolist(), found.hypotheses.tolist()) == ([0, 1], [0, 0])
    assert (found.num_kept, found.num_predicted) == (1, 1)


def test_a_causal_model_predicts_from_its_last_token():
    found = layout(2, 2, False)
    assert found.offsets.tolist() == [0, 0, 1, 1]
    assert found.hypotheses.tolist() == [0, 1, 0, 1]
    assert found.visible.int().tolist() == [[1, 0, 0, 0], [0, 1, 0, 0], [1, 0, 1, 0], [0, 1, 0, 1]]
    assert (found.num_kept, found.num_predicted) == (4, 2)


def test_several_tokens_of_two_hypotheses_with_placeholders():
    found = layout(2, 2, True)
    assert found.offsets.tolist() == [0, 0, 1, 1, 2, 2]
    assert found.visible.int().tolist() == [
        [1, 0, 0, 0, 0, 0],
        [0, 1, 0, 0, 0, 0],
        [1, 0, 1, 0, 0, 0],
        [0, 1, 0, 1, 0, 0],
        [1, 0, 1, 0, 1, 0],
        [0, 1, 0, 1, 0, 1],
    ]


def test_placeholders_alone():
    found = layout(3, 0, True)
    assert found.visible.equal(torch.eye(3, dtype=torch.bool))
    assert (found.offsets.tolist(), found.num_kept, found.num_predicted) == ([0, 0, 0], 0, 3)


def drafted(pending, drafts, ahead, behind=None, placeholder=True, in_block=False):
    behind = tuple(range(drafts + 1)) if behind is None else behind
    return drafted_layout(
        pending, drafts, ahead, behind, placeholder=placeholder, in_block=in_block, device=torch.device("cpu")
    )


def test_a_placeholder_after_each_prefix_of_the_drafts():
    """One pending token a, two drafts b and c: the tokens after a, ab and abc are predicted at p, q and r."""
    found = drafted(1, 2, 0)
    assert found.offsets.tolist() == [0, 1, 2, 1, 2, 3]
    assert (found.num_kept, found.num_predicted) == (3, 3)
    assert found.visible.int().tolist() == [
        [1, 0, 0, 0, 0, 0],  # a
        [1, 1, 0, 0, 0, 0],  # b
        [1, 1, 1, 0, 0, 0],  # c
        [1, 0, 0, 1, 0, 0],  # p
        [1, 1, 0, 0, 1, 0],  # q
        [1, 1, 1, 0, 0, 1],  # r
    ]


def test_placeholders_further_ahead_only_see_the_prefix():
    """A is pending, b is a draft; p and q predict the next token, p1 p2 and q1 q2 the tokens after it."""
    found = drafted(1, 1, 2)
    assert found.offsets.tolist() == [0, 1, 1, 2, 2, 3, 3, 4]
    assert (found.num_kept, found.num_predicted) == (2, 6)
    assert found.visible[:, :2].int().tolist() == [[1, 0], [1, 1], [1, 0], [1, 1], [1, 0], [1, 0], [1, 1], [1, 1]]
    assert found.visible[2:, 2:].equal(torch.eye(6, dtype=torch.bool))
    assert not found.visible[:2, 2:].any()


def test_placeholders_further_ahead_as_a_block():
    """A is pending, b is a draft: x and y are the next token in blocks x p1 p2 and y q1 q2; p and q predict it."""
    found = drafted(1, 1, 2, in_block=True)
    assert found.offsets.tolist() == [0, 1, 1, 2, 1, 2, 2, 3, 3, 4]
    assert (found.num_kept, found.num_predicted) == (2, 6)
    assert found.visible.int().tolist() == [
        [1, 0, 0, 0, 0, 0, 0, 0, 0, 0],  # a
        [1, 1, 0, 0, 0, 0, 0, 0, 0, 0],  # b
        [1, 0, 1, 0, 0, 0, 1, 1, 0, 0],  # x
        [1, 1, 0, 1, 0, 0, 0, 0, 1, 1],  # y
        [1, 0, 0, 0, 1, 0, 0, 0, 0, 0],  # p
        [1, 1, 0, 0, 0, 1, 0, 0, 0, 0],  # q
        [1, 0, 1, 0, 0, 0, 1, 1, 0, 0],  # p1
        [1, 0, 1, 0, 0, 0, 1, 1, 0, 0],  # p2
        [1, 1, 0, 1, 0, 0, 0, 0, 1, 1],  # q1
        [1, 1, 0, 1, 0, 0, 0, 0, 1, 1],  # q2
    ]


def test_a_block_after_one_prefix_only():
    """A is pending, b is a draft: y q1 follow ab, and only p follows a."""
    found = drafted(1, 1, 1, (1,), in_block=True)
    assert found.offsets.tolist() == [0, 1, 2, 1, 2, 3]
    assert (found.num_kept, found.num_predicted) == (2, 3)
    assert found.visible.int().tolist() == [
        [1, 0, 0, 0, 0, 0],  # a
        [1, 1, 0, 0, 0, 0],  # b
        [1, 1, 1, 0, 0, 1],  # y
        [1, 0, 0, 1, 0, 0],  # p
        [1, 1, 0, 0, 1, 0],  # q
        [1, 1, 1, 0, 0, 1],  # q1
    ]
    assert drafted(1, 1, 0, (), in_block=True).offsets.tolist() == [0, 1, 1, 2]


def test_blocks_after_content_of_different_lengths():
    """Two sentences: the first reads a and b, the second nothing, and its block has two placeholders."""
    found = block_layout(torch.tensor([2, 0]), 2, torch.tensor([9, 2]), torch.ones(2, 3, dtype=torch.bool))
    assert found.offsets.tolist() == [[0, 1, 2, 3, 4], [0, 0, 0, 1, 1]]
    assert (found.num_kept, found.num_predicted) == (2, 3)
    block = [[1, 1, 1]] * 3
    assert found.visible[0].int().tolist() == [[1, 0, 0, 0, 0], [1, 1, 0, 0, 0], *([1, 1, *row] for row in block)]
    # The third placeholder does not exist, and no placeholder sees content that does not exist.
    assert found.visible[1, 2:].int().tolist() == [[0, 0, 1, 1, 0], [0, 0, 1, 1, 0], [0, 0, 0, 0, 1]]


def test_nothing_is_read_at_first():
    found = drafted(0, 0, 1)
    assert found.offsets.tolist() == [0, 1]
    assert found.visible.equal(torch.eye(2, dtype=torch.bool))
    assert (found.num_kept, found.num_predicted) == (0, 2)


def test_a_causal_model_verifies_drafts_at_themselves():
    found = drafted(1, 2, 0, placeholder=False)
    assert found.visible.equal(torch.ones(3, 3, dtype=torch.bool).tril())
    assert (found.num_kept, found.num_predicted) == (3, 3)


def test_without_drafts_it_is_the_layout_of_one_token():
    one, other = drafted(1, 0, 0), layout(1, 1, True)
    assert all(torch.as_tensor(a).equal(torch.as_tensor(b)) for a, b in zip(one[:-1], other[:-1], strict=True))
    assert one.wanted is other.wanted is None
