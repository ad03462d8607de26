"""Options that a model settles end up where checkpoints keep them, unless it comes from a checkpoint itself."""

from types import SimpleNamespace

from s2sft_fairseq.runtime.settled_options import _keep_settled


def test_options_are_kept_in_training_only():
    model = SimpleNamespace(settled_options={"pretrained": None, "encoder_layers": 4})
    build = _keep_settled(lambda cfg, task, from_checkpoint: model)
    cfg = SimpleNamespace(pretrained="folder", dropout=0.5)
    assert build(cfg, None, True) is model
    assert vars(cfg) == {"pretrained": "folder", "dropout": 0.5}
    assert build(cfg, None) is model
    assert vars(cfg) == {"pretrained": None, "encoder_layers": 4, "dropout": 0.5}


def test_models_that_settle_nothing():
    cfg = SimpleNamespace(dropout=0.5)
    _keep_settled(lambda cfg, task, from_checkpoint: object())(cfg, None)
    assert vars(cfg) == {"dropout": 0.5}
