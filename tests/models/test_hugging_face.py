"""ModernBERT and ELECTRA compared with live Hugging Face models with tiny random weights; names are mapped by hand."""

import pytest
import torch
import transformers
from tiny import FIRST_WORD, PAD, VOCAB_SIZE, tiny_config

from s2sft_fairseq.models.unilm import UnilmModel

WIDTH, INNER, HEADS = 24, 40, 3
LENGTHS = (30, 1, 17, 9)
TOKENS = {"vocab_size": VOCAB_SIZE, "pad_token_id": PAD, "bos_token_id": 2, "eos_token_id": 3, "cls_token_id": 2}


def scrambled(model):
    """Set weights far from their initial values, so that each part affects the result."""
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in model.parameters():
            # Layer norms and biases: around their initial values.
            spread = 0.3 if parameter.ndim == 2 else 0.5
            parameter.add_(spread * torch.randn(parameter.shape, generator=generator))
    return model.eval()


def modernbert(pattern, window):
    config = transformers.ModernBertConfig(
        **TOKENS,
        sep_token_id=3,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=len(pattern),
        num_attention_heads=HEADS,
        max_position_embeddings=64,
        local_attention=window,
        layer_types=[{"G": "full_attention", "L": "sliding_attention"}[kind] for kind in pattern],
        rope_parameters={
            "full_attention": {"rope_type": "default", "rope_theta": 160.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10.0},
        },
        attn_implementation="eager",
    )
    return scrambled(transformers.ModernBertForMaskedLM(config))


def ours_of_modernbert(theirs, every, window):
    cfg = tiny_config(
        encoder_layers=len(theirs.model.layers),
        encoder_embed_dim=WIDTH,
        encoder_ffn_embed_dim=INNER,
        encoder_attention_heads=HEADS,
        num_segments=0,
        layer_norm_eps=1e-5,
        layer_norm_position="pre",
        feed_forward="gated",
        biases="none",
        rotary_base=160.0,
        local_rotary_base=10.0,
        local_attention_window=window,
        global_attention_every=every,
    )
    weights = {
        "embeddings.tokens.weight": theirs.model.embeddings.tok_embeddings.weight,
        "embeddings.layer_norm.weight": theirs.model.embeddings.norm.weight,
        "layer_norm.weight": theirs.model.final_norm.weight,
        "lm_head.dense.weight": theirs.head.dense.weight,
        "lm_head.layer_norm.weight": theirs.head.norm.weight,
        "lm_head.bias": theirs.decoder.bias,
    }
    for index, layer in enumerate(theirs.model.layers):
        weights |= {
            f"layers.{index}.attention.qkv.weight": layer.attn.Wqkv.weight,
            f"layers.{index}.attention.output.weight": layer.attn.Wo.weight,
            f"layers.{index}.final_layer_norm.weight": layer.mlp_norm.weight,
            f"layers.{index}.fc1.weight": layer.mlp.Wi.weight,
            f"layers.{index}.fc2.weight": layer.mlp.Wo.weight,
        }
        if index:
            weights[f"layers.{index}.attention_layer_norm.weight"] = layer.attn_norm.weight
    return loaded(cfg, weights)


def loaded(cfg, weights):
    model = UnilmModel(cfg, vocab_size=VOCAB_SIZE, pad=PAD)
    model.load_state_dict({name: value.detach() for name, value in weights.items()})
    return model.eval()


def assert_same_logits(theirs, ours, num_segments):
    generator = torch.Generator().manual_seed(5)
    tokens = torch.randint(FIRST_WORD, VOCAB_SIZE, (len(LENGTHS), max(LENGTHS)), generator=generator)
    real = torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS).unsqueeze(1)
    tokens[~real] = PAD
    segments = torch.randint(0, max(1, num_segments), tokens.shape, generator=generator)
    inputs = {"token_type_ids": segments} if num_segments else {}
    positions = torch.arange(max(LENGTHS)).expand_as(tokens)[real]
    given = torch.zeros_like(positions)
    with torch.no_grad():
        expected = theirs(input_ids=tokens, attention_mask=real.long(), **inputs).logits[real]
        logits = ours(tokens[real], positions, segments[real], given, given, [(length,) for length in LENGTHS])
    assert expected.std() > 0.5, "nothing to be told apart"
    torch.testing.assert_close(logits, expected, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize("window", [8, 7, 2, 100])
@pytest.mark.parametrize(("pattern", "every"), [("GLLGLL", 3), ("GLGL", 2), ("GLL", 9), ("GGG", 1)])
def test_modernbert(pattern, every, window):
    theirs = modernbert(pattern, window)
    assert_same_logits(theirs, ours_of_modernbert(theirs, every, window), num_segments=0)


def test_electra_generator():
    """With embeddings narrower than the layers, and a head with the width of the embeddings."""
    narrow = 10
    config = transformers.ElectraConfig(
        **{name: value for name, value in TOKENS.items() if name != "cls_token_id"},
        embedding_size=narrow,
        hidden_size=WIDTH,
        intermediate_size=INNER,
        num_hidden_layers=2,
        num_attention_heads=HEADS,
        max_position_embeddings=64,
        attn_implementation="eager",
    )
    theirs = scrambled(transformers.ElectraForMaskedLM(config))
    cfg = tiny_config(
        encoder_embed_dim=WIDTH, encoder_ffn_embed_dim=INNER, encoder_attention_heads=HEADS, embedding_dim=narrow
    )
    parts = {
        "embeddings.layer_norm": theirs.electra.embeddings.LayerNorm,
        "embeddings.projection": theirs.electra.embeddings_project,
        "lm_head.dense": theirs.generator_predictions.dense,
        "lm_head.layer_norm": theirs.generator_predictions.LayerNorm,
    }
    weights = {
        "embeddings.tokens.weight": theirs.electra.embeddings.word_embeddings.weight,
        "embeddings.positions.weight": theirs.electra.embeddings.position_embeddings.weight,
        "embeddings.segments.weight": theirs.electra.embeddings.token_type_embeddings.weight,
        "lm_head.bias": theirs.generator_lm_head.bias,
    }
    for index, layer in enumerate(theirs.electra.encoder.layer):
        attention = layer.attention.self
        for kind in ("weight", "bias"):
            fused = torch.cat([getattr(part, kind) for part in (attention.query, attention.key, attention.value)])
            weights[f"layers.{index}.attention.qkv.{kind}"] = fused
        parts |= {
            f"layers.{index}.attention.output": layer.attention.output.dense,
            f"layers.{index}.attention_layer_norm": layer.attention.output.LayerNorm,
            f"layers.{index}.fc1": layer.intermediate.dense,
            f"layers.{index}.fc2": layer.output.dense,
            f"layers.{index}.final_layer_norm": layer.output.LayerNorm,
        }
    for name, part in parts.items():
        weights |= {f"{name}.weight": part.weight, f"{name}.bias": part.bias}
    assert_same_logits(theirs, loaded(cfg, weights), num_segments=2)
