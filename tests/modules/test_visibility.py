"""Attention in blocks against the dense reference, on random packed batches; and the order of the blocks."""

import numpy as np
import pytest
import torch
from dense_reference import dense_states, sees, visibility_matrix
from tiny import ENCODERS, PAD, VOCAB_SIZE, model_inputs, tiny_form, tiny_model, words

from s2sft_fairseq.modules.visibility import attention_blocks, visible, within_window
from s2sft_fairseq.objectives.corruption import PRESETS
from s2sft_fairseq.objectives.finetuning import METHODS
from s2sft_fairseq.objectives.packing import PADDING_GROUP, Block, collate

# The kinds of the blocks of a random example: context, content that is predicted, placeholders. "later" is content of
# which nothing is known before all of the first content is.
KINDS = {
    "one": ("context",),
    "context and content": ("context", "content"),
    "context and placeholders": ("context", "placeholders"),
    "three": ("context", "content", "placeholders"),
    "two placeholder flows": ("context", "content", "placeholders", "placeholders"),
    "two contents": ("context", "content", "later", "placeholders"),
}


def random_block(kind, number, rng):
    length = int(rng.integers(2, 8))
    # Anything goes: orders from right to left or mixed, positions that come twice, placeholders in groups.
    steps = {
        "context": np.zeros(length, dtype=np.int64),
        "content": rng.integers(1, 5, length),
        "later": rng.integers(5, 9, length),
        "placeholders": rng.integers(1, 9, length),
    }[kind]
    groups = 10 * number + rng.integers(1, 4, length) if kind == "placeholders" else np.zeros(length, dtype=np.int64)
    return Block(
        token=words(rng, length),
        position=rng.integers(0, 40, length),
        segment=rng.integers(0, 2, length),
        step=steps,
        group=groups,
        label=np.where(rng.random(length) < 0.5, words(rng, length), PAD),
    )


def random_examples(kinds, seed, count=4):
    rng = np.random.default_rng(seed)
    return [tuple(random_block(kind, i, rng) for i, kind in enumerate(kinds)) for _ in range(count)]


def real_states(states, batch):
    """The states of each example without padding, in order: [(L_i, H)]."""
    real = torch.from_numpy(batch.group) >= 0
    return [row[keep] for row, keep in zip(states, real, strict=True)]


def gradients(model, states, seed):
    """The gradients of a random linear function of all states."""
    generator = torch.Generator().manual_seed(seed)
    total = sum((torch.randn(s.shape, generator=generator, dtype=s.dtype) * s).sum() for s in states)
    parameters = {name: p for name, p in model.named_parameters() if not name.startswith("lm_head")}
    grads = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, grads, strict=True))


# What no named architecture is.
FURTHER = {
    "no segments": {"num_segments": 0},
    "local only but the first": {**ENCODERS["modernbert"], "global_attention_every": 9},
    "window 1, one base": {**ENCODERS["modernbert"], "local_attention_window": 1, "local_rotary_base": 0.0},
    "bases alone": {**ENCODERS["modernbert"], "local_attention_window": 0},
    "narrow and pre-norm": {"embedding_dim": 8, "layer_norm_position": "pre"},
    "window with relative positions": {"relative": True, "local_attention_window": 5, "global_attention_every": 2},
}


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("encoder", [*ENCODERS.values(), *FURTHER.values()], ids=[*ENCODERS, *FURTHER])
def test_model_equals_the_dense_reference(kinds, encoder):
    model = tiny_model(1, **encoder).double()
    for seed in range(3):
        examples = random_examples(kinds, seed)
        batch = collate(examples, PAD)
        assert len({len(block.token) for example in examples for block in example}) > 1, "nothing is padded"
        states = real_states(model.encode(**model_inputs(batch)), batch)
        expected = [dense_states(model, example) for example in examples]
        for ours, dense in zip(states, expected, strict=True):
            torch.testing.assert_close(ours, dense, atol=1e-10, rtol=1e-10)
        ours, dense = gradients(model, states, seed), gradients(model, expected, seed)
        for name, gradient in dense.items():
            torch.testing.assert_close(
                ours[name], gradient, atol=1e-9, rtol=1e-9, msg=lambda text, n=name: f"{n}: {text}"
            )


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_the_division_into_blocks_has_no_effect(encoder):
    """All columns in one block: the same states, only more scores computed."""
    model = tiny_model(2, **encoder).double()
    batch = collate(random_examples(KINDS["two placeholder flows"], 5), PAD)
    inputs = model_inputs(batch)
    in_blocks = real_states(model.encode(**inputs), batch)
    at_once = real_states(model.encode(**{**inputs, "block_lengths": (sum(batch.block_lengths),)}), batch)
    torch.testing.assert_close(in_blocks, at_once, atol=1e-10, rtol=1e-10)


def test_rule():
    rng = np.random.default_rng(0)
    examples = random_examples(KINDS["two placeholder flows"], 6, count=6)
    for example in examples:
        step, group = (torch.from_numpy(np.concatenate([getattr(b, n) for b in example])) for n in ("step", "group"))
        np.testing.assert_array_equal(visible(step, group, step, group).numpy(), visibility_matrix(example))
    # And every combination of small columns.
    columns = [(step, group) for step in range(4) for group in range(4)]
    rng.shuffle(columns)
    step, group = torch.tensor(columns).t()
    expected = [[sees(*query, *key) for key in columns] for query in columns]
    assert visible(step, group, step, group).tolist() == expected


def test_padding_is_never_seen_and_sees_what_is_given():
    step, group = torch.tensor([0, 1, 1, 0]), torch.tensor([0, 0, 1, -1])
    seen = visible(step, group, step, group)
    assert seen[:, 3].tolist() == [False] * 4
    assert seen[3].tolist() == [True, False, False, False]


@pytest.mark.parametrize("preset", list(PRESETS))
@pytest.mark.parametrize("method", list(METHODS))
def test_no_query_sees_a_key_of_a_later_block(method, preset):
    rng = np.random.default_rng(7)
    form, corruption = tiny_form(method), PRESETS[preset][method]
    for _ in range(5):
        examples = [
            METHODS[method].pack(
                words(rng, rng.integers(0, 30)), words(rng, rng.integers(0, 20)), form, corruption, rng
            )
            for _ in range(6)
        ]
        batch = collate(examples, PAD)
        step, group = torch.from_numpy(batch.step), torch.from_numpy(batch.group)
        block = torch.arange(len(batch.block_lengths)).repeat_interleave(torch.tensor(batch.block_lengths))
        later = block.unsqueeze(0) > block.unsqueeze(1)
        seen = visible(step, group, step, group)
        assert not (seen & later).any()
        # No query, padding included, is left without a key.
        assert seen.any(dim=-1).all()


def columns_of(batch):
    """Positions, steps and groups (B, L)."""
    return [torch.from_numpy(column) for column in (batch.position, batch.step, batch.group)]


@pytest.mark.parametrize("window", [0, 1, 6, 7])
def test_blocks(window):
    batch = collate(random_examples(KINDS["three"], 8), PAD)
    position, step, group = columns_of(batch)
    blocks = attention_blocks(position, step, group, batch.block_lengths, window=window)
    ends = np.cumsum(batch.block_lengths).tolist()
    assert [block.end for block in blocks] == ends
    assert [block.start for block in blocks] == [0, *ends[:-1]]
    seen = visible(step, group, step, group)
    if window:
        reach = {1: 0, 6: 3, 7: 3}[window]
        distance = (position.unsqueeze(1) - position.unsqueeze(2)).abs()
        # Padding, as a query, has no window.
        seen = seen & ((distance <= reach) | (group == PADDING_GROUP).unsqueeze(2))
    for start, end, bias in blocks:
        allowed = seen[:, start:end, :end]
        assert bias.shape == (len(seen), 1, end - start, end)
        torch.testing.assert_close(bias.squeeze(1), torch.zeros(allowed.shape).masked_fill(~allowed, float("-inf")))


def test_the_edges_of_a_window():
    near = within_window(torch.tensor([[10]]), torch.tensor([[6, 7, 8, 10, 12, 13, 14]]), window=6)
    assert near.tolist() == [[[False, True, True, True, True, True, False]]]


def test_no_bias_where_all_is_visible():
    """Sources of one length: attention needs no mask at all, nor where they are shorter than the window."""
    zeros, positions = torch.zeros(2, 5, dtype=torch.int64), torch.arange(5).expand(2, 5)
    for window, masked in ((0, False), (8, False), (6, True)):
        (block,) = attention_blocks(positions, zeros, zeros, (5,), window=window)
        assert (block.bias is not None) == masked


def test_padding_in_local_layers_gives_no_nan():
    """Padding stands at position 0, and the tokens of these examples all out of its reach: yet it must see some."""
    model = tiny_model(1, **{**ENCODERS["modernbert"], "global_attention_every": 9})
    examples = [
        tuple(block._replace(position=block.position + 20) for block in example)
        for example in random_examples(KINDS["three"], 3)
    ]
    batch = collate(examples, PAD)
    assert (batch.group == PADDING_GROUP).any()
    for block in attention_blocks(*columns_of(batch), batch.block_lengths, window=6):
        assert block.bias.isfinite().any(dim=-1).all()
    states = model.encode(**model_inputs(batch))
    assert states.isfinite().all()
    for name, gradient in gradients(model, real_states(states, batch), 0).items():
        assert gradient.isfinite().all(), name


def test_logits_at_labels_are_those_at_all_positions():
    model = tiny_model(3)
    batch = collate(random_examples(KINDS["three"], 9), PAD)
    labelled = torch.from_numpy(batch.label != PAD)
    with torch.no_grad():
        everywhere = model(**model_inputs(batch))
        torch.testing.assert_close(model(**model_inputs(batch), labelled=labelled), everywhere[labelled])
    assert everywhere.shape == (*labelled.shape, VOCAB_SIZE)
