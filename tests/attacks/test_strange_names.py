"""Names of weights that are no plain text, such as numbers and tuples, or imply a billion layers."""

import pickle

import numpy as np
import pytest
import torch
from hostile_files import forget_peak, most_memory, save_weights

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint, load_pickle
from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import convert_encoder


@pytest.mark.parametrize(
    "name", [0, -1, (1, 2), None, 10**600, b"a", "a\nb", "\ud800", "\x1b[2J"], ids=lambda name: f"{name!r:.10}"
    if not isinstance(name, int) or abs(name) < 10 else "huge"
)  # fmt: skip
def test_names_that_are_no_plain_text(tmp_path, name):
    path = save_weights(tmp_path, {name: torch.zeros(2)})
    with pytest.raises(UserError, match=r"pytorch_model\.bin: names must be plain text, but one is "):
        open_source(path)
    with pytest.raises(UserError, match=r"pytorch_model\.bin: names must be plain text, but one is "):
        load_checkpoint(save_weights(tmp_path, {"cfg": {}, "model": {name: torch.zeros(2)}}))


def test_names_of_a_paddle_file(tmp_path):
    (tmp_path / "a.pdparams").write_bytes(pickle.dumps({(1, 2): np.zeros(3)}, protocol=2))
    with pytest.raises(UserError, match=r"a\.pdparams: names must be plain text, but one is \(1, 2\)"):
        load_pickle(tmp_path / "a.pdparams")


@pytest.mark.parametrize(
    "name", ["model.layers.999999999.attn.Wqkv.weight", f"bert.layer.{'9' * 5000}.a", "decoder.layers.999999999.fc3.w"]
)
def test_names_that_imply_a_billion_layers(tmp_path, name):
    before = forget_peak()
    with pytest.raises(UserError):
        convert_encoder(open_source(save_weights(tmp_path, {name: torch.zeros(2)}, model_type="unknown")))
    assert most_memory() - before < 10**8
