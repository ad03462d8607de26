"""Updates of fairseq's trainer on the pretended GPU: host waits, launches of the optimizer, and logged values."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.logging import metrics
from gpu_training import make_batch, make_trainer
from pretended_gpu import counting, download, moved, upload
from tiny import tiny_dictionary
from torch import nn

from s2sft_fairseq.criterions import understanding
from s2sft_fairseq.criterions.mask_attention import MaskAttentionCriterion
from s2sft_fairseq.criterions.understanding import UnderstandingCriterion
from s2sft_fairseq.optim import fused_adamw
from s2sft_fairseq.optim.fused_adamw import SixteenBitAdamW
from s2sft_fairseq.runtime import updates as runtime_updates

TINY = (
    *("--arch", "unilm_tiny", "--random-init", "--encoder-embed-dim", 16, "--encoder-ffn-embed-dim", 32),
    *("--encoder-attention-heads", 2, "--max-positions", 64, "--max-source-positions", 24),
    *("--max-target-positions", 16, "--clip-norm", 1.0, "--dropout", 0, "--attention-dropout", 0),
)
LENGTHS = ((11, 6), (22, 4), (4, 10), (3, 2))
pytestmark = pytest.mark.filterwarnings("ignore:`torch.cuda.amp.autocast:FutureWarning")
PRECISIONS = ("--float32", "--bf16", "--memory-efficient-bf16", "--fp16", "--memory-efficient-fp16")


def tiny_trainer(precision="--float32", layers=2, log_interval=100, on_gpu=True):
    options = (*TINY, "--encoder-layers", layers, "--log-interval", log_interval, precision)
    return make_trainer(tiny_dictionary(), *options, on_gpu=on_gpu)


def updates(trainer, count):
    """Return the counts of each update of a batch."""
    batch, found = make_batch(trainer, LENGTHS), []
    for _ in range(count):
        with counting() as counts:
            assert trainer.train_step([batch]) is not None
        found.append(counts)
    return found


@pytest.mark.parametrize("precision", PRECISIONS)
def test_waits(precision):
    """The host waits for the loss scale, and in the third update, which is logged, for whether all norms are finite."""
    found = [each.synchronisations.total() for each in updates(tiny_trainer(precision, log_interval=3), 4)]
    scale = {"--fp16": 3, "--memory-efficient-fp16": 1}.get(precision, 0)  # fairseq compares the norm three times
    assert found == [scale, scale, scale + 1, scale]


def test_waits_with_factored_moments(monkeypatch):
    """The host asks before each step whether the norm is finite: a step with factored moments cannot skip itself."""
    monkeypatch.setattr(fused_adamw, "LARGE", 50 * 16)  # the token embedding
    trainer = make_trainer(tiny_dictionary(), *TINY, "--factored-moments", "--log-interval", 3)
    waits = [each.synchronisations for each in updates(trainer, 4)]
    assert any("row_mean_sq" in state for state in trainer.optimizer.optimizer.state.values())
    assert [each.total() for each in waits] == [1, 1, 1, 1]


def test_uploads():
    """The lengths of the examples, which are pinned on a real GPU."""
    found = [dict(each.uploads) for each in updates(tiny_trainer("--bf16"), 2)]
    assert [[place.split(":")[0] for place in each] for each in found] == 2 * [["modules/upload.py"]]


def optimizer_launches(precision, layers):
    """Return those of the second update: the first one creates the moments."""
    trainer = tiny_trainer(precision, layers)
    for _ in range(2):
        for parameter in trainer.model.parameters():
            parameter.grad = upload(torch.zeros(parameter.shape, dtype=parameter.dtype))
        trainer.optimizer._needs_sync = True  # as the backward pass does
        with counting() as counts:
            trainer.optimizer.multiply_grads(0.1)
            trainer.clip_grad_norm(1.0)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
    return counts.launches


@pytest.mark.parametrize("precision", PRECISIONS)
def test_launches_of_the_optimizer_do_not_grow_with_the_layers(precision):
    """A kernel for one parameter takes longer to launch than to run; a layer has 12 parameters."""
    few, many = (optimizer_launches(precision, layers) for layers in (1, 12))
    assert few == many
    assert 0 < many.total() < 40


def test_logged_values():
    """The meters have the CPU's values, and so do the weights."""
    found = []
    for on_gpu in (False, True):
        trainer = tiny_trainer(on_gpu=on_gpu)
        with metrics.aggregate(new_root=True) as logged:
            updates(trainer, 3)
            found.append((logged.get_smoothed_values(), [*trainer.model.parameters()]))
    (expected, theirs), (numbers, ours) = found
    names = {"loss", "nll_loss", "ppl", "gnorm", "clip", "wpb", "bsz"}
    assert names <= expected.keys() == numbers.keys()
    for name in names:
        assert numbers[name] == pytest.approx(expected[name], rel=1e-3), name
    for mine, their in zip(ours, theirs, strict=True):
        torch.testing.assert_close(download(mine), their.detach(), rtol=1e-4, atol=1e-5)


LOGGED = {
    "flows": (
        MaskAttentionCriterion,
        {"loss": 7.5, "nll_loss": 6.0, "word_nll": 2.5, "span_nll": 3.5, "word_tokens": 4.0, "span_tokens": 6.0},
    ),
    "classes": (
        UnderstandingCriterion,
        {"loss": 3.0, "n_correct": 7.0, **dict(zip(understanding._TABLE, (3.0, 1.0, 2.0, 4.0), strict=True))},
    ),
    "numbers": (
        UnderstandingCriterion,
        {"loss": 3.0, **dict(zip(understanding._MOMENTS, (9.0, 8.0, 17.0, 16.0, 14.5), strict=True))},
    ),
}


@pytest.mark.parametrize("of_ranks", [False, True])
@pytest.mark.parametrize("logged", LOGGED)
def test_values_that_criterions_log_stay_on_the_gpu(logged, of_ranks):
    """Sums over ranks have their weights on the GPU too."""
    criterion, sums = LOGGED[logged]
    counts = {"ntokens": 10.0, "nsentences": 10.0, "sample_size": 10.0}
    on_gpu = {name: upload(torch.tensor(value)) for name, value in (sums | (counts if of_ranks else {})).items()}
    found = []
    for outputs in ({**sums, **counts}, {**counts, **on_gpu}):
        with metrics.aggregate(new_root=True) as meters, counting() as waited:
            for _ in range(2):
                criterion.reduce_metrics([outputs])
        assert not waited.synchronisations
        with counting():
            found.append(meters.get_smoothed_values())
    assert found[1] == pytest.approx(found[0], rel=1e-3) and len(found[0]) >= 2


def test_a_weight_of_zero():
    """A flow without labels in a batch adds nothing, whatever its loss."""
    with metrics.aggregate(new_root=True) as meters, counting():
        for value, weight in ((2.0, 3.0), (float("nan"), 0.0)):
            metrics.log_scalar("loss", upload(torch.tensor(value)), upload(torch.tensor(weight)))
        assert meters.get_smoothed_value("loss") == 2


@pytest.mark.parametrize("precision", ["--float32", "--bf16", "--memory-efficient-bf16"])
@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_an_update_that_is_not_finite_is_skipped(precision, bad):
    """The training ends when values are logged; until then the update changes nothing."""
    trainer = tiny_trainer(precision, log_interval=3)
    changed = []
    for number, value in enumerate((1.0, bad, 1.0)):
        trainer.set_num_updates(number)
        for parameter in trainer.model.parameters():
            parameter.grad = upload(torch.full(parameter.shape, value, dtype=parameter.dtype))
        before = [download(parameter) for parameter in trainer.model.parameters()]
        with counting():
            trainer.optimizer._needs_sync = True
            if number == 2:
                with pytest.raises(FloatingPointError, match=r"NaN or infinite in one of the last 3 .*--log-interval"):
                    trainer.clip_grad_norm(1.0)
                break
            trainer.clip_grad_norm(1.0)
            trainer.optimizer.step()
            trainer.optimizer.zero_grad()
        after = [download(parameter) for parameter in trainer.model.parameters()]
        changed.append(any(not torch.equal(*pair) for pair in zip(before, after, strict=True)))
    assert changed == [True, False]


def test_ranks_are_compared_when_numbers_are_logged():
    """On the CPU, they are compared after each update, as in fairseq."""
    compared = {"gpu": [], "cpu": []}
    for number in range(6):
        trainer = SimpleNamespace(
            get_num_updates=lambda number=number: number, cfg=SimpleNamespace(common=SimpleNamespace(log_interval=3))
        )
        for device, norm in (("gpu", upload(torch.ones(()))), ("cpu", torch.ones(()))):
            runtime_updates._check_ranks(lambda *_, to=compared[device]: to.append(number), trainer, norm)  # noqa: B023
    assert compared == {"gpu": [2, 5], "cpu": [*range(6)]}


def test_updates_by_lists_equal_updates_one_by_one(monkeypatch):
    """Results are equal to the last bit; a list has no more elements than fit."""
    monkeypatch.setattr(fused_adamw, "WIDENED", 8)
    torch.manual_seed(0)
    theirs = nn.ParameterList([torch.randn(size, dtype=torch.bfloat16) for size in (3, 4, 10, 2, 6)])
    ours = moved(theirs)
    assert [[len(each) for each in part] for part in fused_adamw._lists([*ours])] == [[3, 4], [10], [2, 6]]
    assert [[len(each) for each in part] for part in fused_adamw._lists([*theirs])] == [[3], [4], [10], [2], [6]]
    with counting():
        optimizers = [SixteenBitAdamW([*each], lr=0.1, fused=True) for each in (ours, theirs)]
        for _ in range(3):
            for mine, their in zip(ours, theirs, strict=True):
                their.grad = torch.randn_like(their)
                mine.grad = upload(their.grad)
            for optimizer in optimizers:
                optimizer.step()
    for mine, their in zip(ours, theirs, strict=True):
        assert torch.equal(download(mine), their.detach())
