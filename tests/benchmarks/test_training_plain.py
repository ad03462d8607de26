"""The baseline does the same work as we do, with the same loss and gradient, and the original's redundant work."""

import subprocess
import sys
import warnings
from pathlib import Path

import pytest
import torch
from torch.testing import assert_close
from torch.utils.flop_counter import FlopCounterMode
from training_grid import METHODS, Cell
from training_ours import collate, make_trainer
from training_pairs import Outcome, draw_pairs, pair_lengths
from training_plain import PlainModel, pad_batch, plain, smoothed_loss
from training_work import Sizes, update_flops

from s2sft_fairseq.checkpoints.conversion import write
from s2sft_fairseq.checkpoints.families.bert import BERT
from s2sft_fairseq.models.unilm_config import SIZES
from s2sft_fairseq.runtime import warnings as warning_filters

BENCHMARKS = Path(__file__).resolve().parents[2] / "benchmarks"


def a_cell(**changes):
    fields = {
        "config": "unilm_tiny",
        "method": "pseudo_masked",
        "lengths": "6..30/2..9",
        "batch": 4,
        "system": "plain",
        "vocab": 60,
        "device": "cpu",
        "threads": 1,
        "seed": 3,
        "updates": 1,
    }
    return Cell(**{**fields, **changes})


def under_their_names(model, values):
    """Return our model's weights or gradients by the names of `transformers`, and the relative position bias."""
    values, sizes = dict(values), {name: getattr(model.cfg, name) for name in SIZES}
    relative = values.pop("relative_position.weight", None)
    return write(BERT, values, sizes), relative


def masked_by_us(sample):
    """Return the labeled places in the target of each example of a packed batch."""
    inputs = sample["net_input"]
    is_labelled = torch.zeros_like(inputs["tokens"]).index_fill(0, inputs["labelled"], 1)
    examples = is_labelled.split([sum(lengths) for lengths in inputs["lengths"]])
    return [
        labelled[lengths[0] :].nonzero().flatten().numpy()
        for labelled, lengths in zip(examples, inputs["lengths"], strict=True)
    ]


@pytest.mark.parametrize("system", ["plain", "full_logits", "sdpa"])
@pytest.mark.parametrize("method", METHODS)
def test_one_loss_and_one_gradient(method, system):
    cell = a_cell(method=method, system=system)
    with warnings.catch_warnings():
        warning_filters.install()  # pytest has removed them
        trainer = make_trainer(cell, dropout=0.0)
    model, criterion = trainer.model, trainer.criterion
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.data += 0.1 * torch.randn_like(parameter)
    baseline = PlainModel(cell, dropout=0.0)
    weights, relative = under_their_names(model, {name: value.data for name, value in model.named_parameters()})
    missing, unexpected = baseline.bert.load_state_dict(weights, strict=False)
    assert not unexpected
    assert all(name.startswith("cls.predictions.decoder.") for name in missing), "more is missing than what is tied"
    if cell.relative:
        baseline.relative.weight.data.copy_(relative)

    pairs = draw_pairs(cell, 2)
    sample = collate(trainer.task, pairs, epoch=2)
    if method == "masked":
        pairs = [pair._replace(masked=places) for pair, places in zip(pairs, masked_by_us(sample), strict=True)]
    loss, labels, _ = criterion(model, sample)
    (loss / labels).backward()
    padded = pad_batch(cell, pairs)
    expected = smoothed_loss(baseline(padded), padded)
    expected.backward()

    assert labels == sum(cell.labels(target) for _, target in pair_lengths(cell)) == padded.weights.sum()
    assert_close(loss / labels, expected, atol=1e-4, rtol=0)
    gradients, relative = under_their_names(model, {name: value.grad for name, value in model.named_parameters()})
    found = {name: parameter.grad for name, parameter in baseline.bert.named_parameters()}
    assert gradients.keys() <= found.keys()
    for name, gradient in gradients.items():
        # The gradient of the padding symbol is that of the output: we never read it, the baseline without a gradient.
        assert_close(gradient, found[name], atol=1e-4, rtol=0, msg=lambda text, name=name: f"{name}: {text}")
    if cell.relative:
        assert_close(relative, baseline.relative.weight.grad, atol=1e-4, rtol=0)
        assert relative.abs().max() > 1e-3


@pytest.mark.parametrize("method", METHODS)
def test_everything_is_padded_to_the_maximum(method):
    cell = a_cell(method=method)
    padded = pad_batch(cell, draw_pairs(cell, 1))
    length = 30 + (2 if "pseudo" in method else 1) * 9
    slots = 4 if method == "masked" else 9
    assert padded.tokens.shape == (4, length)
    assert padded.real.sum() == sum(sum(cell.blocks(*lengths)) for lengths in pair_lengths(cell))
    encoder = cell.encoder
    sizes = Sizes(encoder.layers, encoder.width, encoder.ffn_width, cell.vocab)
    model = PlainModel(cell)
    with FlopCounterMode(display=False) as counter:
        logits = model(padded)
        smoothed_loss(logits, padded).backward()
    assert logits.shape == (4, slots, cell.vocab)
    expected = update_flops(sizes, positions=4 * length, scores=4 * length**2, labels=4 * slots)
    if cell.relative:
        expected += 2 * 2 * 4 * length**2 * 32 * encoder.heads  # one-hot times table, and the gradient of the table
    assert counter.get_total_flops() == expected


def test_the_loss_falls_on_a_repeated_batch():
    cell = a_cell(method="causal")
    system, pairs = plain(cell), draw_pairs(cell, 1)
    outcomes = [system(pairs) for _ in range(20)]
    assert outcomes[-1].loss < outcomes[0].loss - 0.1
    assert {outcome.positions for outcome in outcomes} == {4 * 39}
    assert isinstance(outcomes[0], Outcome)


@pytest.mark.process
def test_the_package_is_not_in_its_process():
    code = "import training_cell, training_plain, sys; print({'fairseq', 's2sft_fairseq'} & sys.modules.keys())"
    done = subprocess.run([sys.executable, "-c", code], cwd=BENCHMARKS, capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"
