"""MPNet as sentence encoders store it, and what its program fixes; `test_live_models` compares the outputs."""

import json
import shutil

import pytest
import torch
from hugging_face import our_model, our_output, save, texts, their_model, their_output, write_tokenizer

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.modules.positions import relative_position_bucket

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
safetensors = pytest.importorskip("safetensors.torch", reason="safetensors is not installed")

BIAS = "encoder.relative_attention_bias.weight"


def test_the_bins_are_those_of_transformers():
    """All distances of its 512 positions, and far ones."""
    distances = torch.cat([torch.arange(-600, 601), torch.tensor([-(10**6), 10**6])])
    encoder = transformers.models.mpnet.modeling_mpnet.MPNetEncoder
    assert torch.equal(relative_position_bucket(distances, 32, 128), encoder.relative_position_bucket(distances))


@pytest.fixture
def saved(tmp_path):
    """A folder as `transformers` writes it; the names of all weights lack the prefix of a model with a head."""
    model = their_model("mpnet-no-head")
    return model, save("mpnet-no-head", model, tmp_path / "saved")


def rewritten(folder, change):
    """Change the tensors of a folder."""
    weights = safetensors.load_file(folder / "model.safetensors")
    change(weights)
    safetensors.save_file(weights, folder / "model.safetensors")


@pytest.mark.parametrize("pickled", [False, True])
def test_a_sentence_encoder(saved, tmp_path, capsys, pickled):
    """The layout of sentence-transformers, with a pooler, a buffer of older files and its modules beside."""
    theirs, folder = saved
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps({"word_embedding_dimension": 16}))
    modules = [{"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"}]
    (folder / "modules.json").write_text(json.dumps(modules))
    rewritten(folder, lambda weights: weights.update({"embeddings.position_ids": torch.arange(42)[None]}))
    if pickled:
        torch.save(safetensors.load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
        (folder / "model.safetensors").unlink()
    convert([str(folder), "--to", str(tmp_path / "made")])
    printed = capsys.readouterr().out
    assert "unused: embeddings.position_ids, pooler.dense.bias, pooler.dense.weight" in printed
    assert "initialised when training starts: lm_head.bias, lm_head.dense.bias" in printed
    assert (tmp_path / "made" / "dict.txt").read_text().split("\n")[:2] == ["<s> 1", "<pad> 1"]
    ours = our_model(tmp_path / "made")
    tokens, real = texts([40, 3, 17], ours.embeddings.tokens.padding_idx)
    segments = torch.zeros_like(tokens)
    expected = their_output(theirs, tokens, real, segments)[real]
    found = our_output(ours, tokens, real, segments, logits=False)[real]
    torch.testing.assert_close(found, expected, atol=1e-5, rtol=0)


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (lambda weights: weights.pop(BIAS), f"{BIAS} is missing"),
        (lambda weights: weights.update({BIAS: torch.zeros(16, 2)}), r"relative_attention_bias.* the shape \(2, 32\)"),
        (lambda weights: weights.update({BIAS: torch.zeros(2, 32)}), r"relative_attention_bias.* the shape \(2, 32\)"),
        (lambda weights: weights.update({BIAS: torch.zeros(32)}), r"relative_attention_bias.* the shape \(2, 32\)"),
        (lambda weights: weights.update({BIAS: torch.zeros(32, 2, dtype=torch.int64)}), "floating-point numbers"),
        (
            lambda weights: weights.update({"embeddings.position_embeddings.weight": torch.zeros(1, 16)}),
            r"position_embeddings.* \(40, 16\), but has \(0, 16\)",
        ),
        (lambda weights: weights.update({"embeddings.token_type_embeddings.weight": torch.zeros(2, 16)}), "token_type"),
        (lambda weights: weights.pop("encoder.layer.1.attention.attn.k.bias"), r"attn\.k\.bias is missing"),
    ],
)
def test_damaged_files(saved, tmp_path, change, problem):
    rewritten(saved[1], change)
    with pytest.raises(UserError, match=problem):
        convert([str(saved[1]), "--to", str(tmp_path / "made")])
    assert not (tmp_path / "made").exists()


def test_a_padding_id_that_its_program_does_not_read(saved, tmp_path, capsys):
    """Positions start at 2 whatever the configuration says."""
    config = json.loads((saved[1] / "config.json").read_text())
    (saved[1] / "config.json").write_text(json.dumps({**config, "pad_token_id": 0}))
    convert([str(saved[1]), "--to", str(tmp_path / "made")])
    assert our_model(tmp_path / "made").cfg.max_positions == 40
    assert "pad_token_id" not in capsys.readouterr().out


def test_another_padding_id_is_written_as_unilm(saved, tmp_path, capsys):
    """A model of these sizes with BERT's symbols, whose padding has the id 0, is none of Hugging Face's."""
    write_tokenizer("wordpiece", saved[1])
    (saved[1] / "tokenizer_config.json").unlink(missing_ok=True)
    convert([str(saved[1]), "--to", str(tmp_path / "made")])
    assert "pad_token_id is 1, but [PAD] has the id 0 in the tokenizer" in capsys.readouterr().out
    export([str(tmp_path / "made"), "--format", "hugging_face", "--to", str(tmp_path / "exported")])
    assert "this is UniLM's own format" in capsys.readouterr().out
    convert([str(tmp_path / "exported"), "--to", str(tmp_path / "again")])
    before, after = (load_checkpoint(tmp_path / name / "model.pt")["model"] for name in ("made", "again"))
    assert all(torch.equal(value, after[name]) for name, value in before.items() if "qkv.bias" not in name)


def test_an_export_has_its_tokenizer(saved, tmp_path):
    """`transformers` lays texts out as training does: <s> text </s>."""
    convert([str(saved[1]), "--to", str(tmp_path / "made")])
    export([str(tmp_path / "made"), "--format", "hugging_face", "--to", str(tmp_path / "exported")])
    shutil.rmtree(tmp_path / "made")
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert type(theirs).__name__.startswith("MPNetTokenizer")
    assert theirs.convert_ids_to_tokens(theirs("w7 nothing")["input_ids"]) == ["<s>", "w7", "[UNK]", "</s>"]
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert (config["pad_token_id"], config["bos_token_id"], config["eos_token_id"]) == (1, 0, 2)
