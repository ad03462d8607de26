"""A disk without space: one line names the file that could not be written, and complete older files are kept.

Three faults: a limit on the size of files, a full disk, and a read-only disk. The last two need root, to mount a small
file system.
"""

import contextlib
import errno
import os
import re
import resource
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from hugging_face import save, their_model
from raw_corpora import gigaword, squad

from s2sft_fairseq.checkpoints import saving
from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.files import KEPT

FAULTS = {"quota": errno.EFBIG, "full": errno.ENOSPC, "read-only": errno.EROFS}
MOST_BYTES = 600  # of a file, with a quota
SENTENCES = "".join(f"a b c d {'e f g h ' * (number % 9)}\n" for number in range(400))


def temporary_files(folder: Path) -> Iterator[Path]:
    """Return files that a command must remove; a .part is kept on purpose, for the next run to resume."""
    return (path for path in folder.rglob("*") if path.name.endswith((".tmp", ".partial", ".lock")))


def contents(folder: Path) -> dict[Path, bytes]:
    """Return the contents of all files in a folder, without the one that fills the disk."""
    return {path: path.read_bytes() for path in folder.rglob("*") if path.is_file() and path.name != "filler"}


@contextlib.contextmanager
def broken(disk: Path, fault: str) -> Iterator[None]:
    """Give a mounted disk one of the faults."""
    if fault == "quota":
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        resource.setrlimit(resource.RLIMIT_FSIZE, (MOST_BYTES, before[1]))
        try:
            yield
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    elif fault == "full":
        with (disk / "filler").open("wb", buffering=0) as file, contextlib.suppress(OSError):
            while True:
                file.write(b"x" * 4096)
        try:
            yield
        finally:
            (disk / "filler").unlink()
    else:
        subprocess.run(["mount", "-o", "remount,ro", disk], check=True)
        try:
            yield
        finally:
            subprocess.run(["mount", "-o", "remount,rw", disk], check=True)


@pytest.fixture
def disk(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Path]:
    """A folder on a disk of its own if one can be mounted; otherwise only the quota is tested."""
    disk = tmp_path / "disk"
    disk.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", "size=40m", "tmpfs", disk]
    mounted = not subprocess.run(mount, capture_output=True).returncode
    if not mounted and request.node.callspec.params["fault"] != "quota":
        pytest.skip("a file system can be mounted by root alone")
    yield disk
    if mounted:
        subprocess.run(["umount", "-l", disk], check=True)


# What each command writes, relative to the disk, and its arguments, in which names in braces are paths or options.
COMMANDS = {
    "tokenize": ("out/long.src", "--tokenizer-dir {toy} --input long.src --output-dir {out}"),
    "preprocess": ("out", "{preprocessing} --destdir {out}"),
    "average": ("mean.pt", "{folder} --pattern checkpoint_best.pt --output {disk}/mean.pt"),
    "export": ("out", "{best} --tokenizer-dir {toy} --to {out}"),
    "convert": ("out", "{encoder} --to {out}"),
    "span-vocab": ("out/spans.txt", "--tokenizer-dir {toy} --input long.src --output {out}/spans.txt --min-count 1"),
    "prepare": ("out", "squad_qg --raw raw --output {out}"),
    "generate": (
        "out/long.txt",
        "--path {best} --tokenizer-dir {toy} --cpu --input long.src --output {out}/long.txt --buffer-size 100",
    ),
    "train": ("out", "{data} {training} --max-update 2 --save-dir {out}"),
    "evaluate": ("scores.json", "--task rouge --hyp long.src --ref long.src --json {disk}/scores.json"),
    "recipe": ("out", "gigaword --raw articles --output {out} --smoke --cpu --workers 1"),
    "plot": ("out/masks.svg", "masks --method causal --source a --target b --output {out}/masks.svg"),
    "doctor": ("accepted/SHA256SUMS", "--accept {disk}/accepted"),
    "generate binarized": ("out", "{data} --path {best} --cpu --results-path {out}"),
    "train tensorboard": ("out", "{data} {training} --max-update 2 --no-save --tensorboard-logdir {out}"),
    "export hugging_face": ("out", "{best} --tokenizer-dir {toy} --format hugging_face --to {out}"),
    "pretrain": ("out", "ernie-gen-base --text text --tokenizer-dir {toy} --output {out} --updates 2 -- {pretraining}"),
    "finetune": ("out", "--encoder {encoder} --train pairs.tsv --output {out} --cpu {finetuning}"),
}
# Those that may be repeated with the same output.
REPEATED = (
    "tokenize",
    "average",
    "convert",
    "span-vocab",
    "generate",
    "evaluate",
    "plot",
    "doctor",
    "generate binarized",
)
FINETUNING = "--updates 1 --candidates 1 --batch 8 --metric loss --workers 1"
PRETRAINING = "--arch unilm_tiny --encoder-embed-dim 32 --encoder-ffn-embed-dim 64 --max-positions 64 --cpu"
PRETRAINING += " --tokens-per-sample 40 --max-tokens 600 --update-freq 1 --num-workers 0"
ENCODERS = {"convert": "bert", "finetune": "bert-no-head"}  # the one of each command that needs one of Hugging Face's
NEEDS = {"convert": "transformers", "finetune": "transformers", "train tensorboard": "tensorboard"}
NEEDS |= {"export hugging_face": "safetensors", "export": "safetensors"}


@pytest.fixture
def words(toy, trained, tmp_path):
    """The arguments of a command."""
    (tmp_path / "long.src").write_text(SENTENCES)
    squad(tmp_path / "raw")
    gigaword(tmp_path / "articles")
    (tmp_path / "text").mkdir()
    for split in ("train", "valid"):
        (tmp_path / "text" / f"{split}.txt").write_text(SENTENCES)
    (tmp_path / "pairs.tsv").write_text("".join(f"w{n % 20 + 5} w{n % 13 + 5}\tw{n % 13 + 5}\n" for n in range(60)))
    accepted = tmp_path / "disk" / "accepted"
    accepted.mkdir()
    for number in range(20):
        (accepted / f"{number}.txt").write_text(f"{number}\n")
    write_checksums(accepted)
    values = {
        "toy": toy.folder,
        "best": trained("pseudo_masked").best,
        "data": toy.data,
        "preprocessing": " ".join(toy.preprocessing).replace("dict.txt", str(toy.dictionary)),
        "training": " ".join(toy.training),
        "folder": trained("pseudo_masked").best.parent,
        "disk": tmp_path / "disk",
        "out": tmp_path / "disk" / "out",
        "encoder": tmp_path / "encoder",
        "pretraining": PRETRAINING,
        "finetuning": FINETUNING,
    }
    values["preprocessing"] = values["preprocessing"].replace("raw/", f"{toy.raw}/")

    def of(name):
        pytest.importorskip(NEEDS.get(name, "torch"), reason=f"{name} needs it")
        if name in ENCODERS:
            save(ENCODERS[name], their_model(ENCODERS[name]), tmp_path / "encoder")
        return [name.split()[0], *COMMANDS[name][1].format(**values).split()]

    return of


@pytest.mark.process
@pytest.mark.filterwarnings("error::pytest.PytestUnhandledThreadExceptionWarning")  # prints a traceback
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", COMMANDS)
def test_one_line_names_what_could_not_be_written(name, fault, disk, words, call_command, monkeypatch):
    monkeypatch.setattr(saving, "PAUSES", (0.0,))
    command = words(name)
    with broken(disk, fault):
        done = call_command(*command, status=None)
    error = re.findall(r"^error: (.*)$", done.stderr, re.M)
    assert done.status == 2 and len(error) == 1 and "Traceback" not in done.stderr
    made = disk / COMMANDS[name][0]
    named = made.parent if fault == "read-only" else made  # the error names the folder that cannot be made
    assert os.strerror(FAULTS[fault]) in error[0] and str(named) in error[0]
    assert not list(temporary_files(disk))
    # Nothing is left that would stop the next run.
    call_command(*command)
    assert made.exists() and not list(temporary_files(disk))


@pytest.mark.process
@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("name", REPEATED)
def test_the_old_files_are_unchanged(name, fault, disk, words, call_command, monkeypatch):
    monkeypatch.setattr(saving, "PAUSES", (0.0,))
    command = [*words(name), *(["--overwrite"] if name == "generate" else [])]
    call_command(*command)
    before = contents(disk)
    with broken(disk, fault):
        done = call_command(*command, status=2)
        unfinished = {disk / "out" / f"long.txt.part{end}" for end in ("", ".json")}  # the next run resumes it
        assert {path: found for path, found in contents(disk).items() if path not in unfinished} == before
    kept = str(disk / "out" / "long.txt.part") if name == "generate" and fault != "read-only" else KEPT
    assert kept in done.stderr.splitlines()[-1]
    call_command(*command)
    assert contents(disk).keys() == before.keys()


@pytest.mark.process
@pytest.mark.parametrize("fault", ["quota"])
def test_complete_windows_are_kept(fault, disk, words, call_command, tmp_path):
    """Generation resumes after them when there is space again, and writes the same as without the fault."""
    sources, parts = tmp_path / "long.src", disk / "out" / "long.txt.part"
    words = [*words("generate"), "--buffer-size", "10"]
    sources.write_text(SENTENCES * 4)
    call_command(*words)
    expected = (disk / "out" / "long.txt").read_text()
    (disk / "out" / "long.txt").unlink()
    size = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(expected) // 2, size[1]))
    try:
        done = call_command(*words, status=2)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, size)
    assert (
        f"error: {disk / 'out' / 'long.txt'} could not be written: {os.strerror(errno.EFBIG)}; {parts}" in done.stderr
    )
    kept = parts.read_text().splitlines()
    assert len(kept) > 100 and kept[:-1] == expected.splitlines()[: len(kept) - 1]
    assert f"{parts}: resumes after " in call_command(*words).stderr
    assert (disk / "out" / "long.txt").read_text() == expected
    assert len(sources.read_text().splitlines()) == len(expected.splitlines())


@pytest.mark.process
@pytest.mark.parametrize("fault", FAULTS)
def test_a_restart(fault, disk, words, call_command, monkeypatch):
    """Everything saved before the disk was full is still there, and the training resumes from it."""
    monkeypatch.setattr(saving, "PAUSES", (0.0,))
    call_command(*words("train"))
    last = disk / "out" / "checkpoint_last.pt"
    before = last.read_bytes()
    with broken(disk, fault):
        done = call_command(*words("train"), "--max-update", 3, status=2)
    assert "Traceback" not in done.stderr and os.strerror(FAULTS[fault]) in done.stderr.splitlines()[-1]
    assert last.read_bytes() == before
    assert "Loaded checkpoint" in call_command(*words("train"), "--max-update", 3).stdout
