"""The shards of a corpus, and the cluster and the cores of ``--engine ray``; the rest needs a model."""

import json

import pytest

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference import ray_engine
from s2sft_fairseq.inference.ray_engine import cores_for_each
from s2sft_fairseq.inference.shards import Manifest, find_shards


@pytest.fixture
def corpus(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("b.txt.gz", "a.jsonl", "part.0001", "below/c.parquet", "below/.d.txt", "below/_e.txt"):
        path = tmp_path / "corpus" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"x")
    return tmp_path / "corpus"


@pytest.mark.parametrize(
    ("pattern", "found"),
    [
        ("corpus", {"a.jsonl": "a.txt", "b.txt.gz": "b.txt", "part.0001": "part.0001.txt"}),
        ("corpus/below", {"below/c.parquet": "c.txt"}),
        ("corpus/[!ab]*", {"part.0001": "part.0001.txt"}),
        ("corpus/**/?.*", {"a.jsonl": "a.txt", "b.txt.gz": "b.txt", "below/c.parquet": "c.txt"}),
    ],
)
def test_shards_are_found(corpus, tmp_path, pattern, found):
    shards = find_shards(tmp_path / pattern, tmp_path / "out", "txt")
    assert shards == [(corpus / name, tmp_path / "out" / output) for name, output in found.items()]
    relative = type(tmp_path)
    assert find_shards(relative(pattern), relative("out"), "txt") == shards


def test_outputs_with_the_same_name(corpus, tmp_path):
    (corpus / "below" / "a.txt").touch()
    with pytest.raises(UserError) as error:
        find_shards(corpus / "**", corpus / "below", "txt")
    meeting, *replaced = error.value.problems
    for text in (str(corpus / "a.jsonl"), str(corpus / "below" / "a.txt")):
        assert text in meeting
    assert len(replaced) == 2
    for text, name in zip(replaced, ("_e.txt", "a.txt"), strict=True):
        assert f"--output {corpus / 'below'} holds the input {corpus / 'below' / name}" in text


def test_a_manifest_is_complete_at_any_time(corpus, tmp_path, monkeypatch):
    (tmp_path / "out").mkdir()
    shards = find_shards(corpus, tmp_path / "out", "txt")
    manifest = Manifest(tmp_path / "out", {"--beam": 2})
    shards[0].output.write_text("y\n")
    sums = {name: ray_engine.file_state(path) for name, path in shards[0]._asdict().items()}
    manifest.add(shards[0], {"input": sums["input"], "sha256": sums["output"]["sha256"], "lines": 1, "seconds": 0.1})

    def fail(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("os.replace", fail)
        manifest.add(shards[1], {})
    again = Manifest(tmp_path / "out", {"--beam": 2})
    assert list(again.shards) == ["a.txt"]
    assert again.missing(shards) == shards[1:]
    assert json.loads(again.path.read_text())["settings"] == {"--beam": 2}


@pytest.mark.parametrize("address", [None, "auto"])
def test_the_cluster_of_ray_address_or_one_of_this_machine(monkeypatch, address):
    ray = pytest.importorskip("ray", reason="ray is not installed")
    begun, ended = [], []
    monkeypatch.setattr(ray, "is_initialized", lambda: False)
    monkeypatch.setattr(ray, "init", lambda **words: begun.append(words))
    monkeypatch.setattr(ray, "shutdown", lambda: ended.append(True))
    for name in (*ray_engine.QUIET, "RAY_ADDRESS"):
        monkeypatch.setenv(name, "")  # restored at the end
        monkeypatch.delenv(name)
    if address:
        monkeypatch.setenv("RAY_ADDRESS", address)  # Ray reads it itself
    with pytest.raises(KeyError), ray_engine._cluster(100):
        raise KeyError
    assert ended == [True]
    (words,) = begun
    where = {"address": "local", "num_cpus": 100, "include_dashboard": False}
    assert {name: words[name] for name in where if name in words} == ({} if address else where)


@pytest.mark.parametrize(
    ("nodes", "actors", "cores"),
    [([8], 1, 8), ([8], 3, 2), ([8, 4], 3, 4), ([0, 16, 16], 2, 16), ([2], 8, 1), ([], 1, 1)],
)
def test_actors_share_the_cores(nodes, actors, cores):
    assert cores_for_each(nodes, actors) == cores


def test_a_node_without_the_package_is_reported():
    error = RuntimeError("ray::MapWorker.__init__()\nModuleNotFoundError: No module named 's2sft_fairseq.inference'")
    assert "but one lacks s2sft_fairseq.inference" in ray_engine._missing_module(error)
    assert ray_engine._missing_module(RuntimeError("actor died")) is None


def test_names_that_are_not_utf8(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "a\udcff.txt").touch()
    with pytest.raises(UserError, match="names in UTF-8"):
        find_shards(tmp_path / "in", tmp_path / "out", "txt")
