"""Attention in blocks compared with the dense reference, on random packed batches; order of blocks; steps by hand."""

import numpy as np
import pytest
import torch
from dense_reference import bucket, dense_states, sees, visibility_matrix
from tiny import (
    ENCODERS,
    PAD,
    SEP,
    SWITCHES,
    VOCAB_SIZE,
    model_inputs,
    pack_example,
    packed_columns,
    pairs_of_switches,
    tiny_form,
    tiny_model,
    words,
)

from s2sft_fairseq.modules import visibility
from s2sft_fairseq.modules.positions import RelativePositionBias
from s2sft_fairseq.modules.visibility import (
    PackedColumns,
    attention_blocks,
    visible,
    within_window,
)
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.objective import CORRUPTIONS, OBJECTIVES
from s2sft_fairseq.objectives.packing import Section, collate
from s2sft_fairseq.objectives.sequence_form import SourceFields

# The kinds of sections of a random example: context, content that is predicted, placeholders. "later" is content that
# becomes known after all of the first content.
KINDS = {
    "one": ("context",),
    "context and content": ("context", "content"),
    "context and placeholders": ("context", "placeholders"),
    "three": ("context", "content", "placeholders"),
    "two placeholder flows": ("context", "content", "placeholders", "placeholders"),
    "two contents": ("context", "content", "later", "placeholders"),
}


def random_section(kind, number, length, rng):
    # After the context everything is possible: orders from right to left or mixed, repeated positions, placeholders in
    # groups.
    steps = {
        "context": np.zeros(length, dtype=np.int64),
        "content": rng.integers(1, 5, length),
        "later": rng.integers(5, 9, length),
        "placeholders": rng.integers(1, 9, length),
    }[kind]
    groups = 10 * number + rng.integers(1, 4, length) if kind == "placeholders" else np.zeros(length, dtype=np.int64)
    return Section(
        token=words(rng, length),
        position=np.arange(length) if kind == "context" else rng.integers(0, 40, length),
        segment=rng.integers(0, 2, length),
        step=steps,
        group=groups,
        label=np.where(rng.random(length) < 0.5, words(rng, length), PAD),
        lengths=np.array([length]),
    )


def random_example(kinds, lengths, rng):
    return tuple(
        random_section(kind, i, length, rng) for i, (kind, length) in enumerate(zip(kinds, lengths, strict=True))
    )


def random_examples(kinds, seed, count=4):
    """Return examples; some contexts are longer than several windows of local attention, some sections are empty."""
    rng = np.random.default_rng(seed)
    return [
        random_example(kinds, [rng.integers(1, 30) if kind == "context" else rng.integers(0, 8) for kind in kinds], rng)
        for _ in range(count)
    ]


def by_example(column, lengths):
    """Return the rows of each example, [(L_i, ...)]."""
    return column.split([sum(sections) for sections in lengths])


def gradients(model, states, seed):
    """Return the gradients of a random linear function of all states."""
    generator = torch.Generator().manual_seed(seed)
    total = sum((torch.randn(s.shape, generator=generator, dtype=s.dtype) * s).sum() for s in states)
    parameters = {name: p for name, p in model.named_parameters() if not name.startswith("lm_head")}
    grads = torch.autograd.grad(total, list(parameters.values()), allow_unused=True)
    return dict(zip(parameters, grads, strict=True))


def assert_same_states_and_gradients(model, examples, seed):
    batch = collate(examples)
    states = by_example(model.encode(packed_columns(batch)), batch.lengths)
    expected = [dense_states(model, example) for example in examples]
    for ours, dense in zip(states, expected, strict=True):
        torch.testing.assert_close(ours, dense, atol=1e-10, rtol=1e-10)
    ours, dense = gradients(model, states, seed), gradients(model, expected, seed)
    for name, gradient in dense.items():
        torch.testing.assert_close(ours[name], gradient, atol=1e-9, rtol=1e-9, msg=lambda text, n=name: f"{n}: {text}")


# Combinations that no named architecture has.
FURTHER = {
    "no segments": {"num_segments": 0},
    "local only but the first": {**ENCODERS["modernbert"], "global_attention_every": 9},
    "window 1, one base": {**ENCODERS["modernbert"], "local_attention_window": 1, "local_rotary_base": 0.0},
    "own keys of positions": {
        **ENCODERS["deberta"],
        "disentangled_attention": "c2p",
        "disentangled_projections": "own",
        "disentangled_norm": "none",
    },
    "own queries of positions, a window": {
        **ENCODERS["deberta"],
        "disentangled_attention": "p2c",
        "disentangled_projections": "own",
        "disentangled_buckets": 0,
        "max_relative_position": 5,
        "local_attention_window": 6,
        "global_attention_every": 2,
    },
    "bases alone": {**ENCODERS["modernbert"], "local_attention_window": 0},
    "narrow and pre-norm": {"embedding_dim": 8, "layer_norm_position": "pre"},
    "window with relative positions": {"relative": True, "local_attention_window": 5, "global_attention_every": 2},
    **SWITCHES,
    **pairs_of_switches(),
}


def long_examples(method, seed, count=3):
    """Return sources of two fields, and targets; a local layer cuts most of them into several runs of queries."""
    rng = np.random.default_rng(seed)
    form = tiny_form(method, max_source=50, max_target=40, fields=SourceFields(segments=(0, 1)))

    def example():
        passage, answer, target = (words(rng, rng.integers(1, longest)) for longest in (30, 12, 38))
        return pack_example(method, np.concatenate([passage, [SEP], answer]), target, form, NO_CORRUPTION, rng)

    return [example() for _ in range(count)]


@pytest.mark.parametrize("window", [2, 6, 15, 200])
@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_every_objective_in_windows(method, window):
    model = tiny_model(1, **{**ENCODERS["modernbert"], "num_segments": 2, "local_attention_window": window}).double()
    assert_same_states_and_gradients(model, long_examples(method, window), seed=0)


@pytest.mark.parametrize("kinds", KINDS.values(), ids=KINDS)
@pytest.mark.parametrize("encoder", [*ENCODERS.values(), *FURTHER.values()], ids=[*ENCODERS, *FURTHER])
def test_model_equals_the_dense_reference(kinds, encoder):
    model = tiny_model(1, **encoder).double()
    for seed in range(3):
        assert_same_states_and_gradients(model, random_examples(kinds, seed), seed)


@pytest.mark.parametrize("encoder", [*ENCODERS.values(), *FURTHER.values()], ids=[*ENCODERS, *FURTHER])
def test_empty_blocks(encoder):
    """The context can be empty too, if another section is not."""
    rng = np.random.default_rng(9)
    lengths = [(0, 4, 3), (5, 0, 4), (3, 2, 0), (4, 0, 0), (0, 5, 0), (0, 0, 2), (1, 1, 1)]
    examples = [random_example(KINDS["three"], of_blocks, rng) for of_blocks in lengths]
    assert_same_states_and_gradients(tiny_model(2, **encoder).double(), examples, seed=0)


def test_rule():
    rng = np.random.default_rng(0)
    examples = random_examples(KINDS["two placeholder flows"], 6, count=6)
    for example in examples:
        step, group = (torch.from_numpy(np.concatenate([getattr(b, n) for b in example])) for n in ("step", "group"))
        np.testing.assert_array_equal(visible(step, group, step, group).numpy(), visibility_matrix(example))
    # And all combinations of small columns.
    columns = [(step, group) for step in range(4) for group in range(4)]
    rng.shuffle(columns)
    step, group = torch.tensor(columns).t()
    expected = [[sees(*query, *key) for key in columns] for query in columns]
    assert visible(step, group, step, group).tolist() == expected


@pytest.mark.parametrize("preset", CORRUPTIONS)
@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_assumptions_of_attention(method, preset):
    """No query sees a key of a later section, each sees a key, and the context has steps and groups of 0."""
    rng = np.random.default_rng(7)
    form, corruption = tiny_form(method), OBJECTIVES[method].corruption[preset]
    for _ in range(5):
        examples = [
            pack_example(
                method, words(rng, rng.integers(0, 30)), words(rng, rng.integers(0, 20)), form, corruption, rng
            )
            for _ in range(6)
        ]
        batch = collate(examples)
        columns = (by_example(column, batch.lengths) for column in columns_of(batch))
        for position, step, group, lengths in zip(*columns, batch.lengths, strict=True):
            block = torch.arange(len(lengths)).repeat_interleave(torch.tensor(lengths))
            later = block.unsqueeze(0) > block.unsqueeze(1)
            seen = visible(step, group, step, group)
            assert not (seen & later).any()
            assert seen.any(dim=-1).all()
            context = slice(lengths[0])
            assert position[context].tolist() == list(range(lengths[0]))
            assert not step[context].any() and not group[context].any()


def columns_of(batch):
    """Return positions, steps and groups (T,)."""
    return [torch.from_numpy(column) for column in (batch.position, batch.step, batch.group)]


def joined(examples):
    """Return positions, steps, groups and lengths of examples, whose numbers of sections can differ."""
    columns = (np.concatenate([getattr(b, n) for e in examples for b in e]) for n in ("position", "step", "group"))
    return *map(torch.from_numpy, columns), [tuple(len(section.token) for section in example) for example in examples]


def expected_bias(examples, window, relative, causal):
    """Return the values added to the scores of all tokens against all tokens (1 or h, T, T), entry by entry."""
    places = [section.position[i] for example in examples for section in example for i in range(len(section.position))]
    bias = torch.full((len(relative.weight) if relative else 1, len(places), len(places)), float("-inf"))
    start = 0
    for example in examples:
        matrix = visibility_matrix(example, causal=causal)
        for query, key in np.argwhere(matrix) + start:
            distance = int(places[key] - places[query])
            if not window or abs(distance) <= window // 2:
                bias[:, query, key] = relative.weight[:, bucket(distance, 8, 16)] if relative else 0
        start += len(matrix)
    return bias


@pytest.mark.parametrize("causal", [False, True], ids=["both directions", "causal"])
@pytest.mark.parametrize("with_relative", [False, True], ids=["absolute", "relative"])
@pytest.mark.parametrize("window", [0, 1, 2, 5, 6, 7, 100])
def test_blocks(window, with_relative, causal, monkeypatch):
    """All entries follow the rule; one batch has examples of all kinds, also an empty one and an empty context."""
    monkeypatch.setattr(visibility, "CAUSAL_RUN", 7)
    relative = RelativePositionBias(num_heads=2, num_bins=8, max_distance=16) if with_relative else None
    rng = np.random.default_rng(8)
    examples = [example for seed, kinds in enumerate(KINDS.values()) for example in random_examples(kinds, seed, 2)]
    examples += [random_example(KINDS["three"], lengths, rng) for lengths in ((0, 0, 0), (0, 3, 2), (40, 2, 2))]
    position, step, group, lengths = joined(examples)
    found = torch.full((2 if with_relative else 1, len(position), len(position)), float("-inf"))
    queries_so_far = []
    with torch.no_grad():
        columns = PackedColumns(position, position, position, step, group, lengths)
        columns = columns.with_causal_context() if causal else columns
        blocks = attention_blocks(columns, window=window, relative_bias=relative)
        for queries, keys, bias, _ in blocks:
            queries_so_far += range(len(position))[queries]
            found[:, queries, keys] = 0 if bias is None else bias
        torch.testing.assert_close(found, expected_bias(examples, window, relative, causal), rtol=0, atol=0)
    assert queries_so_far == list(range(len(position)))


def num_scores(blocks):
    return sum((block.queries.stop - block.queries.start) * block.num_keys for block in blocks)


def columns_of_lengths(lengths):
    """Return the columns of examples of a context, targets and placeholders of the given lengths."""
    rows = [
        (
            np.concatenate([np.arange(context), context + np.arange(target), context + np.arange(placeholders)]),
            np.concatenate([np.zeros(context, dtype=np.int64), 1 + np.arange(target), 1 + np.arange(placeholders)]),
            np.concatenate([np.zeros(context + target, dtype=np.int64), 1 + np.arange(placeholders)]),
        )
        for context, target, placeholders in lengths
    ]
    positions, steps, groups = (torch.from_numpy(np.concatenate(column)) for column in zip(*rows, strict=True))
    return PackedColumns(positions, positions, positions, steps, groups, lengths)


def test_no_score_between_examples_nor_of_a_context_with_its_target():
    lengths = [(30, 5, 5), (7, 0, 0), (100, 20, 20), (12, 3, 3)]
    blocks = attention_blocks(columns_of_lengths(lengths))
    assert num_scores(blocks) == sum(c * c + (t + p) * (c + t + p) for c, t, p in lengths)


def test_steps_of_a_causal_context():
    """The last token of a context has step 0; the steps of later tokens stay as they are."""
    columns = columns_of_lengths([(4, 2, 1), (1, 1, 0), (0, 2, 2)])
    causal = columns.with_causal_context()
    assert causal.steps.tolist() == [-3, -2, -1, 0, 1, 2, 1, 0, 1, 1, 2, 1, 2]
    assert causal.with_causal_context() is causal
    assert all(one is other for one, other in zip(causal[:3], columns[:3], strict=True))
    assert PackedColumns(*causal[:5], lengths=[]).with_causal_context().steps is causal.steps


def test_a_causal_context_costs_about_half_of_the_scores():
    columns = columns_of_lengths([(1024, 0, 0)])
    both, causal = (num_scores(attention_blocks(each)) for each in (columns, columns.with_causal_context()))
    assert causal / both == pytest.approx((1 + 1 / 8) / 2)


@pytest.mark.parametrize("window", [1, 2, 6, 17, 128])
@pytest.mark.parametrize("lengths", [(1000, 0, 0), (700, 400, 0), (300, 0, 400), (300, 400, 400), (3, 500, 500)])
def test_a_block_of_a_local_layer_has_a_run_of_queries_and_their_windows(lengths, window):
    """So scores grow linearly with the length, not with its square; and no block needs more than its own bias."""
    columns = columns_of_lengths([lengths, (5, 2, 2), lengths])
    run = max(1, window // 2)
    blocks = attention_blocks(columns, window=window)
    for block in blocks:
        # A short context is one block, in which the first token barely sees the last one.
        assert block.queries.stop - block.queries.start <= run + 1
        assert block.num_keys <= run + window
    assert num_scores(blocks) <= (run + window) * len(columns.positions)
    assert num_scores(attention_blocks(columns)) > 4 * num_scores(blocks)


@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_every_key_of_a_block_of_a_local_layer_is_seen(method):
    for window in (2, 6, 15):
        batch = collate(long_examples(method, window))
        for block in attention_blocks(packed_columns(batch), window=window):
            assert block.bias is None or block.bias.isfinite().any(dim=1).all()


def test_the_edges_of_a_window():
    near = within_window(torch.tensor([[10]]), torch.tensor([[6, 7, 8, 10, 12, 13, 14]]), window=6)
    assert near.tolist() == [[[False, True, True, True, True, True, False]]]


def test_no_bias_where_all_is_visible():
    """Contexts need no mask at all, whatever their lengths."""
    lengths = [(5, 2, 2), (9, 1, 1), (3,)]
    columns = columns_of_lengths([(5, 2, 2), (9, 1, 1), (3, 0, 0)])._replace(lengths=lengths)
    assert [block.bias is None for block in attention_blocks(columns)] == [True, False, True, False, True]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_biases_have_the_data_type_of_the_layers(dtype):
    lengths = [(20, 2, 2)]
    for window in (0, 4):
        blocks = attention_blocks(columns_of_lengths(lengths), window=window, dtype=dtype)
        assert {block.bias.dtype for block in blocks if block.bias is not None} == {dtype}


def test_logits_at_labels_are_those_at_all_positions():
    model = tiny_model(3)
    batch = collate(random_examples(KINDS["three"], 9))
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    with torch.no_grad():
        everywhere = model(**model_inputs(batch))
        torch.testing.assert_close(model(**model_inputs(batch), labelled=labelled), everywhere[labelled])
    assert everywhere.shape == (len(batch.label), VOCAB_SIZE)


@pytest.mark.parametrize("encoder", ENCODERS.values(), ids=ENCODERS)
def test_the_last_layer_computes_labels_only(encoder):
    """All parameters get the gradients of the same logits computed at all positions."""
    model = tiny_model(3, **encoder).double()
    batch = collate(random_examples(KINDS["three"], 9))
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    weight = torch.randn(len(labelled), VOCAB_SIZE, dtype=torch.float64)
    widths = []
    handle = model.layers[-1].fc2.register_forward_hook(lambda layer, args, out: widths.append(len(out)))
    ours, plain = (
        torch.autograd.grad((weight * logits).sum(), list(model.parameters()))
        for logits in (model(**model_inputs(batch), labelled=labelled), model(**model_inputs(batch))[labelled])
    )
    handle.remove()
    torch.testing.assert_close(ours, plain, atol=1e-10, rtol=1e-10)
    assert widths == [len(weight), len(batch.label)]
