"""AdamW with factored moments, compared with a computation element by element in float64."""

import pytest
import torch
from torch import nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.optim import factored_adamw, fused_adamw
from s2sft_fairseq.optim.factored_adamw import FactoredAdamW
from s2sft_fairseq.optim.fused_adamw import FusedAdamW, FusedAdamWConfig

BETAS, EPS, DECAY, LR = (0.9, 0.99), 1e-6, 0.01, 0.1


@pytest.fixture(autouse=True)
def _small(monkeypatch):
    """Matrices of 12 elements and more count as large, and are updated 3 rows at a time."""
    monkeypatch.setattr(fused_adamw, "LARGE", 12)
    monkeypatch.setattr(factored_adamw, "_ROWS", 3)


def network():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 7), nn.Tanh(), nn.Linear(7, 1))  # 21 and 7 weights


def optimizer_of(model, **options):
    config = FusedAdamWConfig(adam_betas=BETAS, adam_eps=EPS, weight_decay=DECAY, lr=[LR], **options)
    return FusedAdamW(config, model.parameters())


def train(model, optimizer, updates):
    """Update with known gradients; return those of the large matrix."""
    generator, seen = torch.Generator().manual_seed(1), []
    for _ in range(updates):
        for parameter in model.parameters():
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        seen.append(model[0].weight.grad.double())
        optimizer.multiply_grads(0.5)
        optimizer.step()
    return seen


def test_updates_of_a_large_matrix():
    model = network()
    expected = model[0].weight.detach().double()
    optimizer = optimizer_of(model, factored_moments=True)
    gradients = train(model, optimizer, 12)
    moment, squares = torch.zeros(7, 3, dtype=torch.double), torch.zeros(7, 3, dtype=torch.double)
    for step, gradient in enumerate(gradients, 1):
        gradient = gradient / 2
        first = BETAS[0] * moment + (1 - BETAS[0]) * gradient
        moment = first.bfloat16().double()
        squares = BETAS[1] * squares + (1 - BETAS[1]) * gradient**2
        estimate = torch.outer(squares.mean(1), squares.mean(0)) / squares.mean() / (1 - BETAS[1] ** step)
        expected = expected * (1 - LR * DECAY)
        expected -= LR * first / (1 - BETAS[0] ** step) / (estimate.sqrt() + EPS)
    # One number in bfloat16 can be rounded differently than in float64, which changes an update by at most 1 %.
    torch.testing.assert_close(model[0].weight.double(), expected, atol=1e-3, rtol=0)


def test_other_parameters_are_updated_as_without():
    plain, factored = network(), network()
    train(plain, optimizer_of(plain), 5)
    train(factored, optimizer_of(factored, factored_moments=True), 5)
    assert torch.equal(plain[2].weight, factored[2].weight) and torch.equal(plain[0].bias, factored[0].bias)
    assert not torch.equal(plain[0].weight, factored[0].weight)


def test_memory_of_a_large_matrix():
    model = network()
    optimizer = optimizer_of(model, factored_moments=True)
    train(model, optimizer, 1)
    kept = {name: (tuple(each.shape), each.dtype) for name, each in optimizer.optimizer.state[model[0].weight].items()}
    assert kept == {
        "step": ((), torch.float32),
        "exp_avg": ((7, 3), torch.bfloat16),
        "row_mean_sq": ((7, 1), torch.float32),
        "column_mean_sq": ((1, 3), torch.float32),
    }


def test_resuming():
    whole, half = network(), network()
    train(whole, (one := optimizer_of(whole, factored_moments=True)), 3)
    train(half, (other := optimizer_of(half, factored_moments=True)), 3)
    resumed = optimizer_of(half, factored_moments=True)
    resumed.load_state_dict(other.state_dict())
    assert resumed.optimizer.state[half[0].weight]["exp_avg"].dtype == torch.bfloat16
    train(whole, one, 2)
    train(half, resumed, 2)
    assert all(torch.equal(a, b) for a, b in zip(whole.parameters(), half.parameters(), strict=True))


def test_resuming_without_the_option():
    model = network()
    train(model, (optimizer := optimizer_of(model, factored_moments=True)), 1)
    with pytest.raises(UserError, match=r"3 \+ 1 parameters.*--factored-moments"):
        optimizer_of(model).load_state_dict(optimizer.state_dict())


def test_an_overflow_changes_nothing():
    model = network()
    optimizer = optimizer_of(model, factored_moments=True)
    before = [parameter.detach().clone() for parameter in model.parameters()]
    optimizer.found_inf = torch.tensor(1.0)
    train(model, optimizer, 1)
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
    assert not optimizer.optimizer.state[model[0].weight]


def test_no_gradients():
    """Without a divisor, as other programs call it; the loss of a closure is returned."""
    model = network()
    weights = [{"params": [model[0].weight], "factored": True}, {"params": [model[2].weight], "factored": False}]
    optimizer = FactoredAdamW(weights, lr=LR)
    before = model[0].weight.detach().clone()
    assert optimizer.step(lambda: 3.0) == 3
    assert torch.equal(model[0].weight, before)
    model[0].weight.grad = torch.ones(7, 3)
    optimizer.step()
    torch.testing.assert_close(model[0].weight, before * (1 - LR * 0.01) - LR)


def test_weights_of_sixteen_bits():
    with pytest.raises(UserError, match="--factored-moments needs weights of 32 bits"):
        optimizer_of(network().bfloat16(), factored_moments=True)
