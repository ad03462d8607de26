"""The model: what it may learn from, its sizes, and what is said of options and weights that do not fit."""

from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from fairseq.models import ARCH_CONFIG_REGISTRY, ARCH_MODEL_REGISTRY
from tiny import PAD, TINY_SIZES, VOCAB_SIZE, model_inputs, tiny_config, tiny_dictionary, tiny_form, tiny_model, words

from s2sft_fairseq.checkpoints.bert import Conversion, parameter_shapes
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.architectures import ARCHITECTURES
from s2sft_fairseq.models.unilm import ACTIVATIONS, UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes
from s2sft_fairseq.objectives.corruption import PRESETS
from s2sft_fairseq.objectives.finetuning import METHODS
from s2sft_fairseq.objectives.packing import collate

PAPER = PRESETS["paper"]
TASK = SimpleNamespace(source_dictionary=tiny_dictionary())


def input_gradients(model, inputs, labelled, index):
    """Which inputs (L,) get a gradient at all from the loss of one label, of a batch of one example."""
    embedded = []
    handle = model.embeddings.register_forward_hook(lambda module, args, out: embedded.append(out.requires_grad_()))
    logits = model(**inputs, labelled=labelled)
    handle.remove()
    loss = torch.log_softmax(logits[index], dim=0)[7]
    (gradient,) = torch.autograd.grad(loss, embedded)
    return (gradient[0] != 0).any(dim=-1)


@pytest.mark.parametrize("relative", [False, True])
@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_no_label_is_seen_by_its_own_prediction(method, relative):
    """Exactly no gradient from the loss of target token i to the inputs of tokens i and later; some to all others."""
    rng = np.random.default_rng(0)
    form, model = tiny_form(method), tiny_model(1, relative=relative)
    example = METHODS[method].pack(words(rng, 5), words(rng, 6), form, PAPER[method], rng)
    batch = collate([example], PAD)
    labelled = torch.from_numpy(batch.label != PAD)
    context, content = (len(block.token) for block in example[:2])
    for i in range(content):
        seen = input_gradients(model, model_inputs(batch), labelled, i)
        # A causal model's content begins with [SEP]: token i stands at i + 1 there.
        known = context + i + form.shifted
        expected = torch.zeros_like(seen)
        expected[:known] = True
        if method == "pseudo_masked":
            expected[context + content + i] = True
        assert seen.tolist() == expected.tolist()


def test_masked_predictions_see_their_placeholder_and_what_is_before():
    rng = np.random.default_rng(1)
    form, model = tiny_form("masked"), tiny_model(2)
    example = METHODS["masked"].pack(words(rng, 4), words(rng, 7), form, PAPER["masked"], rng)
    batch = collate([example], PAD)
    labelled = torch.from_numpy(batch.label != PAD)
    for index, place in enumerate(labelled[0].nonzero().flatten().tolist()):
        seen = input_gradients(model, model_inputs(batch), labelled, index)
        assert seen.tolist() == [i <= place for i in range(len(seen))]


def test_sources_learn_nothing_of_targets():
    """States of the source are those of the source alone, which decoding relies on."""
    rng = np.random.default_rng(3)
    form, model = tiny_form(), tiny_model(3, relative=True)
    source = words(rng, 6)
    packed = [METHODS["pseudo_masked"].pack(source, words(rng, 5), form, PAPER["pseudo_masked"], rng) for _ in range(2)]
    with torch.no_grad():
        states = model.encode(**model_inputs(collate(packed, PAD)))[:, :8]
        alone = model.encode(**model_inputs(collate([packed[0][:1]], PAD)))
    torch.testing.assert_close(states[0], states[1], atol=0, rtol=0)
    torch.testing.assert_close(states[0], alone[0], atol=1e-6, rtol=1e-6)


def test_output_and_input_embedding_are_one():
    model = tiny_model()
    names = [name for name, parameter in model.named_parameters() if len(parameter) == VOCAB_SIZE]
    assert names == ["embeddings.tokens.weight", "lm_head.bias"]


@pytest.mark.parametrize("changes", [{}, {"relative_position_bins": 8}, {"num_segments": 0}])
def test_parameters_are_those_that_conversion_expects(changes):
    cfg = tiny_config(**changes)
    model = UnilmModel(cfg, vocab_size=VOCAB_SIZE, pad=PAD)
    sizes = {name: getattr(cfg, name) for name in SIZES}
    assert {name: tuple(p.shape) for name, p in model.named_parameters()} == parameter_shapes(sizes, VOCAB_SIZE)


def test_initial_weights_are_those_of_bert():
    torch.manual_seed(0)
    cfg = tiny_config(encoder_embed_dim=64, encoder_ffn_embed_dim=256, relative_position_bins=32)
    model = UnilmModel(cfg, vocab_size=500, pad=PAD)
    for name, parameter in model.named_parameters():
        if "layer_norm" in name and name.endswith("weight"):
            assert (parameter == 1).all(), name
        elif name.endswith("bias"):
            assert (parameter == 0).all(), name
        else:
            count = parameter.numel()
            assert abs(parameter.std().item() - 0.02) < 0.02 * 4 / np.sqrt(2 * count) + 0.001, name
    assert (model.embeddings.tokens.weight[PAD] == 0).all()


def test_activations():
    x = torch.linspace(-3, 3, 13)
    exact = x * 0.5 * (1 + torch.erf(x / 2**0.5))
    torch.testing.assert_close(ACTIVATIONS["gelu"](x), exact)
    assert not torch.allclose(ACTIVATIONS["gelu_tanh"](x), exact, atol=1e-5)
    torch.testing.assert_close(ACTIVATIONS["gelu_tanh"](x), exact, atol=1e-3, rtol=0)
    assert ACTIVATIONS["relu"](x).tolist() == x.clamp(min=0).tolist()


def test_probabilities_are_in_float32():
    model = tiny_model()
    logits = torch.randn(3, VOCAB_SIZE, dtype=torch.float16)
    probabilities = model.get_normalized_probs(logits, log_probs=False)
    assert probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(3))
    torch.testing.assert_close(model.get_normalized_probs(logits, log_probs=True).exp(), probabilities)
    assert model.max_positions() == TINY_SIZES["max_positions"]


# Sizes and architectures


def test_sizes_that_are_not_given_are_those_of_bert_base():
    cfg = UnilmConfig(encoder_layers=3)
    complete_sizes(cfg)
    assert {name: getattr(cfg, name) for name in SIZES} == {**SIZES, "encoder_layers": 3}


@pytest.mark.parametrize("name", list(ARCHITECTURES))
def test_named_architectures(name):
    assert ARCH_MODEL_REGISTRY[name] is UnilmModel
    args = Namespace(encoder_layers=None, encoder_embed_dim=None, encoder_ffn_embed_dim=None, encoder_attention_heads=6)
    ARCH_CONFIG_REGISTRY[name](args)
    layers, width, inner, _ = ARCHITECTURES[name]
    # What the user gives stays.
    expected = {"encoder_layers": layers, "encoder_embed_dim": width, "encoder_ffn_embed_dim": inner}
    assert vars(args) == {**expected, "encoder_attention_heads": 6}


def test_architectures_of_the_papers():
    assert ARCHITECTURES["unilm_base"] == (12, 768, 3072, 12)
    assert ARCHITECTURES["unilm_large"] == (24, 1024, 4096, 16)
    assert ARCHITECTURES["minilm_l6_h384"] == (6, 384, 1536, 12)
    assert ARCHITECTURES["minilm_l12_h384"] == (12, 384, 1536, 12)


def test_all_sizes_that_are_impossible():
    cfg = UnilmConfig(
        encoder_layers=0,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=-1,
        encoder_attention_heads=3,
        max_positions=0,
        num_segments=-1,
        relative_position_bins=7,
    )
    with pytest.raises(UserError) as raised:
        complete_sizes(cfg)
    assert raised.value.problems == [
        "--encoder-layers must be at least 1, but is 0",
        "--encoder-ffn-embed-dim must be at least 1, but is -1",
        "--max-positions must be at least 1, but is 0",
        "--num-segments must be at least 0, but is -1",
        "--relative-position-bins must be 0 or an even number from 4 on, but is 7",
        "--encoder-embed-dim must be a multiple of --encoder-attention-heads (3), but is 16",
    ]


def test_no_heads():
    with pytest.raises(UserError, match=r"^--encoder-attention-heads must be at least 1, but is 0$"):
        complete_sizes(UnilmConfig(encoder_attention_heads=0))


def test_relative_positions_that_end_before_their_bins():
    with pytest.raises(
        UserError, match=r"--max-relative-position must exceed a quarter of --relative-position-bins \(32\), but is 8$"
    ):
        complete_sizes(UnilmConfig(relative_position_bins=32, max_relative_position=8))


# Pretrained encoders


def write_encoder(folder, model, vocab_size=VOCAB_SIZE, without=()):
    """A converted encoder with the weights of a model, some of them left out."""
    weights = {name: value for name, value in model.state_dict().items() if not name.startswith(tuple(without))}
    missing = sorted(model.state_dict().keys() - weights.keys())
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    write_pretrained(folder, Conversion(weights, sizes, [], missing))
    tiny_dictionary(vocab_size).save(str(folder / "dict.txt"))
    return str(folder)


def test_sizes_and_weights_come_from_the_pretrained_encoder(tmp_path, caplog):
    source = tiny_model(4, relative=True)
    cfg = UnilmConfig(pretrained=write_encoder(tmp_path, source, without=("lm_head.dense", "lm_head.layer_norm")))
    with caplog.at_level("INFO"):
        model = UnilmModel.build_model(cfg, TASK)
    assert {name: getattr(cfg, name) for name in SIZES} == {name: getattr(source.cfg, name) for name in SIZES}
    assert cfg.pretrained is None
    for name, value in model.state_dict().items():
        assert torch.equal(value, source.state_dict()[name]) != name.startswith(
            ("lm_head.dense", "lm_head.layer_norm")
        ), name
    assert (model.lm_head.layer_norm.weight == 1).all()
    assert (
        "newly initialised, for the pretrained encoder lacks them: lm_head.dense.bias, lm_head.dense.weight"
        in caplog.text
    )
    count = len(source.state_dict())
    assert f"loaded {count - 4} of {count} parameters from {tmp_path}" in caplog.text


def test_all_contradictions_to_the_pretrained_encoder(tmp_path):
    folder = write_encoder(tmp_path, tiny_model())
    agreeing = {"encoder_layers": 2, "activation_fn": "gelu", "layer_norm_eps": 1e-12, "num_segments": 2}
    UnilmModel.build_model(UnilmConfig(pretrained=folder, **agreeing), TASK)
    contradicting = {"encoder_embed_dim": 32, "max_positions": 512, "num_segments": 0, "activation_fn": "relu"}
    with pytest.raises(UserError) as raised:
        UnilmModel.build_model(UnilmConfig(pretrained=folder, encoder_layers=2, **contradicting), TASK)
    assert raised.value.problems == [
        "--encoder-embed-dim is 32, but the pretrained encoder has 16",
        "--max-positions is 512, but the pretrained encoder has 64",
        "--num-segments is 0, but the pretrained encoder has 2",
        "--activation-fn is relu, but the pretrained encoder has gelu",
    ]


def test_a_dictionary_that_does_not_fit_the_encoder(tmp_path):
    folder = write_encoder(tmp_path, tiny_model())
    task = SimpleNamespace(source_dictionary=tiny_dictionary(47))
    with pytest.raises(UserError) as raised:
        UnilmModel.build_model(UnilmConfig(pretrained=folder), task)
    assert str(raised.value) == (
        "the dictionary has 47 symbols, but the checkpoint was made with 50: "
        "use the dict.txt that belongs to the checkpoint"
    )


# Checkpoints


def test_states_come_back():
    source, model = tiny_model(5, relative=True), tiny_model(6, relative=True)
    model.load_state_dict(source.state_dict())
    assert all(torch.equal(value, source.state_dict()[name]) for name, value in model.state_dict().items())


def test_all_parameters_that_do_not_fit():
    states = tiny_model(encoder_ffn_embed_dim=24).state_dict()
    del states["lm_head.bias"]
    states["relative_position.weight"] = torch.zeros(2, 8)
    with pytest.raises(UserError) as raised:
        tiny_model().load_state_dict(states)
    assert str(raised.value).splitlines() == [
        "the checkpoint does not fit the model:",
        *(
            f"  - {name} must have the shape {needed}, but has {found}"
            for layer in range(2)
            for name, needed, found in (
                (f"layers.{layer}.fc1.bias", (32,), (24,)),
                (f"layers.{layer}.fc1.weight", (32, 16), (24, 16)),
                (f"layers.{layer}.fc2.weight", (16, 32), (16, 24)),
            )
        ),
        "  - lm_head.bias is missing",
        "  - relative_position.weight is unknown",
    ]


def test_a_checkpoint_of_another_vocabulary():
    """Named first and alone: nothing else matters then."""
    with pytest.raises(UserError, match=r"^the dictionary has 50 symbols, but the checkpoint was made with 60: "):
        tiny_model().load_state_dict(tiny_model(vocab_size=60, encoder_ffn_embed_dim=24).state_dict())
