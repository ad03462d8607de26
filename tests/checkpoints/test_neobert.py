"""NeoBERT compared with an independent implementation, and written back."""

import torch
from hugging_face import our_model
from neobert import logits, write_neobert
from safetensors.torch import load_file

from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.modules.visibility import PackedColumns


def test_logits_and_gradients(tmp_path):
    weights = write_neobert(tmp_path / "theirs")
    convert([str(tmp_path / "theirs"), "--to", str(tmp_path / "ours")])
    model, tokens = our_model(tmp_path / "ours"), torch.tensor([2, 17, 9, 30, 8, 44, 3])
    columns = PackedColumns.given(tokens, torch.arange(7), torch.zeros(7, dtype=torch.long), [7])
    given = model.encode(columns)
    found = model.lm_head(given, model.embeddings.tokens.weight)
    for each in weights.values():
        each.requires_grad_()
    expected = logits(weights, tokens)
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=1e-4)
    chosen = torch.randn(found.shape, generator=torch.Generator().manual_seed(1))
    (found * chosen).sum().backward()
    (expected * chosen).sum().backward()
    pairs = {
        "embeddings.tokens.weight": "model.encoder.weight",
        "layers.1.fc1.weight": "model.transformer_encoder.1.ffn.w12.weight",
        "layers.2.attention_layer_norm.weight": "model.transformer_encoder.2.attention_norm.weight",
        "lm_head.weight": "decoder.weight",
    }
    gradients = {name: parameter.grad for name, parameter in model.named_parameters()}
    for ours, theirs in pairs.items():
        wanted = weights[theirs].grad
        if ours == "embeddings.tokens.weight":  # ours keeps the padding's gradient at 0; the text has no padding
            assert wanted[0].abs().max() == 0
        torch.testing.assert_close(gradients[ours], wanted, atol=1e-4, rtol=1e-4)


def test_written_back(tmp_path):
    weights = write_neobert(tmp_path / "theirs")
    convert([str(tmp_path / "theirs"), "--to", str(tmp_path / "ours")])
    export([str(tmp_path / "ours"), "--format", "hugging_face", "--to", str(tmp_path / "again")])
    again = load_file(tmp_path / "again" / "model.safetensors")
    assert again.keys() == weights.keys()
    for name, value in weights.items():
        assert torch.equal(again[name], value), name
