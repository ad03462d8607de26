"""Files of checkpoints that are damaged, incomplete or of another kind; test_live_models.py has valid ones."""

import json
import re
import sys

import pytest
import torch
from hugging_face import save, their_model

from s2sft_fairseq.checkpoints.source_files import open_source
from s2sft_fairseq.errors import UserError


@pytest.fixture(scope="module")
def theirs():
    return their_model("bert")


@pytest.fixture
def source(tmp_path, theirs):
    return save("bert", theirs, tmp_path / "bert")


@pytest.fixture
def sharded(tmp_path, theirs):
    return save("bert", theirs, tmp_path / "sharded", max_shard_size="5KB")


def test_a_folder_and_its_file(source, theirs):
    for path in (source, source / "model.safetensors"):
        found = open_source(path)
        assert found.file == source / "model.safetensors"
        assert found.config["hidden_size"] == theirs.config.hidden_size
        assert torch.equal(found.weights["cls.predictions.bias"], theirs.cls.predictions.bias)


def test_a_folder_of_unilm_with_two_models(source, theirs):
    (source / "model.safetensors").unlink()
    for name in ("unilm1", "unilm1.2"):
        torch.save(theirs.state_dict(), source / f"{name}.bin")
        (source / f"{name}-config.json").write_text(json.dumps({"name": name}))
    with pytest.raises(UserError, match=r"bert must hold .* one model, but holds unilm1\.2\.bin, unilm1\.bin"):
        open_source(source)
    (source / "unilm1-config.json").unlink()
    found = open_source(source)
    assert (found.file.name, found.config) == ("unilm1.2.bin", {"name": "unilm1.2"})


@pytest.mark.parametrize("length", [0, 5, 1000])
def test_truncated_weights(source, length):
    weights = source / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:length])
    with pytest.raises(UserError, match=r"model\.safetensors is damaged or no safetensors file: "):
        open_source(source)


def test_without_the_package_that_reads_the_weights(source, monkeypatch):
    monkeypatch.setitem(sys.modules, "safetensors.torch", None)
    message = r"model\.safetensors needs the package safetensors, which is not installed: pip install safetensors$"
    with pytest.raises(UserError, match=message):
        open_source(source)


def test_missing_shards(sharded):
    shards = sorted(sharded.glob("model-*.safetensors"))
    shards[1].unlink()
    shards[2].unlink()
    with pytest.raises(UserError) as raised:
        open_source(sharded)
    message = str(raised.value)
    assert message.startswith(f"{sharded / 'model.safetensors.index.json'} names {len(shards)} files")
    assert re.findall(r"model-\S+\.safetensors", message) == [shards[1].name, shards[2].name]


def test_an_empty_index(sharded):
    (sharded / "model.safetensors.index.json").write_text("{}")
    with pytest.raises(UserError, match=r"must have a weight_map from names of tensors to names of files"):
        open_source(sharded)


def test_an_index_that_names_too_much(sharded):
    index = sharded / "model.safetensors.index.json"
    table = json.loads(index.read_text())
    table["weight_map"]["bert.more"] = sorted(table["weight_map"].values())[0]
    index.write_text(json.dumps(table))
    with pytest.raises(UserError, match=r"names tensors that its files lack: bert\.more$"):
        open_source(sharded)


def test_weights_that_are_no_tensors(source):
    torch.save({"bert.a": [1.0], "epoch": 3}, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"must hold tensors by name, but bert\.a is a list, epoch is a int$"):
        open_source(source)


def test_a_pickle_that_would_run_code(source):
    torch.save({"bert.a": print}, source / "pytorch_model.bin")
    (source / "model.safetensors").unlink()
    with pytest.raises(UserError, match=r"pytorch_model\.bin: refused, it holds .*print\. Only tensors"):
        open_source(source)
