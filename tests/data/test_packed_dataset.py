"""The dataset of pairs: truncation, batches without loss, and randomness that only depends on the example."""

import logging

import numpy as np
import pytest
import torch
from fairseq.data import ListDataset
from tiny import CLS, MASK, PAD, SEP, VOCAB_SIZE, tiny_form, words
from torch.utils.data import DataLoader

from s2sft_fairseq.data.packed_dataset import PackedPairDataset
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.objectives.finetuning import NO_CORRUPTION, Corruption
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SourceFields

CORRUPTION = Corruption(
    target_mask_prob=0.5, random_prob=0.2, keep_prob=0.1, source_mask_prob=0.3, noise_prob=0.5, noise_symbol=MASK
)


def raw(lengths, seed):
    """Return ids as fairseq-preprocess writes them: each line ends in eos."""
    rng = np.random.default_rng(seed)
    rows = [torch.from_numpy(np.append(words(rng, length), SEP).astype(np.int32)) for length in lengths]
    return ListDataset(rows, [len(row) for row in rows])


def dataset(sources=(5, 2, 9, 0), targets=(3, 6, 0, 1), method="pseudo_masked", corruption=None, form=None, **options):
    return PackedPairDataset(
        raw(sources, 1),
        None if targets is None else raw(targets, 2),
        form or tiny_form(method),
        OBJECTIVES[method],
        corruption or OBJECTIVES[method].corruption["paper"],
        **options,
    )


def test_examples():
    data = dataset(corruption=NO_CORRUPTION)
    example = data[0]
    source, target = data.source[0].tolist()[:-1], data.target[0].tolist()[:-1]
    assert example["id"] == 0
    assert example["source"].tolist() == [CLS, *source, SEP]
    assert example["target"].tolist() == example["reference"].tolist() == [*target, SEP]
    net_input = data.collater([example])["net_input"]
    assert net_input["lengths"] == ((7, 4, 4),)
    assert net_input["tokens"].tolist() == [CLS, *source, SEP, *target, SEP, *[MASK] * 4]
    # An empty line is an ordinary example.
    assert data[3]["source"].tolist() == [CLS, SEP]
    assert data[2]["target"].tolist() == [SEP]


@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_sizes_are_those_of_the_packed_examples(method):
    data = dataset(method=method, form=tiny_form(method, max_source=8, max_target=5))
    lengths = [len(data.collater([data[i]])["net_input"]["tokens"]) for i in range(len(data))]
    sizes = data.sizes.tolist()
    assert sizes == [data.num_tokens(i) for i in range(len(data))]
    assert data.num_tokens_vec(np.array([3, 1])).tolist() == [sizes[3], sizes[1]]
    if method == "blocks":  # the last block has a random length
        assert all(size >= length for size, length in zip(sizes, lengths, strict=True))
    else:
        assert sizes == lengths
    for index in range(len(data)):
        assert data.size(index) == (len(data[index]["source"]), len(data[index]["target"]))


def test_batch():
    data = dataset()
    batch = data.collater([data[0], data[3]])
    assert batch["id"].tolist() == [0, 3]
    assert batch["nsentences"] == 2
    assert batch["ntokens"] == len(batch["labels"]) == 4 + 2
    assert batch["labels"].tolist() == [*data.target[0].tolist(), *data.target[3].tolist()]
    net_input = batch["net_input"]
    assert net_input["lengths"] == ((7, 4, 4), (2, 2, 2))
    columns = ("tokens", "positions", "segments", "steps", "groups")
    assert all(net_input[name].shape == (15 + 6,) for name in columns)
    # The last positions of the pseudo-masked flow, the placeholders, have the labels.
    assert net_input["labelled"].tolist() == [*range(11, 15), *range(19, 21)]
    tensors = [batch["id"], batch["labels"], *net_input.values()]
    assert {t.dtype for t in tensors if torch.is_tensor(t)} == {torch.int64}
    assert data.collater([]) == {}


def test_batch_for_decoding():
    """Sources and targets are clean, whatever the corruption, and nothing is packed."""
    corruption = Corruption(target_mask_prob=1.0, random_prob=0.0, keep_prob=0.0, source_mask_prob=1.0)
    packed = dataset(corruption=corruption)
    tokens = packed.collater([packed[0]])["net_input"]["tokens"].tolist()
    assert tokens[:7] == [CLS, *[MASK] * 5, SEP]
    data = dataset(corruption=corruption, for_decoding=True)
    batch = data.collater([data[0], data[3]])
    assert batch["id"].tolist() == [0, 3]
    assert (batch["nsentences"], batch["ntokens"]) == (2, 9)
    assert batch["net_input"].keys() == {"src_tokens", "src_lengths"}
    assert batch["net_input"]["src_tokens"].tolist() == [
        [CLS, *data.source[0].tolist()],
        [CLS, SEP, PAD, PAD, PAD, PAD, PAD],
    ]
    assert batch["net_input"]["src_lengths"].tolist() == [7, 2]
    assert batch["target"].tolist() == [data.target[0].tolist(), [data.target[3][0].item(), SEP, PAD, PAD]]
    assert data.collater([]) == {}


def test_sources_alone():
    data = dataset(targets=None)
    assert data.target_sizes.tolist() == [0] * 4
    assert data.sizes.tolist() == [7, 4, 11, 2]
    batch = data.collater([data[i] for i in range(4)])
    assert batch["ntokens"] == len(batch["labels"]) == 0
    assert batch["net_input"]["lengths"] == ((7,), (4,), (11,), (2,))
    decoded = dataset(targets=None, for_decoding=True)
    batch = decoded.collater([decoded[i] for i in range(4)])
    assert batch["target"] is None
    assert batch["net_input"]["src_tokens"].shape == (4, 11)
    assert data.ordered_indices().tolist() == [3, 1, 0, 2]


def test_cut_texts_are_counted(caplog):
    with caplog.at_level(logging.WARNING):
        data = dataset(
            sources=(5, 6, 7, 30), targets=(4, 3, 9, 5), form=tiny_form(max_source=8, max_target=5), name="train"
        )
    assert [record.getMessage() for record in caplog.records] == [
        "train: 2 of 4 sources are cut to 8 positions (--max-source-positions), 2 targets to 5 (--max-target-positions)"
    ]
    assert data.source_sizes.tolist() == [7, 8, 8, 8]
    assert data.target_sizes.tolist() == [5, 4, 5, 5]
    assert data[3]["source"].tolist() == [CLS, *data.source[3].tolist()[:6], SEP]
    assert data.collater([data[2]])["labels"].tolist() == [*data.target[2].tolist()[:4], SEP]
    data.for_decoding = True
    assert data.collater([data[2]])["target"].tolist() == [data.target[2].tolist()]  # hypotheses are scored against it


def of_fields(*lengths, method="pseudo_masked", **rules):
    """Return a dataset of sources with several fields, without targets."""
    rng = np.random.default_rng(3)
    rows = [torch.cat([torch.from_numpy(np.append(words(rng, n), SEP)) for n in each]) for each in lengths]
    source = ListDataset(rows, [len(row) for row in rows])
    form = tiny_form(method, max_source=8, fields=SourceFields(**rules))
    objective = OBJECTIVES[method]
    return PackedPairDataset(source, None, form, objective, objective.corruption["paper"], name="test")


@pytest.mark.parametrize(
    ("method", "truncation", "lengths"),
    [
        ("causal", ("right",), [8, 4, 8, 8]),
        ("causal", ("left",), [8, 4, 8, 8]),
        ("causal", ("right", "left"), [8, 4, 8, 8]),
        ("pseudo_masked", ("right",), [8, 5, 8, 8]),
        # The first and the last are cut just before a [SEP], which is removed too.
        ("pseudo_masked", ("left",), [7, 5, 8, 7]),
        ("pseudo_masked", ("right", "left"), [8, 5, 8, 8]),
    ],
)
def test_sizes_of_cut_fields(caplog, method, truncation, lengths):
    data = of_fields((3, 5), (1, 1), (9, 0), (2, 2, 2, 2), method=method, segments=(0, 1), truncation=truncation)
    assert [len(data[i]["source"]) for i in range(4)] == lengths
    assert data.sizes.tolist() == [8, lengths[1], 8, 8]
    assert [record.getMessage() for record in caplog.records] == [
        "test: 3 of 4 sources are cut to 8 positions (--max-source-positions), 0 targets to 16 (--max-target-positions)"
    ]
    batch = data.collater([data[i] for i in range(4)])
    source = Ragged.of([data[i]["source"] for i in range(4)]).padded(PAD)
    segments, real = data.form.source_segments(source), source != PAD
    assert batch["net_input"]["segments"].tolist() == segments[real].tolist()


def test_limits_of_fields(caplog):
    """Where lengths are not enough, an upper bound is used; the log says what is not counted."""
    data = of_fields((4, 1), (9, 3), (1, 1), limits=(3, 0))
    assert data.sizes.tolist() == [8, 8, 5]
    assert [len(data[i]["source"]) for i in range(3)] == [6, 8, 5]
    assert [record.getMessage() for record in caplog.records] == [
        "test: 1 of 3 sources are cut to at most 8 positions (--max-source-positions), 0 targets to 16 "
        "(--max-target-positions); what --source-field-positions alone cuts is not counted"
    ]


@pytest.mark.parametrize("side", ["sources", "targets"])
def test_ids_beyond_the_dictionary(side):
    data = dataset(form=tiny_form(vocab_size=VOCAB_SIZE - 1), name="train")
    getattr(data, side.removesuffix("s"))[1][0] = VOCAB_SIZE - 1
    data.collater([data[0], data[2]])
    with pytest.raises(UserError, match=r"^train holds the id 49, but the dictionary has 49 symbols: run fairseq-pre"):
        data.collater([data[0], data[1]])


@pytest.mark.parametrize(("method", "longest"), [("causal", 7), ("pseudo_masked", 6)])
def test_nothing_is_logged_if_everything_fits(caplog, method, longest):
    with caplog.at_level(logging.WARNING):
        dataset(sources=(longest,), targets=(4,), method=method, form=tiny_form(method, max_source=8, max_target=5))
        dataset(sources=(longest,), targets=None, method=method, form=tiny_form(method, max_source=8, max_target=5))
    assert not caplog.records


@pytest.mark.parametrize("count", [3, 8, 11, 16, 21])
def test_the_last_batch_is_kept(count):
    """Fairseq drops the remainder of --required-batch-size-multiple, 8 by default."""
    data = dataset(sources=[4] * count, targets=[3] * count)
    batches = data.batch_by_size(data.ordered_indices(), max_sentences=8, required_batch_size_multiple=8)
    assert sorted(index for batch in batches for index in batch) == list(range(count))
    assert [len(batch) for batch in batches[:-1]] == [8] * (len(batches) - 1)


def test_batches_by_tokens():
    rng = np.random.default_rng(0)
    data = dataset(sources=rng.integers(0, 20, 60), targets=rng.integers(0, 12, 60), shuffle=True)
    batches = data.batch_by_size(data.ordered_indices(), max_tokens=150, required_batch_size_multiple=8)
    assert sorted(index for batch in batches for index in batch) == list(range(60))
    assert all(data.sizes[batch].sum() <= 150 for batch in batches)


def test_an_example_that_no_batch_can_hold():
    data = dataset(name="train", shuffle=True)
    longest = max(data.sizes)
    message = (
        f"^--max-tokens must be at least {longest}, the packed positions of the longest example of train "
        rf"\(number {data.sizes.argmax() + 1} of 4\), but is 9$"
    )
    with pytest.raises(UserError, match=message):
        data.batch_by_size(data.ordered_indices(), max_tokens=9)
    with pytest.raises(UserError, match=r"^--max-tokens \(--max-tokens-valid while training\) must be at least"):
        dataset(name="valid").batch_by_size(data.ordered_indices(), max_tokens=9)
    assert data.batch_by_size(data.ordered_indices(), max_tokens=longest)


def test_no_indices():
    data = dataset()
    assert data.batch_by_size(np.array([], dtype=np.int64), max_sentences=8, required_batch_size_multiple=8) == []
    empty = dataset(sources=(), targets=())
    assert len(empty) == 0
    assert empty.batch_by_size(empty.ordered_indices(), max_sentences=8) == []


def test_fairseq_leaves_out_nothing_for_its_length():
    data = dataset(sources=(40, 5), targets=(5, 40))
    kept, ignored = data.filter_indices_by_size(data.ordered_indices(), (data.form.max_source, data.form.max_target))
    assert len(kept) == 2
    assert ignored == []
    # With --max-tokens 9, fairseq asks for at most 9 positions on each side.
    kept, ignored = data.filter_indices_by_size(data.ordered_indices(), (9, 9))
    assert len(kept) == 2 and ignored == []


def test_short_examples_come_first():
    """They are sorted by the length of the packed sequence, in which a target token has two positions."""
    data = dataset(sources=(5, 2, 5, 2, 9), targets=(3, 6, 1, 2, 1))
    assert data.sizes.tolist() == [15, 18, 11, 10, 15]
    assert data.ordered_indices().tolist() == [3, 2, 0, 4, 1]


def test_examples_of_similar_length_are_shuffled_in_each_epoch():
    def order(shuffle=True, seed=1, epoch=1):
        data = dataset(sources=[4] * 40, targets=[3] * 40, shuffle=shuffle, seed=seed)
        data.set_epoch(epoch)
        return data.ordered_indices().tolist()

    assert order(shuffle=False) == list(range(40))
    assert order() == order()
    assert len({tuple(order(seed=seed, epoch=epoch)) for seed in (1, 2) for epoch in (1, 2, 3)}) == 6
    assert sorted(order()) == list(range(40))


def test_the_batches_are_logged_once(caplog):
    data = dataset(sources=(8, 8, 4, 6), targets=(1, 3, 2, 2), name="train")
    with caplog.at_level(logging.INFO):
        # Source and target lengths 10 + 2 * 2, 10 + 2 * 4 | 6 + 2 * 3, 8 + 2 * 3.
        data.batch_by_size(np.arange(4), max_tokens=32)
        data.batch_by_size(np.arange(4), max_tokens=32)
    # Padded: 2 * (10 + 8) + 2 * (8 + 6) = 64 in place of 58.
    assert [record.getMessage() for record in caplog.records] == [
        "train: 2 batches of 29 positions on average, no padding; if padded to the longest of a batch, 9.4% would be "
        "padding"
    ]


# Randomness

SOURCES, TARGETS = [9] * 12, [8] * 12


def tokens(loader):
    """Return all token columns by example."""
    columns = {}
    for batch in loader:
        lengths = [sum(blocks) for blocks in batch["net_input"]["lengths"]]
        rows = batch["net_input"]["tokens"].split(lengths)
        columns.update(zip(batch["id"].tolist(), map(torch.Tensor.tolist, rows), strict=True))
    return columns


def loader(data, workers, persistent=False, order=None):
    return DataLoader(
        data,
        batch_sampler=order or [[0, 1, 2, 3], [4, 5, 6, 7], [8, 9, 10, 11]],
        collate_fn=data.collater,
        num_workers=workers,
        persistent_workers=persistent,
        multiprocessing_context="fork" if workers else None,
    )


@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_corruption_depends_on_seed_epoch_and_example_alone(method):
    def draw(seed, epoch, order=None):
        data = dataset(SOURCES, TARGETS, method, CORRUPTION, seed=seed)
        data.set_epoch(epoch)
        return tokens(loader(data, 0, order=order))

    first = draw(1, 1)
    assert draw(1, 1) == first
    assert draw(1, 1, order=[[11, 3], [7, 0, 1, 10], [2, 4, 5, 6, 8, 9]]) == first
    assert draw(1, 2) != first
    assert draw(2, 1) != first
    # The texts have equal lengths, but no two examples are corrupted at the same places.
    assert len({tuple(token == MASK for token in row) for row in first.values()}) == 12


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.process
def test_workers_draw_what_the_main_process_draws(persistent):
    """In two epochs: workers that outlive the first one must learn of the second."""

    def epochs(workers):
        data = dataset(SOURCES, TARGETS, corruption=CORRUPTION)
        loading = loader(data, workers, persistent=persistent and workers > 0)
        drawn = []
        for epoch in (1, 2):
            data.set_epoch(epoch)
            drawn.append(tokens(loading))
        return drawn

    alone = epochs(0)
    assert alone[0] != alone[1]
    assert epochs(2) == alone


def test_epochs_begin_at_one_as_in_fairseq():
    fresh, first = dataset(corruption=CORRUPTION), dataset(corruption=CORRUPTION)
    first.set_epoch(1)
    assert tokens(loader(fresh, 0, order=[[0, 1]])) == tokens(loader(first, 0, order=[[0, 1]]))
    assert not fresh.can_reuse_epoch_itr_across_epochs


def test_labels_of_sources():
    """They are a flow with a weight; the divisor is the number of target labels, so that nothing else changes."""
    plain, both = dataset(method="causal"), dataset(method="causal")
    both = PackedPairDataset(
        both.source, both.target, both.form, both.objective.with_source_loss(0.25), both.corruption
    )
    batch, expected = (data.collater([data[0], data[3]]) for data in (both, plain))
    of_targets, of_sources = batch["flows"]["word"], batch["flows"]["source"]
    assert batch["labels"][of_targets].tolist() == expected["labels"].tolist()
    assert batch["labels"][of_sources].tolist() == [*both.source[0].tolist()[:-1], SEP, SEP]
    assert batch["weights"].tolist() == torch.where(of_sources, 0.25, 1.0).tolist()
    assert batch["divisor"] == expected["divisor"] == len(expected["labels"])
    assert batch["ntokens"] == len(batch["labels"]) == len(expected["labels"]) + 6 + 1
    for name, value in expected["net_input"].items():
        if name != "labelled":
            assert torch.equal(value, batch["net_input"][name]) if torch.is_tensor(value) else value
    np.testing.assert_array_equal(both.sizes, plain.sizes)
