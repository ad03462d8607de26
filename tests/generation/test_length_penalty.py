"""Length normalisation of fairseq and of s2s-ft."""

import pytest
import torch

from s2sft_fairseq.generation.length_penalty import LENGTH_PENALTIES, length_normalizer


@pytest.mark.parametrize("penalty", [0.0, 0.5, 1.0, 2.0, -1.0])
def test_both_kinds(penalty):
    lengths = torch.tensor([[1, 2], [7, 200]])
    fairseq = [[length**penalty for length in row] for row in lengths.tolist()]
    s2s_ft = [[((5 + length) / 6) ** penalty for length in row] for row in lengths.tolist()]
    torch.testing.assert_close(length_normalizer(lengths, "length", penalty), torch.tensor(fairseq))
    torch.testing.assert_close(length_normalizer(lengths, "gnmt", penalty), torch.tensor(s2s_ft))


@pytest.mark.parametrize("kind", LENGTH_PENALTIES)
def test_no_penalty_and_length_one_leave_the_sum(kind):
    assert length_normalizer(torch.tensor([3, 50]), kind, 0.0).tolist() == [1.0, 1.0]
    assert length_normalizer(torch.tensor(1), kind, 1.7).item() == 1.0
    assert length_normalizer(torch.tensor([4]), kind, 1.0).dtype == torch.float32
