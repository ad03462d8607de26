"""Classification and regression by the command lines: training, resuming, validation, prediction, reloading alone."""

import shutil

import pytest
import torch
from command_output import last_value
from examples import run_examples
from omegaconf import OmegaConf

from s2sft_fairseq import Classifier, Reader
from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes
from s2sft_fairseq.tasks.understanding import UnilmClassificationConfig, UnilmClassificationTask

TASK = ("--task", "unilm_classification", "--max-source-positions", 32)
MODEL = (
    *("--arch", "unilm_tiny", "--random-init", "--encoder-layers", "2", "--encoder-embed-dim", "32"),
    *("--encoder-ffn-embed-dim", "64"),
    *("--max-positions", "64", "--dropout", "0", "--attention-dropout", "0"),
)
TRAINING = ("--lr", "0.003", "--cpu", "--num-workers", "0", "--no-epoch-checkpoints", "--log-format", "simple")
TRAINING += ("--validate-interval", 50, "--save-interval", 50)  # an epoch is an update
PAIRS = [
    "a b [SEP] c",
    "a b [SEP] d",
    "b a [SEP] c",
    "e [SEP] f g h",
    "e f [SEP] g h",
    "a [SEP] a",
    "h [SEP] h",
    "c [SEP] h",
]
CLASSES = ["yes", "no", "no", "yes", "yes", "no", "yes", "no"]
NUMBERS = ["0", "1.5", "5", "2.25", "3", "4", "0.5", "2"]


@pytest.fixture
def data(call_command, letters, tmp_path):
    """Eight pairs with a class each, used for both training and validation, and two pairs without."""
    for name, lines in (("train", PAIRS), ("valid", PAIRS), ("test", PAIRS[:2])):
        (tmp_path / f"{name}.txt").write_text("".join(f"{line}\n" for line in lines))
    words = ("--only-source", "--srcdict", letters.dictionary, "--destdir", "data", "--workers", "1")
    call_command("preprocess", "--trainpref", "train.txt", "--validpref", "valid.txt", "--testpref", "test.txt", *words)
    (tmp_path / "data" / "labels.txt").write_text("no\nyes\n")
    write_labels(tmp_path / "data", CLASSES)
    return tmp_path / "data"


def write_labels(folder, labels):
    for name in ("train", "valid"):
        (folder / f"{name}.label").write_text("".join(f"{label}\n" for label in labels))


@pytest.fixture
def encoder(letters, tmp_path):
    """The folder of a random encoder."""
    sizes = {"encoder_layers": 2, "encoder_embed_dim": 32, "encoder_ffn_embed_dim": 64, "encoder_attention_heads": 2}
    torch.manual_seed(1)
    cfg = UnilmConfig(**sizes, max_positions=64)
    complete_sizes(cfg)
    model = UnilmModel(cfg, vocab_size=len(letters.dictionary.read_text().splitlines()), pad=0)
    sizes = {name: getattr(cfg, name) for name in SIZES}
    write_pretrained(tmp_path / "encoder", Conversion("BERT", model.state_dict(), sizes))
    shutil.copy(letters.dictionary, tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def train(call_command, data):
    def run(*words, updates=60, folder="tuned", status=0):
        options = (*TASK, *TRAINING, "--max-update", updates, "--save-dir", folder)
        return call_command("train", data, *options, *words, status=status)

    return run


def predictions(path):
    head, *rows = path.read_text().splitlines()
    assert head == "index\tprediction"
    cells = [row.split("\t") for row in rows]
    assert [int(number) for number, _ in cells] == list(range(len(rows)))
    return [prediction for _, prediction in cells]


@pytest.mark.rounding
def test_classes(train, call_command, data, encoder, letters, until_learned, tmp_path):
    frozen = ("--freeze-embeddings", "--pretrained", encoder, "--dropout", 0, "--attention-dropout", 0)
    best = ("--best-checkpoint-metric", "mcc", "--maximize-best-checkpoint-metric")

    def measured(log, *names):
        return [last_value(log.stdout, name, "valid on 'valid' subset") for name in names]

    log = until_learned(
        lambda updates: train(*frozen, "--arch", "unilm", *best, updates=updates),
        lambda log: measured(log, "accuracy") == [100] and measured(log, "loss")[0] < 0.3,  # with room for 16 bits
        150,
    )
    assert measured(log, "accuracy", "f1", "mcc") == [100] * 3
    (data / "labels.txt").write_text("yes\nno\n")
    failed = train(*frozen, "--arch", "unilm", *best, updates=700, status=2)
    assert "the model was trained with the classes no, yes, but --classes or " in failed.stderr
    (data / "labels.txt").write_text("no\nyes\n")
    shutil.rmtree(encoder)
    weights = load_checkpoint(tmp_path / "tuned" / "checkpoint_best.pt")["model"]
    assert not [name for name in weights if "lm_head" in name]
    assert {name.partition(".")[0] for name in weights} == {"encoder", "head"}

    path = ("--path", "tuned/checkpoint_best.pt", "--cpu")
    told = call_command("predict", data, *path, "--output", "whole.tsv").stdout
    assert told.endswith("\nwhole.tsv: 8 predictions (no 4, yes 4)\n")
    assert predictions(tmp_path / "whole.tsv") == CLASSES
    (data / "labels.txt").unlink()  # the checkpoint has them
    call_command("predict", data, *path, "--output", "one.tsv", "--batch-size", 1, "--bf16")
    assert predictions(tmp_path / "one.tsv") == CLASSES
    call_command("predict", data, *path, "--output", "test.tsv", "--subset", "test")
    assert predictions(tmp_path / "test.tsv") == CLASSES[:2]
    log = call_command("validate", data, *path, "--task", "unilm_classification", "--batch-size", 3)
    assert last_value(log.stdout, "accuracy") == 100

    named = ("--source", "premise", "hypothesis")
    call_command("export", "tuned/checkpoint_best.pt", "--tokenizer-dir", letters.folder, "--to", "model", *named)
    call_command("predict", data, "--path", "model", "--cpu", "--output", "folder.tsv")
    assert (tmp_path / "folder.tsv").read_text() == (tmp_path / "whole.tsv").read_text()
    assert "| classes | no, yes |" in (tmp_path / "model" / "README.md").read_text()

    classifier = Classifier.from_pretrained("model")
    pairs = [tuple(pair.split(" [SEP] ")) for pair in PAIRS]
    assert [each.label for each in classifier(pairs)] == CLASSES
    one = classifier(pairs[0])
    assert one.label == "yes" and sum(one.probabilities.values()) == pytest.approx(1) and one.probabilities["yes"] > 0.5
    assert classifier({"hypothesis": pairs[0][1], "premise": pairs[0][0]}) == one
    run_examples(Classifier, classifier=classifier)
    assert classifier([]) == []
    with pytest.raises(UserError, match=r"texts\[1\] must be a text, or a dict, a tuple or a list of texts"):
        classifier(["a", ("b", 7)])
    for nothing in (5, None):
        with pytest.raises(UserError, match=f"texts must be a text, .* but is {nothing}"):
            classifier(nothing)
    random = torch.get_rng_state()
    Classifier.from_pretrained("model")
    assert torch.equal(torch.get_rng_state(), random)
    with pytest.raises(UserError, match="must be a model for a Reader, but its task is unilm_classification"):
        Reader.from_pretrained("model")
    half = Classifier.from_pretrained("tuned/checkpoint_best.pt", letters.folder, dtype="bfloat16")
    assert [each.label for each in half(pairs)] == CLASSES

    words = ("--tokenizer-dir", letters.folder, "--format", "hugging_face", "--to", "hugging_face")
    call_command("export", "tuned/checkpoint_best.pt", *words)
    theirs = pytest.importorskip("transformers").AutoModelForSequenceClassification.from_pretrained("hugging_face")
    symbols = (tmp_path / "hugging_face" / "vocab.txt").read_text().splitlines()
    for text, expected in zip(PAIRS, CLASSES, strict=True):
        ids = [symbols.index(symbol) for symbol in f"[CLS] {text} [SEP]".split()]
        first = ids.index(symbols.index("[SEP]")) + 1
        segments = [0] * first + [1] * (len(ids) - first)
        with torch.no_grad():
            logits = theirs(input_ids=torch.tensor([ids]), token_type_ids=torch.tensor([segments])).logits
        assert theirs.config.id2label[int(logits.argmax())] == expected

    (data / "labels.txt").write_text("yes\nno\n")
    failed = call_command("predict", data, *path, "--output", "other.tsv", status=2)
    assert "the model was trained with the classes no, yes, but --classes or " in failed.stderr
    assert not (tmp_path / "other.tsv").exists()
    wrong = ("--clip", 0, 5, "--null-odds", "odds.json")
    (data / "labels.txt").unlink()
    failed = call_command("predict", data, *path, "--output", "other.tsv", *wrong, status=2)
    assert "--clip is for regression, but --path is a checkpoint of classification" in failed.stderr
    assert "--null-odds is for question answering, but --path is one of classification" in failed.stderr
    failed = train(*MODEL, updates=1, folder="new", status=2)
    assert f"--classes or {data}/labels.txt is needed: the names of the classes; or --regression" in failed.stderr
    failed = train(*MODEL, "--regression", "--classes", "a,b", updates=1, folder="new", status=2)
    assert "--classes and --regression exclude each other, but --classes is a,b" in failed.stderr
    words = ("--max-source-positions", 70, "--source-segments", "0,2", "--classes", "no,yes")
    failed = train(*MODEL, *words, updates=1, folder="new", status=2)
    assert "--max-source-positions must be at least 3 and at most --max-positions of the model (64), but is 70" in (
        failed.stderr
    )
    assert "--source-segments must be at least 0 and below --num-segments of the model (2), but is 0,2" in failed.stderr


@pytest.mark.rounding
def test_numbers(train, call_command, data, letters, until_learned, tmp_path):
    write_labels(data, NUMBERS)
    log = train(*MODEL, "--regression", "--max-source-positions", 5, updates=2)
    assert "train: 5 of 8 texts are cut to 5 positions (--max-source-positions)" in log.stdout
    log = until_learned(
        lambda updates: train(*MODEL, "--regression", updates=updates, folder="whole"),
        lambda log: last_value(log.stdout, "loss", "valid on 'valid' subset") < 0.02,  # at most 0.4 for each of 8 texts
        150,
    )
    assert last_value(log.stdout, "pearson", "valid on 'valid' subset") > 98
    path = ("--path", "whole/checkpoint_last.pt", "--cpu", "--output", "numbers.tsv")
    assert call_command("predict", data, *path).stdout.endswith("\nnumbers.tsv: 8 predictions\n")
    found = [float(value) for value in predictions(tmp_path / "numbers.tsv")]
    assert found == pytest.approx([float(value) for value in NUMBERS], abs=0.5)
    classifier = Classifier.from_pretrained("whole/checkpoint_last.pt", letters.folder)
    numbers = classifier([tuple(pair.split(" [SEP] ")) for pair in PAIRS])
    assert [each.label for each in numbers] == pytest.approx(found, abs=1e-3) and numbers[0].probabilities == {}
    call_command("predict", data, *path, "--clip", 1, 4)
    clipped = [float(value) for value in predictions(tmp_path / "numbers.tsv")]
    assert clipped == [min(max(value, 1), 4) for value in found]


def test_adapters(train, call_command, data, encoder, tmp_path):
    lora = ("--arch", "unilm", "--pretrained", encoder, "--lora-rank", 4, "--lora-targets", "all", "--lr", 0.01)
    train(*lora, updates=5)
    weights = load_checkpoint(tmp_path / "tuned" / "checkpoint_last.pt")["model"]
    assert {name for name in weights if name.startswith("head.")} == {
        *("head.dense.weight", "head.dense.bias", "head.output.weight", "head.output.bias")
    }
    assert not [name for name in weights if "embeddings" in name or "lm_head" in name]
    call_command("predict", data, "--path", "tuned/checkpoint_last.pt", "--cpu", "--output", "a.tsv")
    encoder.rename(tmp_path / "moved")
    words = ("--path", "tuned/checkpoint_last.pt", "--cpu", "--model-overrides", "{'pretrained': 'moved'}")
    call_command("predict", data, *words, "--output", "b.tsv")
    assert predictions(tmp_path / "a.tsv") == predictions(tmp_path / "b.tsv")


def test_mistakes(train, call_command, data, tmp_path):
    (data / "valid.label").write_text("no\nmaybe\n" + "yes\n" * 6)
    failed = train(*MODEL, updates=1, status=2)
    assert f"{data}/valid.label: 1 line(s) are none of the classes no, yes: line 2" in failed.stderr
    (data / "train.label").unlink()
    (data / "valid.label").unlink()
    failed = train(*MODEL, "--criterion", "mask_attention", updates=1, status=2)
    assert "--criterion must be classification for unilm_classification, but is mask_attention" in failed.stderr
    failed = train(*MODEL, updates=1, status=2)
    assert f"{data} has no labels to train on for the split 'train'" in failed.stderr
    words = ("--path", tmp_path / "no.pt", "--output", "out.tsv", "--fp16", "--bf16", "--max-tokens", 0)
    failed = call_command("predict", data, *words, "--clip", 5, 0, status=2)
    for problem in (
        "--fp16 and --bf16 exclude each other: give one of them",
        "--max-tokens must be at least 1, but is 0",
        "--clip must be a least and a greatest number, but is 5 0",
        f"--path must be a checkpoint file or a model folder, but {tmp_path}/no.pt is neither",
    ):
        assert f"  - {problem}\n" in failed.stderr


def test_no_dictionary(call_command, data, tmp_path):
    words = ("--path", "no.pt", "--output", "out.tsv", "--model-overrides", "pretrained=moved")
    failed = call_command("predict", data, *words, status=2)
    assert "must be a dictionary such as {'pretrained': 'DIR'}, but is pretrained=moved" in failed.stderr


def test_a_generator_cannot_predict(call_command, data, encoder):
    words = ("--path", encoder / "model.pt", "--output", "out.tsv", "--cpu")
    failed = call_command("predict", data, *words, status=2)
    assert "--path must be a checkpoint of unilm_classification" in failed.stderr
    assert failed.stderr.rstrip().endswith("is one of unilm_seq2seq")


def test_folders_take_turns(data, tmp_path):
    """With several data folders, each epoch trains on texts and labels of one; other splits are those of the first."""
    shutil.copytree(data, tmp_path / "other")
    write_labels(tmp_path / "other", CLASSES[::-1])
    cfg = UnilmClassificationConfig(
        data=f"{data}:{tmp_path / 'other'}", train_subset="train", seed=1, dataset_impl=None, max_source_positions=32
    )
    task = UnilmClassificationTask.setup_task(cfg)
    sizes = {"encoder_layers": 1, "encoder_embed_dim": 8, "encoder_attention_heads": 1}
    task.build_model(OmegaConf.structured(UnilmConfig(_name="unilm", **sizes)))
    labels = []
    for split, epoch in (("train", 1), ("train", 2), ("train", 3), ("valid", 2)):
        task.load_dataset(split, epoch=epoch)
        labels.append([task.classes[label] for label in task.dataset(split).labels])
    assert labels == [CLASSES, CLASSES[::-1], CLASSES, CLASSES]
