"""A toy task that a tiny model learns in seconds, and models that learned it, each trained once per session."""

import fcntl
import functools
import os
import random
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest
from called import call
from command_output import last_value
from processes import ROOT, run_in

PLUGIN = ROOT / "s2sft_fairseq"
LETTERS = "abcdefgh"
SYMBOLS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"),
    *"abcdefghijklmnopqrstuvwxyz",
    *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz"),
    *(".", ","),
]

# Lines of all lengths up to the limits and beyond, also empty ones; the references are not reversals.
MIXED_SOURCES = ["a b c", "", "d e f g", "  ", "h h", "a", "a b zebra d", "b " * 40, "c d e f", "a b", "c d", "", "e"]
MIXED_TARGETS = ["b a", "a", "", "c d", "e f g", "h h", "", "a " * 20, "g f", "a b", "d e", "", "f"]

MEASURES = ("nll_loss", "accuracy")
TOY_LAYOUT = ("--max-source-positions", "24", "--max-target-positions", "12")
TOY_MODEL = (
    *("--arch", "unilm_tiny", "--random-init", "--encoder-layers", "2", "--encoder-embed-dim", "32"),
    *("--encoder-ffn-embed-dim", "64"),
    *("--encoder-attention-heads", "2", "--max-positions", "64", "--dropout", "0", "--attention-dropout", "0"),
)
# 200 updates at 3e-3 are usually enough for each method.
TOY_TRAINING = (
    *(*TOY_MODEL, *TOY_LAYOUT, "--criterion", "mask_attention", "--label-smoothing", "0", "--report-accuracy"),
    *("--optimizer", "adam", "--lr", "0.003", "--lr-scheduler", "polynomial_decay", "--warmup-updates", "20"),
    *("--total-num-update", "250", "--max-update", "250", "--batch-size", "20", "--cpu", "--num-workers", "0"),
    *("--no-epoch-checkpoints", "--save-interval", "99", "--save-interval-updates", "125"),
    *("--validate-interval", "99", "--validate-interval-updates", "0", "--log-format", "simple"),
)


@pytest.fixture(scope="session")
def fairseq_command() -> Callable[..., subprocess.CompletedProcess]:
    """Run fairseq's own console command ``fairseq-NAME`` with this package as its ``--user-dir``; it must succeed.

    ``fairseq_command(folder, name, *words, stdin="")``; the result has `stdout` and `stderr`.
    """

    def run(folder: Path, name: str, *words: object, stdin: str = "") -> subprocess.CompletedProcess:
        command = Path(sys.executable).with_name(f"fairseq-{name}")
        return run_in(folder, command, *words, "--user-dir", PLUGIN, "--task", "unilm_seq2seq", stdin=stdin)

    return run


@pytest.fixture
def until_learned() -> Callable[..., object]:
    """Train until a task is learned: ``until_learned(train, learned, updates)`` returns the last result of ``train``.

    ``train(updates)`` trains or resumes, and ``learned`` judges its result. The tests show that a tiny model learns its
    task; the number of updates depends on the seed and on the processor's rounding. If `updates` is not enough, twice
    and then four times as many are tried.
    """

    def run(train: Callable[[int], object], learned: Callable[[object], bool], updates: int) -> object:
        for limit in (updates, 2 * updates, 4 * updates):
            result = train(limit)
            if learned(result):
                return result
        pytest.fail(f"not learned after {4 * updates} updates")

    return run


@pytest.fixture
def letters(tmp_path: Path) -> SimpleNamespace:
    """A `folder` with a WordPiece vocabulary of letters, and its `dictionary`."""
    folder = tmp_path / "letters"
    folder.mkdir()
    (folder / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in SYMBOLS))
    return SimpleNamespace(folder=folder, dictionary=folder / "dict.txt")


@pytest.fixture(scope="session")
def toy(tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """The toy task, writing four letters in reverse order: folders `raw` and `data`, and `dictionary`.

    200 pairs in ``train``, 13 in ``valid``, 5 in ``test``, and 13 unusual ones in ``test1``. `preprocessing`, `layout`,
    `model` and `training` are options.
    """
    folder = tmp_path_factory.mktemp("toy")
    raw, data = folder / "raw", folder / "data"
    raw.mkdir()
    draw = random.Random(1)
    for split, count in (("train", 200), ("valid", 13), ("test", 5)):
        sources = [draw.choices(LETTERS, k=4) for _ in range(count)]
        (raw / f"{split}.src").write_text("".join(f"{' '.join(line)}\n" for line in sources))
        (raw / f"{split}.tgt").write_text("".join(f"{' '.join(line[::-1])}\n" for line in sources))
    (raw / "mixed.src").write_text("".join(f"{line}\n" for line in MIXED_SOURCES))
    (raw / "mixed.tgt").write_text("".join(f"{line}\n" for line in MIXED_TARGETS))
    dictionary = folder / "dict.txt"
    dictionary.write_text("".join(f"{symbol} 1\n" for symbol in SYMBOLS))
    (folder / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))
    preprocessing = (
        *("--source-lang", "src", "--target-lang", "tgt", "--srcdict", "dict.txt", "--joined-dictionary"),
        *("--trainpref", "raw/train", "--validpref", "raw/valid", "--testpref", "raw/test,raw/mixed"),
    )
    call(folder, "preprocess", *preprocessing, "--destdir", "data").check_returncode()
    return SimpleNamespace(
        folder=folder,
        raw=raw,
        data=data,
        dictionary=dictionary,
        preprocessing=preprocessing,
        layout=TOY_LAYOUT,
        model=TOY_MODEL,
        training=TOY_TRAINING,
    )


@pytest.fixture(scope="session")
def trained(toy: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], SimpleNamespace]:
    """Models that learned the toy task: ``trained(method)`` has `folder`, `best`, `halfway`, `output` and `updates`.

    A model that has not learned it after 250 updates is trained again with twice as many: the number depends on
    rounding. The workers of pytest-xdist share the models.
    """
    base = tmp_path_factory.getbasetemp()
    shared = base.parent if "PYTEST_XDIST_WORKER" in os.environ else base

    def train(method: str) -> None:
        for updates in (250, 500):
            folder = shared / f"{method}-{updates}"
            options = ["--finetune-method", method, *toy.training, "--save-dir", folder, "--max-update", updates]
            options += ["--total-num-update", updates, "--save-interval-updates", updates // 2]
            done = call(toy.folder, "train", "data", *options)
            done.check_returncode()
            loss, accuracy = (last_value(done.stdout, name, "valid on 'valid' subset") for name in MEASURES)
            # Half of the target of the masked method can only be guessed: masked tokens are not seen.
            if loss < 0.5 and (accuracy == 100 or method == "masked"):
                break
        (folder / "output.txt").write_text(done.stdout + done.stderr)
        (shared / method).symlink_to(folder)

    @functools.cache
    def model(method: str) -> SimpleNamespace:
        with open(shared / f"{method}.lock", "w") as file:
            fcntl.lockf(file, fcntl.LOCK_EX)
            if not (shared / method).exists():
                train(method)
        folder = (shared / method).resolve()
        updates = int(folder.name.removeprefix(f"{method}-"))
        (halfway,) = folder.glob(f"checkpoint_*_{updates // 2}.pt")
        output = (folder / "output.txt").read_text()
        best = folder / "checkpoint_best.pt"
        return SimpleNamespace(folder=folder, best=best, halfway=halfway, output=output, updates=updates)

    return model
