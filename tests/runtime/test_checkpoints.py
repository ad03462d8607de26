"""Checkpoints are loaded without trust, bad ones are named, and a training saves complete ones, alone in its folder."""

import argparse
import collections
import os
import sys
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from fairseq.trainer import Trainer
from fairseq_cli import train
from omegaconf import OmegaConf
from torch import nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import checkpoints

# Which of a checkpoint's classes are checked depends on what is built.


@pytest.fixture
def saved(tmp_path):
    """A checkpoint of a model and a task that no checkpoint may have built."""
    state = {
        "args": None,
        "cfg": {"model": {"_name": "fconv", "encoder_layers": "[(512, 3)] * 20"}, "task": {"_name": "semisupervised"}},
        "model": {"weight": torch.ones(2)},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 3}],
        "extra_state": {"train_iterator": {"epoch": 1}},
    }
    torch.save(state, tmp_path / "a.pt")
    return str(tmp_path / "a.pt")


def test_a_training_of_the_users_own_model_is_resumed(saved):
    loaded = {}

    class OfTheCommandLine(torch.nn.Module):
        def set_num_updates(self, number):
            loaded["updates"] = number

        def load_state_dict(self, weights, **options):
            loaded["weights"] = weights

    trainer = SimpleNamespace(
        cfg=SimpleNamespace(
            checkpoint=SimpleNamespace(
                load_checkpoint_on_all_dp_ranks=False, finetune_from_model=saved, reset_dataloader=False
            ),
            model=SimpleNamespace(base_layers=0),
            ema=SimpleNamespace(store_ema=False),
            distributed_training=SimpleNamespace(zero_sharding="none"),
        ),
        **{"data_parallel_world_size": 1, "data_parallel_rank": 0, "tpu": False, "is_fsdp": False},
        model=OfTheCommandLine(),
        get_criterion=torch.nn.Identity,
        lr_step=lambda epoch: None,
        get_num_updates=lambda: 3,
    )
    Trainer.load_checkpoint(trainer, saved, reset_optimizer=True)
    assert loaded["updates"] == 3
    assert loaded["weights"].keys() == {"weight"}


def test_the_task_is_built_unless_it_is_given(saved):
    with pytest.raises(UserError, match=r"a\.pt: cfg\.model\._name is 'fconv'(?s:.*)cfg\.task\._name is 'semisuperv"):
        checkpoint_utils.load_model_ensemble_and_task([saved])
    with pytest.raises(UserError, match=r"a\.pt: cfg\.model\._name is 'fconv'") as error:
        checkpoint_utils.load_model_ensemble([saved], task=object())
    assert "cfg.task" not in str(error.value)


def test_pytorch_itself_is_left_alone(saved):
    assert checkpoint_utils.torch.load is not torch.load
    assert torch.load(saved, weights_only=True)["cfg"]["model"]["_name"] == "fconv"


# fairseq's own loading reports bad checkpoints by name.


def checkpoint(**entries):
    return {
        "args": None,
        "cfg": {"model": argparse.Namespace(arch="unilm_tiny")},
        "model": {"weight": torch.ones(2)},
        "optimizer_history": [{"optimizer_name": "FairseqAdam", "lr_scheduler_state": {}, "num_updates": 3}],
        "extra_state": {"train_iterator": {"epoch": 1}},
        **entries,
    }


def save(path, state):
    torch.save(state, path)
    return str(path)


def test_loads_a_good_checkpoint(tmp_path):
    state = checkpoint_utils.load_checkpoint_to_cpu(save(tmp_path / "good.pt", checkpoint()))
    assert state["cfg"].model.arch == "unilm_tiny"
    assert state["optimizer_history"][-1]["num_updates"] == 3


def test_refuses_other_types(tmp_path):
    path = save(tmp_path / "foreign.pt", checkpoint(extra=collections.UserDict()))
    with pytest.raises(UserError, match=r"foreign\.pt: refused, it holds collections\.UserDict\."):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_names_a_truncated_file(tmp_path):
    path = save(tmp_path / "whole.pt", checkpoint())
    truncated = tmp_path / "truncated.pt"
    truncated.write_bytes((tmp_path / "whole.pt").read_bytes()[:700])
    with pytest.raises(UserError, match=r"truncated\.pt \(700 bytes\): not a PyTorch checkpoint, or a truncated"):
        checkpoint_utils.load_checkpoint_to_cpu(str(truncated))
    assert checkpoint_utils.load_checkpoint_to_cpu(path)


def test_refuses_weights_alone(tmp_path):
    path = save(tmp_path / "weights.pt", {f"layer{number}": torch.ones(1) for number in range(7)})
    message = r"weights\.pt: not a fairseq checkpoint.* this file holds layer0, layer1, layer2, layer3, layer4, \.\.\."
    with pytest.raises(UserError, match=message):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_an_error_of_fairseq_names_the_file(tmp_path):
    path = save(tmp_path / "unfinished.pt", checkpoint(optimizer_history=[]))
    with pytest.raises(UserError, match=r"unfinished\.pt: fairseq cannot read its configuration: IndexError"):
        checkpoint_utils.load_checkpoint_to_cpu(path)


def test_names_a_missing_model(tmp_path):
    with pytest.raises(UserError, match=r"Model file not found: .*nothing\.pt \(--path\)"):
        checkpoint_utils.load_model_ensemble([str(tmp_path / "nothing.pt")])


RESTORING = ["restore_file", "finetune_from_model", "continue_once"]


def restore(tmp_path, **options):
    """Look for the checkpoint of a training, as fairseq does at its start."""
    defaults = {"restore_file": "checkpoint_last.pt", "finetune_from_model": None, "continue_once": None}
    cfg = SimpleNamespace(**defaults | {"save_dir": str(tmp_path / "saved")} | options)
    checkpoint_utils.load_checkpoint(cfg, SimpleNamespace(checkpoint_suffix=""))


@pytest.mark.parametrize("option", RESTORING)
def test_a_requested_checkpoint_must_exist(tmp_path, option):
    message = rf"--{option.replace('_', '-')} nothing\.pt: no such checkpoint file"
    with pytest.raises(UserError, match=message):
        restore(tmp_path, **{option: "nothing.pt"})


@pytest.mark.parametrize("option", RESTORING)
def test_a_checkpoint_is_no_folder(tmp_path, option):
    message = rf"--{option.replace('_', '-')} {tmp_path}: a checkpoint file is needed, but this is a folder"
    with pytest.raises(UserError, match=message):
        restore(tmp_path, **{option: str(tmp_path)})


def test_the_last_checkpoint_is_no_folder(tmp_path):
    (tmp_path / "saved" / "checkpoint_last.pt").mkdir(parents=True)
    with pytest.raises(UserError, match=r"--save-dir .*saved/checkpoint_last\.pt: a checkpoint file is needed"):
        restore(tmp_path)


# A training without initial weights is refused unless random weights are requested, by every interface.


RESUMING = SimpleNamespace(finetune_from_model=None, reset_dataloader=False)
OPTIMIZER = SimpleNamespace(optimizer=torch.optim.SGD([torch.zeros(1, requires_grad=True)]))
REFUSED = r"--pretrained is needed: .*\(last\.pt does not exist\), 6 random weights would be trained; .*--random-init"


def begin(loaded=None, *, random=True, **options):
    """Start a training whose checkpoint is `loaded`; return what fairseq's trainer would."""
    model = nn.Linear(2, 2)
    model.has_random_weights = random
    task = SimpleNamespace(may_begin_at_random=options.pop("pretraining", False))
    cfg = SimpleNamespace(model=SimpleNamespace(**options), checkpoint=RESUMING)
    trainer = SimpleNamespace(get_model=lambda: model, task=task, cfg=cfg, optimizer=OPTIMIZER)
    return checkpoints._load_for_training(lambda *_: loaded, trainer, "last.pt")


def test_refuses_random_weights():
    with pytest.raises(UserError, match=REFUSED):
        begin()
    with pytest.raises(UserError, match=REFUSED):
        begin(random_init=False)


def test_requested_random_weights(caplog):
    caplog.set_level("INFO")
    assert begin(random_init=True) is None
    assert begin(pretraining=True) is None
    assert caplog.text.count("the training begins with 6 random weights") == 2


def test_initial_weights(caplog):
    caplog.set_level("INFO")
    state = {"epoch": 2}
    assert begin(state) is state  # resumed, or of --restore-file and the like
    assert begin(random=False) is None  # --pretrained
    assert not caplog.text


@pytest.fixture
def fairseq_train(run_process):
    """Run a failing ``fairseq-train`` with the plugin as ``--user-dir``, and return what it prints."""
    if sys.version_info >= (3, 14):
        pytest.skip("fairseq-train does not start there: docs/dependencies.md#python")
    plugin = Path(__file__).resolve().parents[2] / "s2sft_fairseq"

    def run(*words):
        command = Path(sys.executable).with_name("fairseq-train")
        return run_process(command, *words, "--user-dir", plugin, "--task", "unilm_seq2seq", status=1).stderr

    return run


def test_every_interface(call_command, tiny_data, tiny_options, fairseq_train, tmp_path):
    words = [word for word in tiny_options.training if word != "--random-init"]
    words = (tiny_data, *words, "--max-update", 1, "--save-dir", tmp_path / "saved")
    error = call_command("train", *words, status=2).stderr
    assert "error: --pretrained is needed" in error and "--random-init" in error and "Traceback" not in error
    assert "error: --pretrained is needed" in fairseq_train(*words)
    model = ("model=unilm", "+model.encoder_layers=1", "+model.encoder_embed_dim=16", "+model.encoder_ffn_embed_dim=32")
    folders = (f"task.data={tiny_data}", f"checkpoint.save_dir={tmp_path}/saved", f"hydra.run.dir={tmp_path}/run")
    hydra = ("task=unilm_seq2seq", *model, "+model.encoder_attention_heads=2", "criterion=mask_attention", *folders)
    options = ("optimizer=adam", "dataset.batch_size=8", "common.cpu=true")
    assert "error: --pretrained is needed" in call_command("hydra-train", *hydra, *options, status=2).stderr
    assert not list(tmp_path.glob("saved/*.pt"))


def test_a_resumed_training_needs_neither(call_command, tiny_data, tiny_options, tmp_path):
    words = (tiny_data, *tiny_options.training, "--save-dir", tmp_path / "saved")
    call_command("train", *words, "--max-update", 1)
    plain = [word for word in words if word != "--random-init"]
    assert "@ 1 updates" in call_command("train", *plain, "--max-update", 2).stdout
    begin = (*plain[:-1], tmp_path / "second", "--max-update", 1)
    last = tmp_path / "saved" / "checkpoint_last.pt"
    call_command("train", *begin, "--finetune-from-model", last)
    call_command("train", *begin[:-4], "--save-dir", tmp_path / "third", "--max-update", 3, "--restore-file", last)


# A task gets its saved state when a training is resumed, and only then.


@pytest.fixture
def told(monkeypatch):
    """The states that a task gets; the checkpoint is `told.checkpoint`."""
    last = {"criterion_name": "A", "optimizer_name": "B", "lr_scheduler_state": {}, "num_updates": 3}
    told = SimpleNamespace(states=[], optimizer=OPTIMIZER, cfg=SimpleNamespace(checkpoint=RESUMING))
    told.checkpoint = {
        "task_state": {"classes": ["no", "yes"]},
        "optimizer_history": [last],
        "last_optimizer_state": {"state": {}, "param_groups": []},
        "extra_state": {"train_iterator": {"epoch": 1, "iterations_in_epoch": 0}},
    }
    monkeypatch.setattr(checkpoints, "_rename_optimizer", lambda *_: None)
    told.task = SimpleNamespace(load_state_dict=told.states.append)
    monkeypatch.setattr(checkpoint_utils, "load_checkpoint_to_cpu", lambda path, **_: told.checkpoint)
    return told


def load(trainer, filename, reset_optimizer=False, *_):
    return checkpoint_utils.load_checkpoint_to_cpu(filename, load_on_all_ranks=False)


def test_a_resumed_training(told):
    before = checkpoint_utils.load_checkpoint_to_cpu
    assert checkpoints._load_for_training(load, told, "last.pt") == told.checkpoint
    assert told.states == [{"classes": ["no", "yes"]}]
    assert checkpoint_utils.load_checkpoint_to_cpu is before


def test_a_new_training_from_old_weights(told):
    checkpoints._load_for_training(load, told, "best.pt", True)
    assert told.states == []


def test_a_checkpoint_without_such_a_state(told):
    del told.checkpoint["task_state"]
    checkpoints._load_for_training(load, told, "old.pt")
    assert told.states == []


def test_the_trainer_has_it():
    assert Trainer.load_checkpoint.__wrapped__.__module__ == "fairseq.trainer"


# Options that a model determines are stored where checkpoints keep them, unless the model comes from a checkpoint.


def test_options_are_kept_in_training_only():
    model = SimpleNamespace(settled_options={"pretrained": None, "encoder_layers": 4})
    build = partial(checkpoints._build_model, lambda cfg, task, from_checkpoint: model)
    cfg = SimpleNamespace(pretrained="folder", dropout=0.5)
    assert build(cfg, None, True) is model
    assert vars(cfg) == {"pretrained": "folder", "dropout": 0.5}
    assert build(cfg, None) is model
    assert vars(cfg) == {"pretrained": None, "encoder_layers": 4, "dropout": 0.5}


def test_models_that_settle_nothing():
    cfg = SimpleNamespace(dropout=0.5)
    checkpoints._build_model(lambda cfg, task, from_checkpoint: object(), cfg, None)
    assert vars(cfg) == {"dropout": 0.5}


# A training saves each checkpoint completely, alone in its folder.


STATE = {"weight": torch.ones(3)}


@pytest.fixture
def configuration():
    cfg = OmegaConf.structured(FairseqConfig)
    cfg.common.cpu = True
    cfg.distributed_training.distributed_world_size = 1
    return cfg


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def test_saving_and_copying_are_ours(tmp_path):
    source, target = tmp_path / "checkpoint_1_20.pt", tmp_path / "checkpoint_last.pt"
    target.write_bytes(b"old")
    checkpoint_utils.torch_persistent_save(STATE, str(source))
    assert PathManager.copy(str(source), str(target), overwrite=True)
    assert target.read_bytes() == source.read_bytes()
    assert torch.equal(torch.load(target, weights_only=True)["weight"], STATE["weight"])
    assert names(tmp_path) == [source.name, target.name]


def test_files_elsewhere_are_left_to_fairseq(monkeypatch):
    monkeypatch.setattr(PathManager, "supports_rename", staticmethod(lambda path: False))
    calls = []
    checkpoints._save(lambda *words: calls.append(words), STATE, "s3://bucket/a.pt", True)
    copy = partial(checkpoints._copy, lambda *words, overwrite: calls.append((*words, overwrite)))
    copy("s3://bucket/a.pt", "s3://bucket/b.pt", overwrite=True)
    checkpoints._lock(calls.append, "s3://bucket")
    assert calls == [(STATE, "s3://bucket/a.pt", True), ("s3://bucket/a.pt", "s3://bucket/b.pt", True), "s3://bucket"]
    assert not checkpoints._locks


def test_the_folder_is_locked_while_a_training_runs(tmp_path, configuration):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    left = f".checkpoint_last.pt.{os.getpid()}-0123abcd.tmp"
    for name in (left, ".crash.pt.1-0123abcd.tmp", ".mine.1-0123abcd.tmp", "checkpoint_last.pt"):
        (folder / name).write_text("")

    def train(cfg):
        for _ in range(2):
            checkpoint_utils.verify_checkpoint_directory(str(folder))
        assert names(folder) == [".lock", ".mine.1-0123abcd.tmp", "checkpoint_last.pt"]
        raise KeyboardInterrupt

    for _ in range(2):
        with pytest.raises(KeyboardInterrupt):
            distributed_utils.call_main(configuration, train)
        assert names(folder) == [".mine.1-0123abcd.tmp", "checkpoint_last.pt"]


def test_a_training_that_saves_nothing_locks_nothing(tmp_path, configuration):
    configuration.checkpoint.no_save = True

    def train(cfg):
        checkpoint_utils.verify_checkpoint_directory(str(tmp_path))
        assert names(tmp_path) == []

    distributed_utils.call_main(configuration, train)
    assert checkpoint_utils.verify_checkpoint_directory.__wrapped__


def test_saving_in_threads_is_refused(configuration):
    configuration.checkpoint.write_checkpoints_asynchronously = True
    with pytest.raises(UserError, match="--save-async"):
        distributed_utils.call_main(configuration, lambda cfg: pytest.fail("trained"))


@pytest.mark.parametrize(("rank", "written"), [(0, ["saved"]), (8, [])])
def test_the_model_folder_of_a_training_in_several_processes(configuration, monkeypatch, rank, written):
    """The process that starts one per GPU has no rank afterwards; on several machines, the first one writes."""
    found = []
    folders = SimpleNamespace(export_after_training=lambda folder, *others: found.append(folder.name))
    monkeypatch.setitem(sys.modules, "s2sft_fairseq.models.model_folder", folders)
    configuration.checkpoint.save_dir = "saved"
    configuration.model = {"no_model_folder": False, "pretrained": None}
    ranks = configuration.distributed_training
    ranks.distributed_init_method, ranks.distributed_rank = "tcp://localhost:1", rank

    def spawn(cfg, main):
        cfg.distributed_training.distributed_rank = None

    checkpoints._run(spawn, configuration, train.main)
    assert found == written
