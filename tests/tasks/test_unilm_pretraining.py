"""The pre-training task of UniLMv2: its options, its datasets, an update."""

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from omegaconf import OmegaConf
from tiny import CLS, SEP, TINY_SIZES, tiny_dictionary, words

from s2sft_fairseq.criterions.mask_attention import MaskAttentionCriterion
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.tasks.encoder_pretraining import UnilmPretrainingConfig, UnilmPretrainingTask


@pytest.fixture
def data(tmp_path):
    """Two documents of 40 words in two paragraphs each."""
    rng = np.random.default_rng(0)
    builder = MMapIndexedDatasetBuilder(f"{tmp_path}/train.bin", dtype=np.uint16)
    for count in (15, 25, 0, 18, 22):
        builder.add_item(torch.from_numpy(np.append(words(rng, count), SEP)))
    builder.finalize(f"{tmp_path}/train.idx")
    tiny_dictionary().save(str(tmp_path / "dict.txt"))
    return str(tmp_path)


def make_task(data, **options):
    options = {"tokens_per_sample": 40, "dataset_impl": None, "train_subset": "train", "seed": 1, **options}
    return UnilmPretrainingTask.setup_task(UnilmPretrainingConfig(_name="unilm_pretraining", data=data, **options))


def built(task, **sizes):
    options = OmegaConf.structured(UnilmConfig(_name="unilm", **{**TINY_SIZES, "dropout": 0.0, **sizes}))
    model = task.build_model(options)
    return model, MaskAttentionCriterion(task, label_smoothing=0.0, report_accuracy=False, sentence_avg=False)


@pytest.mark.parametrize("bins", [None, 8], ids=["absolute", "relative"])
@pytest.mark.parametrize(
    ("language_model", "flows"),
    [("ae", ["ae"]), ("ar", ["ar"]), ("par", ["par"]), ("ae+ar", ["ae", "ar"]), ("ae+par", ["ae", "par"])],
)
def test_an_update(data, language_model, flows, bins):
    task = make_task(data, language_model=language_model)
    model, criterion = built(task, **({} if bins is None else {"relative_position_bins": bins}))
    task.load_dataset("train")
    dataset = task.dataset("train")
    batch = dataset.collater([dataset[0], dataset[1]])
    inputs = batch["net_input"]
    masked = batch["ntokens"] // len(flows)
    # 15 % of 40 words, and the excess of the last block.
    assert 12 <= masked <= 22
    copies = 0 if language_model == "ae" else 2
    assert len(inputs["tokens"]) == 2 * 43 + copies * masked <= dataset.sizes.sum()
    context = inputs["tokens"][: inputs["lengths"][0][0]]
    assert context[0] == CLS
    # The second text begins where the paragraph does.
    assert np.flatnonzero(context == SEP).tolist() == [16, 42]
    assert inputs["segments"][:43].tolist() == [0] * 17 + [1] * 26
    loss, sample_size, logged = criterion(model, batch)
    assert sample_size == masked
    # L_AE + L_PAR (equation 7), each per masked token.
    assert loss.item() == pytest.approx(logged["nll_loss"].item(), rel=1e-5)
    if len(flows) > 1:
        assert [logged[f"{name}_tokens"] for name in flows] == [masked] * 2
        assert sum(logged[f"{name}_nll"].item() for name in flows) == pytest.approx(loss.item(), rel=1e-5)
    loss.backward()
    assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters())


def test_both_flows_predict_the_same_tokens(data):
    task = make_task(data)
    built(task)
    task.load_dataset("train")
    dataset = task.dataset("train")
    batch = dataset.collater([dataset[0]])
    labels, flows = batch["labels"], batch["flows"]
    assert list(flows) == ["ae", "par"]
    assert torch.equal(labels[flows["ae"]], labels[flows["par"]])


def test_a_roberta_like_model_has_no_segments(data):
    task = make_task(data)
    model, criterion = built(task, num_segments=0)
    task.load_dataset("train")
    loss, *_ = criterion(model, task.dataset("train").collater([task.dataset("train")[0]]))
    assert loss.isfinite()


@pytest.mark.parametrize(
    ("options", "problems"),
    [
        ({"mask_ratio": 0.0, "block_prob": 1.5, "block_lengths": "6", "random_prob": 0.6, "keep_prob": 0.6},
         ["--mask-ratio must be above 0 and below 1, but is 0",
          "--block-prob must be between 0 and 1, but is 1.5",
          "--block-lengths must be a range of at least 1, such as 2-6, but is 6",
          "--random-prob and --keep-prob must add up to 1 at most, but add up to 1.2"]),
        ({"placeholder": "[P]"}, ["--placeholder must be a symbol of the dictionary, but '[P]' is not"]),
    ],
)  # fmt: skip
def test_mistakes(data, options, problems):
    with pytest.raises(UserError) as raised:
        make_task(data, **options)
    assert raised.value.problems == problems


def test_a_language_model_does_not_read_both_sides_of_a_mask(data):
    with pytest.raises(UserError, match=r"^--source-visibility must be both for the pre-training of UniLMv2.*causal"):
        built(make_task(data), source_visibility="causal")


def test_texts_that_the_model_has_no_room_for(data):
    with pytest.raises(UserError) as raised:
        built(make_task(data, tokens_per_sample=62))
    assert raised.value.problems == [
        "--tokens-per-sample must be at most 61, which leaves 3 of the --max-positions of the model (64) for special "
        "symbols, but is 62"
    ]


def test_the_training_set_is_shuffled(data):
    for subset, shuffled in (("train", True), ("other", False)):
        task = make_task(data, train_subset=subset)
        built(task)
        task.load_dataset("train")
        assert task.datasets["train"].shuffle == shuffled
