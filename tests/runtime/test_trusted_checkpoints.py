"""Which of a checkpoint's classes are looked at follows from who builds them."""

from types import SimpleNamespace

import pytest
import torch
from fairseq import checkpoint_utils
from fairseq.trainer import Trainer

from s2sft_fairseq.errors import UserError


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
            checkpoint=SimpleNamespace(load_checkpoint_on_all_dp_ranks=False),
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
