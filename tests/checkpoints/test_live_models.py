"""Converted weights compared with live models of `transformers`, with tiny random weights and no download."""

import json
import shutil

import pytest
import torch
from hugging_face import (
    MODELS,
    POSITIONS,
    SIZES,
    has_head,
    our_model,
    our_output,
    save,
    segments_of,
    texts,
    their_model,
    their_output,
)

from s2sft_fairseq.checkpoints.conversion import read
from s2sft_fairseq.checkpoints.families import recognize
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.models.convert import parameter_shapes
from s2sft_fairseq.modules.visibility import PackedColumns

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")


OLDER = (
    *("bert-pretraining", "bert-1-segment", "bert-6-segments", "roberta", "xlm-roberta", "ernie", "ernie-tasks"),
    *(name for name in MODELS if name.startswith("electra")),
)
"""Models whose gradients are those of BERT's own layers, or whose tables are folded."""


@pytest.fixture(scope="module")
def converted(tmp_path_factory):
    """``converted(name)``: a model, and the folders where it was saved and converted to, each made once."""
    made = {}

    def make(name):
        if name not in made:
            folder = tmp_path_factory.mktemp(name)
            model = their_model(name)
            convert([str(save(name, model, folder / "saved")), "--to", str(folder / "converted")])
            made[name] = (model, folder / "saved", folder / "converted")
        return made[name]

    return make


def assert_same_output(theirs, ours, lengths):
    tokens, real = texts(lengths, ours.embeddings.tokens.padding_idx)
    segments = segments_of(real, getattr(theirs.config, "type_vocab_size", 0))
    expected = their_output(theirs, tokens, real, segments)[real]
    found = our_output(ours, tokens, real, segments, logits=has_head(theirs))[real]
    assert expected.std() > 0.1
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_same_output(converted, name):
    """One text alone, texts with padding, and texts up to the last position."""
    theirs, _, folder = converted(name)
    ours = our_model(folder)
    assert_same_output(theirs, ours, [9])
    assert_same_output(theirs, ours, [POSITIONS, 3, 17])


@pytest.mark.parametrize("name", [name for name in MODELS if "no-head" not in name and name not in OLDER])
def test_same_gradients(converted, name):
    """The gradients of every parameter; theirs are converted like parameters."""
    theirs, _, folder = converted(name)
    ours = our_model(folder)
    tokens, real = texts([POSITIONS, 3, 17], ours.embeddings.tokens.padding_idx)
    segments = segments_of(real, getattr(theirs.config, "type_vocab_size", 0))
    types = {"token_type_ids": segments} if ours.cfg.num_segments else {}
    theirs.zero_grad()
    theirs(input_ids=tokens, attention_mask=real.long(), **types).logits[real].square().mean().backward()
    positions = torch.arange(tokens.size(1)).expand_as(tokens)[real]
    columns = PackedColumns.given(tokens[real], positions, segments[real], real.sum(dim=1).tolist())
    ours(*columns[:7]).square().mean().backward()
    gradients = {key: parameter.grad for key, parameter in theirs.named_parameters(remove_duplicate=False)}
    config = theirs.config.to_dict()
    expected = read(recognize(gradients, config), gradients, config, parameter_shapes).weights
    found = {key: parameter.grad for key, parameter in ours.named_parameters()}
    assert found.keys() == expected.keys()
    for key, gradient in expected.items():
        tolerance = 1e-4 * max(1, float(gradient.abs().max()))
        torch.testing.assert_close(found[key], gradient, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", MODELS)
def test_written_back_and_read_again(converted, tmp_path, name):
    """The bits are the same, and `transformers` computes the same with the exported folder."""
    theirs, _, folder = converted(name)
    export([str(folder), "--format", "hugging_face", "--to", str(tmp_path / "exported")])
    convert([str(tmp_path / "exported"), "--to", str(tmp_path / "again")])
    before, after = (load_checkpoint(where / "model.pt")["model"] for where in (folder, tmp_path / "again"))
    assert before.keys() == after.keys()
    for key, value in before.items():
        assert value.dtype == after[key].dtype and torch.equal(value, after[key]), key
    first, second = (PretrainedEncoder.open(where) for where in (folder, tmp_path / "again"))
    default = {"embedding_dim": 0}
    assert {**default, **first.sizes} == {**default, **second.sizes}
    assert first.newly_initialized == second.newly_initialized
    assert first.layout == second.layout
    assert first.layout.get("source_start") == ("sep" if name == "mmbert" else None)
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "exported", attn_implementation="eager").eval()
    if not has_head(theirs):
        again = again.base_model
    assert_same_output(again, our_model(folder), [POSITIONS, 11])


@pytest.mark.parametrize("name", ["bert", "roberta", "electra-small-generator"])
@pytest.mark.parametrize("positions", [100, 50, 13])
def test_another_number_of_positions(converted, tmp_path, name, positions):
    """A longer table repeats the rows; a shorter one has the first of them."""
    theirs, saved, _ = converted(name)
    convert([str(saved), "--to", str(tmp_path / "resized"), "--max-positions", str(positions)])
    ours = our_model(tmp_path / "resized")
    assert ours.cfg.max_positions == len(ours.embeddings.positions.weight) == positions
    before = 2 if name == "roberta" else 0  # rows that no token uses
    larger = their_model(name, max_position_embeddings=positions + before)
    states = theirs.state_dict()
    (table,) = (key for key in states if "position_embeddings" in key)
    tiled = states[table][before:].repeat(3, 1)[:positions]
    larger.load_state_dict({**states, table: torch.cat([states[table][:before], tiled])})
    assert_same_output(larger, ours, [positions, 5])


@pytest.mark.parametrize("name", ["modernbert", "deberta"])
def test_more_computed_positions(converted, tmp_path, name):
    theirs, saved, _ = converted(name)
    convert([str(saved), "--to", str(tmp_path / "resized"), "--max-positions", "90"])
    ours = our_model(tmp_path / "resized")
    assert ours.cfg.max_positions == 90
    assert_same_output(theirs, ours, [90, 61, 2])


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_stays(tmp_path, dtype):
    """The file of a large encoder does not grow; a training loads it in single precision."""
    for name in ("bert", "roberta"):
        theirs = their_model(name).to(dtype)
        convert([str(save(name, theirs, tmp_path / name)), "--to", str(tmp_path / f"{name}-out")])
        weights = load_checkpoint(tmp_path / f"{name}-out" / "model.pt")["model"]
        # computed from the positions and the segment
        larger = {key for key, value in weights.items() if value.dtype != dtype}
        assert larger == ({"embeddings.positions.weight"} if name == "roberta" else set())
        assert all(value.untyped_storage().nbytes() == value.nbytes for value in weights.values())
        ours = our_model(tmp_path / f"{name}-out")
        assert all(parameter.dtype == torch.float32 for parameter in ours.parameters())
        assert_same_output(theirs.float(), ours, [12, 7])


def test_every_format_of_weights(converted, tmp_path):
    """safetensors, pytorch_model.bin, shards of both, and a file instead of its folder give the same weights."""
    theirs, saved, folder = converted("bert")
    expected = load_checkpoint(folder / "model.pt")["model"]
    states = {key: value.clone() for key, value in theirs.state_dict().items()}

    def beside(name):
        made = tmp_path / name
        made.mkdir()
        for file in ("config.json", "vocab.txt"):
            shutil.copy(saved / file, made)
        return made

    sharded = tmp_path / "sharded"
    save("bert", theirs, sharded, max_shard_size="10KB")
    assert len(list(sharded.glob("model-*.safetensors"))) > 3
    old = beside("old")
    torch.save(states, old / "pytorch_model.bin")
    oldest = beside("oldest")
    torch.save(states, oldest / "pytorch_model.bin", _use_new_zipfile_serialization=False)
    parallel = beside("parallel")
    torch.save(
        {"state_dict": {f"module.{key}": value for key, value in states.items()}}, parallel / "pytorch_model.bin"
    )
    old_shards = beside("old_shards")
    files = {key: f"pytorch_model-0000{1 + i % 2}-of-00002.bin" for i, key in enumerate(states)}
    for file in set(files.values()):
        torch.save({key: states[key] for key in states if files[key] == file}, old_shards / file)
    (old_shards / "pytorch_model.bin.index.json").write_text(json.dumps({"weight_map": files}))
    by_name = tmp_path / "unilm1.2-base-uncased"
    by_name.mkdir()
    torch.save(states, by_name / "unilm1.2-base-uncased.bin")
    shutil.copy(saved / "config.json", by_name / "unilm1.2-base-uncased-config.json")
    shutil.copy(saved / "vocab.txt", by_name / "unilm1.2-base-uncased-vocab.txt")

    sources = [sharded, old, oldest, parallel, old_shards, saved / "model.safetensors"]
    for source in [*sources, by_name / "unilm1.2-base-uncased.bin", by_name]:
        out = tmp_path / f"from-{source.name}"
        convert([str(source), "--to", str(out)])
        weights = load_checkpoint(out / "model.pt")["model"]
        assert weights.keys() == expected.keys()
        assert all(torch.equal(weights[key], value) for key, value in expected.items()), source
        assert (out / "vocab.txt").read_bytes() == (saved / "vocab.txt").read_bytes()


def test_configurations_of_older_transformers(converted, tmp_path):
    """Before transformers 5, ModernBERT's configuration had single settings in place of lists."""
    _, saved, folder = converted("modernbert")
    older = shutil.copytree(saved, tmp_path / "older")
    config = json.loads((older / "config.json").read_text())
    config |= {"global_rope_theta": 160000.0, "local_rope_theta": 10000.0, "global_attn_every_n_layers": 3}
    for name in ("rope_parameters", "layer_types"):
        config.pop(name, None)
    (older / "config.json").write_text(json.dumps(config))
    convert([str(older), "--to", str(tmp_path / "out")])
    assert PretrainedEncoder.open(tmp_path / "out").sizes == PretrainedEncoder.open(folder).sizes


def test_old_layer_norm_names(converted, tmp_path):
    """Gamma and beta, the names in TensorFlow and in the first PyTorch checkpoints."""
    theirs, saved, folder = converted("bert")
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): value.clone()
        for name, value in theirs.state_dict().items()
    }
    assert sum(name.endswith((".gamma", ".beta")) for name in old) == 2 * (1 + 2 * SIZES["num_hidden_layers"] + 1)
    source = shutil.copytree(saved, tmp_path / "old", ignore=shutil.ignore_patterns("*.safetensors"))
    torch.save(old, source / "pytorch_model.bin")
    convert([str(source), "--to", str(tmp_path / "out")])
    expected = load_checkpoint(folder / "model.pt")["model"]
    found = load_checkpoint(tmp_path / "out" / "model.pt")["model"]
    assert all(torch.equal(found[name], value) for name, value in expected.items())
