"""Mistakes of the user: each command says what is wrong, without a traceback, and keeps all saved files."""

import re
import shutil
import sys
from pathlib import Path

import pytest
import torch
from command_output import generated

import s2sft_fairseq
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checksums import CHECKSUMS, write_checksums

# Python also prints a traceback for an exception that it ignores in a `__del__`.
pytestmark = pytest.mark.filterwarnings("error::pytest.PytestUnraisableExceptionWarning")

# Damage to a copy of the binarized data, and the expected message.
DAMAGE = {
    "a missing dictionary": (
        lambda data: [(data / f"dict.{language}.txt").unlink() for language in ("src", "tgt")],
        r"must hold dict\.src\.txt and dict\.tgt\.txt, but holds neither",
    ),
    "a dictionary of another size": (
        lambda data: [shorten(data / f"dict.{language}.txt", lines=50) for language in ("src", "tgt")],
        r"the dictionary has 50 symbols, but the checkpoint was made with 59",
    ),
    "two dictionaries": (
        lambda data: shorten(data / "dict.src.txt", lines=50),
        r"must share one dictionary, but differ in .*data: dict\.src\.txt has 50 and dict\.tgt\.txt has 59 symbols",
    ),
    "a malformed dictionary": (
        lambda data: (data / "dict.src.txt").write_text("[PAD] 1\n\n[UNK] many\n"),
        r"2 malformed lines in dictionary .*dict\.src\.txt:\n.*line 2: .*\n.*line 3: needs '<symbol> <count>'",
    ),
    "a missing split": (
        lambda data: [path.unlink() for path in data.glob("test.*")],
        r"no data for the split 'test' \(src-tgt\) in .*data; it has: test1, train, valid",
    ),
    "a truncated .bin": (
        lambda data: shorten(data / "test.src-tgt.src.bin", size=40),
        r"test\.src-tgt\.src\.bin is truncated: needs 50 bytes, has 40; run fairseq-preprocess again",
    ),
    "an empty .bin": (
        lambda data: shorten(data / "test.src-tgt.src.bin", size=0),
        r"test\.src-tgt\.src\.idx or \.bin is empty or damaged; run fairseq-preprocess again",
    ),
    "a missing .bin": (
        lambda data: (data / "test.src-tgt.tgt.bin").unlink(),
        r"test\.src-tgt\.tgt\.bin is missing beside .*test\.src-tgt\.tgt\.idx; run fairseq-preprocess again",
    ),
    "a truncated .idx": (
        lambda data: shorten(data / "test.src-tgt.src.idx", size=20),
        r"test\.src-tgt\.src\.idx or \.bin is empty or damaged; run fairseq-preprocess again",
    ),
    "an .idx of something else": (
        lambda data: (data / "test.src-tgt.src.idx").write_text("something else"),
        r"test\.src-tgt\.src\.idx or \.bin is empty or damaged; run fairseq-preprocess again",
    ),
    "different numbers of examples": (
        lambda data: [
            shutil.copy(data / f"valid.src-tgt.tgt.{end}", data / f"test.src-tgt.tgt.{end}") for end in ("bin", "idx")
        ],
        r"test\.src-tgt\.src has 5 examples, but .*test\.src-tgt\.tgt has 13",
    ),
}

OPTIONS = {
    "--print-alignment": "--print-alignment is not supported by unilm_seq2seq",
    "--diverse-beam-groups 2": "--diverse-beam-groups is not supported by unilm_seq2seq",
    "--unkpen 1": "--unkpen is not supported by unilm_seq2seq",
    "--nbest 6": "--nbest must not exceed --beam (5), but is 6",
    "--beam 0": "--beam must be a whole number from 1 to 10000, but is 0",
    "--sampling-topk 3": "--sampling-topk needs --sampling",
    "--temperature 0": "--temperature must be a number from 0.001 to 1000, but is 0.0",
    "--no-repeat-ngram-size 2 --no-repeat-ngram-ignore a|oops": "--no-repeat-ngram-ignore must name symbols of the",
    "--placeholder oops": "--placeholder must be a symbol of the dictionary, but 'oops' is not",
    "--max-source-positions 60": "--max-source-positions (60) and --max-target-positions (12) must add up to "
    "--max-positions of the model (64) at most, but add up to 72",
    "--source-segments 0,2": "--source-segments must be at least 0 and below --num-segments of the model (2), but is 0",
    "--source-truncation up": "--source-truncation must be left or right, or several of them separated by commas, but",
    "--source-field-positions 1": "--source-field-positions must be numbers separated by commas, each 0 (no limit) or",
    "--finetune-method oops": "--finetune-method must be one of blocks, causal, infilling, masked, pseudo_masked",
    "--length-penalty oops": "argument --length-penalty: invalid choice: 'oops' (choose from",
    "--target-mask-prob 2": "--target-mask-prob must be between 0 and 1, but is 2",
}

TRAINING_OPTIONS = {
    "--arch oops": "argument --arch/-a: invalid choice: 'oops'",
    "--criterion oops": "argument --criterion: invalid choice: 'oops'",
    "--criterion label_smoothed_cross_entropy": "--criterion must be mask_attention for unilm_seq2seq, but is label_",
    "--finetune-method oops": "--finetune-method must be one of blocks, causal, infilling, masked, pseudo_masked",
    "--label-smoothing 1": "--label-smoothing must be at least 0 and below 1, but is 1",
    "--encoder-attention-heads 3": "--encoder-embed-dim must be a multiple of --encoder-attention-heads (3), but is 32",
    "--max-target-positions 41": "must add up to --max-positions of the model (64) at most, but add up to 65",
    "--random-prob 0.6 --keep-prob 0.6": "--random-prob and --keep-prob must add up to 1 at most, but add up to 1.2",
    "--max-tokens 10": "--max-tokens must be at least",
    "--train-subset oops": "no data for the split 'oops' (src-tgt)",
    "--restore-file oops.pt": "--restore-file oops.pt: no such checkpoint file",
    "--corruption oops": "argument --corruption: invalid choice: 'oops'",
}


def shorten(path, *, size=None, lines=None):
    text = path.read_bytes()
    path.write_bytes(text[:size] if lines is None else b"".join(text.splitlines(keepends=True)[:lines]))


def contents(folder):
    """Return the files of a folder with their contents."""
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


@pytest.fixture
def fails(call_command):
    """Run a command that must fail without a traceback, and return its message."""

    def run(*words):
        done = call_command(*words, status=None)
        assert done.status not in (0, None)
        assert "Traceback" not in done.stdout + done.stderr
        return done.stderr[max(0, done.stderr.rfind("error: ")) :]

    return run


@pytest.fixture
def generation(toy, trained):
    """The options of a generation that would succeed."""
    return ("--path", trained("pseudo_masked").best, "--cpu")


@pytest.fixture
def saved(trained, tmp_path):
    """A copy of the folder of a trained model, from which a training would resume."""
    return shutil.copytree(trained("pseudo_masked").folder, tmp_path / "saved")


@pytest.mark.parametrize("damage", DAMAGE)
def test_damaged_data(fails, toy, generation, tmp_path, damage):
    data = shutil.copytree(toy.data, tmp_path / "data")
    (data / CHECKSUMS).unlink()  # as in data of an earlier version
    spoil, expected = DAMAGE[damage]
    spoil(data)
    assert re.search(expected, fails("generate", data, *generation))


def test_missing_data(fails, generation):
    assert "data folder nowhere does not exist" in fails("generate", "nowhere", *generation)


@pytest.mark.parametrize("words", OPTIONS)
def test_generation_options(fails, toy, generation, words):
    assert OPTIONS[words] in fails("generate", toy.data, *generation, *words.split())


def test_options_that_need_targets(fails, toy, generation, tmp_path):
    data = shutil.copytree(toy.data, tmp_path / "data")
    for path in data.glob("test.*.tgt.*"):
        path.unlink()
    needed = {
        "--score-reference": "--score-reference needs targets",
        "--prefix-size 1": "--prefix-size takes its prefix",
    }
    for words, expected in needed.items():
        error = fails("generate", data, *generation, *words.split())
        assert expected in error and "the data has sources alone" in error


def test_all_problems_at_once(fails, toy, generation):
    error = fails("generate", toy.data, *generation, "--unkpen", "1", "--print-alignment", "--nbest", "6")
    assert "3 problems" in error
    assert all(option in error for option in ("--unkpen", "--print-alignment", "--nbest"))


@pytest.mark.parametrize("words", TRAINING_OPTIONS)
def test_training_options(fails, toy, saved, words):
    before = contents(saved)
    options = (*toy.training, "--max-update", "260", "--total-num-update", "260", "--save-dir", saved)
    assert TRAINING_OPTIONS[words] in fails("train", toy.data, *options, *words.split())
    assert contents(saved) == before


def test_a_truncated_checkpoint(fails, toy, saved):
    shorten(saved / "checkpoint_last.pt", size=20_000)
    before = contents(saved)
    for words in (
        ("generate", toy.data, "--path", saved / "checkpoint_last.pt", "--cpu"),
        ("validate", toy.data, "--path", saved / "checkpoint_last.pt", "--cpu", "--batch-size", "8"),
        ("train", toy.data, *toy.training, "--save-dir", saved),
    ):
        expected = f"{saved / 'checkpoint_last.pt'} (20,000 bytes): not a PyTorch checkpoint, or a truncated or damaged"
        assert expected in fails(*words)
    assert contents(saved) == before


def test_a_missing_checkpoint(fails, toy):
    assert "Model file not found: nowhere.pt (--path)" in fails("generate", toy.data, "--path", "nowhere.pt", "--cpu")


def test_a_checkpoint_of_another_size(fails, toy, saved):
    before = contents(saved)
    options = (
        *toy.training,
        "--encoder-ffn-embed-dim",
        "48",
        "--max-update",
        "260",
        "--total-num-update",
        "260",
        "--save-dir",
        saved,
    )
    error = fails("train", toy.data, *options)
    assert "--encoder-ffn-embed-dim is 48, but was 64" in error
    error = fails("train", toy.data, *options, "--reset-optimizer")
    assert "the checkpoint does not fit the model" in error
    assert "layers.0.fc1.weight must have the shape (48, 32), but has (64, 32)" in error
    assert contents(saved) == before


def test_training_with_a_dictionary_of_another_size(fails, toy, saved, tmp_path):
    data = shutil.copytree(toy.data, tmp_path / "data")
    for language in ("src", "tgt"):
        shorten(data / f"dict.{language}.txt", lines=50)
    write_checksums(data)
    before = contents(saved)
    error = fails("train", data, *toy.training, "--max-update", "260", "--total-num-update", "260", "--save-dir", saved)
    assert "the dictionary has 50 symbols, but the checkpoint was made with 59" in error
    assert contents(saved) == before


@pytest.mark.process
def test_data_of_a_larger_dictionary(fails, toy, tmp_path):
    data = shutil.copytree(toy.data, tmp_path / "data")
    for language in ("src", "tgt"):
        shorten(data / f"dict.{language}.txt", lines=9)
    write_checksums(data)
    error = fails("train", data, *toy.training, "--num-workers", "1", "--save-dir", tmp_path / "saved")
    assert "train holds the id 12, but the dictionary has 9 symbols: run fairseq-preprocess again" in error


def test_an_ensemble_of_different_layouts(fails, toy, trained):
    both = f"{trained('causal').best}:{trained('pseudo_masked').best}"
    assert "the models of an ensemble must have been fine-tuned alike" in fails(
        "generate", toy.data, "--path", both, "--cpu"
    )


@pytest.mark.parametrize(
    ("source", "target", "expected"),
    [
        (b"a b\nc d\n", b"b a\n", "files must have equally many lines, but {source} has 2, {target} has 1"),
        (b"a b\nc \xff\n", b"b a\nd c\n", "{source}: 1 line(s) are not valid UTF-8: line 2"),
        (b"a b\n", b"\xfe\n", "{target}: 1 line(s) are not valid UTF-8: line 1"),
        (b"", b"a\n", "{source}: is empty"),
        (None, b"a\n", "{source}: cannot be read: No such file or directory"),
    ],
    ids=["line counts", "UTF-8 of the source", "UTF-8 of the target", "an empty file", "a missing file"],
)
def test_bad_text(fails, toy, tmp_path, source, target, expected):
    for language, text in (("src", source), ("tgt", target)):
        if text is not None:
            (tmp_path / f"new.{language}").write_bytes(text)
    data = shutil.copytree(toy.data, tmp_path / "data")
    before = contents(data)
    words = ("-s", "src", "-t", "tgt", "--srcdict", toy.dictionary, "--joined-dictionary", "--destdir", data)
    error = fails("preprocess", *words, "--testpref", tmp_path / "new")
    assert expected.format(source=tmp_path / "new.src", target=tmp_path / "new.tgt") in error
    assert contents(data) == before


def test_preprocessing_without_a_dictionary(fails, toy, tmp_path):
    words = ("-s", "src", "-t", "tgt", "--trainpref", toy.raw / "train", "--destdir", tmp_path / "data")
    assert "--srcdict and --joined-dictionary are needed" in fails("preprocess", *words)
    assert not (tmp_path / "data").exists()


def test_lines_that_are_not_utf8(fails, toy, generation, tmp_path):
    (tmp_path / "lines.txt").write_bytes(b"a b\nc \xff d\n")
    error = fails("interactive", toy.data, *generation, "--input", "lines.txt")
    assert "lines.txt: 1 line(s) are not valid UTF-8: line 2" in error


def test_lines_of_a_missing_file(fails, toy, generation):
    assert "nowhere.txt: No such file" in fails("interactive", toy.data, *generation, "--input", "nowhere.txt")


def test_results_that_cannot_be_written(fails, toy, generation, tmp_path):
    (tmp_path / "taken").write_text("a file\n")
    assert "taken" in fails("generate", toy.data, *generation, "--results-path", "taken")
    assert (tmp_path / "taken").read_text() == "a file\n"


def test_long_lines_are_cut_and_counted(toy, generation, call_command):
    done = call_command("generate", toy.data, *generation, "--gen-subset", "test1")
    assert (
        "test1: 1 of 13 sources are cut to 24 positions (--max-source-positions), "
        "1 targets to 12 (--max-target-positions)" in done.stderr
    )
    assert generated(done.stdout, "S")[7] == [" ".join(["b"] * 22)]
    assert generated(done.stdout, "T")[7] == [" ".join(["a"] * 20)]  # whole: BLEU compares with the whole reference
    done = call_command("validate", toy.data, *generation, "--valid-subset", "test1", "--batch-size", "8")
    assert "test1: 1 of 13 sources are cut" in done.stdout


def test_fairseqs_own_commands_say_the_same(toy, trained, tmp_path, run_process):
    data = shutil.copytree(toy.data, tmp_path / "data")
    (data / CHECKSUMS).unlink()
    shorten(data / "test.src-tgt.src.bin", size=0)
    command = Path(sys.executable).with_name("fairseq-generate")
    plugin = ("--user-dir", Path(s2sft_fairseq.__file__).parent, "--task", "unilm_seq2seq")
    done = run_process(command, data, "--path", trained("pseudo_masked").best, "--cpu", *plugin, status=1)
    assert re.search(r"^error: .*test\.src-tgt\.src\.idx or \.bin is empty or damaged", done.stderr, re.M)
    assert not re.search("Traceback|Exception ignored", done.stdout + done.stderr)


def test_a_checkpoint_with_other_types_is_refused(fails, toy, saved):
    state = load_checkpoint(saved / "checkpoint_best.pt")
    torch.save({**state, "extra": re.compile("a").__class__}, saved / "checkpoint_best.pt")
    error = fails("generate", toy.data, "--path", saved / "checkpoint_best.pt", "--cpu")
    assert f"{saved / 'checkpoint_best.pt'}: refused, it holds re.Pattern" in error
