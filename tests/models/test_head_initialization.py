"""The models of `s2sft convert`: shapes of parameters, and computed heads."""

import numpy as np
import pytest
import torch
from tiny import CLS, ENCODERS, FIRST_WORD, PAD, SEP, VOCAB_SIZE, tiny_config, tiny_dictionary, tiny_model

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.models.head_initialization import fit_transform, initialize_head, log_frequencies, norm_scale
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES
from s2sft_fairseq.modules.visibility import PackedColumns

MODERN = {"rotary_base": 1e4, "feed_forward": "gated", "layer_norm_position": "pre", "biases": "none"}


@pytest.mark.parametrize(
    "changes", [{}, {"relative_position_bins": 8}, {"num_segments": 0}, {"embedding_dim": 8}, MODERN], ids=str
)
def test_shapes_are_those_of_the_model(changes):
    cfg = tiny_config(**changes)
    shapes = parameter_shapes({name: getattr(cfg, name) for name in SIZES}, VOCAB_SIZE)
    model = UnilmModel(cfg, vocab_size=VOCAB_SIZE, pad=PAD)
    assert shapes == {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}


def test_no_parameter_is_allocated():
    """The shapes of a model that would not fit into any memory."""
    huge = {"encoder_layers": 2, "encoder_embed_dim": 2**20, "encoder_attention_heads": 2**10}
    assert parameter_shapes(huge, 2**20)["embeddings.tokens.weight"] == (2**20, 2**20)
    assert torch.zeros(1).device.type == "cpu"


def test_sizes_that_contradict_each_other():
    with pytest.raises(UserError, match=r"--encoder-embed-dim must be a multiple of --encoder-attention-heads \(7\)"):
        parameter_shapes({"encoder_attention_heads": 7}, 10)


@pytest.fixture
def text(tmp_path):
    """120 lines of 3 to 12 random words, one of them empty."""
    rng = np.random.default_rng(0)
    lines = [
        " ".join(f"w{i}" for i in rng.integers(FIRST_WORD, VOCAB_SIZE, size=rng.integers(3, 13))) for _ in range(120)
    ]
    lines[7] = ""
    path = tmp_path / "text"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_log_frequencies(tmp_path):
    path = tmp_path / "text"
    path.write_text("w5 w6 w5\n\nw5 unheard-of\n")
    frequencies = log_frequencies(path, tiny_dictionary()).exp()
    dictionary = tiny_dictionary()
    # Three lines end in eos and have five words, and each of the 50 symbols counts once more.
    total = 8 + VOCAB_SIZE
    expected = {"w5": 4 / total, "w6": 2 / total, "[SEP]": 4 / total, "[UNK]": 2 / total, "w7": 1 / total}
    for symbol, share in expected.items():
        assert frequencies[dictionary.index(symbol)].item() == pytest.approx(share, rel=1e-5)
    assert frequencies.sum().item() == pytest.approx(1, rel=1e-5)


@torch.no_grad()
def lines_as_batches_of_one(model, text, max_tokens):
    """Return the states and embeddings of each line, encoded alone."""
    states, targets = [], []
    for line in filter(None, text.read_text().split("\n")):
        words = [int(word[1:]) for word in line.split()][:max_tokens]
        tokens = torch.tensor([CLS, *words, SEP])
        positions, zeros = torch.arange(len(tokens)), torch.zeros_like(tokens)
        encoded = model.encode(PackedColumns.given(tokens, positions, zeros, [len(tokens)]))
        states.append(encoded[1:-1])
        targets.append(model.embeddings.tokens.weight[words])
    return torch.cat(states), torch.cat(targets)


@pytest.mark.parametrize(
    "encoder", [{}, ENCODERS["electra"], ENCODERS["modernbert"]], ids=["bert", "electra", "modernbert"]
)
def test_the_dense_layer_is_the_least_squares_solution(text, encoder):
    model = tiny_model(**encoder)
    weight, bias = fit_transform(model, text, tiny_dictionary(), max_tokens=10)
    assert weight.shape == model.lm_head.dense.weight.shape
    assert weight.std().item() == pytest.approx(0.02, rel=1e-4)
    states, targets = lines_as_batches_of_one(model, text, max_tokens=10)
    assert (bias is None) == (model.lm_head.dense.bias is None)
    inputs = states if bias is None else torch.cat([states, torch.ones(len(states), 1)], dim=1)
    exact = torch.linalg.lstsq(inputs.double(), targets.double(), rcond=1e-5, driver="gelsd").solution
    ours = weight.T.double() if bias is None else torch.cat([weight.T, bias.unsqueeze(0)]).double()
    # Compare predictions, up to scale and ridge; coefficients are not unique, because the outputs of a layer norm are
    # linearly dependent.
    ours, exact = inputs.double() @ ours, inputs.double() @ exact
    ratio = (ours * exact).sum() / (exact * exact).sum()
    assert ratio > 0
    assert ((ours - ratio * exact).norm() / ours.norm()).item() < 1e-2


def test_the_head_predicts_tokens_from_their_own_states(text):
    model = tiny_model()
    states, targets = lines_as_batches_of_one(model, text, max_tokens=62)
    embeddings = model.embeddings.tokens.weight

    def right() -> float:
        guesses = model.lm_head(states, embeddings).argmax(dim=1)
        return (embeddings[guesses] == targets).all(dim=1).float().mean().item()

    with torch.no_grad():
        model.lm_head.layer_norm.weight.fill_(1)
        model.lm_head.layer_norm.bias.zero_()
        model.lm_head.bias.zero_()
        before = right()
        weight, bias = fit_transform(model, text, tiny_dictionary())
        model.lm_head.dense.weight.copy_(weight)
        model.lm_head.dense.bias.copy_(bias)
        after = right()
    print(f"{100 * before:.0f} % right before, {100 * after:.0f} % after")
    # These states of a random network tell little about the tokens; with the demo's real encoder, 77 % were right.
    assert after > 5 * before


@pytest.mark.parametrize("deviation", [0.02, 0.3])
def test_first_scores_do_not_depend_on_the_size_of_embeddings(deviation):
    """Their standard deviation is 1."""
    embeddings = torch.randn(400, 64) * deviation
    features = torch.nn.functional.layer_norm(torch.randn(200, 64), (64,), norm_scale(embeddings))
    assert (features @ embeddings.T).std().item() == pytest.approx(1, rel=0.02)


@pytest.mark.parametrize("is_missing", [True, False])
def test_the_scale_of_a_head(text, is_missing):
    """It is set beside a fitted dense layer, unless the encoder has a norm of its own."""
    model = tiny_model(dropout=0.0)
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("lm_head.")}
    missing = [name for name in model.state_dict() if name.startswith("lm_head.")]
    if not is_missing:
        missing.remove("lm_head.layer_norm.weight")
        weights["lm_head.layer_norm.weight"] = torch.full((model.cfg.encoder_embed_dim,), 3.0)
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    conversion = Conversion("BERT", weights, sizes, missing=missing)
    initialize_head(conversion, tiny_dictionary(), fit_head=text, output_prior=text)
    assert conversion.missing == ["lm_head.layer_norm.bias"]
    expected = norm_scale(weights["embeddings.tokens.weight"]) if is_missing else torch.full_like(weights[NORM], 3.0)
    assert torch.equal(conversion.weights[NORM], expected)


NORM = "lm_head.layer_norm.weight"


def test_embeddings_of_zeros(text):
    """A head that is computed from them would not be finite."""
    model = tiny_model(dropout=0.0)
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith("lm_head.")}
    weights["embeddings.tokens.weight"] = torch.zeros_like(weights["embeddings.tokens.weight"])
    missing = [name for name in model.state_dict() if name.startswith("lm_head.")]
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    conversion = Conversion("BERT", weights, sizes, missing=missing)
    with pytest.raises(UserError, match="--fit-head needs token embeddings"):
        initialize_head(conversion, tiny_dictionary(), fit_head=text, output_prior=None)


@pytest.mark.parametrize("use", [log_frequencies, lambda path, d: fit_transform(tiny_model(), path, d)])
def test_unreadable_text(tmp_path, use):
    with pytest.raises(UserError, match="missing"):
        use(tmp_path / "missing", tiny_dictionary())


@pytest.mark.parametrize("kind", ["plain", "two_layer"])
def test_heads_that_cannot_be_fitted(kind, tmp_path):
    """Both problems at once: the kind of the head, and an existing output bias."""
    conversion = Conversion("EuroBERT", {}, {"lm_head": kind}, missing=["lm_head.dense.weight"])
    with pytest.raises(UserError) as raised:
        initialize_head(conversion, tiny_dictionary(), fit_head=tmp_path / "a", output_prior=tmp_path / "b")
    assert [problem.split(" ")[0] for problem in raised.value.problems] == ["--fit-head", "--output-prior"]
    assert raised.value.problems[0].endswith(f"--lm-head bert, but that of this one is {kind}")
