"""The language model head with a packed copy of the token embedding."""

import pytest
import torch

from s2sft_fairseq.modules import lm_head
from s2sft_fairseq.modules.lm_head import LMHead
from s2sft_fairseq.modules.packed_linear import PackedLinear, can_pack
from s2sft_fairseq.modules.quantized_linear import QuantizedLinear, can_quantize

VOCABULARY, WIDTH, TOKEN_DIM = 97, 16, 8

pytestmark = pytest.mark.skipif(not can_pack(torch.ones(1, 1)), reason="this PyTorch has no packed kernels")


@pytest.fixture
def head():
    torch.manual_seed(0)
    made = LMHead(
        vocab_size=VOCABULARY,
        embed_dim=WIDTH,
        token_dim=TOKEN_DIM,
        activation=torch.nn.functional.gelu,
        layer_norm_eps=1e-12,
        bias=True,
    )
    torch.nn.init.normal_(made.bias)
    return made


@pytest.mark.parametrize("shape", [(1,), (20,), (3, 5), (0,)], ids=str)
def test_a_packed_head_scores_as_before(head, shape):
    embedding, x = torch.nn.Embedding(VOCABULARY, TOKEN_DIM).weight, torch.randn(*shape, WIDTH)
    with torch.no_grad():
        expected = head(x, embedding)
        head.pack(embedding)
        assert isinstance(head.output, PackedLinear)
        torch.testing.assert_close(head(x, embedding), expected, rtol=1e-5, atol=1e-5)


@pytest.mark.skipif(not can_quantize(torch.ones(1, 1)), reason="this CPU has no 8-bit kernels")
def test_a_quantized_head_is_near(head):
    embedding, x = torch.nn.Embedding(VOCABULARY, TOKEN_DIM).weight, torch.randn(20, WIDTH)
    with torch.no_grad():
        expected = head(x, embedding)
        head.pack(embedding, quantize=True)
        assert isinstance(head.output, QuantizedLinear)
        error = head(x, embedding) - expected
    # Two roundings to 127 steps of what is largest in a row.
    assert 0 < error.std() < 0.02 * expected.std()


@pytest.mark.parametrize(("room", "packed"), [(0, True), (-1, False)], ids=["fits", "one byte too large"])
def test_a_large_embedding_is_not_copied(head, monkeypatch, room, packed):
    embedding = torch.nn.Embedding(VOCABULARY, TOKEN_DIM).weight
    monkeypatch.setattr(lm_head, "LARGEST_PACKED", embedding.nbytes + room)
    head.pack(embedding)
    assert (head.output is not None) == packed


def test_packing_leaves_the_parameters(head):
    before = dict(head.named_parameters())
    head.pack(torch.nn.Embedding(VOCABULARY, TOKEN_DIM).weight)
    assert dict(head.named_parameters()) == before
