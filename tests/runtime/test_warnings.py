"""Only the listed warnings are silenced, and only if the user did not ask for warnings."""

import sys
import warnings

import pytest

from s2sft_fairseq.runtime import warnings as filters

SILENCED = [
    "hydra.experimental.initialize() is no longer experimental. Use hydra.initialize()",
    "hydra.experimental.compose() is no longer experimental. Use hydra.compose()",
    "\nThe version_base parameter is not specified.\nPlease specify",
    "In 'config': Usage of deprecated keyword in package header '# @package _group_'.",
    "\n'config' is validated against ConfigStore schema with the same name.",
    "\nThe strict flag in the compose API is deprecated.",
    "'pin_memory' argument is set as true but no accelerator is found, then device pinned memory won't be used.",
    "`torch.cuda.amp.autocast(args...)` is deprecated. Please use `torch.amp.autocast('cuda', args...)` instead.",
    "torch.cuda.amp.GradScaler is enabled, but CUDA is not available.  Disabling.",
    "CUDA is not available or torch_xla is imported. Disabling autocast.",
    "Support for mismatched key_padding_mask and attn_mask is deprecated. Use same type for both instead.",
    "`broadcast_buffers` is deprecated. Use `forward_sync_buffers` instead.",
]


def seen(messages):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        filters.install()
        for message in messages:
            warnings.warn(message, UserWarning, stacklevel=1)
            warnings.warn(message, FutureWarning, stacklevel=1)
    return [str(warning.message) for warning in caught]


def test_silences_the_listed_messages(monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", [])
    assert seen(SILENCED) == []


@pytest.mark.parametrize("message", ["the learning rate is 0", "a package: 'pin_memory' argument is set as true"])
def test_keeps_every_other_message(monkeypatch, message):
    monkeypatch.setattr(sys, "warnoptions", [])
    assert seen([message]) == [message, message]


def test_fairseqs_own_setting_for_its_workers_does_not_count(monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", ["ignore:semaphore_tracker:UserWarning"])
    assert seen(SILENCED) == []


def test_keeps_all_where_the_user_asked_for_warnings(monkeypatch):
    monkeypatch.setattr(sys, "warnoptions", ["default"])
    assert seen(SILENCED[:1]) == SILENCED[:1] * 2
