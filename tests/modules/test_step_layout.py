"""What the new tokens of a step see of each other, by hand."""

import torch

from s2sft_fairseq.modules.step_layout import next_token_layout


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
