"""Shared fixtures: a tiny corpus, and command lines that run in a process of their own or in that of the tests.

A process takes seconds to import PyTorch and fairseq. Prefer `call_command`; use `run_command` where the process itself
matters: which stream it prints on, its exit status, signals, several ranks. Tests that start a process are marked
`process`: automatically if they use a fixture of `STARTS_PROCESSES`, by hand otherwise.
"""

import contextlib
import copy
import functools
import gc
import logging
import os
import random
import shutil
import signal
import subprocess
import sys
import warnings
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from called import call, forget, prepared
from hydra import initialize_config_dir
from hydra._internal.config_loader_impl import ConfigLoaderImpl
from hydra.core.override_parser.overrides_parser import OverridesParser
from omegaconf import DictConfig
from processes import S2SFT, Guard, environment, run_in

from s2sft_fairseq import cli, plugin  # noqa: F401  the plugin patches fairseq
from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.models.model_folder import export_folder
from s2sft_fairseq.models.unilm_config import SIZES
from s2sft_fairseq.recipes import engine
from s2sft_fairseq.runtime import warnings as warning_filters

# isort: split
from fairseq.dataclass import configs
from fairseq.dataclass import utils as fairseq_options

# At its first import, rouge-score's log keeps the current stderr and closes it when Hydra sets up another log. Give it
# the original stderr, so that it does not close the file in which pytest collects output.
with contextlib.suppress(ImportError):
    import absl.logging

    absl.logging.get_absl_handler().python_handler.stream = sys.__stderr__

LOCKING = """
import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR | os.O_CREAT), fcntl.LOCK_EX)
print("locked", flush=True)
sys.stdin.read()
"""

TINY_MODEL = (
    *("--arch", "unilm_tiny", "--random-init", "--encoder-layers", "1", "--encoder-embed-dim", "16"),
    *("--encoder-ffn-embed-dim", "32", "--encoder-attention-heads", "2", "--max-positions", "64"),
)
# Options of a training on `tiny_data`, all but the data, --save-dir and --max-update; on the CPU, to be repeatable.
TINY_TRAINING = (
    *TINY_MODEL,
    *("--criterion", "mask_attention", "--optimizer", "adam", "--lr", "0.01", "--clip-norm", "0", "--batch-size", "8"),
    *("--max-source-positions", "16", "--max-target-positions", "16", "--cpu"),
    *("--no-epoch-checkpoints", "--log-format", "simple", "--log-interval", "1", "--num-workers", "0"),
)


STARTS_PROCESSES = {
    "run_process",
    "run_command",
    "start_command",
    "lock_elsewhere",
    "fairseq_command",
    "wheel",
    "smoke",
}
GUARD = Guard()
GUARD.install()


def compose_once(compose: Callable) -> Callable:
    """Cache Hydra's composition of fairseq's options: most commands compose the same classes of options.

    The result of `compose` for those classes is kept; a copy of it gets the values of the command.
    """
    parse = functools.cache(OverridesParser.create().parse_override)  # many values are the same
    known = {}

    def composed(config_name: str, overrides: list[str], strict: bool) -> DictConfig:
        classes = tuple(override for override in overrides if "." not in override.partition("=")[0])
        values = [copy.copy(parse(override)) for override in overrides if override not in classes]
        if classes not in known:
            folder = Path(configs.__file__).parents[1] / "config"
            with warnings.catch_warnings(), initialize_config_dir(str(folder), version_base="1.1"):
                warning_filters.install()
                known[classes] = compose(config_name, overrides=list(classes), strict=strict)
        config = copy.deepcopy(known[classes])
        ConfigLoaderImpl._apply_overrides_to_config(values, config)
        return config

    return composed


fairseq_options.compose = compose_once(fairseq_options.compose)
fairseq_options.initialize = lambda config_path: contextlib.nullcontext()  # `compose_once` initializes Hydra


@pytest.hookimpl(tryfirst=True)  # before -m selects by marks
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if STARTS_PROCESSES.intersection(getattr(item, "fixturenames", ())):
            item.add_marker("process")


def pytest_collection_finish() -> None:
    engine._commit()  # asks Git once per process
    gc.collect()
    gc.freeze()  # the imported modules stay; later collections need not visit them


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    GUARD.test = item
    try:
        return (yield)
    finally:
        GUARD.test = None


@pytest.fixture(autouse=True, scope="session")
def one_thread() -> Iterator[None]:
    """Use one PyTorch thread: faster for tiny models, and the same order of additions everywhere."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


@pytest.fixture(autouse=True, scope="session")
def cache_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Keep the choice of the fastest matrix kernels in a folder of this run, also for the processes that tests start.

    They are timed while other tests run. matplotlib keeps its usual folder, so that it does not search for fonts again.
    """
    with pytest.MonkeyPatch.context() as patch:
        users = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
        patch.setenv("MPLCONFIGDIR", os.environ.get("MPLCONFIGDIR") or str(users / "matplotlib"))
        patch.setenv("XDG_CACHE_HOME", str(tmp_path_factory.getbasetemp().parent / "s2sft_cache"))
        yield


@pytest.fixture
def run_process(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run any process in `tmp_path`: ``run_process(*words, status=0, stdin="", **environment)``, see `run_in`."""
    return partial(run_in, tmp_path)


@pytest.fixture
def run_command(tmp_path: Path) -> Callable[..., subprocess.CompletedProcess]:
    """Run ``s2sft WORDS`` in a process of its own: ``run_command(*words, status=0, ...)``, see `run_in`."""
    return partial(run_in, tmp_path, *S2SFT)


@pytest.fixture
def call_command(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Iterator[Callable[..., SimpleNamespace]]:
    """Run ``s2sft WORDS`` within this process, in `tmp_path`: ``call_command(*words, status=0)``.

    The result has `status`, `stdout` and `stderr`; another exit status than `status` (None: any) fails the test.
    """
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", sys.argv)
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    level = root.level

    def call(*words: object, status: int | None = 0) -> SimpleNamespace:
        forget()
        capsys.readouterr()
        with warnings.catch_warnings():
            warning_filters.install()  # pytest has removed them
            try:
                done = cli.main(prepared(words))
            except SystemExit as exit_:
                done = exit_.code
        out, err = capsys.readouterr()
        if status is not None and done != status:
            pytest.fail(f"s2sft {' '.join(map(str, words))}: {done}, expected {status}\n{out[-4000:]}\n{err[-4000:]}")
        return SimpleNamespace(status=done, stdout=out, stderr=err)

    yield call
    root.setLevel(level)


@pytest.fixture(scope="session")
def tiny_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with `train`, `valid` and `test`, `.src` and `.tgt` each, and `dict.txt`, a BERT-like dictionary.

    50, 10 and 10 pairs of 3 to 8 letters a to j and the same letters reversed.
    """
    folder = tmp_path_factory.mktemp("tiny_corpus")
    draw = random.Random(1)
    letters = "abcdefghij"
    for split, pairs in (("train", 50), ("valid", 10), ("test", 10)):
        sources = [draw.choices(letters, k=draw.randint(3, 8)) for _ in range(pairs)]
        for language, lines in (("src", sources), ("tgt", [line[::-1] for line in sources])):
            text = "".join(f"{' '.join(line)}\n" for line in lines)
            (folder / f"{split}.{language}").write_text(text, encoding="utf-8")
    symbols = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *letters]
    (folder / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in symbols), encoding="utf-8")
    return folder


def preprocess_options(corpus: Path, destination: Path) -> list[str]:
    """The options of ``s2sft preprocess`` that binarize `tiny_corpus`."""
    return [
        *("--source-lang", "src", "--target-lang", "tgt", "--destdir", str(destination)),
        *("--trainpref", f"{corpus}/train", "--validpref", f"{corpus}/valid", "--testpref", f"{corpus}/test"),
        *("--srcdict", f"{corpus}/dict.txt", "--joined-dictionary"),
    ]


@pytest.fixture(scope="session")
def tiny_data(tiny_corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """`tiny_corpus`, binarized by ``s2sft preprocess``."""
    folder = tmp_path_factory.mktemp("tiny_data")
    call(folder, "preprocess", *preprocess_options(tiny_corpus, folder)).check_returncode()
    return folder


@pytest.fixture(scope="session")
def tiny_options() -> SimpleNamespace:
    """Options for command lines: `model` and `training`, tuples of strings, and `preprocess(corpus, destination)`."""
    return SimpleNamespace(model=TINY_MODEL, training=TINY_TRAINING, preprocess=preprocess_options)


@pytest.fixture(scope="session")
def tiny_training(tiny_data: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A training of 3 updates on `tiny_data`: its `checkpoint`."""
    folder = tmp_path_factory.mktemp("tiny_training")
    call(folder, "train", tiny_data, *TINY_TRAINING, "--max-update", 3, "--save-dir", ".").check_returncode()
    return SimpleNamespace(checkpoint=folder / "checkpoint_last.pt")


@pytest.fixture(scope="session")
def tiny_parts(
    tiny_corpus: Path, tiny_data: Path, tiny_training: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """The output of a run: `encoder`, `data`, `checkpoints` and `model`, those of `tiny_training` and its data."""
    folder = tmp_path_factory.mktemp("tiny_parts")
    state = load_checkpoint(tiny_training.checkpoint)
    sizes = {name: state["cfg"]["model"][name] for name in SIZES}
    write_pretrained(folder / "encoder", Conversion("BERT", state["model"], sizes), ["vocab.txt"])
    shutil.copy(tiny_corpus / "dict.txt", folder / "encoder")
    symbols = [line.split()[0] for line in (tiny_corpus / "dict.txt").read_text(encoding="utf-8").splitlines()]
    (folder / "encoder" / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols), encoding="utf-8")
    write_checksums(folder / "encoder")
    (folder / "checkpoints").mkdir()
    shutil.copy(tiny_training.checkpoint, folder / "checkpoints")
    shutil.copytree(tiny_data, folder / "data")
    export_folder(tiny_training.checkpoint, folder / "model", folder / "encoder")
    return folder


@pytest.fixture
def start_command(tmp_path: Path) -> Iterator[Callable[..., subprocess.Popen]]:
    """Start ``s2sft WORDS`` with pipes for its three streams, to talk to it or to interrupt it; killed at the end."""
    started = []

    def start(*words: object) -> subprocess.Popen:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        command = [*S2SFT, *(str(word) for word in words)]
        variables = environment()
        # Coverage is not measured: if Ctrl-C interrupts coverage while it holds its lock, the process waits forever.
        variables.pop("COVERAGE_PROCESS_CONFIG", None)
        # A shell's background jobs ignore Ctrl-C and pass that on to their children; these commands must react to it.
        previous = signal.signal(signal.SIGINT, signal.default_int_handler)
        try:
            started.append(subprocess.Popen(command, cwd=tmp_path, env=variables, text=True, **pipes))
        finally:
            signal.signal(signal.SIGINT, previous)
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.communicate()


@pytest.fixture
def lock_elsewhere() -> Iterator[Callable[[Path], subprocess.Popen]]:
    """Lock a file in another process, as `s2sft_fairseq.files.locked` does; the result is that process."""
    started = []

    def lock(path: Path) -> subprocess.Popen:
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        started.append(subprocess.Popen([sys.executable, "-c", LOCKING, str(path)], text=True, **pipes))
        assert started[-1].stdout.readline() == "locked\n"
        return started[-1]

    yield lock
    for process in started:
        process.kill()
        process.communicate()
