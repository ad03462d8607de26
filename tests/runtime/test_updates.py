"""An update whose gradients are not finite ends the training or is skipped, and the parameters are named."""

import pytest
import torch

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.criterions.mask_attention import MaskAttentionCriterion

SPOILED = [3]


@pytest.fixture
def spoiled(monkeypatch, request):
    """Make the loss of some batches, by default the third, NaN for the bias of the head alone."""
    forward, calls = MaskAttentionCriterion.forward, []
    spoiled = getattr(request, "param", SPOILED)

    def with_nan(criterion, model, sample, reduce=True):
        loss, *others = forward(criterion, model, sample, reduce=reduce)
        if model.training:
            calls.append(1)
        if model.training and len(calls) in spoiled:
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


@pytest.mark.parametrize("spoiled", [[3], [3, 4]], indirect=True, ids=["one", "two in a row"])
def test_skipped(call_command, tiny_data, tiny_options, tmp_path, spoiled):
    """The update is not counted and does not change the weights."""
    words = (*tiny_options.training, "--max-update", 6, "--save-dir", "run", "--skip-nonfinite-updates", 2)
    done = call_command("train", tiny_data, *words)
    assert "lm_head.bias" in done.stdout and "1 of 2" in done.stdout
    state = load_checkpoint(tmp_path / "run/checkpoint_last.pt")
    assert state["optimizer_history"][-1]["num_updates"] == 6
    assert all(value.isfinite().all() for value in state["model"].values())


@pytest.mark.parametrize("spoiled", [[3, 4]], indirect=True)
def test_too_many_in_a_row(call_command, tiny_data, tiny_options, spoiled):
    words = (*tiny_options.training, "--max-update", 6, "--save-dir", "run", "--skip-nonfinite-updates", 1)
    stated = call_command("train", tiny_data, *words, status=2).stderr
    assert "update 3" in stated and "lm_head.bias" in stated and "Traceback" not in stated


@pytest.mark.parametrize("spoiled", [[2, 4, 6]], indirect=True)
def test_one_at_a_time(call_command, tiny_data, tiny_options, tmp_path, spoiled):
    """Updates between them restart the count."""
    words = (*tiny_options.training, "--max-update", 6, "--save-dir", "run", "--skip-nonfinite-updates", 1)
    assert call_command("train", tiny_data, *words).stdout.count("1 of 1 in a row") == 3
