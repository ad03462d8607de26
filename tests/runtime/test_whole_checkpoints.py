"""A training saves each checkpoint whole, alone in its folder."""

import os

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.dataclass.configs import FairseqConfig
from fairseq.distributed import utils as distributed_utils
from fairseq.file_io import PathManager
from omegaconf import OmegaConf

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import whole_checkpoints

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
    save = whole_checkpoints._save_whole(lambda *words: calls.append(words))
    save(STATE, "s3://bucket/a.pt", True)
    copy = whole_checkpoints._copy_whole(lambda *words, overwrite: calls.append((*words, overwrite)))
    copy("s3://bucket/a.pt", "s3://bucket/b.pt", overwrite=True)
    whole_checkpoints._lock(calls.append)("s3://bucket")
    assert calls == [(STATE, "s3://bucket/a.pt", True), ("s3://bucket/a.pt", "s3://bucket/b.pt", True), "s3://bucket"]
    assert not whole_checkpoints._locks


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
