"""A training that resumes names each option that differs, and refuses those with which it would be another one."""

import math

import pytest
import torch
from fairseq.trainer import Trainer

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint


@pytest.fixture
def resume(call_command, tiny_data, tiny_options, tiny_training, tmp_path):
    """Continue `tiny_training` up to update 4 with other options, from a copy with changes."""

    def run(*options, status=0, change=None):
        state = load_checkpoint(tiny_training.checkpoint)
        if change is not None:
            change(state)
        (tmp_path / "run").mkdir(exist_ok=True)
        torch.save(state, tmp_path / "run" / "checkpoint_last.pt")
        words = ("train", tiny_data, *tiny_options.training, "--max-update", 4, "--save-dir", "run")
        done = call_command(*words, *options, status=status)
        return done.stdout + done.stderr

    return run


def differing(log):
    """Return the options that a log says to differ, with the values of both trainings."""
    (line,) = [
        line for line in log.splitlines() if "options that differ from those of run/checkpoint_last.pt: " in line
    ]
    return sorted(line.partition("checkpoint_last.pt: ")[2].split(", "))


def test_every_option_that_differs_is_named(resume):
    log = resume("--lr", 0.02, "--dropout", 0.2, "--seed", 2, "--max-tokens", 200, "--update-freq", 2)
    assert differing(log) == [
        "--dropout 0.2 (was 0.1)",
        "--lr [0.02] (was [0.01])",
        "--max-tokens 200 (was None)",
        "--max-tokens-valid 200 (was None)",
        "--max-update 4 (was 3)",
        "--seed 2 (was 1)",
        "--update-freq [2] (was [1])",
    ]
    assert "26 examples that were not read yet" in log


def test_more_updates_go_on(resume):
    assert differing(resume()) == ["--max-update 4 (was 3)"]


def test_epochs_that_are_done(resume):
    words = ("--max-update", 0, "--max-epoch", 1)
    assert "nothing is left to train" not in resume(*words)

    def at_the_end(state):
        place = state["extra_state"]["train_iterator"]
        place.update(epoch=3, iterations_in_epoch=0)
        del place["read"]

    assert "nothing is left to train: 2 epochs are done, and --max-epoch is 1" in resume(*words, change=at_the_end)


def test_the_method_that_is_the_default_is_the_same(resume):
    assert differing(resume("--finetune-method", "pseudo_masked"))[-1] == "--max-update 4 (was 3)"


@pytest.mark.parametrize(
    ("options", "option", "way"),
    [
        (("--finetune-method", "masked"), "--finetune-method is masked, but was pseudo_masked", "--reset-optimizer"),
        (("--corruption", "original"), "--corruption is original, but was paper", "--reset-optimizer"),
        (("--source-segments", "1"), "--source-segments is 1, but was 0", "--reset-optimizer"),
        (("--optimizer", "fused_adamw"), "--optimizer is fused_adamw, but was adam", "--reset-optimizer"),
        (("--weight-decay", "0.1"), "--weight-decay is 0.1, but was 0.0", "--reset-optimizer"),
        (("--lr-scheduler", "inverse_sqrt"), "--lr-scheduler is inverse_sqrt, but was fixed", "--reset-lr-scheduler"),
        (("--label-smoothing", "0.2"), "--label-smoothing is 0.2, but was 0.1", "--reset-meters"),
        (("--best-checkpoint-metric", "ppl"), "--best-checkpoint-metric is ppl, but was loss", "--reset-meters"),
        (("--activation-fn", "relu"), "--activation-fn is relu, but was gelu", "--reset-optimizer"),
    ],
)
def test_another_training_is_refused(resume, options, option, way):
    log = resume(*options, status=2)
    assert f"{option} ({way})" in log
    if way != "--reset-lr-scheduler":
        resume(*options, way)


def test_a_moving_average_that_the_checkpoint_lacks(resume):
    log = resume("--store-ema", status=2)
    assert "--store-ema is True, but the checkpoint has no moving average (--finetune-from-model)" in log


def test_another_size_is_refused(resume):
    """Its weights would have other shapes."""
    assert "--encoder-layers is 2, but was 1" in resume("--encoder-layers", 2, status=2)


def test_a_setting_of_the_optimizer_that_is_overridden(resume):
    resume("--weight-decay", "0.1", "--optimizer-overrides", "{'weight_decay': 0.1}")


def test_all_at_once(resume):
    log = resume("--finetune-method", "masked", "--label-smoothing", 0.2, "--lr-scheduler", "cosine", status=2)
    ways = ("(--reset-optimizer)", "(--reset-lr-scheduler)", "(--reset-meters)")
    assert all(log.count(way) == 1 for way in ways)


def earlier(state):
    place = state["extra_state"]["train_iterator"]
    for name in ("examples", "batches", "read", "read_before"):
        del place[name]


def test_a_checkpoint_of_an_earlier_version(resume):
    """It counts batches: other batches within an epoch are refused."""
    resume(change=earlier)
    log = resume("--batch-size", 4, status=2, change=earlier)
    assert "--batch-size is 4, but was 8 (--reset-dataloader)" in log
    resume("--batch-size", 4, "--reset-dataloader", change=earlier)


def other_moment(state):
    state["last_optimizer_state"]["state"][0]["exp_avg"] = torch.zeros(3)


def other_meters(state):
    state["extra_state"]["metrics"] = [("train", 3)]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda state: state["extra_state"]["train_iterator"].update(epoch=-5), "train_iterator.epoch must be"),
        (lambda state: state["optimizer_history"][-1].update(num_updates=math.nan), "num_updates must be"),
        (lambda state: state["extra_state"]["train_iterator"].update(iterations_in_epoch=99), "must be within epoch 1"),
        (lambda state: state["extra_state"]["train_iterator"].update(examples=9), "--reset-dataloader"),
        (other_moment, "exp_avg of shape (3,)"),
        (other_meters, "the training cannot be resumed from it"),
        (lambda state: state["last_optimizer_state"]["param_groups"][0].update(params=[0]), "cannot be resumed from"),
        (lambda state: state["model"].pop("embeddings.tokens.weight"), "embeddings.tokens.weight is missing"),
    ],
)
def test_damaged(resume, change, message):
    log = resume(status=2, change=change)
    assert message in log and "checkpoint_last.pt" in log and "Traceback" not in log
    assert "nothing is left to train" not in log


DELTALM = (
    *("--task", "deltalm_seq2seq", "--criterion", "label_smoothed_cross_entropy", "--arch", "deltalm_tiny"),
    *("-s", "src", "-t", "tgt"),
)


@pytest.mark.parametrize("options", [(), DELTALM], ids=["unilm", "deltalm"])
@pytest.mark.parametrize(("before", "after"), [(60, 120), (120, 60), (60, 480)])
def test_each_example_is_read_once_in_an_epoch(
    call_command, tiny_data, tiny_options, monkeypatch, options, before, after
):
    """With another --max-tokens from the second update on; after the 50 examples of epoch 1 come those of epoch 2."""
    step, read = Trainer.train_step, []

    def train_step(trainer, samples, *others):
        read.extend(int(number) for sample in samples for number in sample["id"])
        return step(trainer, samples, *others)

    monkeypatch.setattr(Trainer, "train_step", train_step)
    words = [word for word in tiny_options.training if word not in ("--batch-size", "8")]
    words = ("train", tiny_data, *words, *options, "--save-dir", "run", "--max-tokens")
    call_command(*words, before, "--max-update", 2)
    assert 0 < len(read) < 50
    call_command(*words, after, "--max-epoch", 1)
    assert sorted(read) == list(range(50))
