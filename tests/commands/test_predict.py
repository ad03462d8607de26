"""`s2sft predict` names the text for which a model gives NaN; tests/end_to_end tests the files that it writes."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch import nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tasks.prediction import logits_of


class Texts:
    """Five texts of one token each, in batches of two."""

    def __len__(self):
        return 5

    def __getitem__(self, index):
        return index

    def ordered_indices(self):
        return np.arange(5)[::-1]

    def batch_by_size(self, indices, max_tokens, batch_size):
        return [indices[start : start + 2] for start in range(0, len(indices), 2)]

    def collater(self, indices):
        return {"net_input": {"tokens": torch.tensor(indices), "lengths": [[1]] * len(indices)}}


TASK = SimpleNamespace(split_logits=lambda logits, lengths: list(logits))
WHERE = "text {} of --subset valid"


class Model(nn.Linear):
    """Gives a chosen value for the second text."""

    def __init__(self, value):
        super().__init__(1, 1)
        self.value = value

    def forward(self, tokens, lengths):
        return torch.where(tokens == 1, self.value, 0.5).unsqueeze(1)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_names_the_text(value):
    with pytest.raises(
        UserError, match=r"^text 1 of --subset valid.*: scores must be numbers, but the model gives NaN$"
    ):
        logits_of(TASK, Model(value), Texts(), 100, where=WHERE)
    with pytest.raises(UserError, match=r"^text 1 of .* float16 ends at 65,504: give --bf16 in place of --fp16"):
        logits_of(TASK, Model(value).half(), Texts(), 100, where=WHERE)


def test_numbers_are_left_alone():
    assert [logit.tolist() for logit in logits_of(TASK, Model(-1e30), Texts(), 100, where=WHERE)] == [
        [0.5],
        [np.float32(-1e30)],
        *[[0.5]] * 3,
    ]


def test_not_a_number(call_command, tmp_path):
    words = ("predict", "data", "--path", tmp_path / "no.pt", "--output", "out.tsv")
    failed = call_command(*words, "--clip", "nan", "5", "--null-threshold", "nan", status=2)
    assert "--clip must be" in failed.stderr and "nan" in failed.stderr
    assert "--null-threshold must be a number, but is nan" in failed.stderr
