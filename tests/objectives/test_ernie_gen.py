"""Infilling, compared with tables written by hand from Figures 3 and 4 of the ERNIE-GEN paper; statistics of noise;
fragments: hand-made examples, invariants, and the statistics of section 3.1.
"""

from dataclasses import replace
from functools import partial
from itertools import groupby

import numpy as np
import pytest
import torch
from dense_reference import visibility_matrix
from naive_objectives import ExampleDraws, Token, naive_blocks
from tiny import CLS, MASK, PAD, SEP, VOCAB_SIZE, laid_out, model_inputs, tiny_form, tiny_model, words

from s2sft_fairseq.objectives.ernie_gen import Fragments, infilled_fragments, infilling, split
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Draws, Ragged

# Figure 3: two source and four target words, with spans y1 | y2 y3 | y4; the final [SEP] is a fifth token.
SOURCE, TARGET = np.array([11, 12]), np.array([21, 22, 23, 24])
STARTS = [0, 1, 1, 3, 4]
ATTN = MASK


def spans_of(starts):
    """Return a search that finds the same spans in each target."""
    return lambda target: np.tile(starts, len(target.lengths))


def pack(starts=STARTS, corruption=NO_CORRUPTION, source=SOURCE, target=TARGET, **form):
    spans = None if starts is None else spans_of(starts)
    form = tiny_form("infilling", **form)
    draws = Draws(1, 1, np.array([0]))
    return infilling(*laid_out(source, target, form), form, corruption, draws, spans=spans)


def column(example, name):
    return np.concatenate([getattr(block, name) for block in example]).tolist()


def seen(text):
    """Return a mask as drawn in Figure 3: x where the query (row) sees the key (column)."""
    return np.array([[mark == "x" for mark in row.split()] for row in text.strip().splitlines()])


# [CLS] s1 s2 [SEP] | [CLS] t1 t2 t3 t4 | five placeholders word by word | five span by span
def test_columns():
    example = pack(target_segment=3, placeholder_segment=2)
    assert column(example, "token") == [CLS, 11, 12, SEP, CLS, 21, 22, 23, 24] + [ATTN] * 10
    assert column(example, "position") == [0, 1, 2, 3, 4, 5, 6, 7, 8] + [5, 6, 7, 8, 9] * 2
    assert column(example, "segment") == [0] * 4 + [3] * 5 + [2] * 10
    assert column(example, "step") == [0] * 4 + [1, 2, 3, 4, 5] + [2, 3, 4, 5, 6] + [2, 3, 3, 5, 6]
    assert column(example, "group") == [0] * 9 + list(range(1, 11))
    assert column(example, "label") == [PAD] * 9 + [21, 22, 23, 24, SEP] * 2


# Figure 3(d), rows and columns [CLS] s1 s2 [SEP] | [CLS] t1 t2 t3 t4.
CONTEXTUAL = """
    x x x x . . . . .
    x x x x . . . . .
    x x x x . . . . .
    x x x x . . . . .
    x x x x x . . . .
    x x x x x x . . .
    x x x x x x x . .
    x x x x x x x x .
    x x x x x x x x x
"""
# Rows: the placeholders of t1 t2 t3 t4 [SEP]. Columns: the same, then the placeholders.
WORD_BY_WORD = """
    x x x x x . . . . x . . . .
    x x x x x x . . . . x . . .
    x x x x x x x . . . . x . .
    x x x x x x x x . . . . x .
    x x x x x x x x x . . . . x
"""
# With y2 y3 as a span: both are predicted from the tokens before y2.
SPAN_BY_SPAN = """
    x x x x x . . . . x . . . .
    x x x x x x . . . . x . . .
    x x x x x x . . . . . x . .
    x x x x x x x x . . . . x .
    x x x x x x x x x . . . . x
"""


def test_visibility():
    matrix = visibility_matrix(pack())
    content, word, span = slice(0, 9), slice(9, 14), slice(14, 19)
    np.testing.assert_array_equal(matrix[content, content], seen(CONTEXTUAL))
    np.testing.assert_array_equal(np.hstack([matrix[word, content], matrix[word, word]]), seen(WORD_BY_WORD))
    np.testing.assert_array_equal(np.hstack([matrix[span, content], matrix[span, span]]), seen(SPAN_BY_SPAN))
    # Neither the content nor the other flow sees a placeholder.
    assert not matrix[content, 9:].any()
    assert not matrix[word, span].any()
    assert not matrix[span, word].any()


# Figure 4, decoding: at step i the placeholder follows [CLS] y1 .. y(i-1) and sees them, the source and itself.
@pytest.mark.parametrize("generated", range(5))
def test_visibility_of_decoding(generated):
    form = tiny_form("infilling")
    prefix = OBJECTIVES["infilling"].reference(*laid_out(SOURCE, TARGET[:generated], form), form)
    whole = visibility_matrix(pack(None))[9 + generated]
    step = visibility_matrix(prefix)[-1]
    # The placeholder after this many tokens sees the same in training, where more content follows.
    sees = np.concatenate([np.arange(4), 4 + np.arange(1 + generated)])
    assert np.flatnonzero(whole).tolist() == [*sees, 9 + generated]
    assert np.flatnonzero(step).tolist() == [*sees, len(step) - 1]


def test_one_token_spans_are_the_word_flow():
    """Only the numbers of the groups differ, so the losses are equal to the last bit."""
    _, content, word, span = pack(list(range(5)))
    for name in ("token", "position", "segment", "step", "label"):
        np.testing.assert_array_equal(getattr(word, name), getattr(span, name))
    context = pack(None)[0]
    model = tiny_model(1)
    logits = []
    for flow in (word, span):
        batch = collate([(context, content, flow)])
        logits.append(model(**model_inputs(batch), labelled=torch.from_numpy(np.flatnonzero(batch.label != PAD))))
    assert torch.equal(*logits)


def test_a_source_without_words():
    example = pack(None, source=np.array([], dtype=np.int64), target=TARGET[:1])
    assert column(example, "token") == [CLS, SEP, CLS, 21, ATTN, ATTN]
    assert column(example, "label") == [PAD] * 4 + [21, SEP]


@pytest.mark.parametrize("spans", [False, True])
@pytest.mark.parametrize(("symbol", "only_noised", "rate"), [(None, False, 0.6), (7, False, 0.6), (7, True, 0.3)])
def test_naive(symbol, only_noised, rate, spans):
    """Batches of examples of all lengths, compared with one example and one token after the other."""
    rng = np.random.default_rng(0)
    form = tiny_form("infilling", max_source=40, max_target=40, placeholder_segment=0)
    corruption = replace(
        NO_CORRUPTION, noise_prob=rate, noise_symbol=symbol, only_noised=only_noised, source_mask_prob=0.2
    )
    pairs = [(words(rng, rng.integers(0, 9)), words(rng, rng.integers(0, 9))) for _ in range(50)]
    starts = [np.minimum(np.arange(len(target) + 1), rng.integers(0, 9)) for _, target in pairs]
    source = Ragged.of([form.source(words_in) for words_in, _ in pairs])
    target = Ragged.of([form.target(words_out) for _, words_out in pairs])
    search = (lambda _: np.concatenate(starts)) if spans else None
    found = collate([infilling(source, target, form, corruption, Draws(3, 2, np.arange(50)), spans=search)])
    expected = []
    for index, (words_in, words_out) in enumerate(pairs):
        of_spans = starts[index].tolist() if spans else None
        blocks = naive_blocks(
            "infilling", words_in.tolist(), words_out.tolist(), form, corruption, ExampleDraws(3, 2, index), of_spans
        )
        expected += [token for block in blocks for token in block]
    for name in Token._fields:
        assert getattr(found, name).tolist() == [getattr(token, name) for token in expected]


def test_statistics_of_the_noise():
    """Over 10,000 targets: its rate, and that all tokens are equally likely; all within 3 standard errors."""
    form, rate, count = tiny_form("infilling", max_target=16), 0.05, 10_000
    target = Ragged.of([form.target(np.full(15, 20))] * count)
    source = Ragged.of([form.source(SOURCE)] * count)
    noisy = replace(NO_CORRUPTION, noise_prob=rate)
    content = infilling(source, target, form, noisy, Draws(5, 1, np.arange(count)))[1]
    assert (content.token[::16] == CLS).all()
    tokens = content.token.reshape(count, 16)[:, 1:]
    changed = tokens[tokens != 20]
    expected = rate * (1 - 1 / VOCAB_SIZE)  # a random token can equal the one that it replaces
    error = (expected * (1 - expected) / tokens.size) ** 0.5
    assert abs(len(changed) / tokens.size - expected) <= 3 * error
    shares = np.bincount(changed, minlength=VOCAB_SIZE) / len(changed)
    each = 1 / (VOCAB_SIZE - 1)
    # One bound for 49 tokens: one in eight such tests would exceed 3 standard errors.
    assert np.abs(np.delete(shares, 20) - each).max() <= 4 * (each * (1 - each) / len(changed)) ** 0.5
    places = (tokens != 20).mean(axis=0)
    assert np.abs(places - expected).max() <= 3.5 * (expected * (1 - expected) / count) ** 0.5


def test_noise_symbol():
    example = pack(None, replace(NO_CORRUPTION, noise_prob=1.0, noise_symbol=9))
    assert example[1].token.tolist() == [CLS, 9, 9, 9, 9]
    assert example[2].label.tolist() == [21, 22, 23, 24, SEP]


def test_masking_fine_tuning():
    """Table 7, column 2: the loss counts masked words alone, each target has one, and no other label is predicted."""
    form, rate, count = tiny_form("infilling", max_target=5), 0.7, 4000
    target = Ragged.of([form.target(TARGET)] * count)
    source = Ragged.of([form.source(SOURCE)] * count)
    masking = replace(NO_CORRUPTION, noise_prob=rate, noise_symbol=9, only_noised=True)
    _, content, flow = infilling(source, target, form, masking, Draws(5, 1, np.arange(count)))
    labels, tokens = flow.label.reshape(count, 5), content.token.reshape(count, 5)
    is_label = labels != PAD
    assert (np.where(is_label, labels, 0) == np.where(is_label, [*TARGET, SEP], 0)).all()
    # Placeholder i predicts the content token i + 1; the [SEP] after all content has none.
    assert ((tokens[:, 1:] == 9) == is_label[:, :4]).all()
    assert is_label.any(axis=1).all()
    rare = replace(masking, noise_prob=0.001)
    labels = infilling(source, target, form, rare, Draws(5, 1, np.arange(count)))[2].label.reshape(count, 5)
    assert ((labels != PAD).sum(axis=1) >= 1).all() and (labels != PAD).mean() < 0.21
    shares = is_label.mean(axis=0)
    assert np.abs(shares - rate).max() <= 4 * (rate * (1 - rate) / count) ** 0.5 + (1 - rate) ** 5


def test_masking_fine_tuning_of_an_example_depends_on_no_other():
    form = tiny_form("infilling")
    masking = replace(NO_CORRUPTION, noise_prob=0.5, noise_symbol=9, only_noised=True)
    pairs = [laid_out(SOURCE, TARGET[:length], form) for length in (4, 1, 3)]
    source, target = (Ragged.of([pair[side].values for pair in pairs]) for side in (0, 1))
    together = infilling(source, target, form, masking, Draws(1, 1, np.arange(3)))[2].label
    alone = [infilling(*pair, form, masking, Draws(1, 1, np.array([n])))[2].label for n, pair in enumerate(pairs)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


def test_held_out_targets_of_masking_fine_tuning_have_all_labels():
    masking = replace(NO_CORRUPTION, noise_prob=0.5, only_noised=True)
    assert OBJECTIVES["infilling"].held_out(masking) == NO_CORRUPTION


def content_gradients(example, flow, label):
    """Return norms of the gradient of one label's loss with respect to the embedded tokens of the batch (T,)."""
    model, kept = tiny_model(2), []
    model.embeddings.register_forward_hook(lambda *call: kept.append(call[-1]) or call[-1].retain_grad())
    batch = collate([example])
    labelled = torch.from_numpy(np.flatnonzero(batch.label != PAD))
    logits = model(**model_inputs(batch), labelled=labelled)
    number = flow * 5 + label
    labels = torch.from_numpy(batch.label)[labelled]
    logits[number].log_softmax(dim=0)[labels[number]].neg().backward()
    return kept[0].grad.norm(dim=-1)


@pytest.mark.parametrize("label", range(5))
@pytest.mark.parametrize("flow", [0, 1], ids=["word", "span"])
def test_no_content_leaks(flow, label):
    """The loss of a token has no gradient at content of its span or after it, including itself."""
    gradients = content_gradients(pack(), flow, label)
    known = STARTS[label] if flow else label
    content, placeholders = gradients[4:9], gradients[9:]
    assert (gradients[:4] > 0).all()
    assert (content[: 1 + known] > 0).all()
    assert (content[1 + known :] == 0).all()
    own = 5 * flow + label
    assert placeholders[own] > 0
    assert (np.delete(placeholders.numpy(), own) == 0).all()


def test_two_flows():
    method = OBJECTIVES["infilling"].with_spans(spans_of(STARTS), 0.25)
    assert [(flow.name, flow.section, flow.weight) for flow in method.flows] == [("word", 2, 0.25), ("span", 3, 0.75)]
    assert method.positions_per_target == 3
    form = tiny_form("infilling")
    blocks = method.pack(*laid_out(SOURCE, TARGET, form), form, NO_CORRUPTION, Draws(1, 1, np.array([0])))
    assert [len(block.token) for block in blocks] == [4, 5, 5, 5]
    assert [flow.weight for flow in OBJECTIVES["infilling"].with_spans(spans_of(STARTS)).flows] == [0.5, 0.5]


def test_spans_of_pseudo_masked_fine_tuning():
    """There is one flow; its placeholders see each other within a span, as in UniLMv2 (section 2.3 there)."""
    method = OBJECTIVES["pseudo_masked"].with_spans(spans_of(STARTS))
    assert method.flows == OBJECTIVES["pseudo_masked"].flows
    form = tiny_form("pseudo_masked")
    pack_pair = partial(method.pack, *laid_out(SOURCE, TARGET, form), form, NO_CORRUPTION)
    blocks = pack_pair(Draws(1, 1, np.array([0])))
    expected = naive_blocks(
        "pseudo_masked", SOURCE.tolist(), TARGET.tolist(), form, NO_CORRUPTION, ExampleDraws(1, 1, 0), STARTS
    )
    for name in Token._fields:
        assert column(blocks, name) == [getattr(token, name) for block in expected for token in block]
    # [CLS] s1 s2 [SEP] | t1 t2 t3 t4 [SEP] | placeholders of t2 and t3
    rows = visibility_matrix(blocks)[[10, 11]]
    np.testing.assert_array_equal(
        rows,
        seen(
            """
            x x x x x . . . . . x x . .
            x x x x x . . . . . x x . .
            """
        ),
    )


PAPER = Fragments()
TEXTS = 10_000


def texts(length, count=TEXTS):
    return Ragged(np.zeros(length * count, dtype=np.int64), np.full(count, length))


def runs(taken):
    """Return the lengths of the fragments of a text, in order."""
    return [len(list(run)) for is_target, run in groupby(taken) if is_target]


def drawn(length, fragments=PAPER, seed=1, count=TEXTS):
    """Return which tokens are removed from texts of one length (texts, length)."""
    return fragments.draw(texts(length, count), Draws(seed, 1, np.arange(count))).reshape(count, length)


def test_split():
    text = Ragged.of([np.arange(10, 16), np.arange(20, 23)])
    source, target = split(text, np.array([0, 1, 1, 0, 0, 1, 1, 0, 0], dtype=bool))
    assert source.values.tolist() == [10, 13, 14, 21, 22]
    assert source.lengths.tolist() == [3, 2]
    assert target.values.tolist() == [11, 12, 15, 20]
    assert target.lengths.tolist() == [3, 1]


# Figure 1(e): fragments leave the source and follow each other in the target.
def test_the_packed_example():
    rng, form = np.random.default_rng(0), tiny_form("infilling")
    text = Ragged.of([words(rng, 12), words(rng, 9)])
    draws = [Draws(3, 1, np.array([5, 8])) for _ in range(2)]
    context, content, flow = infilled_fragments(text, PAPER, form, NO_CORRUPTION, draws[0])
    source, target = split(text, PAPER.draw(text, draws[1]))
    first, second = source.values[: source.lengths[0]], source.values[source.lengths[0] :]
    assert context.token.tolist() == [CLS, *first, SEP, CLS, *second, SEP]
    assert target.lengths.tolist() == [3, 2]
    assert content.token.tolist() == [CLS, *target.values[:3], CLS, *target.values[3:]]
    assert flow.label.tolist() == [*target.values[:3], SEP, *target.values[3:], SEP]
    assert set(flow.token.tolist()) == {MASK}
    # The target's positions continue those of its source.
    assert content.position.tolist() == [11, 12, 13, 14, 9, 10, 11]
    assert (content.label == PAD).all()


@pytest.mark.parametrize("length", [2, 3, 7, 16, 61, 200])
def test_budget_and_distance(length):
    """The budget is met exactly, and there is at least one token between two fragments."""
    taken = drawn(length, count=500)
    budget = max(1, int(0.25 * length + 0.5))
    assert (taken.sum(axis=1) == budget).all()
    assert all(sum(runs(text)) == budget for text in taken.tolist())


def test_lengths_of_fragments():
    """The two distributions have their shares, within 3 standard errors.

    A text of 400 tokens has a budget of 100, which one fragment of up to 32 never spends; only the last one is cut. So
    texts of the first distribution are those without a fragment above 4.
    """
    of_text = [runs(text) for text in drawn(400).tolist()]
    is_short = np.array([max(lengths) <= 4 for lengths in of_text])
    error = (0.4 * 0.6 / TEXTS) ** 0.5
    assert abs(is_short.mean() - 0.4) <= 3 * error
    for least, greatest, short in ((1, 4, True), (4, 32, False)):
        lengths = [lengths for lengths, is_of_kind in zip(of_text, is_short, strict=True) if is_of_kind == short]
        flat = np.concatenate(lengths)
        assert flat.min() >= 1 and flat.max() <= greatest
        assert set(range(least, greatest + 1)) <= set(flat.tolist())


@pytest.mark.parametrize(("kind", "least", "greatest"), [(0, 1, 4), (1, 4, 32)])
def test_mean_length(kind, least, greatest):
    """Lengths as drawn, before the last one is cut: uniform, with a mean within 3 standard errors."""
    shares = tuple(float(kind == index) for index in range(2))
    fragments = Fragments(shares=shares)
    budgets = np.full(TEXTS, 64)
    lengths = fragments._draw_lengths(budgets, Draws(7, 1, np.arange(TEXTS)))
    assert (np.add.reduceat(lengths.values, np.cumsum(lengths.lengths) - lengths.lengths) == 64).all()
    first = lengths.values[lengths.place == 0]  # never cut with a budget of 64
    count = greatest - least + 1
    variance = (count**2 - 1) / 12
    assert abs(first.mean() - (least + greatest) / 2) <= 3 * (variance / TEXTS) ** 0.5
    shares_found = np.bincount(first, minlength=greatest + 1)[least:] / TEXTS
    # Up to 29 shares with one bound.
    assert np.abs(shares_found - 1 / count).max() <= 4 * (1 / count * (1 - 1 / count) / TEXTS) ** 0.5


def test_fragments_are_anywhere():
    """All tokens are equally likely to be removed, except near the ends, which fewer fragments reach."""
    shares = drawn(200).mean(axis=0)
    assert abs(shares.mean() - 0.25) < 1e-9
    middle = shares[40:160]
    assert np.abs(middle - middle.mean()).max() <= 4.5 * (0.25 * 0.75 / TEXTS) ** 0.5
    assert abs(shares[:40].mean() - shares[160:].mean()) <= 4 * (0.25 * 0.75 / TEXTS) ** 0.5


def test_one_text_does_not_depend_on_the_others():
    rng = np.random.default_rng(0)
    rows = [words(rng, length) for length in (30, 5, 64)]
    together = PAPER.draw(Ragged.of(rows), Draws(1, 2, np.array([4, 9, 2])))
    alone = [PAPER.draw(Ragged.of([row]), Draws(1, 2, np.array([n]))) for row, n in zip(rows, (4, 9, 2), strict=True)]
    np.testing.assert_array_equal(together, np.concatenate(alone))


@pytest.mark.parametrize(
    ("settings", "problem"),
    [
        ({"budget": 0.0}, "--fragment-budget must be above 0 and at most 0.5, but is 0"),
        ({"budget": 0.6}, "--fragment-budget must be above 0 and at most 0.5, but is 0.6"),
        (
            {"lengths": ((0, 4), (4, 2))},
            "--fragment-lengths must be ranges of at least 1, such as 1-4, but is 0-4,4-2",
        ),
        ({"shares": (1.0,)}, "--fragment-shares must be 2 numbers, one for each range of --fragment-lengths, but is 1"),
        ({"shares": (0.5, 0.6)}, "--fragment-shares must not be negative and add up to 1, but is 0.5, 0.6"),
        ({"shares": (-0.5, 1.5)}, "--fragment-shares must not be negative and add up to 1, but is -0.5, 1.5"),
    ],
)
def test_problems(settings, problem):
    assert Fragments(**settings).problems("0-4,4-2") == [problem]
    assert PAPER.problems("1-4,4-32") == []
