"""Training that is stopped and started again ends bit for bit where uninterrupted training ends, on the CPU."""

import pytest
import torch

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint

# The corpus has 50 pairs. The original's corruption and dropout draw random numbers in every update.
DRAWS = ("--corruption", "original", "--source-mask-prob", "0.1", "--dropout", "0.1", "--attention-dropout", "0.1")
SCHEDULE = ("--lr-scheduler", "polynomial_decay", "--warmup-updates", "5", "--total-num-update", "30")


def flat(state, name=""):
    """Every value of nested dictionaries and lists, by its path."""
    if isinstance(state, dict):
        return {path: value for key, inner in state.items() for path, value in flat(inner, f"{name}/{key}").items()}
    if isinstance(state, list | tuple):
        return {path: value for key, inner in enumerate(state) for path, value in flat(inner, f"{name}/{key}").items()}
    return {name: state}


def trained_state(folder):
    """What training goes on from: parameters, optimiser, schedule, place in the data, task."""
    state = load_checkpoint(folder / "checkpoint_last.pt")
    parts = {name: state[name] for name in ("model", "last_optimizer_state", "task_state")}
    parts["schedule"] = state["optimizer_history"][-1]["lr_scheduler_state"]
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
    """Train until an update and return what was saved; what is in the folder already is gone on from."""

    def run(name, until, *words):
        options = (*tiny_options.training, *DRAWS, *SCHEDULE, "--max-update", until, "--save-dir", tmp_path / name)
        done = call_command("train", tiny_data, *options, *words)
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
def test_data_loading_workers_change_nothing(train):
    alone, _ = train("alone", 12, "--num-workers", 0)
    helped, _ = train("helped", 12, "--num-workers", 2)
    assert_identical(helped, alone)


def test_resumed_in_a_new_process(train, fairseq_command, tiny_data, tiny_options, tmp_path):
    whole, _ = train("whole", 20)
    train("halves", 10)
    options = (*tiny_options.training, *DRAWS, *SCHEDULE, "--max-update", "20", "--save-dir", "halves")
    fairseq_command(tmp_path, "train", tiny_data, *options)
    assert_identical(trained_state(tmp_path / "halves"), whole)


def test_other_seed_other_result(train):
    first, _ = train("first", 3)
    other, _ = train("other", 3, "--seed", 2)
    assert not torch.equal(first["/model/lm_head.dense.weight"], other["/model/lm_head.dense.weight"])
