"""The pre-training task of ERNIE-GEN: its options, its datasets, an update."""

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.utils import resolve_max_positions
from omegaconf import OmegaConf
from tiny import CLS, MASK, SEP, TINY_SIZES, tiny_dictionary, words

from s2sft_fairseq.criterions.mask_attention import MaskAttentionCriterion
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.tasks.encoder_pretraining import ErnieGenPretrainingConfig, ErnieGenPretrainingTask


@pytest.fixture
def data(tmp_path):
    """Two documents of 60 and 25 words, and one of 3."""
    folder = tmp_path / "data"
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split in ("train", "valid"):
        builder = MMapIndexedDatasetBuilder(f"{folder}/{split}.bin", dtype=np.uint16)
        for count in (20, 40, 0, 25, 0, 3):
            builder.add_item(torch.from_numpy(np.append(words(rng, count), SEP)))
        builder.finalize(f"{folder}/{split}.idx")
    tiny_dictionary().save(str(folder / "dict.txt"))
    return str(folder)


@pytest.fixture
def spans(tmp_path):
    """A span vocabulary with one bigram."""
    path = tmp_path / "spans.txt"
    symbols = " ".join(tiny_dictionary().symbols[:0])
    path.write_text(
        '{"format": "s2sft span vocabulary", "version": 1, "listed": {"bigrams": 1, "trigrams": 0}}\n'
        f"w7 w8\t9\t3.0000\ncontinuing\t{symbols}\n"
    )
    return str(path)


def make_task(data, **options):
    options = {"tokens_per_sample": 32, "dataset_impl": None, "train_subset": "train", "seed": 1, **options}
    return ErnieGenPretrainingTask.setup_task(
        ErnieGenPretrainingConfig(_name="ernie_gen_pretraining", data=data, **options)
    )


def built(task, **sizes):
    options = OmegaConf.structured(UnilmConfig(_name="unilm", **{**TINY_SIZES, "dropout": 0.0, **sizes}))
    model = task.build_model(options)
    return model, MaskAttentionCriterion(task, label_smoothing=0.1, report_accuracy=False, sentence_avg=False)


@pytest.mark.parametrize("flows", [1, 2])
def test_an_update(data, spans, flows):
    task = make_task(data, span_vocab=spans if flows == 2 else None)
    model, criterion = built(task)
    task.load_dataset("train")
    dataset = task.dataset("train")
    assert len(dataset) == 3
    assert dataset.blocks.sizes.tolist() == [30, 30, 25]
    batch = dataset.collater([dataset[index] for index in range(3)])
    # A quarter of each text is the target, 8, 8 and 6 words; [SEP] is predicted too.
    assert batch["ntokens"] == flows * (9 + 9 + 7)
    assert len(batch["net_input"]["tokens"]) == dataset.sizes.sum()
    assert (batch["net_input"]["tokens"] == CLS).sum() == 6
    assert (batch["net_input"]["tokens"] == MASK).sum() == batch["ntokens"]
    members = {name: int(of_flow.sum()) for name, of_flow in batch["flows"].items()}
    assert members == ({"word": 25, "span": 25} if flows == 2 else {})
    loss, sample_size, logged = criterion(model, batch)
    assert sample_size == 25
    assert ("span_nll" in logged) == (flows == 2)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_typical_generation(data):
    """Each token is predicted at the one before it, as in causal fine-tuning; noise is read and never predicted."""
    batches = {}
    for noise in (0.0, 1.0):
        task = make_task(data, generation="typical", noise_prob=noise, noise_symbol="w7")
        model, criterion = built(task)
        task.load_dataset("train")
        dataset = task.dataset("train")
        batches[noise] = batch = dataset.collater([dataset[index] for index in range(3)])
        assert len(batch["net_input"]["tokens"]) == dataset.sizes.sum() == 30 + 30 + 25 + 3 * 2
        assert batch["ntokens"] == 9 + 9 + 7 and batch["net_input"]["lengths"][0] == (23, 9)
        assert criterion(model, batch)[0].isfinite()
    clean, noised = (batch["net_input"]["tokens"] for batch in batches.values())
    assert torch.equal(batches[0.0]["labels"], batches[1.0]["labels"])
    labelled = batches[0.0]["net_input"]["labelled"]
    assert (clean == CLS).sum() == 3 and (clean == MASK).sum() == 0 and (clean == SEP).sum() == 3
    # The tokens are [SEP], then the labels except the last one.
    first, labels = clean[labelled][:9], batches[0.0]["labels"][:9]
    assert first[0] == SEP and torch.equal(first[1:], labels[:-1]) and labels[-1] == SEP
    assert (noised[labelled] == 7).sum() == 25 - 3 and (clean != noised)[labelled].sum() == (clean != noised).sum()


def test_the_noise_of_the_paper(data, spans):
    """0.05 in section 4.1; 0.2 without a span flow, according to the caption of Table 7."""
    assert make_task(data, span_vocab=spans).corruption.noise_prob == 0.05
    assert make_task(data).corruption.noise_prob == 0.2
    assert make_task(data, noise_prob=0.0).corruption.noise_prob == 0


def test_options_without_effect_on_typical_generation(data, spans):
    with pytest.raises(UserError) as error:
        make_task(data, generation="typical", span_vocab=spans, placeholder="w7")
    assert "--span-vocab does nothing with --generation typical" in str(error.value)
    assert "--placeholder does nothing with --generation typical" in str(error.value)


def test_no_text_is_too_long_for_its_placeholders(data, spans):
    """They have the positions of the tokens that they predict, so the longest text fills the model."""
    task = make_task(data, tokens_per_sample=32 - 4, min_tokens_per_sample=2, span_vocab=spans)
    model, _ = built(task, max_positions=32)
    task.load_dataset("train")
    dataset = task.dataset("train")
    assert dataset.sizes.max() > 32
    longest = resolve_max_positions(task.max_positions(), model.max_positions(), 100)
    batches = task.get_batch_iterator(dataset, max_tokens=100, max_positions=longest).next_epoch_itr(shuffle=False)
    assert sum(batch["nsentences"] for batch in batches) == len(dataset)
    assert dataset.collater([dataset[0]])["net_input"]["positions"].max() < 32


def test_epochs_and_examples(data):
    task = make_task(data)
    built(task)
    task.load_dataset("train")
    dataset = task.dataset("train")

    def tokens(epoch, order=(0, 1, 2)):
        dataset.set_epoch(epoch)
        batches = [dataset.collater([dataset[index]]) for index in order]
        return {int(batch["id"]): batch["net_input"]["tokens"].tolist() for batch in batches}

    assert tokens(1) == tokens(1, (2, 0, 1))
    assert tokens(1) != tokens(2)


def test_shards_are_read_in_turn(data, tmp_path):
    other = tmp_path / "other"
    other.mkdir()
    builder = MMapIndexedDatasetBuilder(f"{other}/train.bin", dtype=np.uint16)
    builder.add_item(torch.tensor([*range(10, 20), SEP]))
    builder.finalize(f"{other}/train.idx")
    task = make_task(f"{data}:{other}")
    built(task)
    sizes = []
    for epoch in (1, 2, 3):
        task.load_dataset("train", epoch=epoch)
        sizes.append(len(task.dataset("train")))
    assert sizes == [3, 1, 3]


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({"fragment_budget": 0.7, "noise_prob": 2.0, "word_flow_weight": -1.0},
         ["--fragment-budget must be above 0 and at most 0.5, but is 0.7",
          "--noise-prob must be between 0 and 1, but is 2",
          "--word-flow-weight must be between 0 and 1, but is -1"]),
        ({"fragment_lengths": "1-x", "fragment_shares": "1"},
         ["--fragment-lengths must be ranges of at least 1, such as 1-4, but is 1-x"]),
        ({"fragment_shares": "a,b"},
         ["--fragment-shares must be 2 numbers, one for each range of --fragment-lengths, but is 0",
          "--fragment-shares must not be negative and add up to 1, but is "]),
        ({"noise_symbol": "[NOISE]", "placeholder": "[ATTN]"},
         ["--placeholder must be a symbol of the dictionary, but '[ATTN]' is not",
          "--noise-symbol must be a symbol of the dictionary, but '[NOISE]' is not"]),
        ({"min_tokens_per_sample": 1, "tokens_per_sample": 1},
         ["--min-tokens-per-sample must be at least 2, but is 1",
          "--tokens-per-sample must be at least twice --min-tokens-per-sample (1), but is 1"]),
    ],
)  # fmt: skip
def test_mistakes(data, options, problems):
    with pytest.raises(UserError) as raised:
        make_task(data, **options)
    assert raised.value.problems == problems


def test_texts_and_segments_that_the_model_has_no_room_for(data):
    with pytest.raises(UserError) as raised:
        built(make_task(data, tokens_per_sample=61, target_segment=2))
    assert raised.value.problems == [
        "--tokens-per-sample must be at most 60, which leaves 4 of the --max-positions of the model (64) for special "
        "symbols, but is 61",
        "--target-segment must be at least 0 and below --num-segments of the model (2), but is 2",
    ]


def test_missing_data(data, tmp_path):
    with pytest.raises(UserError, match=r"must be a folder that s2sft preprocess --only-source wrote, but lacks dict"):
        make_task(str(tmp_path / "nothing"))
    task = make_task(data)
    built(task)
    with pytest.raises(UserError, match=r"^no data for the split 'test' in .*; it has: train, valid \("):
        task.load_dataset("test")


def test_another_criterion(data):
    task = make_task(data)
    with pytest.raises(UserError) as raised:
        task.build_criterion(OmegaConf.create({"_name": "cross_entropy"}))
    assert str(raised.value) == "--criterion must be mask_attention for ernie_gen_pretraining, but is cross_entropy"
