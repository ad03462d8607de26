"""Pickles and copies of models hold the path, and load the same model."""

import copy
import pickle

import pytest
from exported import write_model_folder

from s2sft_fairseq import Classifier, Reader, Seq2Seq
from s2sft_fairseq.api.understanding import _Model
from s2sft_fairseq.errors import UserError


@pytest.fixture
def model(tmp_path, monkeypatch):
    write_model_folder(tmp_path / "model")
    monkeypatch.chdir(tmp_path)
    return Seq2Seq.from_pretrained("model", device="cpu", dtype="float32")


@pytest.mark.parametrize("how", [copy.copy, copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_another_model_of_the_same_files(model, how, monkeypatch):
    """Also from another folder; a model may be a value in something larger."""
    monkeypatch.chdir("/")
    (other,) = how([model]) if how is copy.deepcopy else [how(model)]
    assert type(other) is Seq2Seq and other is not model and other._loaded.models[0] is not model._loaded.models[0]
    assert other.generate(["w5 w6", "w7"], max_len=5) == model.generate(["w5 w6", "w7"], max_len=5)
    assert other._arguments == model._arguments == {
        "path": other._arguments["path"], "tokenizer": None, "device": "cpu", "dtype": "float32", "quantize": None
    }  # fmt: skip
    assert other._arguments["path"].startswith("/") and len(pickle.dumps(model)) < 1000


def test_a_model_without_a_path(model):
    with pytest.raises(UserError, match=r"this Seq2Seq cannot be pickled or copied, .* Seq2Seq\.from_pretrained"):
        pickle.dumps(Seq2Seq(model._loaded))


def test_files_that_are_gone(model, tmp_path):
    pickled = pickle.dumps(model)
    (tmp_path / "model").rename(tmp_path / "other")
    with pytest.raises(UserError, match="model"):
        pickle.loads(pickled)


@pytest.mark.parametrize("kind", [Classifier, Reader])
def test_models_for_understanding(kind, monkeypatch):
    """They are loaded by their own class with the same arguments."""
    monkeypatch.setattr(_Model, "from_pretrained", classmethod(lambda cls, **named: (cls, named)))
    model = kind.__new__(kind).loaded_from(path="a/hub-name", tokenizer=None, device="cpu", dtype="auto")
    expected = (kind, {"path": "a/hub-name", "tokenizer": None, "device": "cpu", "dtype": "auto"})
    assert pickle.loads(pickle.dumps(model)) == expected
