"""The tasks of DeltaLM: their data, its layout, sampling and batches, and what they refuse."""

from argparse import Namespace
from types import SimpleNamespace

import numpy as np
import pytest
import sacrebleu
import torch
from fairseq.data import indexed_dataset
from fairseq.logging import metrics

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.data.mixture_dataset import MixtureDataset
from s2sft_fairseq.data.mixture_parts import PairPart, TemperatureSchedule
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.deltalm import DeltaLMConfig
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm
from s2sft_fairseq.tasks.deltalm_pretraining import DeltaLMPretrainingConfig, DeltaLMPretrainingTask
from s2sft_fairseq.tasks.deltalm_seq2seq import DeltaLMSeq2SeqConfig, DeltaLMSeq2SeqTask, corpus_bleu

BOS, PAD, EOS, UNK = range(4)
WORDS = [f"w{number}" for number in range(20)]
ADDED = ["<mask>", "__de__", "__en__", "__fr__", *(f"<extra_id_{number}>" for number in range(12))]
SYMBOLS = ["<s>", "<pad>", "</s>", "<unk>", *WORDS, *ADDED]
FIRST_WORD, DE, EN, FR = (SYMBOLS.index(name) for name in ("w0", "__de__", "__en__", "__fr__"))
SENTINEL = SYMBOLS.index("<extra_id_0>")
MODEL = DeltaLMConfig(
    encoder_layers=2, encoder_embed_dim=8, encoder_ffn_embed_dim=8, encoder_attention_heads=2, max_positions=40
)


def write(prefix, lines) -> None:
    """Binarize lines of ids, as s2sft preprocess does."""
    prefix.parent.mkdir(parents=True, exist_ok=True)
    builder = indexed_dataset.make_builder(f"{prefix}.bin", impl="mmap", vocab_size=len(SYMBOLS))
    for line in lines:
        builder.add_item(torch.tensor([*line, EOS]))
    builder.finalize(f"{prefix}.idx")


def words(rng, length) -> list[int]:
    return (FIRST_WORD + rng.integers(0, len(WORDS), size=length)).tolist()


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """A folder of 90 pairs of English and German, 10 of English and French, and texts of German and French."""
    folder, rng = tmp_path_factory.mktemp("data"), np.random.default_rng(1)
    dictionary = PretrainedDictionary.of(SYMBOLS)
    for languages, number in (("en-de", 90), ("en-fr", 10)):
        for split, count in (("train", number), ("valid", 7)):
            for language in languages.split("-"):
                write(
                    folder / f"{split}.{languages}.{language}", [words(rng, rng.integers(2, 9)) for _ in range(count)]
                )
                dictionary.save(str(folder / f"dict.{language}.txt"))
    for language in ("de", "fr"):
        for split in ("train", "valid"):
            lines = [line for _ in range(20) for line in (words(rng, rng.integers(12, 30)), [])]
            write(folder / language / split, lines)
        dictionary.save(str(folder / language / "dict.txt"))
    return folder


def seq2seq(data, **options) -> DeltaLMSeq2SeqTask:
    cfg = DeltaLMSeq2SeqConfig(
        **{"data": str(data), "seed": 3, "dataset_impl": None, "train_subset": "train", **options}
    )
    cfg._name = "deltalm_seq2seq"
    task = DeltaLMSeq2SeqTask.setup_task(cfg)
    task.build_model(model_options())
    return task


def pretraining(data, **options) -> DeltaLMPretrainingTask:
    cfg = DeltaLMPretrainingConfig(
        **{"data": str(data), "seed": 3, "dataset_impl": None, "train_subset": "train", **options}
    )
    cfg._name = "deltalm_pretraining"
    task = DeltaLMPretrainingTask.setup_task(cfg)
    task.build_model(model_options())
    return task


def model_options() -> Namespace:
    return Namespace(**{**vars(MODEL), "_name": "deltalm"})


def batch_of(dataset: MixtureDataset, indices) -> dict:
    return dataset.collater([dataset[int(index)] for index in indices])


def test_a_batch_of_pairs_by_hand(data):
    task = seq2seq(data, lang_pairs="en-de,fr-en", language_token="__{}__")
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    assert [part.name for part in dataset.parts] == ["en-de", "fr-en"] and len(dataset) == 14
    batch = batch_of(dataset, [0, 7])
    english, german = (dataset.parts[0].source[0].tolist(), dataset.parts[0].target[0].tolist())
    french, english_too = (dataset.parts[1].source[0].tolist(), dataset.parts[1].target[0].tolist())
    for row, source, target in ((0, [DE, *english], german), (1, [EN, *french], english_too)):
        tokens = batch["net_input"]["src_tokens"][row]
        assert tokens[tokens != PAD].tolist() == source
        assert batch["target"][row][batch["target"][row] != PAD].tolist() == target
        previous = batch["net_input"]["prev_output_tokens"][row]
        assert previous[previous != PAD].tolist() == [EOS, *target[:-1]]
    assert batch["net_input"]["src_lengths"].tolist() == [len(english) + 1, len(french) + 1]
    assert batch["ntokens"] == len(german) + len(english_too) and batch["nsentences"] == 2
    assert batch["id"].tolist() == [0, 7]


def test_long_examples_are_cut(data, caplog):
    task = seq2seq(data, lang_pairs="en-de", language_token="__{}__", max_source_positions=5, max_target_positions=4)
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    assert dataset.source_sizes.max() == 5 and dataset.target_sizes.max() == 4
    batch = batch_of(dataset, range(len(dataset)))
    assert batch["net_input"]["src_tokens"].shape == (7, 5) and batch["target"].shape == (7, 4)
    longest = int(np.argmax(dataset.parts[0].source.sizes))
    whole = dataset.parts[0].source[longest].tolist()
    assert batch["net_input"]["src_tokens"][longest].tolist() == [DE, *whole[:3], EOS]
    assert "sources are cut to 5 positions (--max-source-positions)" in caplog.text
    typed = task.build_dataset_for_inference([torch.tensor([*range(4, 12), EOS])], [9])
    assert typed[0]["source"].tolist() == [DE, 4, 5, 6, EOS]


def test_every_example_is_validated_once(data):
    task = seq2seq(data, lang_pairs="en-de,de-en,fr-en")
    task.load_dataset("valid")
    batches = task.dataset("valid").batch_by_size(task.dataset("valid").ordered_indices(), 40, None, 8)
    assert sorted(np.concatenate(batches).tolist()) == list(range(21))


@pytest.mark.parametrize("epoch", [1, 3, 6])
def test_shares_of_an_epoch(data, epoch):
    """Counts are the integers nearest to the formula; the examples of a direction occur equally often, within one."""
    task = seq2seq(data, lang_pairs="en-de,en-fr")
    task.load_dataset("train", epoch)
    indices = task.dataset("train").ordered_indices()
    counts = np.bincount(task.dataset("train").part_of(indices))
    shares = TemperatureSchedule().shares(np.array([90, 10]), epoch)
    assert counts.sum() == 100 and np.abs(counts - 100 * shares).max() < 1
    assert len(np.unique(indices)) == 100  # copies have their own indices
    for part, size in ((0, 90), (1, 10)):
        mine = indices[task.dataset("train").part_of(indices) == part]
        times = np.bincount(mine % 100 - (0, 90)[part], minlength=size)
        assert times.max() - times.min() <= 1


@pytest.mark.parametrize(("workers", "shards"), [(1, 1), (2, 1), (4, 1), (1, 2), (1, 4)])
@pytest.mark.process
def test_shares_with_workers_and_after_a_resume(data, workers, shards):
    """The examples of an epoch: with worker processes of one GPU, over several GPUs, and in a resumed run."""
    options = {"lang_pairs": "en-de,en-fr", "epoch_examples": 400, "temperature_epochs": 2}
    seen = {epoch: [] for epoch in (1, 2, 3)}
    for shard in range(shards):
        iterator = train_iterator(seq2seq(data, **options), 1, workers, shards, shard)
        for epoch in seen:
            if epoch > 1:  # fairseq asks the task again
                iterator = train_iterator(iterator.task, epoch, workers, shards, shard)
            seen[epoch] += [batch["id"] for batch in iterator.next_epoch_itr() if batch]
    task = seq2seq(data, **options)
    for epoch, ids in seen.items():
        examples = torch.cat(ids).numpy()
        assert len(examples) == 400
        french = (examples % 100 >= 90).mean()
        share = TemperatureSchedule(1, 5, 2).shares(np.array([90, 10]), epoch)[1]
        assert abs(french - share) < 3 * np.sqrt(share * (1 - share) / 400)
    # A run that is resumed in the third epoch has the same examples.
    resumed = train_iterator(task, 3, 0, 1, 0)
    assert sorted(torch.cat([batch["id"] for batch in resumed.next_epoch_itr()]).tolist()) == sorted(
        torch.cat(seen[3]).tolist()
    )


def test_an_epoch_resumes_where_it_was_left(data):
    """It continues with the batches after those seen, by the iterator's state in a checkpoint."""
    options = {"lang_pairs": "en-de,en-fr", "epoch_examples": 400, "temperature_epochs": 2}
    whole = [batch["id"].tolist() for batch in train_iterator(seq2seq(data, **options), 2, 0, 1, 0).next_epoch_itr()]
    stopped = train_iterator(seq2seq(data, **options), 2, 0, 1, 0)
    batches = stopped.next_epoch_itr()
    seen = [next(batches)["id"].tolist() for _ in range(3)]
    going_on = train_iterator(seq2seq(data, **options), 2, 0, 1, 0)
    going_on.load_state_dict(stopped.state_dict())
    assert seen + [batch["id"].tolist() for batch in going_on.next_epoch_itr()] == whole


def test_training_on_another_set(data):
    task = seq2seq(data, lang_pairs="en-de", train_subset="valid")
    task.load_dataset("valid")
    assert task.datasets["valid"].schedule is not None
    task.begin_epoch(1, None)  # logs the composition of the epoch
    task.load_dataset("train")
    assert task.datasets["train"].schedule is None


def train_iterator(task, epoch, workers, shards, shard):
    if "train" not in task.datasets:
        task.load_dataset("train", epoch)
    iterator = task.get_batch_iterator(
        task.dataset("train"),
        max_tokens=200,
        max_positions=(40, 40),
        seed=1,
        num_shards=shards,
        shard_id=shard,
        num_workers=workers,
        epoch=epoch,
        data_buffer_size=1,  # as in training; the iterator's thread reads to the end, which ends the workers
    )
    iterator.task = task
    return iterator


def test_zero_shot_batches(data):
    """Half of the batches are texts, whose targets have no sentinels; a batch has only pairs or only texts."""
    task = seq2seq(data, lang_pairs="en-de", text_languages="fr,de", language_token="__{}__", tokens_per_sample=30)
    task.load_dataset("train")
    dataset = task.dataset("train")
    assert [part.name for part in dataset.parts] == ["en-de", "fr", "de"]
    batches = dataset.batch_by_size(dataset.ordered_indices(), 100, None, 1)
    kinds = [set(dataset.group_of_part[dataset.part_of(batch)]) for batch in batches]
    assert kinds.count({0}) == kinds.count({1}) == len(batches) / 2
    assert sorted(np.concatenate(batches[: len(batches) // 2])) == list(range(90))
    texts = next(batch for batch, kind in zip(batches, kinds, strict=True) if kind == {1})
    made = batch_of(dataset, texts)
    assert (made["net_input"]["src_tokens"] >= SENTINEL).any() and not (made["target"] >= SENTINEL).any()
    assert set(made["net_input"]["src_tokens"][:, 0].tolist()) <= {DE, FR}
    task.load_dataset("valid")
    assert [part.name for part in task.dataset("valid").parts] == ["en-de"]


def test_pre_training_batches(data):
    task = pretraining(data, lang_pairs="en-de", text_languages="de,fr", tokens_per_sample=30)
    task.load_dataset("train")
    dataset = task.dataset("train")
    assert [part.name for part in dataset.parts] == ["de", "fr", "en-de"]
    indices = dataset.ordered_indices()
    batches = dataset.batch_by_size(indices, 80, None, 1)
    assert sorted(np.concatenate(batches)) == sorted(indices)
    for batch in map(lambda ids: batch_of(dataset, ids), batches[:5]):
        first = batch["target"][:, 0]
        assert (first == SENTINEL).all()
        for row, index in enumerate(batch["id"].tolist()):
            source = batch["net_input"]["src_tokens"][row]
            target = batch["target"][row]
            assert joined_back(source.tolist(), target.tolist()) == dataset[index]["item"][0].tolist()
            sizes = (int((source != PAD).sum()), int((target != PAD).sum()))
            assert sizes == dataset.size(index) and dataset.num_tokens(index) == max(sizes)


def joined_back(source, target):
    spans: dict[int, list[int]] = {}
    for token in target:
        if token >= SENTINEL:
            spans[token] = current = []
        elif token > EOS:
            current.append(token)
    return [token for place in source if place > EOS for token in spans.get(place, [place])]


def test_noise_changes_with_the_epoch_and_the_copy(data):
    task = pretraining(data, text_languages="de", tokens_per_sample=30, span_density=0.5)
    task.load_dataset("train")
    dataset = task.dataset("train")
    first = batch_of(dataset, [0])["target"]
    assert torch.equal(batch_of(dataset, [0])["target"], first)
    copies = [batch_of(dataset, [copy * len(dataset)])["target"] for copy in range(1, 6)]
    assert any(not torch.equal(copy, first) for copy in copies)
    dataset.set_epoch(2)
    others = [batch_of(dataset, [number])["target"] for number in range(6)]
    dataset.set_epoch(1)
    assert any(not torch.equal(batch_of(dataset, [number])["target"], others[number]) for number in range(6))


def test_a_checkpoint_remembers_the_layout(data):
    task = seq2seq(data, lang_pairs="en-de", language_token="__{}__", max_target_positions=9)
    other = DeltaLMSeq2SeqTask.setup_task(
        DeltaLMSeq2SeqConfig(
            data=str(data), source_lang="en", target_lang="fr", seed=1, dataset_impl=None, train_subset="train"
        )
    )
    other.cfg._name = "deltalm_seq2seq"
    other.load_state_dict(task.state_dict())
    other.build_model(model_options(), from_checkpoint=True)
    assert other.form.prefix == (FR,) and (other.max_source, other.max_target) == (40, 9)
    assert [str(pair) for pair in other.pairs] == ["en-fr"]


@pytest.mark.parametrize(("given", "found"), [(None, "not given"), ("it", "it")])
def test_the_target_languages_of_a_checkpoint(data, given, found):
    """Decoding must be told one of them."""
    task = seq2seq(data, lang_pairs="en-de,fr-en", text_languages="fr", language_token="__{}__")
    cfg = DeltaLMSeq2SeqConfig(data=str(data), target_lang=given, seed=1, dataset_impl=None, train_subset="train")
    cfg._name = "deltalm_seq2seq"
    other, state = DeltaLMSeq2SeqTask(cfg, task.dictionary), task.state_dict()
    other.load_state_dict(state)
    with pytest.raises(UserError) as error:
        other.build_model(model_options(), from_checkpoint=True)
    assert str(error.value) == f"--target-lang must be a language of the checkpoint, de, en, fr; it is {found}"
    del state["layout"]["languages"]  # as in checkpoints before this was saved
    with pytest.raises(UserError, match=f"^--target-lang must be a language of the checkpoint; it is {found}$"):
        other.build_model(model_options(), from_checkpoint=True)


def test_bleu_of_summed_counts():
    """BLEU of the whole, from the counts of two batches; 0 for a model that generates nothing."""
    hypotheses, references = ["the old town has a tower", "a b c d e"], ["the old town has one tower", "a b c d f"]
    parts = [sacrebleu.corpus_bleu([one], [[other]]) for one, other in zip(hypotheses, references, strict=True)]
    meters = {
        "_bleu_counts": sum(np.array(part.counts) for part in parts),
        "_bleu_totals": sum(np.array(part.totals) for part in parts),
        "_bleu_sys_len": sum(part.sys_len for part in parts),
        "_bleu_ref_len": sum(part.ref_len for part in parts),
    }
    whole = sacrebleu.corpus_bleu(hypotheses, [references]).score
    assert corpus_bleu({name: SimpleNamespace(sum=value) for name, value in meters.items()}) == round(whole, 2) > 0
    assert corpus_bleu({}) == 0


def test_bleu_of_each_direction(data):
    """Over all batches of a validation: for each direction, and their mean."""
    task = seq2seq(data, lang_pairs="en-de,fr-en", eval_bleu=True)
    task.load_dataset("valid")
    dataset = task.dataset("valid")

    def write_worse(ids, number):
        """Return a reference or, for half of the hypotheses of one direction, the reference without its second word."""
        return ids if number % 2 or number >= 7 else torch.cat([ids[:1], ids[2:]])

    def inference_step(generator, models, sample, prefix_tokens=None):
        rows = zip(sample["id"].tolist(), sample["target"], strict=True)
        return [[{"tokens": write_worse(row[row != PAD], number)}] for number, row in rows]

    class Criterion:
        def __call__(self, model, sample):
            return torch.zeros(1), 1, {"ntokens": 1, "nsentences": len(sample["id"])}

        @staticmethod
        def reduce_metrics(outputs):
            pass

    task.inference_step, criterion, model = inference_step, Criterion(), SimpleNamespace(eval=lambda: None)
    batches = dataset.batch_by_size(dataset.ordered_indices(), 30, None, 1)
    samples = [batch_of(dataset, batch) for batch in batches]
    assert len(samples) >= 4
    outputs = [task.valid_step(sample, model, criterion)[2] for sample in samples]
    assert len({frozenset(output) for output in outputs}) == 1
    with metrics.aggregate(new_root=True) as logged:
        for output in outputs:
            task.reduce_metrics([output], criterion)
    found = logged.get_smoothed_values()

    expected = {}
    for part, name in enumerate(("en-de", "fr-en")):
        lines = [dataset[7 * part + line]["item"][1] for line in range(7)]
        references = [task.dictionary.string(torch.from_numpy(line)) for line in lines]
        hypotheses = [
            task.dictionary.string(write_worse(torch.from_numpy(line), 7 * part + number))
            for number, line in enumerate(lines)
        ]
        expected[f"bleu_{name}"] = round(sacrebleu.corpus_bleu(hypotheses, [references]).score, 2)
    assert 0 < expected["bleu_en-de"] < expected["bleu_fr-en"] == 100
    assert {name: found[name] for name in expected} == expected
    assert found["bleu"] == pytest.approx(sum(expected.values()) / 2, abs=0.011)


def test_the_composition_of_an_epoch_is_logged(data, caplog):
    task = seq2seq(data, lang_pairs="en-de,en-fr")
    task.load_dataset("train", 6)
    caplog.set_level("INFO")
    task.begin_epoch(6, None)
    assert "train, epoch 6: temperature 5; examples: en-de 61, en-fr 39" in caplog.text


def test_the_temperature_of_a_search_is_another(data):
    """s2sft generate has a --temperature of its own; that of the languages matters where they are sampled."""
    task = seq2seq(data, lang_pairs="en-de", temperature=0.5)
    task.load_dataset("valid")
    with pytest.raises(UserError, match=r"--temperature must be at least --first-temperature \(1\), but is 0\.5"):
        task.load_dataset("train", 1)


def test_problems_with_options(data):
    with pytest.raises(UserError) as error:
        seq2seq(data, lang_pairs="en-de", span_density=1.0, epoch_examples=0, tokens_per_sample=9)
    assert error.value.problems == [
        "--span-density must be above 0 and below 1, but is 1",
        "--epoch-examples must be at least 1, but is 0",
        "--tokens-per-sample must be at least twice --min-tokens-per-sample (8), but is 9",
    ]
    with pytest.raises(UserError, match="--min-tokens-per-sample must be at least 2, but is 1"):
        pretraining(data, text_languages="de", min_tokens_per_sample=1)
    with pytest.raises(UserError, match="--translation-span-density must be above 0 and below 1, but is 0"):
        pretraining(data, text_languages="de", translation_span_density=0.0)
    with pytest.raises(UserError, match="--text-languages or --lang-pairs, or both, are needed"):
        pretraining(data)
    with pytest.raises(UserError) as error:
        seq2seq(data, lang_pairs="en-de", language_token="<{}>", max_source_positions=41, max_target_positions=1)
    assert error.value.problems == [
        "--max-source-positions must be from 2 to --max-positions of the model (40), but is 41",
        "--max-target-positions must be from 2 to --max-positions of the model (40), but is 1",
        "--language-token <{}>: the dictionary lacks <de> (s2sft convert --add-language-tokens adds such)",
    ]


def test_problems_with_the_data(data, tmp_path):
    with pytest.raises(UserError, match=r"dictionary .*dict\.it\.txt does not exist"):
        seq2seq(data, lang_pairs="en-de,en-it")
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").write_bytes((data / f"dict.{language}.txt").read_bytes())
    with (tmp_path / "dict.de.txt").open("a") as file:
        file.write("more 1\n")
    with pytest.raises(UserError, match=r"(?s)must share one dictionary.*dict\.de\.txt differs from .*dict\.en\.txt"):
        seq2seq(tmp_path, lang_pairs="en-de")
    task = pretraining(data, text_languages="de", span_density=0.5)
    with pytest.raises(UserError, match=r"have up to 5 spans, but the dictionary has 1 sentinels"):
        task.sentinels = lambda: [SENTINEL]
        task.load_dataset("train")
    task = pretraining(data, text_languages="de")
    task.max_source = 12
    with pytest.raises(UserError, match=r"--tokens-per-sample must be smaller: de has sources of .* the model has 12"):
        task.load_dataset("train")
    task = seq2seq(data, lang_pairs="en-de")
    task.load_dataset("valid")
    dataset = task.dataset("valid")
    with pytest.raises(UserError, match=r"--max-tokens .* at least .* the longest example of valid .*, but is 2"):
        dataset.batch_by_size(dataset.ordered_indices(), 2, None, 1)
    dataset.vocab_size = 6
    with pytest.raises(UserError, match=r"valid holds the id .* but the dictionary has 6 symbols"):
        batch_of(dataset, [0])
    empty = PairPart("it-en", SimpleNamespace(sizes=[]), None, EncoderDecoderForm((), EOS, PAD, 9, 9))
    with pytest.raises(UserError, match="train: no examples of it-en"):
        MixtureDataset([[empty]], None, pad=PAD, eos=EOS, vocab_size=9, name="train")


def test_pairs_without_targets(data, tmp_path):
    """They can be used to generate, but not to pre-train."""
    for language in ("en", "de"):
        (tmp_path / f"dict.{language}.txt").write_bytes((data / f"dict.{language}.txt").read_bytes())
    write(tmp_path / "test.en-de.en", [[5, 6], [7]])
    task = seq2seq(tmp_path, lang_pairs="en-de")
    task.load_dataset("test")
    batch = batch_of(task.dataset("test"), [0, 1])
    assert batch["target"] is None and "prev_output_tokens" not in batch["net_input"] and batch["ntokens"] == 5
    assert task.dataset("test").collater([]) == {}
    with pytest.raises(UserError, match=r"has no targets \(de\) for the split 'test' of en-de"):
        pretraining(tmp_path, lang_pairs="en-de").load_dataset("test")


def test_another_model(data):
    task = seq2seq(data, lang_pairs="en-de")
    with pytest.raises(UserError, match="--arch must be deltalm or one of its sizes for deltalm_seq2seq, but is unilm"):
        task.build_model(SimpleNamespace(_name="unilm"))
