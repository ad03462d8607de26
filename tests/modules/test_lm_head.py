"""The language model head; its loss, chunk by chunk, compared with the divergence written out over all classes."""

import pytest
import torch
from pretended_gpu import upload

from s2sft_fairseq.modules import lm_head
from s2sft_fairseq.modules.cpu_linear import PackedLinear, QuantizedLinear, can_pack, can_quantize
from s2sft_fairseq.modules.lm_head import Activation, LMHead, Targets, linear_cross_entropy

VOCABULARY, WIDTH, TOKEN_DIM = 97, 16, 8

pytestmark = pytest.mark.skipif(not can_pack(torch.ones(1, 1)), reason="this PyTorch has no packed kernels")


@pytest.fixture
def head():
    torch.manual_seed(0)
    hidden = {
        "dense": torch.nn.Linear(WIDTH, TOKEN_DIM),
        "activation": Activation(torch.nn.functional.gelu),
        "layer_norm": torch.nn.LayerNorm(TOKEN_DIM),
    }
    made = LMHead(hidden, vocab_size=VOCABULARY)
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
    # Two roundings to 127 steps of the largest value in a row.
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


LABELS, FEATURES, VOCAB, EXCLUDED = 11, 6, 40, 3


def case(dtype=torch.float64, seed=0):
    torch.manual_seed(seed)
    features = torch.randn(LABELS, FEATURES, dtype=dtype, requires_grad=True)
    weight = torch.randn(VOCAB, FEATURES, dtype=dtype, requires_grad=True)
    bias = torch.randn(VOCAB, dtype=dtype, requires_grad=True)
    labels = torch.randint(0, VOCAB - 1, (LABELS,))
    labels[labels == EXCLUDED] = VOCAB - 1
    return (features, weight, bias), labels


def plain(factors, labels, smoothing):
    """Return KL(q || p), term by term."""
    features, weight, bias = factors
    log_probs = (features @ weight.t() + bias).log_softmax(dim=1)
    wanted = torch.full_like(log_probs, smoothing / (VOCAB - 2))
    wanted[:, EXCLUDED] = 0
    wanted[range(len(labels)), labels] = 1 - smoothing
    return (torch.xlogy(wanted, wanted) - wanted * log_probs).sum()


@pytest.fixture(params=["one chunk", "chunks kept", "chunks worked out again", "some of both"])
def chunks(request, monkeypatch):
    row = 4 * VOCAB
    sizes = {
        "one chunk": (LABELS * row, LABELS * row),
        "chunks kept": (4 * row, LABELS * row),
        "chunks worked out again": (4 * row, 0),
        "some of both": (3 * row, 6 * row),
    }[request.param]
    monkeypatch.setitem(lm_head.CHUNK_BYTES, "cpu", sizes[0])
    monkeypatch.setitem(lm_head.KEPT_BYTES, "cpu", sizes[1])


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.6])
def test_loss_and_gradients_equal_the_plain_ones(smoothing):
    factors, labels = case()
    losses = linear_cross_entropy(*factors, Targets(labels, smoothing=smoothing, excluded=EXCLUDED, rank=True))
    expected = plain(factors, labels, smoothing)
    torch.testing.assert_close(losses.loss, expected)
    scores = factors[0] @ factors[1].t() + factors[2]
    torch.testing.assert_close(losses.nll, torch.nn.functional.cross_entropy(scores, labels, reduction="none"))
    assert torch.equal(losses.correct, scores.argmax(dim=1) == labels)
    # A factor like that of loss scaling.
    ours, theirs = (torch.autograd.grad(7 * loss, factors) for loss in (losses.loss, expected))
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("chunks")
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_weights(smoothing):
    factors, labels = case()
    weights = torch.rand(LABELS)
    losses = linear_cross_entropy(*factors, Targets(labels, smoothing=smoothing, excluded=EXCLUDED, weights=weights))
    features, *others = factors
    each = [plain((features[row : row + 1], *others), labels[row : row + 1], smoothing) for row in range(LABELS)]
    expected = (torch.stack(each) * weights).sum()
    torch.testing.assert_close(losses.loss, expected)
    unweighted = linear_cross_entropy(*factors, Targets(labels, smoothing=smoothing, excluded=EXCLUDED))
    assert torch.equal(losses.nll, unweighted.nll)
    ours, theirs = (torch.autograd.grad(7 * loss, factors) for loss in (losses.loss, expected))
    for found, wanted in zip(ours, theirs, strict=True):
        torch.testing.assert_close(found, wanted)


@pytest.mark.usefixtures("chunks")
def test_float32_is_within_one_in_100000():
    factors, labels = case(torch.float32, seed=1)
    losses = linear_cross_entropy(*factors, Targets(labels, smoothing=0.1, excluded=EXCLUDED))
    exact = [factor.detach().double().requires_grad_() for factor in factors]
    expected = plain(exact, labels, 0.1)
    torch.testing.assert_close(losses.loss.double(), expected, rtol=1e-5, atol=1e-5)
    gradients = zip(torch.autograd.grad(losses.loss, factors), torch.autograd.grad(expected, exact), strict=True)
    for found, wanted in gradients:
        torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)


def test_scores_of_bfloat16_are_normalised_in_float32():
    factors, labels = case()
    coarse = [factor.detach().bfloat16().requires_grad_() for factor in factors]
    losses = linear_cross_entropy(*coarse, Targets(labels, smoothing=0.1, excluded=EXCLUDED))
    assert losses.loss.dtype == losses.nll.dtype == torch.float32
    torch.testing.assert_close(losses.loss.double(), plain(factors, labels, 0.1), rtol=0.02, atol=0.0)
    assert all(gradient.dtype == torch.bfloat16 for gradient in torch.autograd.grad(losses.loss, coarse))


@pytest.mark.usefixtures("chunks")
def test_bfloat16_products():
    """Autocast only rounds factors: loss and gradients are float32, and near the exact ones."""
    factors, labels = case(torch.float32)
    with torch.autocast("cpu", torch.bfloat16):
        losses = linear_cross_entropy(*factors, Targets(labels, smoothing=0.1, excluded=EXCLUDED))
    expected = plain([factor.double() for factor in factors], labels, 0.1)
    pairs = [(losses.loss, expected)]
    pairs += zip(*(torch.autograd.grad(loss, factors) for loss in (losses.loss, expected)), strict=True)
    for found, wanted in pairs:
        assert found.dtype == torch.float32
        assert 1e-5 < ((found - wanted).norm() / wanted.norm()).item() < 0.02


def test_weights_are_not_rounded():
    """Nor is the weighted sum: in 16 bits, a batch's would be rounded by tens, or infinite."""
    factors, labels = case(torch.float32)
    targets = Targets(labels, EXCLUDED, weights=torch.rand(LABELS))
    with torch.autocast("cpu", torch.bfloat16):
        losses = linear_cross_entropy(*factors, targets)
    assert losses.loss.dtype == torch.float32
    torch.testing.assert_close(losses.loss, (losses.nll * targets.weights).sum())


def test_only_wanted_gradients():
    (features, weight, bias), labels = case()
    weight.requires_grad_(False)
    linear_cross_entropy(features, weight, bias, Targets(labels, excluded=EXCLUDED)).loss.backward()
    assert weight.grad is None
    expected = torch.autograd.grad(plain((features, weight, bias), labels, 0.0), (features, bias))
    torch.testing.assert_close((features.grad, bias.grad), expected)


def test_nothing_is_kept_without_gradients(monkeypatch):
    kept = []
    monkeypatch.setattr(
        torch.autograd.function.FunctionCtx, "save_for_backward", lambda _, *tensors: kept.extend(tensors)
    )
    factors, labels = case()
    with torch.no_grad():
        loss = linear_cross_entropy(*factors, Targets(labels, smoothing=0.1, excluded=EXCLUDED)).loss
    torch.testing.assert_close(loss, plain(factors, labels, 0.1).detach())
    assert not any(tensor.shape == (LABELS, VOCAB) for tensor in kept if tensor is not None)


def test_scores_of_all_labels_never_exist_at_once(monkeypatch):
    """The largest matrix of scores has the rows of one chunk."""
    monkeypatch.setitem(lm_head.CHUNK_BYTES, "cpu", 2 * 4 * VOCAB)
    monkeypatch.setitem(lm_head.KEPT_BYTES, "cpu", 0)
    rows = []
    scores = lm_head._scores
    monkeypatch.setattr(lm_head, "_scores", lambda *factors: rows.append(len(factors[0])) or scores(*factors))
    factors, labels = case()
    linear_cross_entropy(*factors, Targets(labels, excluded=EXCLUDED)).loss.backward()
    assert rows == 2 * [2, 2, 2, 2, 2, 1]


def test_chunks_are_larger_on_a_gpu():
    """250,002 symbols: 67 labels at a time on the CPU, and a GiB of scores on a GPU."""
    labels = torch.zeros(2000, dtype=torch.int64)
    rows = [[chunk.stop - chunk.start for chunk in lm_head._chunks(on, 250_002)] for on in (labels, upload(labels))]
    assert rows[0][0] == 67 and rows[1] == [1073, 927]
