"""The model: which tokens it can learn from, its parameters, and ways to compute it that change nothing."""

import shutil

import numpy as np
import pytest
import torch
from tiny import (
    ENCODERS,
    PAD,
    TINY_SIZES,
    VOCAB_SIZE,
    model_inputs,
    pack_example,
    packed_columns,
    tiny_form,
    tiny_model,
    words,
)

from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.optim.fused_adamw import GROUP_ATTRIBUTE, NO_DECAY

PAPER = {name: objective.corruption["paper"] for name, objective in OBJECTIVES.items()}


def input_gradients(model, inputs, labelled, index):
    """Return which inputs (T,) get a nonzero gradient from the loss of one label."""
    embedded = []
    handle = model.embeddings.register_forward_hook(lambda module, args, out: embedded.append(out.requires_grad_()))
    logits = model(**inputs, labelled=labelled)
    handle.remove()
    loss = torch.log_softmax(logits[index], dim=0)[7]
    (gradient,) = torch.autograd.grad(loss, embedded)
    return (gradient != 0).any(dim=-1)


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_no_label_is_seen_by_its_own_prediction(method, encoder):
    """The loss of target token i gives exactly no gradient to inputs i and later, and some to all inputs before.

    It gives none to other examples of the batch either, before or after its own.
    """
    rng = np.random.default_rng(0)
    form, model = tiny_form(method), tiny_model(1, **encoder)
    lengths = ((3, 4), (5, 6), (2, 0))
    batch = collate([pack_example(method, words(rng, s), words(rng, t), form, PAPER[method], rng) for s, t in lengths])
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    # Those of the second example; each target token has one label, and so has the [SEP] after them.
    start, labels_before = sum(batch.lengths[0]), lengths[0][1] + 1
    context, content = batch.lengths[1][:2]
    for i in range(content):
        seen = input_gradients(model, model_inputs(batch), labelled, labels_before + i)
        # A causal model's content begins with [SEP]: token i is at i + 1 there.
        known = start + context + i + (not form.has_placeholders)
        expected = torch.zeros_like(seen)
        expected[start:known] = True
        if method == "pseudo_masked":
            expected[start + context + content + i] = True
        assert seen.tolist() == expected.tolist()


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_masked_predictions_see_their_placeholder_and_earlier_tokens(encoder):
    rng = np.random.default_rng(1)
    form, model = tiny_form("masked"), tiny_model(2, **encoder)
    example = pack_example("masked", words(rng, 4), words(rng, 7), form, PAPER["masked"], rng)
    batch = collate([example])
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    for index, place in enumerate(labelled.tolist()):
        seen = input_gradients(model, model_inputs(batch), labelled, index)
        assert seen.tolist() == [i <= place for i in range(len(seen))]


def test_local_layers_only_see_their_window():
    """A local layer after a global one without attention sees three positions, which can be the end of the source."""
    rng = np.random.default_rng(2)
    form, model = tiny_form(), tiny_model(1, **{**ENCODERS["modernbert"], "encoder_layers": 2})
    with torch.no_grad():
        model.layers[0].attention.output.weight.zero_()
    example = pack_example("pseudo_masked", words(rng, 7), words(rng, 6), form, PAPER["pseudo_masked"], rng)
    batch = collate([example])
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    context, content = (len(block.token) for block in example[:2])
    for i in range(content):
        seen = input_gradients(model, model_inputs(batch), labelled, i).nonzero().flatten().tolist()
        position = context + i
        assert seen == [position - 3, position - 2, position - 1, context + content + i]


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_sources_learn_nothing_of_targets(encoder):
    """States of the source do not depend on the target; decoding relies on this."""
    rng = np.random.default_rng(3)
    form, model = tiny_form(), tiny_model(3, **encoder)
    source = words(rng, 6)
    packed = [pack_example("pseudo_masked", source, words(rng, 5), form, PAPER["pseudo_masked"], rng) for _ in range(2)]
    with torch.no_grad():
        first, second, alone = (
            model.encode(packed_columns(collate([blocks])))[:8] for blocks in (*packed, packed[0][:1])
        )
    torch.testing.assert_close(first, second, atol=0, rtol=0)
    torch.testing.assert_close(first, alone, atol=1e-6, rtol=1e-6)


def test_output_and_input_embedding_are_one():
    model = tiny_model()
    names = [name for name, parameter in model.named_parameters() if len(parameter) == VOCAB_SIZE]
    assert names == ["embeddings.tokens.weight", "lm_head.bias"]


def linear(name, rows, columns):
    return {f"{name}.weight": (rows, columns), f"{name}.bias": (rows,)}


def layer_norm(name, width):
    return {f"{name}.weight": (width,), f"{name}.bias": (width,)}


def parameters_of_bert(token_dim=16):
    """Return names and shapes of a tiny BERT's parameters."""
    shapes = {"embeddings.tokens.weight": (VOCAB_SIZE, token_dim), "lm_head.bias": (VOCAB_SIZE,)}
    shapes |= {"embeddings.positions.weight": (64, token_dim), "embeddings.segments.weight": (2, token_dim)}
    shapes |= linear("lm_head.dense", token_dim, 16)
    shapes |= layer_norm("embeddings.layer_norm", token_dim) | layer_norm("lm_head.layer_norm", token_dim)
    for layer in ("layers.0", "layers.1"):
        shapes |= linear(f"{layer}.attention.qkv", 48, 16) | linear(f"{layer}.attention.output", 16, 16)
        shapes |= linear(f"{layer}.fc1", 32, 16) | linear(f"{layer}.fc2", 16, 32)
        shapes |= layer_norm(f"{layer}.attention_layer_norm", 16) | layer_norm(f"{layer}.final_layer_norm", 16)
    return shapes


def parameters_of_deberta(rows=16):
    """Return those of a tiny DeBERTa, whose table of relative positions has this many rows."""
    shapes = parameters_of_bert()
    del shapes["embeddings.positions.weight"], shapes["embeddings.segments.weight"]
    return {
        **shapes,
        "relative_position.embedding.weight": (rows, 16),
        **layer_norm("relative_position.layer_norm", 16),
    }


def position_projections(name):
    return {**linear(f"layers.0.attention.{name}", 16, 16), **linear(f"layers.1.attention.{name}", 16, 16)}


# No biases except in the output, no position and segment embeddings, no layer norm before the first attention.
PARAMETERS_OF_MODERNBERT = {
    "embeddings.tokens.weight": (VOCAB_SIZE, 16),
    "embeddings.layer_norm.weight": (16,),
    "layers.0.attention.qkv.weight": (48, 16),
    "layers.0.attention.output.weight": (16, 16),
    "layers.0.final_layer_norm.weight": (16,),
    "layers.0.fc1.weight": (64, 16),
    "layers.0.fc2.weight": (16, 32),
    "layers.1.attention_layer_norm.weight": (16,),
    "layers.1.attention.qkv.weight": (48, 16),
    "layers.1.attention.output.weight": (16, 16),
    "layers.1.final_layer_norm.weight": (16,),
    "layers.1.fc1.weight": (64, 16),
    "layers.1.fc2.weight": (16, 32),
    "layer_norm.weight": (16,),
    "lm_head.dense.weight": (16, 16),
    "lm_head.layer_norm.weight": (16,),
    "lm_head.bias": (VOCAB_SIZE,),
}


@pytest.mark.parametrize(
    ("encoder", "expected"),
    [
        ({}, parameters_of_bert()),
        ({"embedding_dim": 16}, parameters_of_bert()),
        (ENCODERS["relative"], {**parameters_of_bert(), "relative_position.weight": (2, 8)}),
        (ENCODERS["deberta"], parameters_of_deberta()),
        (
            {**ENCODERS["deberta"], "disentangled_projections": "own", "disentangled_attention": "c2p"},
            {**parameters_of_deberta(), **position_projections("position_key")},
        ),
        ({**ENCODERS["deberta"], "disentangled_buckets": 0}, parameters_of_deberta(32)),
        (ENCODERS["electra"], {**parameters_of_bert(8), **linear("embeddings.projection", 16, 8)}),
        ({**ENCODERS["modernbert"], "encoder_layers": 2}, PARAMETERS_OF_MODERNBERT),
    ],
    ids=[
        *("absolute", "embeddings as wide as the layers", "relative"),
        *("deberta", "deberta, own projections", "deberta, no buckets", "electra", "modernbert"),
    ],
)
def test_parameters(encoder, expected):
    shapes = {name: tuple(value.shape) for name, value in tiny_model(**encoder).state_dict().items()}
    assert shapes == expected


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_biases_and_layer_norms_do_not_decay(encoder):
    for name, parameter in tiny_model(**encoder).named_parameters():
        exempt = name.endswith("bias") or "norm" in name or name == "relative_position.weight"
        assert (getattr(parameter, GROUP_ATTRIBUTE, None) == NO_DECAY) == exempt, name


def test_probabilities_are_in_float32():
    model = tiny_model()
    logits = torch.randn(3, VOCAB_SIZE, dtype=torch.float16)
    probabilities = model.get_normalized_probs(logits, log_probs=False)
    assert probabilities.dtype == torch.float32
    torch.testing.assert_close(probabilities.sum(dim=1), torch.ones(3))
    torch.testing.assert_close(model.get_normalized_probs(logits, log_probs=True).exp(), probabilities)
    assert model.max_positions() == TINY_SIZES["max_positions"]


def test_rotary_positions_have_no_end():
    """No error occurs at max_positions: the model reads everything it is given."""
    model = tiny_model(**ENCODERS["modernbert"])
    length = 2 * model.max_positions()
    tokens = torch.full((length,), 9)
    columns = PackedColumns.given(tokens, torch.arange(length), torch.zeros_like(tokens), [length])
    assert model.encode(columns).isfinite().all()


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_checkpointed_activations_change_nothing(encoder):
    """Computing the layers a second time gives the same loss and gradients, including dropout."""
    rng = np.random.default_rng(0)
    form = tiny_form()
    method = "pseudo_masked"
    batch = collate([pack_example(method, words(rng, n), words(rng, 5), form, PAPER[method], rng) for n in (9, 4)])
    found = []
    for checkpointed in (False, True):
        model = tiny_model(4, **encoder, dropout=0.3, attention_dropout=0.3)
        model.cfg.checkpoint_activations = checkpointed
        model.train()
        torch.manual_seed(5)
        logits = model(**model_inputs(batch), labelled=torch.from_numpy(np.flatnonzero(batch.label != PAD)))
        logits.square().sum().backward()
        found.append([logits.detach(), *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    for plain, again in zip(*found, strict=True):
        torch.testing.assert_close(again, plain, rtol=0, atol=0)


@pytest.mark.rounding
@pytest.mark.skipif(shutil.which("c++") is None, reason="torch.compile needs a C++ compiler here")
@pytest.mark.process  # compilers
def test_compiled_layers_change_nothing_but_rounding(monkeypatch, tmp_path):
    # PyTorch's own cache could return code compiled for another ATEN_CPU_CAPABILITY.
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", str(tmp_path))
    form, method, found = tiny_form(), "pseudo_masked", []
    for compiled in (False, True):
        model = tiny_model(4, compile=compiled).train()
        results = []
        for seed in (1, 2):  # two numbers of tokens; the second compiles nothing
            rng = np.random.default_rng(seed)
            pairs = [(words(rng, 4 * seed), words(rng, 5))]
            batch = collate([pack_example(method, *pair, form, PAPER[method], rng) for pair in pairs])
            logits = model(**model_inputs(batch), labelled=torch.from_numpy(np.flatnonzero(batch.label != PAD)))
            logits.square().sum().backward()
            results.append(logits.detach())
        found.append([*results, *(p.grad for p in model.parameters() if p.grad is not None)])
    assert len(found[0]) == len(found[1])
    for plain, fused in zip(*found, strict=True):
        # Sums reach hundreds, and small ones are differences of large ones, so the tolerance is relative to the
        # largest. Measured: at most 1.2e-6 of it.
        torch.testing.assert_close(fused, plain, rtol=0, atol=1e-4 * plain.abs().max().item())
