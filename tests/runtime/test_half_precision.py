"""Every precision that fairseq offers trains, resumes, validates and generates on the CPU."""

import re
from types import SimpleNamespace

import pytest
import torch
from fairseq.optim import FP16Optimizer

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.runtime import fp16_cpu


def test_the_flat_copy_has_every_parameter_once():
    parameters = [torch.nn.Parameter(torch.randn(shape).half()) for shape in ((2, 3), (4,), (1, 2, 2))]
    (device, flat), *others = FP16Optimizer.build_fp32_params(None, parameters).items()
    assert (device, others, flat.dtype) == (None, [], torch.float32)
    assert torch.equal(flat.data, torch.cat([parameter.data.float().view(-1) for parameter in parameters]))
    assert torch.equal(flat.grad, torch.zeros(14))


def losses(output):
    return [float(loss) for loss in re.findall(r"train_inner \| .* loss=([\d.]+)", output)]


@pytest.fixture
def train(call_command, tiny_data, tiny_options):
    """Train to an update in a given precision; returns what is printed."""

    def run(precision, update):
        options = (*tiny_options.training, "--save-dir", "saved", "--disable-validation", precision)
        return call_command("train", tiny_data, *options, "--max-update", update).stdout

    return run


@pytest.mark.parametrize(
    ("precision", "warning"),
    [
        ("--bf16", None),
        ("--memory-efficient-bf16", None),
        ("--fp16", "--fp16 on the CPU is slower than 32 bits: leave it out, or use --bf16"),
        ("--memory-efficient-fp16", None),
        ("--amp", "--amp has no effect on the CPU, training runs in 32 bits: use --bf16 for 16 bits"),
    ],
)
def test_trains(train, precision, warning):
    output = train(precision, 5)
    assert losses(output)[-1] < losses(output)[0]
    assert re.findall(rf"WARNING \| {fp16_cpu.__name__} \| (.*)", output) == ([warning] if warning else [])
    saved = load_checkpoint("saved/checkpoint_last.pt")
    assert all(value.dtype == torch.float32 for value in saved["model"].values() if value.is_floating_point())


@pytest.mark.parametrize("precision", ["--bf16", "--fp16"])
def test_resumes_validates_and_generates(train, call_command, tiny_data, precision):
    train(precision, 2)
    resumed = train(precision, 4)
    assert "Loaded checkpoint saved/checkpoint_last.pt (epoch 1 @ 2 updates)" in resumed
    assert len(losses(resumed)) == 2
    read = (tiny_data, "--path", "saved/checkpoint_last.pt", "--batch-size", 8, "--cpu", precision)
    assert "valid on 'valid' subset | loss" in call_command("validate", *read).stdout
    assert call_command("generate", *read, "--beam", 2).stdout.count("H-") == 10


@pytest.mark.parametrize("optimizer", ["adam", "fused_adamw"])
@pytest.mark.parametrize("precision", ["--fp16", "--memory-efficient-fp16"])
def test_a_gradient_that_overflows_is_left_out(call_command, tiny_data, tiny_options, optimizer, precision):
    """On the CPU too, where fairseq would ask for a GPU; the loss scale falls until the updates go on."""
    options = (*tiny_options.training, "--optimizer", optimizer, "--save-dir", "saved", "--disable-validation")
    output = call_command("train", tiny_data, *options, precision, "--fp16-init-scale", 2**30, "--max-update", 3).stdout
    assert output.count("gradient overflow detected") >= 5
    scales = [float(scale) for scale in re.findall(r"setting loss scale to: ([\d.e+]+)", output)]
    assert scales == [2 ** (30 - number) for number in range(1, len(scales) + 1)]
    assert len(losses(output)) == 3
    saved = load_checkpoint("saved/checkpoint_last.pt")["model"]
    assert all(value.isfinite().all() for value in saved.values())


def test_a_training_on_a_gpu_is_left_alone():
    seen = []
    step = fp16_cpu._overflow_on_cpu(lambda trainer: seen.append(torch.Tensor.cuda))
    own = torch.Tensor.cuda
    for on_gpu in (True, False):
        step(SimpleNamespace(cuda=on_gpu))
    assert seen[0] is own and seen[1] is not own and torch.Tensor.cuda is own
