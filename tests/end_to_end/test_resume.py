"""Interrupted training that is resumed equals uninterrupted training bit by bit, on the CPU."""

import contextlib
import json
import os
import random
import signal
import sys
import time

import pytest
import torch
from called import call
from faults import PLACES, fail_at, killed, signalled

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint

# The corpus has 50 pairs. Corruption and dropout of the original draw random numbers in each update.
DRAWS = ("--corruption", "original", "--source-mask-prob", "0.1", "--dropout", "0.1", "--attention-dropout", "0.1")
SCHEDULE = ("--lr-scheduler", "polynomial_decay", "--warmup-updates", "5", "--total-num-update", "60")


def flat(state, name=""):
    """Return all values of nested dictionaries and lists by their path."""
    if isinstance(state, dict):
        return {path: value for key, inner in state.items() for path, value in flat(inner, f"{name}/{key}").items()}
    if isinstance(state, list | tuple):
        return {path: value for key, inner in enumerate(state) for path, value in flat(inner, f"{name}/{key}").items()}
    return {name: state}


def trained_state(folder):
    """Return the state for resuming: parameters, optimizer, schedule, place in the data, task."""
    state = load_checkpoint(folder / "checkpoint_last.pt")
    parts = {name: state[name] for name in ("model", "last_optimizer_state", "task_state")}
    # fairseq saves `best` before it looks at the loss of an epoch that ends; only reduce_lr_on_plateau uses it.
    schedule = state["optimizer_history"][-1]["lr_scheduler_state"]
    parts["schedule"] = {name: value for name, value in schedule.items() if name != "best"}
    parts["updates"] = state["optimizer_history"][-1]["num_updates"]
    parts["data"] = state["extra_state"]["train_iterator"]
    return flat(parts)


def assert_identical(found, expected):
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        same = torch.equal(found[name], value) if isinstance(value, torch.Tensor) else found[name] == value
        assert same, name


@pytest.fixture
def train(call_command, tiny_data, tiny_options, tmp_path):
    """Train up to an update and return the saved state; resume if the folder has a checkpoint."""

    def run(name, until, *words, status=0):
        options = (*tiny_options.training, *DRAWS, *SCHEDULE, "--max-update", until, "--save-dir", tmp_path / name)
        done = call_command("train", tiny_data, *options, *words, status=status)
        return trained_state(tmp_path / name), done.stdout

    return run


WORKERS = ("--num-workers", 2)


@pytest.mark.parametrize(
    ("options", "epoch", "in_epoch"),
    [
        ((), 2, 3),  # 7 in an epoch: update 10 is the third of epoch 2
        pytest.param(WORKERS, 2, 3, marks=pytest.mark.process),
        (("--batch-size", 10, "--required-batch-size-multiple", 1), 3, 0),  # 5 in an epoch: the last of epoch 2
        (("--update-freq", 2, "--optimizer", "fused_adamw"), 3, 4),  # 4 updates in an epoch: 4 batches of epoch 3
        pytest.param(("--update-freq", 2, "--optimizer", "fused_adamw", *WORKERS), 3, 4, marks=pytest.mark.process),
    ],
    ids=["within an epoch", "with workers", "between epochs", "accumulated gradients", "accumulated with workers"],
)
def test_resumed_equals_uninterrupted(train, options, epoch, in_epoch):
    whole, _ = train("whole", 20, *options)
    half, _ = train("halves", 10, *options)
    assert (half["/data/epoch"], half["/data/iterations_in_epoch"]) == (epoch, in_epoch)
    resumed, log = train("halves", 20, *options)
    assert "Loaded checkpoint" in log and f"(epoch {epoch} @ 10 updates)" in log
    assert_identical(resumed, whole)
    assert whole["/updates"] == 20
    changed = [name for name in whole if name.startswith("/model/") and not torch.equal(whole[name], half[name])]
    assert len(changed) == sum(name.startswith("/model/") for name in whole)


@pytest.mark.process
def test_equal_with_data_loading_workers(train):
    alone, _ = train("alone", 12, "--num-workers", 0)
    helped, _ = train("helped", 12, "--num-workers", 2)
    assert_identical(helped, alone)


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="fairseq-train does not start: docs/dependencies.md#python")
def test_resumed_in_a_new_process(train, fairseq_command, tiny_data, tiny_options, tmp_path):
    whole, _ = train("whole", 20)
    train("halves", 10)
    options = (*tiny_options.training, *DRAWS, *SCHEDULE, "--max-update", "20", "--save-dir", "halves")
    fairseq_command(tmp_path, "train", tiny_data, *options)
    assert_identical(trained_state(tmp_path / "halves"), whole)


# A training that is killed loses the updates since its last checkpoint, and makes them again.


OFTEN = ("--save-interval-updates", 5, "--keep-interval-updates", 1)


@pytest.fixture
def start(tiny_data, tiny_options, tmp_path):
    """Train in a child process, with a fault if one is given; return its id."""

    def run(name, until, *fault):
        child = os.fork()
        if not child:
            options = (*tiny_options.training, *DRAWS, *SCHEDULE, *OFTEN, "--max-update", until)
            try:
                with fail_at(*fault) if fault else contextlib.nullcontext():
                    call(tmp_path, "train", tiny_data, *options, "--save-dir", name)
            finally:
                os._exit(0)
        return child

    return run


@pytest.mark.process
@pytest.mark.parametrize("place", PLACES)
def test_killed(train, start, tmp_path, place):
    """At update 10, in its update, its validation or its save: ``checkpoint_last.pt`` is that of the epoch before."""
    whole, _ = train("whole", 20, *OFTEN)
    child = start("killed", 20, 0, 10, place, killed)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    resumed, log = train("killed", 20, *OFTEN)
    assert "/killed/checkpoint_last.pt (epoch 2 @ 7 updates)" in log
    assert_identical(resumed, whole)
    assert sorted(path.name for path in (tmp_path / "killed").iterdir()) == sorted(
        path.name for path in (tmp_path / "whole").iterdir()
    )


@pytest.mark.slow
@pytest.mark.process
def test_killed_at_random_moments(train, start):
    """Ten times, each within the first third of a training; nearly all of the time is spent on saving."""
    begin = time.monotonic()
    whole, _ = train("whole", 60, *OFTEN)
    moments = [random.uniform(0, (time.monotonic() - begin) / 3) for _ in range(10)]
    ends = []
    for seconds in moments:
        child = start("killed", 60)
        time.sleep(seconds)
        os.kill(child, signal.SIGKILL)
        ends.append(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    assert -signal.SIGKILL in ends, moments
    resumed, _ = train("killed", 60, *OFTEN)
    assert_identical(resumed, whole)


# Signals: a training that gets one saves before it ends.


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_signalled(train, tmp_path, number, place):
    """Update 10 is within an epoch, validated and saved. Whenever the signal comes, this update is the last one."""
    often = ("--save-interval-updates", 5, "--no-last-checkpoints", "--keep-interval-updates", 1)
    whole, _ = train("whole", 20)
    with fail_at(0, 10, place, signalled(number)) as had:
        half, log = train("halves", 20, *often, status=130 if number == signal.SIGINT else 75)
    assert had == [10] and half["/updates"] == 10
    assert f"{number.name}: the training ends after 10 updates" in log
    status = json.loads((tmp_path / "halves" / "status.json").read_text())
    assert status == {"state": "to be continued", "updates": 10, "max_update": 20, "epoch": 2, "max_epoch": None}
    resumed, _ = train("halves", 20)
    assert_identical(resumed, whole)
    status = json.loads((tmp_path / "halves" / "status.json").read_text())
    assert (status["state"], status["updates"]) == ("done", 20)


def test_a_training_of_epochs_is_done(train, tmp_path):
    train("run", 60, "--max-epoch", 2)
    status = json.loads((tmp_path / "run" / "status.json").read_text())
    assert status == {"state": "done", "updates": 14, "max_update": 60, "epoch": 2, "max_epoch": 2}


def test_signalled_after_the_last_update(train):
    """The training ends normally."""
    with fail_at(0, 4, "after update", signalled(signal.SIGTERM)):
        ended, log = train("whole", 4)
    assert ended["/updates"] == 4 and "done training" in log


def test_signalled_before_the_first_update(call_command, tiny_data, tiny_options, monkeypatch):
    """There is nothing to save yet."""
    from fairseq.trainer import Trainer

    monkeypatch.setattr(Trainer, "get_train_iterator", lambda *args, **options: signalled(signal.SIGTERM)())
    words = (*tiny_options.training, "--max-update", 4, "--save-dir", "run")
    call_command("train", tiny_data, *words, status=75)


def test_interrupted_twice(train):
    """The second Ctrl-C does not wait for the end of the update."""
    train("run", 2)

    def twice():
        signalled(signal.SIGINT)()
        signalled(signal.SIGINT)()

    with fail_at(0, 4, "before update", twice):
        left, log = train("run", 9, status=130)
    assert left["/updates"] == 2 and "once more" in log


def test_nothing_is_saved_with_no_save(call_command, tiny_data, tiny_options, tmp_path):
    words = (*tiny_options.training, "--max-update", 9, "--save-dir", "run", "--no-save")
    with fail_at(0, 3, "after update", signalled(signal.SIGTERM)):
        log = call_command("train", tiny_data, *words, status=75).stdout
    assert "--no-save" in log and not list(tmp_path.glob("run/*.pt"))


def test_signal_handlers_are_restored_after_a_training(train):
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)]
    train("run", 1)
    assert [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGUSR1, signal.SIGINT)] == before


def test_other_seed_other_result(train):
    first, _ = train("first", 3)
    other, _ = train("other", 3, "--seed", 2)
    assert not torch.equal(first["/model/lm_head.dense.weight"], other["/model/lm_head.dense.weight"])
