"""What a training resumes from is checked: each damaged count or state is an error that names it."""

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from fairseq import checkpoint_utils

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.training_state import check_moments, check_training_state
from s2sft_fairseq.errors import UserError

PLACE = ("extra_state", "train_iterator")
LAST = ("optimizer_history", -1)
NAN, INF = math.nan, math.inf


def changed(value: Any, *path: Any) -> Callable[[dict[str, Any]], None]:
    """Return a function that sets a value of a checkpoint."""

    def change(state: dict[str, Any]) -> None:
        *places, name = path
        for place in places:
            state = state[place]
        state[name] = value

    return change


@pytest.fixture
def damaged(tiny_training, tmp_path):
    """Save the checkpoint of a training with changes, and check it as a training that resumes does."""

    def check(*path_and_value: Any, **needed: bool) -> None:
        *path, value = path_and_value
        state = load_checkpoint(tiny_training.checkpoint)
        changed(value, *path)(state)
        file = str(tmp_path / "damaged.pt")
        torch.save(state, file)
        loaded = checkpoint_utils.load_checkpoint_to_cpu(file)
        check_training_state(file, loaded, **{"with_optimizer": True, **needed})

    return check


@pytest.mark.parametrize("name", ["epoch", "iterations_in_epoch"])
@pytest.mark.parametrize("value", [-5, NAN, INF, "2", None, [1], True, 1.0, 10**12, torch.ones(3)])
def test_counts_of_the_data(damaged, name, value):
    with pytest.raises(
        UserError, match=rf"(?s)damaged\.pt.*train_iterator\.{name} must be a whole number from [01] to"
    ):
        damaged(*PLACE, name, value)


@pytest.mark.parametrize("value", [-1, NAN, INF, "3", None, 2.5, 10**40])
def test_the_number_of_updates(damaged, value):
    with pytest.raises(UserError, match=r"(?s)damaged\.pt.*num_updates must be a whole number from 0"):
        damaged(*LAST, "num_updates", value)


@pytest.mark.parametrize(
    ("path", "value", "named"),
    [
        (("extra_state",), [1], "extra_state must be "),
        (("extra_state",), None, ""),
        (("extra_state", "train_iterator"), 3, "extra_state must be an object with a train_iterator"),
        ((*PLACE, "shuffle"), "yes", "train_iterator.shuffle must be True or False"),
        ((*PLACE, "version"), "2", "train_iterator.version"),
        ((*PLACE, "ranks"), 0, "train_iterator.ranks"),
        ((*PLACE, "examples"), -1, "train_iterator.examples"),
        ((*PLACE, "batches"), 7, "train_iterator.batches must be a text"),
        ((*PLACE, "read"), [1, 2], "train_iterator.read must be a tensor of bytes"),
        ((*PLACE, "read"), None, "train_iterator.read must be a tensor of bytes"),
        ((*PLACE, "read_before"), torch.zeros(2, 2, dtype=torch.uint8), "train_iterator.read_before"),
        (("extra_state", "best"), NAN, "extra_state.best must be a finite number"),
        (("extra_state", "best"), None, "extra_state.best must be a finite number"),
        (("extra_state", "previous_training_time"), None, "extra_state.previous_training_time must be a finite number"),
        ((*PLACE, "iterations_in_epoch"), 0, "iterations_in_epoch must be above 0 where examples were read"),
        (("extra_state", "val_loss"), "low", "extra_state.val_loss must be a finite number"),
        (("extra_state", "previous_training_time"), INF, "extra_state.previous_training_time"),
        (("optimizer_history",), [], ""),
        (("optimizer_history",), "none", ""),
        (("optimizer_history",), [3], ""),
        ((*LAST, "criterion_name"), 3, "optimizer_history.criterion_name must be a text"),
        ((*LAST, "optimizer_name"), None, "optimizer_history.optimizer_name must be a text"),
        ((*LAST, "lr_scheduler_state"), [], "optimizer_history.lr_scheduler_state must be an object"),
        ((*LAST, "lr_scheduler_state", "lr"), -5, "optimizer_history.lr_scheduler_state.lr must be a number from 0 on"),
        ((*LAST, "lr_scheduler_state", "lr"), "fast", "optimizer_history.lr_scheduler_state.lr must be a number from"),
        ((*LAST, "lr_scheduler_state", "best"), "low", "optimizer_history.lr_scheduler_state.best must be a number"),
        ((*LAST, "num_updates"), 0, "optimizer_history.num_updates must be above 0 where moments are"),
        (("extra_state", "metrics"), 3, "extra_state.metrics must be an object"),
        (("extra_state", "metrics", "train"), [3], "extra_state.metrics.train must be a list of meters"),
        (("extra_state", "metrics", "train", 0, 3, "sum"), "x", "extra_state.metrics.train must be a list of meters"),
        (("extra_state", "metrics", "default"), [], "extra_state.metrics.default must have the meter wall"),
        (("last_optimizer_state",), None, "last_optimizer_state is missing, .* --reset-optimizer"),
        (("last_optimizer_state",), [1], "last_optimizer_state must be an object"),
        (("last_optimizer_state", "param_groups"), None, "last_optimizer_state must be an object with a list"),
        (("last_optimizer_state", "param_groups", 0), 3, "last_optimizer_state.param_groups.0 must be an object"),
        (("last_optimizer_state", "param_groups", 0, "lr"), NAN, "last_optimizer_state.param_groups.0.lr must be fin"),
        (("last_optimizer_state", "state"), [], "last_optimizer_state.state must be an object of objects"),
        (("last_optimizer_state", "state", 0), 1, "last_optimizer_state.state must be an object of objects"),
        (("last_optimizer_state", "state", 0, "step"), -1, "last_optimizer_state.state.0.step must be a number from 0"),
        (("last_optimizer_state", "state", 0, "step"), NAN, "last_optimizer_state.state.0.step must be a number"),
        (
            ("last_optimizer_state", "state", 0, "exp_avg"),
            torch.full((2,), NAN),
            "last_optimizer_state.state.0.exp_avg must be finite, but is NaN",
        ),
    ],
)
def test_parts(damaged, path, value, named):
    with pytest.raises(UserError, match=rf"(?s)damaged\.pt.*{named}"):
        damaged(*path, value)


def test_all_problems_at_once(tiny_training):
    state = load_checkpoint(tiny_training.checkpoint)
    state["optimizer_history"][-1]["num_updates"] = NAN
    state["extra_state"]["train_iterator"]["epoch"] = -5
    with pytest.raises(UserError) as error:
        check_training_state("file", state, with_optimizer=True)
    assert len(error.value.problems) == 2


def test_whole(tiny_training, damaged):
    check_training_state("file", load_checkpoint(tiny_training.checkpoint), with_optimizer=True)
    damaged("last_optimizer_state", None, with_optimizer=False)
    damaged("extra_state", "best", NAN, with_meters=False)
    damaged("extra_state", "previous_training_time", torch.tensor(3.0))  # of several ranks, by earlier versions


@pytest.mark.parametrize("shape", [(1,), (4, 6), (4,), (6,), (4, 1), (1, 6)])
def test_moments_that_fit(shape):
    optimizer = torch.optim.Adam([torch.zeros(4, 6, requires_grad=True)])
    optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"] = torch.zeros(shape)
    check_moments("file", optimizer)


@pytest.mark.parametrize("shape", [(4, 5), (24,), (6, 4), (4, 6, 2)])
def test_moments_of_another_shape(shape):
    optimizer = torch.optim.Adam([torch.zeros(4, 6, requires_grad=True)])
    optimizer.state[optimizer.param_groups[0]["params"][0]]["exp_avg"] = torch.zeros(shape)
    with pytest.raises(UserError, match=r"^file: .* exp_avg of shape .*--reset-optimizer"):
        check_moments("file", optimizer)
