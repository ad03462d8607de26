"""Stages: run once, resumed after interruptions, by one process at a time, with unchanged settings.

A command sees nothing that an earlier command left in its process.
"""

import gc
import json
import logging
import os
import sys
import weakref
from pathlib import Path

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.logging import metrics
from fairseq_cli import train

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.engine import Stages, like_a_process, options


@pytest.fixture
def stages(tmp_path):
    """Stages whose commands print their arguments to the standard output."""
    return Stages("test", tmp_path / "commands.jsonl", lambda name, words: print(name, *words))


def test_options():
    assert options(a=None, b="", c=False) == []
    assert options(max_len=0, cpu=True, input=[Path("x"), "y"], share=0.5) == [
        *("--max-len", "0", "--cpu", "--input", "x", "y", "--share", "0.5")
    ]


def test_a_stage_is_done_once(stages, tmp_path, capsys):
    made = tmp_path / "new" / "made"
    stages.stage(made, "make", lambda partial: partial.write_text("1"))
    stages.stage(made, "make", lambda partial: partial.write_text("2"))
    assert made.read_text() == "1"
    began, ended, again = capsys.readouterr().out.splitlines()
    assert (began, ended) == ("test: make ...", f"test: make: 0 s, wrote {made}")
    assert again == f"test: make: done before ({made})"
    stages.stage(tmp_path / "itself", "make", lambda _: (tmp_path / "itself").write_text("3"))
    assert (tmp_path / "itself").read_text() == "3"
    assert {path.name for path in tmp_path.iterdir()} == {"new", "itself"}  # and no lock


@pytest.mark.parametrize("error", [KeyboardInterrupt, UserError("wrong")])
def test_an_interrupted_stage_starts_again(stages, tmp_path, error):
    def stop(partial):
        partial.mkdir()
        (partial / "half").touch()
        raise error

    with pytest.raises(error if isinstance(error, type) else type(error)):
        stages.stage(tmp_path / "made", "make", stop)
    assert not list(tmp_path.iterdir())
    stages.stage(tmp_path / "made", "make", Path.mkdir)
    assert [path.name for path in tmp_path.rglob("*")] == ["made"]


def test_two_at_once(stages, tmp_path, lock_elsewhere):
    """The second one is refused, and the file that the first one writes stays."""
    (tmp_path / "tokens.partial").mkdir()
    other = lock_elsewhere(tmp_path / ".stage-tokens.lock")
    with pytest.raises(UserError, match="tokens is being written by another process"):
        stages.stage(tmp_path / "tokens", "tokenize", Path.mkdir)
    other.kill()
    other.wait()
    assert (tmp_path / "tokens.partial").is_dir()
    stages.stage(tmp_path / "tokens", "tokenize", Path.mkdir)
    assert [path.name for path in tmp_path.iterdir()] == ["tokens"]


@pytest.mark.parametrize("made", ["begin", "checkpoints/checkpoint_last.pt"])
def test_settings_of_a_stage_that_failed_are_forgotten(stages, tmp_path, made):
    def pin(**settings):
        stages.pin(tmp_path / "settings", ("other", made), **settings)

    pin(encoder="wrong", text="same")
    pin(encoder="right", text="same")
    (tmp_path / made).mkdir(parents=True)
    pin(encoder="right", text="same", further=None)
    with pytest.raises(UserError, match=r"other settings.*\n  encoder: before right, now other$"):
        pin(encoder="other", text="same")
    with pytest.raises(UserError, match=r"\n  text: before same, now $"):
        pin(encoder="right")
    for text in ("--encoder right\n", "[]", "[" * 100_000):  # the first one as shell scripts wrote them
        (tmp_path / "settings").write_text(text)
        with pytest.raises(UserError, match=r"\n  encoder: before , now right"):
            pin(encoder="right", text="same")


def test_commands_are_measured(stages, tmp_path, capsys):
    assert stages.printed("evaluate", "a file", task="bleu") == "evaluate a file --task bleu\n"
    assert capsys.readouterr().out == ""

    def fail(name, words):
        raise KeyboardInterrupt if name == "train" else UserError("wrong")

    stages._call = fail
    for name, error in (("train", KeyboardInterrupt), ("generate", UserError)):
        with pytest.raises(error):
            stages.s2sft(name)
    records = [json.loads(line) for line in (tmp_path / "commands.jsonl").read_text().splitlines()]
    assert [record["status"] for record in records] == [0, 130, 2]
    assert records[0]["command"] == ["s2sft", "evaluate", "a file", "--task", "bleu"]
    assert all(0 < record["peak_memory_gb"] < 100 and record["seconds"] >= 0 for record in records)


def test_a_converted_encoder_is_linked(stages, tmp_path, capsys):
    (tmp_path / "encoder").mkdir()
    stages.convert(tmp_path / "encoder", tmp_path / "made", "--sentinels", 100)
    assert capsys.readouterr().out == f"convert {tmp_path}/encoder --to {tmp_path}/made --sentinels 100\n"
    for name in ("model.pt", "config.json"):
        (tmp_path / "encoder" / name).touch()
    stages.convert(tmp_path / "encoder", tmp_path / "made")
    assert (tmp_path / "made").readlink() == tmp_path / "encoder"


def test_a_training_without_matplotlib(stages, tmp_path, monkeypatch, capsys):
    (tmp_path / "train.log").write_text('{"loss": "9.5", "num_updates": "10"}')
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    stages.plot(tmp_path)
    printed = capsys.readouterr().out
    assert printed.startswith("test: no plot of the training: ") and "matplotlib" in printed


class Cycle:
    """An object that only the garbage collector frees."""

    def __init__(self):
        self.itself = self


def test_state_of_the_process_is_restored(tmp_path, monkeypatch):
    monkeypatch.setenv("BEFORE", "1")
    monkeypatch.setattr(sys, "argv", ["before"])
    logger = logging.getLogger("fairseq_cli.train")
    root = logging.getLogger()
    before = (root.level, root.handlers[:], logger.handlers[:])
    gc.disable()
    with pytest.raises(KeyboardInterrupt), like_a_process():
        os.environ["AFTER"] = os.environ.pop("BEFORE")
        sys.argv = ["after"]
        handler = logging.FileHandler(tmp_path / "train.log")
        logger.addHandler(handler)
        logging.basicConfig(level=logging.ERROR, force=True)
        freed = weakref.ref(Cycle())
        raise KeyboardInterrupt
    gc.enable()
    assert os.environ["BEFORE"] == "1" and "AFTER" not in os.environ
    assert sys.argv == ["before"]
    assert (root.level, root.handlers, logger.handlers) == before
    assert handler.stream is None  # it is closed
    assert freed() is None


def test_a_training_does_not_depend_on_an_earlier_one():
    drawn = []
    for _ in range(2):
        checkpoint_utils.save_checkpoint.best = train.should_stop_early.best = 1.0
        with like_a_process():
            assert not hasattr(checkpoint_utils.save_checkpoint, "best")
            assert not hasattr(train.should_stop_early, "best")
            assert metrics.get_meter("default", "loss") is None
            with metrics.aggregate("train"):
                metrics.log_scalar("loss", 1)
            drawn.append(torch.rand(3))
    assert torch.equal(*drawn)
