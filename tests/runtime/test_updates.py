"""An update whose gradients are no numbers ends the training, and the parameters are named."""

import pytest
import torch

from s2sft_fairseq.criterions.mask_attention import MaskAttentionCriterion


@pytest.fixture
def spoiled(monkeypatch):
    """The loss of the third update has a factor that is NaN for the bias of the head alone."""
    forward, calls = MaskAttentionCriterion.forward, []

    def with_nan(criterion, model, sample, reduce=True):
        loss, *others = forward(criterion, model, sample, reduce=reduce)
        if model.training:
            calls.append(1)
        if len(calls) == 3:
            loss = loss + (model.lm_head.bias * torch.nan).sum()
        return loss, *others

    monkeypatch.setattr(MaskAttentionCriterion, "forward", with_nan)


def test_the_parameter_is_named(call_command, tiny_data, tiny_options, tmp_path, spoiled):
    words = (*tiny_options.training, "--max-update", 9, "--save-interval-updates", 2, "--save-dir", "run")
    stated = call_command("train", tiny_data, *words, status=2).stderr
    for part in ("update 3", "lm_head.bias"):
        assert part in stated
    assert "Traceback" not in stated and "layers" not in stated
    assert (tmp_path / "run/checkpoint_1_2.pt").exists()
