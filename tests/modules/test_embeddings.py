"""The single gradient of a matrix used for look-up and for the output, compared with automatic differentiation."""

import pytest
import torch
from torch.nn.functional import cross_entropy, embedding
from torch.utils._python_dispatch import TorchDispatchMode

from s2sft_fairseq.modules.embeddings import TiedGradient, tied_embedding
from s2sft_fairseq.modules.lm_head import Targets, linear_cross_entropy

VOCAB, WIDTH, PADDING = 12, 5, 7
TOKENS = torch.tensor([[3, 7, 3], [3, 0, 11]])


@pytest.fixture
def weight():
    torch.manual_seed(0)
    return torch.randn(VOCAB, WIDTH, dtype=torch.float64, requires_grad=True)


def test_both_uses_add_up(weight):
    bias = torch.zeros(VOCAB, dtype=torch.float64)
    labels = torch.tensor([1, 2, 3, 4, 5, 6])
    features = embedding(TOKENS, weight, PADDING).tanh().flatten(0, 1)
    (expected,) = torch.autograd.grad(cross_entropy(features @ weight.t(), labels, reduction="sum"), weight)

    tied = TiedGradient()
    features = tied_embedding(TOKENS, weight, PADDING, tied).tanh().flatten(0, 1)
    linear_cross_entropy(features, weight, bias, Targets(labels, 0), tied).loss.backward()
    torch.testing.assert_close(weight.grad, expected)
    assert tied.take() is None, "a second backward pass would begin with the gradient of the first"


def test_gradients_accumulate_over_batches(weight):
    for _ in range(2):
        tied = TiedGradient()
        features = tied_embedding(TOKENS, weight, PADDING, tied).flatten(0, 1)
        labels = torch.ones(6, dtype=torch.long)
        bias = torch.zeros(VOCAB, dtype=torch.float64)
        linear_cross_entropy(features, weight, bias, Targets(labels, 0), tied).loss.backward()
    features = embedding(TOKENS, weight, PADDING).flatten(0, 1)
    (once,) = torch.autograd.grad(cross_entropy(features @ weight.t(), labels, reduction="sum"), weight)
    torch.testing.assert_close(weight.grad, 2 * once)


def test_looking_up_alone(weight):
    looked_up = tied_embedding(TOKENS, weight, PADDING, TiedGradient())
    torch.testing.assert_close(looked_up, embedding(TOKENS, weight, PADDING))
    factors = torch.randn_like(looked_up)
    (found,) = torch.autograd.grad((factors * looked_up).sum(), weight)
    (expected,) = torch.autograd.grad((factors * embedding(TOKENS, weight, PADDING)).sum(), weight)
    torch.testing.assert_close(found, expected)


def test_frozen(weight):
    weight.requires_grad_(False)
    assert not tied_embedding(TOKENS, weight, PADDING, TiedGradient()).requires_grad


def test_the_matrix_has_one_gradient_in_memory(weight):
    """The parameter gets the gradient tensor of the output, not a copy."""
    left = []
    tied = TiedGradient()
    leave = tied.leave
    tied.leave = lambda gradient: (left.append(gradient.data_ptr()), leave(gradient))
    features = tied_embedding(TOKENS, weight, PADDING, tied).flatten(0, 1)
    bias, labels = torch.zeros(VOCAB, dtype=torch.float64), torch.ones(6, dtype=torch.long)
    linear_cross_entropy(features, weight, bias, Targets(labels, 0), tied).loss.backward()
    assert left == [weight.grad.data_ptr()]


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_16_bits(dtype):
    """The sum is rounded once: in 16 bits, sums would stop growing after some hundreds or thousands."""
    weight = torch.zeros(VOCAB, WIDTH, dtype=dtype, requires_grad=True)
    tokens, wanted = torch.full((5000,), 3), []

    class Sums(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            if func.overloadpacket.__name__ == "index_add_":
                wanted.append(args[0].dtype)
            return func(*args, **kwargs or {})

    with Sums():
        tied_embedding(tokens, weight, PADDING, TiedGradient()).sum().backward()
    assert weight.grad[3].tolist() == torch.full((WIDTH,), 5000.0, dtype=dtype).tolist()
    assert wanted == [torch.float32]  # a CPU's operator adds in 32 bits anyway, a GPU's does not
