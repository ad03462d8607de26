"""A task is told its saved state when a training is resumed, and only then."""

from types import SimpleNamespace

import pytest
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from s2sft_fairseq.runtime.resumed_task import _hand_over_state


@pytest.fixture
def told(monkeypatch):
    """What a task is told; the checkpoint is `told.checkpoint`."""
    told = SimpleNamespace(states=[], checkpoint={"task_state": {"classes": ["no", "yes"]}})
    told.task = SimpleNamespace(load_state_dict=told.states.append)
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", lambda path, **_: told.checkpoint)
    return told


def load(trainer, filename, reset_optimizer=False, *_):
    return checkpoint_utils.load_checkpoint_to_cpu(filename, load_on_all_ranks=False)


def test_a_resumed_training(told):
    before = checkpoint_utils.load_checkpoint_to_cpu
    assert _hand_over_state(load)(told, "last.pt") == told.checkpoint
    assert told.states == [{"classes": ["no", "yes"]}]
    assert checkpoint_utils.load_checkpoint_to_cpu is before


def test_a_new_training_from_old_weights(told):
    _hand_over_state(load)(told, "best.pt", True)
    assert told.states == []


def test_a_checkpoint_without_such_a_state(told):
    told.checkpoint = {}
    _hand_over_state(load)(told, "old.pt")
    assert told.states == []


def test_the_trainer_has_it():
    assert Trainer.load_checkpoint.__wrapped__.__module__ == "fairseq.trainer"
