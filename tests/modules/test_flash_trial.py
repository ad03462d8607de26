"""The trial of flash attention: it passes with the right operators, and detects wrong ones."""

import pytest
import torch
from flash_kernel import emulated_kernel

from s2sft_fairseq.modules import flash_attention, flash_trial

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def kernel():
    flash_trial.flash_failure.cache_clear()
    with emulated_kernel():
        yield
    flash_trial.flash_failure.cache_clear()


def failure(dtype=torch.bfloat16, window=0):
    return flash_trial.flash_failure(CPU, head_dim=16, window=window, dtype=dtype)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
@pytest.mark.parametrize("window", [0, 6])
def test_right_operators(dtype, window):
    with torch.inference_mode():
        assert failure(dtype, window) is None


def wrong(monkeypatch, name, change):
    """Replace the module's forward or backward call."""
    right = getattr(flash_attention, name)
    monkeypatch.setattr(flash_attention, name, lambda call, *others: change(right, call, *others))


WRONG = {
    "no causal attention": ("_forward", lambda right, call, *others: right(call._replace(is_causal=False), *others)),
    "another log-sum-exp": (
        "_forward",
        lambda right, call, *others: [x + (i == 1) for i, x in enumerate(right(call, *others))],
    ),
    "no gradient of keys": (
        "_backward",
        lambda right, call, *others: [x * (i != 1) for i, x in enumerate(right(call, *others))],
    ),
    "not numbers": (
        "_forward",
        lambda right, call, *others: [x * float("nan") if i == 0 else x for i, x in enumerate(right(call, *others))],
    ),
}


@pytest.mark.parametrize(("name", "change"), WRONG.values(), ids=WRONG)
def test_wrong_results(name, change, monkeypatch):
    wrong(monkeypatch, name, change)
    assert "padded attention" in failure()


@pytest.mark.parametrize("name", ["_forward", "_backward"])
@pytest.mark.parametrize("error", [RuntimeError, NotImplementedError, TypeError, AttributeError])
def test_operators_that_are_missing_or_take_other_arguments(name, error, monkeypatch):
    def fail(*_):
        raise error("no such operator")

    wrong(monkeypatch, name, fail)
    assert "no such operator" in failure()
