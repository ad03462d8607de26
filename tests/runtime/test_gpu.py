"""The precision of a command on a GPU."""

import logging

import pytest
import torch
from omegaconf import OmegaConf
from tiny import tiny_model

from s2sft_fairseq.api.loading import settled
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import gpu

PRECISIONS = ("fp16", "bf16", "memory_efficient_fp16", "memory_efficient_bf16", "amp")


def options(task=None, **common):
    """Return the part of fairseq's configuration that is used."""
    defaults = dict.fromkeys((*PRECISIONS, "cpu", "tpu"), False)
    task = {"_name": "unilm_seq2seq", "float32": False, **(task or {})}
    return OmegaConf.create({"task": task, "common": {**defaults, **common}})


@pytest.fixture
def with_gpu(monkeypatch):
    """Let PyTorch have a GPU of a compute capability."""

    def pretend(*capability):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)

    return pretend


@pytest.mark.parametrize(("capability", "chosen"), [((7, 5), False), ((8, 0), True), ((9, 0), True), ((12, 1), True)])
def test_the_chosen_precision(with_gpu, caplog, capability, chosen):
    """It is logged with the option against it; the Python API's auto is the same."""
    with_gpu(*capability)
    cfg = options()
    with caplog.at_level(logging.INFO):
        gpu.choose_precision(cfg)
    assert cfg.common == {**options().common, "bf16": chosen}
    assert settled("auto", "auto") == ("cuda", "bfloat16" if chosen else "float32")
    major, minor = capability
    assert [("--float32" in text, f"{major}.{minor}" in text) for text in caplog.messages] == [(True, True)] * chosen


@pytest.mark.parametrize(
    "cfg",
    [
        *(options(**{name: True}) for name in (*PRECISIONS, "cpu", "tpu")),
        options({"float32": True}),
        options({"quantize": "int8"}),
        OmegaConf.create({"task": {"_name": "translation"}, "common": options().common}),
        OmegaConf.create({"task": None, "common": options().common}),
    ],
)
def test_configurations_that_are_not_changed(with_gpu, cfg):
    """Another precision, another device, another package's task."""
    with_gpu(9, 0)
    before = OmegaConf.to_container(cfg)
    gpu.choose_precision(cfg)
    assert OmegaConf.to_container(cfg) == before


def test_without_a_gpu():
    if torch.cuda.is_available():
        pytest.skip("there is one")
    cfg = options()
    gpu.choose_precision(cfg)
    assert cfg == options()


@pytest.mark.parametrize("name", PRECISIONS)
def test_two_precisions(name):
    with pytest.raises(UserError, match=f"--float32 and --{name.replace('_', '-')} exclude each other"):
        gpu.choose_precision(options({"float32": True}, **{name: True}))


def test_a_training(with_gpu):
    """It is chosen before the trainer is made."""
    with_gpu(8, 6)
    found = []
    gpu._make_trainer(lambda trainer, cfg, *parts: found.append((cfg.common.bf16, *parts)), None, options(), "task")
    assert found == [(True, "task")]


def test_decoding(with_gpu):
    """In the Python API, too, float32 must be requested."""
    with_gpu(8, 6)
    for changes, dtype in (({}, torch.bfloat16), ({"float32": True}, torch.float32)):
        model = tiny_model()
        model.prepare_for_inference_(options(changes))
        assert model.embeddings.tokens.weight.dtype == dtype


def test_attention_of_cudnn_is_off():
    """CUDA is not started for this."""
    assert not torch.backends.cuda.cudnn_sdp_enabled()
    assert not torch.cuda.is_initialized()


def test_commands_know_the_option(call_command, tiny_data, tiny_options):
    """It is accepted without a GPU too, and refused together with another precision."""
    training = (tiny_data, *tiny_options.training, "--save-dir", "saved", "--max-update", 1, "--float32")
    assert "bf16': False" in call_command("train", *training).stdout
    read = (tiny_data, "--path", "saved/checkpoint_last.pt", "--batch-size", 8, "--cpu", "--float32")
    assert "valid on 'valid' subset" in call_command("validate", *read).stdout
    assert "H-0" in call_command("generate", *read).stdout
    failed = call_command("generate", *read, "--bf16", status=2)
    assert "--float32 and --bf16 exclude each other" in failed.stderr
