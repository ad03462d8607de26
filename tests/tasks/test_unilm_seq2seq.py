"""The task: settings determined when the model is built, contents of checkpoints, loading of data."""

import os
from typing import Any

import numpy as np
import pytest
import torch
from fairseq.data.indexed_dataset import MMapIndexedDatasetBuilder
from fairseq.dataclass.configs import GenerationConfig
from omegaconf import OmegaConf
from tiny import CLS, ENCODERS, SEP, TINY_SIZES, tiny_dictionary, tiny_model, words

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.criterions.mask_attention import MaskAttentionConfig
from s2sft_fairseq.data.dictionary import symbols_fingerprint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.hypotheses import ReferenceScorer
from s2sft_fairseq.inference.memory import useful_sentences
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig
from s2sft_fairseq.objectives.objective import CORRUPTIONS, OBJECTIVES
from s2sft_fairseq.objectives.sequence_form import SourceFields
from s2sft_fairseq.tasks.unilm_config import UnilmSeq2SeqConfig
from s2sft_fairseq.tasks.unilm_seq2seq import UnilmSeq2SeqTask


def write_data(folder, counts, targets=True, source_words=(4,)):
    """Write splits with these numbers of pairs; the lengths of sources in words repeat, targets have 4."""
    folder.mkdir()
    rng = np.random.default_rng(0)
    for split, count in counts.items():
        for language in ("body", "title") if targets else ("body",):
            prefix = f"{folder}/{split}.body-title.{language}"
            builder = MMapIndexedDatasetBuilder(prefix + ".bin", dtype=np.uint16)
            for index in range(count):
                length = source_words[index % len(source_words)] if language == "body" else 4
                builder.add_item(torch.from_numpy(np.append(words(rng, length), SEP)))
            builder.finalize(prefix + ".idx")
    tiny_dictionary().save(str(folder / "dict.body.txt"))
    return str(folder)


@pytest.fixture
def data(tmp_path):
    return write_data(tmp_path / "data", {"train": 5, "valid": 2})


def make_task(data, **options: Any) -> UnilmSeq2SeqTask:
    given = {"max_source_positions": 40, "max_target_positions": 24, "train_subset": "train", **options}
    return UnilmSeq2SeqTask.setup_task(UnilmSeq2SeqConfig(data=data, seed=1, dataset_impl=None, **given))


def model_options(**sizes: Any) -> Any:
    return OmegaConf.structured(UnilmConfig(_name="unilm", **sizes))


def built(data, **options: Any) -> UnilmSeq2SeqTask:
    task = make_task(data, **options)
    task.build_model(model_options(**TINY_SIZES))
    return task


def test_languages_and_dictionary_come_from_the_data(data):
    task = make_task(data)
    assert (task.cfg.source_lang, task.cfg.target_lang) == ("body", "title")
    assert task.source_dictionary is task.target_dictionary
    assert task.source_dictionary.symbols == tiny_dictionary().symbols
    assert make_task(data, source_lang="body", target_lang="title").dictionary.symbols == tiny_dictionary().symbols


def test_a_checkpoint_no_longer_needs_the_pretrained_encoder(data, tmp_path):
    """Fairseq saves its original options, not the copy that the model gets."""
    encoder = tiny_model(1)
    sizes = {name: getattr(encoder.cfg, name) for name in SIZES}
    write_pretrained(tmp_path / "encoder", Conversion("BERT", encoder.state_dict(), sizes))
    tiny_dictionary().save(str(tmp_path / "encoder" / "dict.txt"))
    options = model_options(pretrained=str(tmp_path / "encoder"))
    trained = make_task(data).build_model(options)
    assert torch.equal(trained.layers[1].fc1.weight, encoder.layers[1].fc1.weight)
    assert options.pretrained is None
    assert {name: options[name] for name in SIZES} == sizes
    for file in (tmp_path / "encoder").iterdir():
        file.unlink()
    os.rmdir(tmp_path / "encoder")
    again = make_task(data, finetune_method="masked").build_model(options, from_checkpoint=True)
    again.load_state_dict(trained.state_dict())


def test_a_checkpoint_knows_its_layout(data):
    fields = {"source_segments": "1,0,...", "source_truncation": "left,right", "source_field_positions": "9,0"}
    trained = built(
        data, finetune_method="causal", max_target_positions=9, target_segment=0, placeholder="w7", **fields
    )
    state = trained.state_dict()
    assert state["layout"]["finetune_method"] == "causal"
    task = UnilmSeq2SeqTask.setup_task(UnilmSeq2SeqConfig(data=data, seed=1, dataset_impl=None, train_subset="train"))
    task.load_state_dict(state)
    task.build_model(model_options(**TINY_SIZES), from_checkpoint=True)
    assert task.form == trained.form
    assert task.form.fields == SourceFields((1, 0), alternate=True, truncation=("left", "right"), limits=(9, 0))
    assert task.objective is OBJECTIVES["causal"]
    assert task.max_positions() == (40, 9)


def test_a_checkpoint_of_other_symbols(data):
    """More symbols, other symbols of the same number, or the same ones in another order."""
    state = built(data).state_dict()
    longer = {**state, "symbols": "x", "num_symbols": 99}
    with pytest.raises(UserError, match="the dictionary has 50 symbols, but the checkpoint was made with 99"):
        make_task(data).load_state_dict(longer)
    symbols = tiny_dictionary().symbols
    for others in ([*symbols[:-2], symbols[-1], symbols[-2]], [*symbols[:-1], "w99"]):
        with pytest.raises(UserError, match=r"other symbols than those of the checkpoint \(50\), or another"):
            make_task(data).load_state_dict({**state, "symbols": symbols_fingerprint(others)})
    make_task(data).load_state_dict({**state, "symbols": symbols_fingerprint(symbols)})
    make_task(data).load_state_dict({name: value for name, value in state.items() if name != "symbols"})  # an old one


def test_the_pretrained_encoder_suggests_a_layout(data, monkeypatch):
    """UniLM's segments, for example; the layout is known once the model is built."""
    suggested = {"source_segments": "4", "target_segment": 5}
    build_model = UnilmModel.build_model

    def build(*words):
        model = build_model(*words)
        model.pretrained_layout = suggested
        return model

    monkeypatch.setattr(UnilmModel, "build_model", build)
    task = make_task(data)
    task.build_model(model_options(**{**TINY_SIZES, "num_segments": 6}))
    assert (task.form.fields.segments, task.form.target_segment) == ((4,), 5)
    assert task.state_dict()["layout"].items() >= suggested.items()
    with pytest.raises(UserError) as raised:
        make_task(data).build_model(model_options(**TINY_SIZES))
    assert [problem.partition(" must")[0] for problem in raised.value.problems] == [
        "--source-segments",
        "--target-segment",
    ]


def test_a_resumed_run_keeps_the_layout_it_was_given(data):
    """Fairseq loads the checkpoint's state after the model is built."""
    before, now = built(data, max_target_positions=9), built(data, max_target_positions=12)
    now.load_state_dict(before.state_dict())
    assert now.form.max_target == now.state_dict()["layout"]["max_target_positions"] == 12


def test_the_training_set_is_shuffled(data):
    task = built(data, train_subset="valid")
    for split in ("train", "valid"):
        task.load_dataset(split)
    assert [task.datasets[split].shuffle for split in ("train", "valid")] == [False, True]


def test_models_of_an_ensemble_must_be_alike(data):
    task = UnilmSeq2SeqTask.setup_task(UnilmSeq2SeqConfig(data=data, seed=1, dataset_impl=None, train_subset="train"))
    for method in ("masked", "pseudo_masked"):
        task.load_state_dict(built(data, finetune_method=method).state_dict())
        task.build_model(model_options(**TINY_SIZES), from_checkpoint=True)
    task.load_state_dict(built(data, finetune_method="causal").state_dict())
    with pytest.raises(
        UserError, match=r"^the models of an ensemble must have been fine-tuned alike, but their layouts differ$"
    ):
        task.build_model(model_options(**TINY_SIZES), from_checkpoint=True)


@pytest.mark.parametrize("preset", CORRUPTIONS)
@pytest.mark.parametrize("method", list(OBJECTIVES))
def test_given_options_override_the_presets_corruption(data, method, preset):
    options = {"finetune_method": method, "corruption": preset, "max_target_positions": 20}
    assert built(data, **options).corruption == OBJECTIVES[method].corruption[preset]
    given = {"random_prob": 0.0, "keep_prob": 0.5, "source_mask_prob": 0.1}
    of_targets = {"target_mask_prob": 0.3, "max_masked_tokens": 4}
    if method == "infilling":
        with pytest.raises(UserError) as raised:
            built(data, **options, **of_targets)
        assert raised.value.problems == [
            f"--{name} is for --finetune-method causal or masked or pseudo_masked or blocks, but that is infilling"
            for name in ("target-mask-prob", "max-masked-tokens")
        ]
    else:
        given |= of_targets
    corruption = built(data, **options, **given).corruption
    assert {name: getattr(corruption, name) for name in given} == given
    assert corruption.exact_count == OBJECTIVES[method].corruption[preset].exact_count


def test_impossible_corruption(data):
    with pytest.raises(UserError, match=r"(?s)--random-prob must be between 0 and 1, but is 2.*--keep-prob must be"):
        built(data, random_prob=2.0, keep_prob=-1.0)


def test_held_out_targets_have_no_noise(data):
    task = built(data, finetune_method="infilling", noise_prob=0.5, max_target_positions=20)
    task.load_dataset("train")
    task.load_dataset("valid")
    assert task.dataset("train").corruption.noise_prob == 0.5
    assert task.dataset("valid").corruption == OBJECTIVES["infilling"].corruption["paper"]


def test_causal_content_may_have_noise(data):
    """Typical generation, fine-tuned with noise: ERNIE-GEN's Table 8, rows 4 to 6."""
    task = built(data, finetune_method="causal", noise_prob=1.0, noise_symbol="w7", max_target_positions=20)
    for split in ("train", "valid"):
        task.load_dataset(split)
    dataset = task.dataset("train")
    batch = dataset.collater([dataset[0]])
    source, target = (dataset[0][side].tolist() for side in ("source", "target"))
    assert batch["labels"].tolist() == target
    noise = task.dictionary.index("w7")
    assert batch["net_input"]["tokens"].tolist() == [*source, SEP, *([noise] * (len(target) - 1))]
    assert task.dataset("valid").corruption.noise_prob == 0


def test_the_loss_may_count_noised_tokens_alone(data):
    task = built(data, finetune_method="infilling", noise_prob=0.5, loss_tokens="noised", max_target_positions=20)
    assert task.corruption.only_noised
    model = task.build_model(model_options(**TINY_SIZES))
    criterion = task.build_criterion(
        OmegaConf.structured(MaskAttentionConfig(_name="mask_attention", sentence_avg=False))
    )
    task.load_dataset("train")
    dataset = task.dataset("train")
    batch = dataset.collater([dataset[index] for index in range(len(dataset))])
    assert len(dataset) <= batch["ntokens"] < sum(dataset.target_sizes)
    loss, sample_size, _ = criterion(model, batch)
    assert sample_size == batch["ntokens"] and loss.isfinite()
    with pytest.raises(UserError, match="--loss-tokens noised needs --noise-prob above 0"):
        built(data, finetune_method="infilling", loss_tokens="noised", max_target_positions=20)
    with pytest.raises(UserError, match="--loss-tokens is for --finetune-method infilling, but that is causal"):
        built(data, finetune_method="causal", noise_prob=0.5, loss_tokens="noised")


LANGUAGE_MODEL = {**TINY_SIZES, **ENCODERS["grouped"], "source_visibility": "causal"}


def test_the_loss_may_count_sources(data):
    """In training alone: held-out losses stay those of targets. Without the option nothing changes."""
    task = make_task(data, finetune_method="causal", source_loss_weight=0.5)
    task.build_model(model_options(**LANGUAGE_MODEL))
    plain = built(data, finetune_method="causal")
    for split in ("train", "valid"):
        task.load_dataset(split)
        plain.load_dataset(split)
    assert plain.dataset("train").objective is OBJECTIVES["causal"] is task.dataset("valid").objective
    dataset = task.dataset("train")
    batch = dataset.collater([dataset[0]])
    assert list(batch["flows"]) == ["word", "source"]
    assert batch["ntokens"] == dataset.source_sizes[0] + dataset.target_sizes[0]
    assert batch["divisor"] == dataset.target_sizes[0]


def test_a_loss_of_sources_needs_a_language_model(data):
    with pytest.raises(UserError, match="--source-loss-weight needs a language model, with --source-visibility causal"):
        built(data, finetune_method="causal", source_loss_weight=0.5)
    with pytest.raises(UserError, match="--source-loss-weight is for --finetune-method causal, but that is masked"):
        built(data, finetune_method="masked", source_loss_weight=0.5)
    for weight in (-1.0, float("nan"), float("inf")):
        with pytest.raises(UserError, match=f"--source-loss-weight must be at least 0 and finite, but is {weight:g}"):
            built(data, finetune_method="causal", source_loss_weight=weight)


def test_a_model_with_roles_is_for_dialogues(data):
    task = make_task(data)
    task.build_model(model_options(**{**TINY_SIZES, "num_segments": 0, "num_roles": 3, "num_turns": 4}))
    assert task.layout["source_segments"] == "dialogue" and task.form.fields.dialogue == (3, 4)


def test_data_sets(data):
    task = built(data)
    task.load_dataset("train", combine=True)
    task.load_dataset("valid")
    train, valid = task.dataset("train"), task.dataset("valid")
    assert (len(train), len(valid)) == (5, 2)
    assert (train.shuffle, valid.shuffle) == (True, False)
    assert train.form is task.form


def test_folders_take_turns(data, tmp_path):
    other = write_data(tmp_path / "other", {"train": 3, "valid": 1})
    task = built(f"{data}:{other}")
    sizes = []
    for epoch in (1, 2, 3):
        task.load_dataset("train", epoch=epoch)
        sizes.append(len(task.dataset("train")))
    assert sizes == [5, 3, 5]
    task.load_dataset("valid", epoch=2)
    assert len(task.dataset("valid")) == 2


def test_training_needs_targets(tmp_path):
    task = built(write_data(tmp_path / "sources", {"train": 2, "test": 2}, targets=False))
    with pytest.raises(
        UserError, match=rf"^{tmp_path / 'sources'} has no targets \(title\) to train on for the split 'train'$"
    ):
        task.load_dataset("train")
    task.load_dataset("test")
    assert task.dataset("test").target is None


def test_sources_for_interactive_generation(data):
    task = built(data)
    lines = [torch.tensor([9, 8, SEP]), torch.tensor([SEP])]
    inference = task.build_dataset_for_inference(lines, [3, 1])
    batch = inference.collater([inference[i] for i in inference.ordered_indices()])
    assert batch["id"].tolist() == [1, 0]
    assert batch["net_input"]["src_tokens"].tolist() == [[CLS, SEP, 0, 0], [CLS, 9, 8, SEP]]


def test_a_dictionary_is_never_built():
    with pytest.raises(
        UserError, match=r"^--srcdict and --joined-dictionary are needed: the dict\.txt of the pretrained encoder$"
    ):
        UnilmSeq2SeqTask.build_dictionary(["train.src"])


def test_it_builds_its_generator_and_loads_dictionaries_for_preprocessing(data):
    task = make_task(data)
    model = task.build_model(model_options(**TINY_SIZES))
    generator = task.build_generator([model], GenerationConfig(beam=2))
    assert generator.options.beam == 2
    assert generator.form is task.form
    assert isinstance(task.build_generator([model], GenerationConfig(score_reference=True)), ReferenceScorer)
    assert UnilmSeq2SeqTask.load_dictionary(f"{data}/dict.body.txt").symbols == tiny_dictionary().symbols


def batches(task, split="valid", **limits):
    task.load_dataset(split)
    return [batch.tolist() for batch in task.get_batch_iterator(task.dataset(split), **limits).frozen_batches]


def decoding(data, **options: Any) -> UnilmSeq2SeqTask:
    """Return a task that has loaded a checkpoint."""
    layout = {"finetune_method": "masked", "beam": 2, "score_reference": False, **options}
    task = make_task(data, **layout)
    task.build_model(model_options(**TINY_SIZES), from_checkpoint=True)
    return task


@pytest.fixture
def long_and_short(tmp_path):
    """Sources of 4, 4, 30, 4, 4, 30, ... words."""
    return write_data(tmp_path / "lengths", {"valid": 30}, source_words=(4, 4, 30))


def test_batches_to_decode_respect_their_memory_and_begin_with_the_longest(long_and_short):
    task = decoding(long_and_short)
    gibibytes = 7 * task.batch_memory(task.decoding_models, 2).of_sentence(32) / 2**30
    long, short = list(range(2, 30, 3)), [index for index in range(30) if index % 3 != 2]
    found = batches(decoding(long_and_short, max_batch_memory=gibibytes))
    assert found[0] == long[:7]
    assert found[1][:3] == long[7:]
    assert [index for batch in found for index in batch] == long + short
    assert batches(decoding(long_and_short)) == [long + short]
    assert [len(batch) for batch in batches(decoding(long_and_short), max_sentences=16)] == [16, 14]


def test_max_tokens_counts_packed_positions_in_decoding_too(long_and_short):
    task = decoding(long_and_short)
    longest = 32 + task.objective.positions_per_target * 5
    assert [len(batch) for batch in batches(task, max_tokens=3 * longest + 1)][:4] == [3, 3, 3, 3]


def test_on_the_cpu_the_number_of_sentences_in_a_batch_is_limited(tmp_path):
    data = write_data(tmp_path / "many", {"valid": 40})
    useful = useful_sentences(torch.device("cpu"), beam=8)
    assert [len(batch) for batch in batches(decoding(data, beam=8), max_tokens=1_000_000)] == [useful, 40 - useful]


def test_batches_of_training_validation_and_scoring_are_unchanged(long_and_short):
    validating = decoding(long_and_short)
    validating.build_criterion(MaskAttentionConfig(_name="mask_attention"))
    scoring = decoding(long_and_short, score_reference=True)
    training = built(long_and_short, beam=2, score_reference=False, finetune_method="masked")
    found = [batches(task, max_tokens=150) for task in (validating, scoring, training)]
    pairs = training.dataset("valid")
    assert found == [[batch.tolist() for batch in pairs.batch_by_size(pairs.ordered_indices(), max_tokens=150)]] * 3


@pytest.mark.parametrize("limit", [0, -1.5, float("nan"), float("inf")])
def test_memory_for_nothing(data, limit):
    with pytest.raises(UserError, match=rf"^--max-batch-memory must be positive and finite, but is {limit}$"):
        batches(decoding(data, max_batch_memory=limit))
