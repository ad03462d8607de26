"""The metric of the best checkpoint must be one that is measured."""

from types import SimpleNamespace

import pytest
from fairseq_cli import train

from s2sft_fairseq.errors import UserError


def test_names_what_is_measured():
    cfg = SimpleNamespace(
        checkpoint=SimpleNamespace(best_checkpoint_metric="pearson", maximize_best_checkpoint_metric=True)
    )
    trainer = SimpleNamespace(get_num_updates=lambda: 7)
    with pytest.raises(UserError, match="--best-checkpoint-metric must be one of accuracy, loss, but is pearson"):
        train.get_valid_stats(cfg, trainer, {"loss": 1.0, "accuracy": 2.0}, False)
    assert train.get_valid_stats(cfg, trainer, {"pearson": 1.0}, False) == {"pearson": 1.0, "num_updates": 7}
