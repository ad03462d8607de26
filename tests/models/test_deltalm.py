"""The encoder-decoder model: its encoder, incremental decoding, its initial weights, its options."""

import json
import shutil
from types import SimpleNamespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models import ARCH_CONFIG_REGISTRY
from fairseq.sequence_generator import SequenceGenerator
from hugging_face import save, segments_of, texts, their_model, their_output

from s2sft_fairseq.checkpoints.deltalm import COPIES, TABLES
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.convert import convert
from s2sft_fairseq.models.deltalm import DeltaLMConfig, DeltaLMModel

TINY = {
    **{"encoder_layers": 4, "encoder_embed_dim": 16, "encoder_ffn_embed_dim": 24, "encoder_attention_heads": 2},
    "max_positions": 20,
}

# The origin of each part of the first two decoder layers, counted from 1 as in the paper; by hand.
ORIGINS = {
    "1 self_attn": (1, "self_attn"),
    "1 self_attn_layer_norm": (1, "self_attn_layer_norm"),
    "1 fc3": (1, "fc1"),
    "1 fc4": (1, "fc2"),
    "1 ffn_layer_norm": (1, "final_layer_norm"),
    "1 encoder_attn": (2, "self_attn"),
    "1 encoder_attn_layer_norm": (2, "self_attn_layer_norm"),
    "1 fc1": (2, "fc1"),
    "1 fc2": (2, "fc2"),
    "1 final_layer_norm": (2, "final_layer_norm"),
    "2 self_attn": (3, "self_attn"),
    "2 self_attn_layer_norm": (3, "self_attn_layer_norm"),
    "2 fc3": (3, "fc1"),
    "2 fc4": (3, "fc2"),
    "2 ffn_layer_norm": (3, "final_layer_norm"),
    "2 encoder_attn": (4, "self_attn"),
    "2 encoder_attn_layer_norm": (4, "self_attn_layer_norm"),
    "2 fc1": (4, "fc1"),
    "2 fc2": (4, "fc2"),
    "2 final_layer_norm": (4, "final_layer_norm"),
}


def dictionary(words: int = 30) -> Dictionary:
    symbols = Dictionary()
    for number in range(words):
        symbols.add_symbol(f"w{number}")
    return symbols


def build(symbols: Dictionary | None = None, seed: int = 0, **options) -> DeltaLMModel:
    symbols = symbols or dictionary()
    torch.manual_seed(seed)
    cfg = DeltaLMConfig(**{"dropout": 0.0, **options})
    return DeltaLMModel.build_model(cfg, SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols))


def scrambled(model: DeltaLMModel) -> DeltaLMModel:
    """Set weights large enough for all of them to matter."""
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            noise = torch.randn(parameter.shape, generator=draw)
            parameter.copy_(0.4 * noise if parameter.ndim == 2 else parameter + 0.2 * noise)
    return model.eval()


@pytest.fixture(scope="module")
def encoders(tmp_path_factory):
    """Tiny encoders of `transformers` by kind, each with the folder to which it was converted."""
    found = {}
    for kind in ("xlm-roberta", "bert"):
        folder = tmp_path_factory.mktemp(kind)
        theirs = their_model(kind, num_hidden_layers=4)
        convert(save(kind, theirs, folder / "theirs"), folder / "ours")
        symbols = PretrainedDictionary.load(str(folder / "ours" / "dict.txt"))
        found[kind] = SimpleNamespace(model=theirs, folder=folder / "ours", symbols=symbols)
    return found


@pytest.mark.parametrize("kind", ["xlm-roberta", "bert"])
def test_the_encoder_is_the_pretrained_one(encoders, kind):
    encoder = encoders[kind]
    pad = encoder.symbols.pad()
    model = build(encoder.symbols, pretrained=str(encoder.folder)).eval()
    tokens, real = texts([9, 1, 14, 5], pad)
    theirs = their_output(encoder.model.base_model, tokens, real, torch.zeros_like(segments_of(real, 1)))
    with torch.no_grad():
        ours = model.encoder(tokens, real.sum(dim=1))["encoder_out"][0].transpose(0, 1)
    torch.testing.assert_close(ours[real], theirs[real], atol=1e-5, rtol=1e-5)


def test_every_part_of_the_decoder(encoders):
    encoder = encoders["xlm-roberta"]
    model = build(encoder.symbols, pretrained=str(encoder.folder))
    assert len(model.decoder.layers) == 2
    given = dict(model.encoder.named_parameters())
    compared = set()
    for name, value in model.decoder.named_parameters():
        if not name.startswith("layers."):
            assert torch.equal(value, given[name]), name
            assert value is given[name] or "embed_tokens" not in name
            continue
        _, layer, part, rest = name.split(".", 3)
        number, origin = ORIGINS[f"{int(layer) + 1} {part}"]
        compared.add(f"{int(layer) + 1} {part}")
        assert torch.equal(value, given[f"layers.{number - 1}.{origin}.{rest}"]), name
    assert compared == set(ORIGINS)


def test_sizes_are_those_of_the_encoder(encoders):
    encoder = encoders["bert"]
    cfg = DeltaLMConfig(pretrained=str(encoder.folder), decoder_layers=1)
    task = SimpleNamespace(source_dictionary=encoder.symbols, target_dictionary=encoder.symbols)
    model = DeltaLMModel.build_model(cfg, task)
    assert (cfg.encoder_layers, cfg.encoder_embed_dim, cfg.encoder_attention_heads) == (4, 16, 2)
    assert (cfg.max_positions, cfg.layer_norm_eps, cfg.layernorm_embedding) == (40, 1e-12, "yes")
    assert cfg.pretrained is None and model.settled_options["pretrained"] is None
    assert model.settled_options["encoder_ffn_embed_dim"] == 24
    assert {norm.eps for norm in model.modules() if isinstance(norm, torch.nn.LayerNorm)} == {1e-12}
    assert len(model.decoder.layers) == 1 and model.max_positions() == (40, 40)


def test_new_symbols_and_fewer_positions(encoders, caplog):
    encoder = encoders["xlm-roberta"]
    symbols = PretrainedDictionary.of([*encoder.symbols.symbols, "__de__", "__en__"])
    caplog.set_level("INFO")
    model = build(symbols, pretrained=str(encoder.folder), max_positions=10)
    whole = build(encoder.symbols, pretrained=str(encoder.folder))
    known = len(encoder.symbols)
    assert torch.equal(model.encoder.embed_tokens.weight[:known], whole.encoder.embed_tokens.weight)
    assert len(model.encoder.embed_tokens.weight) == known + 2
    assert torch.equal(model.decoder.embed_positions.weight, whole.decoder.embed_positions.weight[:12])
    assert f"the last 2 of {known + 2} symbols are new and keep their initial values" in caplog.text
    assert "the last 30 of 42 rows of encoder.embed_positions.weight are left out: the model has 12" in caplog.text


def test_decoding_step_by_step():
    """Logits of each step from the incremental state equal those of the whole target."""
    model = scrambled(build(**TINY))
    source, real = texts([9, 4, 7], 1)
    source = source.clamp(max=33)
    target = torch.tensor([[2, 5, 9, 30, 6, 7], [2, 8, 8, 12, 5, 4], [2, 31, 4, 9, 11, 6]])
    with torch.no_grad():
        whole, _ = model(source, real.sum(dim=1), target)
        encoded = model.encoder(source, real.sum(dim=1))
        state: dict = {}
        for step in range(1, target.size(1) + 1):
            logits, _ = model.decoder(target[:, :step], encoder_out=encoded, incremental_state=state)
            torch.testing.assert_close(logits[:, -1], whole[:, step - 1], atol=1e-5, rtol=1e-5)


def test_the_keys_of_the_source_are_stored_once_a_sentence(monkeypatch):
    model = scrambled(build(**TINY))
    source, real = texts([6, 3], 1)
    seen = []
    original = type(model.decoder).forward

    def forward(self, *args, incremental_state=None, **kwargs):
        out = original(self, *args, incremental_state=incremental_state, **kwargs)
        buffer = self.layers[0].encoder_attn._get_input_buffer(incremental_state)
        own = self.layers[0].self_attn._get_input_buffer(incremental_state)
        seen.append((buffer["prev_key"].size(0), own["prev_key"].size(0)))
        return out

    monkeypatch.setattr(type(model.decoder), "forward", forward)
    generator = SequenceGenerator([model], dictionary(), beam_size=3, max_len_a=0, max_len_b=4, min_len=4)
    generator({"net_input": {"src_tokens": source.clamp(max=33), "src_lengths": real.sum(dim=1)}})
    assert seen and set(seen) == {(2, 6)}


def decoding(bf16=False):
    """Return the part of fairseq's configuration that is used."""
    return SimpleNamespace(generation=SimpleNamespace(beam=5), common=SimpleNamespace(bf16=bf16), task=None)


@pytest.mark.parametrize(("bf16", "dtype"), [(True, torch.bfloat16), (False, torch.float32)])
def test_decodes_in_bfloat16(bf16, dtype):
    model = build(**TINY)
    model.prepare_for_inference_(decoding(bf16))
    assert {parameter.dtype for parameter in model.parameters()} == {dtype}


def test_weights_that_overflow_in_float16():
    model = build(**TINY)
    cfg = decoding()
    with torch.no_grad():
        model.decoder.layers[0].fc1.weight[0, 0] = 1e5
    with pytest.raises(UserError, match=r"--fp16 .* decoder\.layers\.0\.fc1\.weight is infinite"):
        model.half().prepare_for_inference_(cfg)
    build(**TINY).half().prepare_for_inference_(cfg)


def test_attention_weights_are_returned_for_alignments_only():
    model = scrambled(build(**TINY))
    source, real = texts([6, 3], 1)
    inputs = (source.clamp(max=33), real.sum(dim=1), torch.tensor([[2, 5], [2, 6]]))
    assert model(*inputs)[1]["attn"][0].shape == (2, 2, 6)
    assert model.train()(*inputs)[1]["attn"] == [None]
    model.eval().make_generation_fast_(need_attn=False)
    assert model(*inputs)[1]["attn"] == [None]


def test_activations_are_computed_again_for_gradients():
    source, real = texts([6, 3], 1)
    inputs = (source.clamp(max=33), real.sum(dim=1), torch.tensor([[2, 5], [2, 6]]))
    gradients = []
    for checkpointed in (False, True):
        model = scrambled(build(**TINY, checkpoint_activations=checkpointed)).train()
        model(*inputs)[0].square().sum().backward()
        gradients.append([parameter.grad for parameter in model.parameters()])
    torch.testing.assert_close(*gradients)


def test_starting_from_a_checkpoint_of_a_training(tmp_path, caplog):
    """A checkpoint that fairseq saved, with its copies of the embedding, under another dictionary."""
    first = scrambled(build(**TINY, layer_norm_eps=1e-6))
    state = {"model": first.state_dict(), "cfg": {"model": {"_name": "deltalm", **first.settled_options}}}
    torch.save(state, tmp_path / "checkpoint.pt")
    caplog.set_level("INFO")
    model = build(dictionary(33), pretrained=str(tmp_path / "checkpoint.pt"))
    assert model.settled_options == {**first.settled_options, "pretrained": None}
    for name, value in first.state_dict().items():
        assert torch.equal(model.state_dict()[name][: len(value)], value), name
    assert "the last 3 of 37 symbols are new" in caplog.text


@pytest.mark.parametrize(("given", "needed"), [(250008, 250104), (250104, 250008)])
def test_the_vocabularies_of_the_official_checkpoints(tmp_path, caplog, given, needed):
    """Common rows are copied; the dictionary or the checkpoint can be the larger one."""
    small = {**TINY, "encoder_embed_dim": 2, "encoder_attention_heads": 1, "encoder_layers": 2}
    weights = {name: value for name, value in build(dictionary(given - 4), **small).state_dict().items()}
    official = {
        name.replace("encoder.embed", "src_embedding.embed")
        .replace("decoder.embed", "tgt_embedding.embed")
        .replace("encoder.layernorm_embedding", "src_embedding.emb_layer_norm")
        .replace("decoder.layernorm_embedding", "tgt_embedding.emb_layer_norm"): value
        for name, value in weights.items()
        if "output_projection" not in name and "version" not in name
    }
    torch.save({"weights": official}, tmp_path / "deltalm.pt")
    caplog.set_level("INFO")
    model = build(dictionary(needed - 4), seed=3, pretrained=str(tmp_path / "deltalm.pt"), encoder_attention_heads=1)
    table = weights["encoder.embed_tokens.weight"]
    assert torch.equal(model.encoder.embed_tokens.weight[:250008], table[:250008])
    text = "are new and keep their initial values" if needed > given else "are left out: the model has 250,008"
    assert f"the last 96 of 250,104 symbols {text}" in caplog.text


def test_loading_weights_that_do_not_fit():
    model = build(**TINY)
    state = model.state_dict()
    with pytest.raises(UserError, match=r"the dictionary has 34 symbols, but the checkpoint was made with 37"):
        model.load_state_dict(build(dictionary(33), **TINY).state_dict())
    del state["decoder.layers.0.fc3.weight"]
    with pytest.raises(UserError, match=r"decoder.layers.0.fc3.weight is missing"):
        model.load_state_dict(state)


def test_problems_with_the_encoder(encoders, tmp_path):
    encoder = encoders["xlm-roberta"]
    with pytest.raises(UserError) as error:
        build(encoder.symbols, pretrained=str(encoder.folder), encoder_layers=6, layernorm_embedding="no")
    assert f"--encoder-layers is 6, but {encoder.folder} has 4" in str(error.value)
    assert f"--layernorm-embedding is no, but {encoder.folder} has yes" in str(error.value)
    with pytest.raises(UserError, match=r"--decoder-layers must be at most half of the encoder's layers \(4\)"):
        build(encoder.symbols, pretrained=str(encoder.folder), decoder_layers=3)
    with pytest.raises(UserError, match=r"--random-init and --pretrained .* exclude each other"):
        build(encoder.symbols, pretrained=str(encoder.folder), random_init=True)
    with pytest.raises(UserError, match=r"its symbol 0 is <s> in place of \[PAD\]: binarize the data with that file"):
        build(dictionary(), pretrained=str(encoders["bert"].folder))
    theirs = save("electra-small-discriminator", their_model("electra-small-discriminator"), tmp_path / "theirs")
    convert(theirs, tmp_path / "ours")
    with pytest.raises(UserError, match=r"the encoder must have embedding_dim 0, but .* has 8"):
        build(encoders["bert"].symbols, pretrained=str(tmp_path / "ours"))
    shutil.copytree(encoders["bert"].folder, tmp_path / "causal")
    (tmp_path / "causal/SHA256SUMS").unlink()
    config = json.loads((tmp_path / "causal/config.json").read_text(encoding="utf-8"))
    config["sizes"] |= {"source_visibility": "causal", "query_key_norm": "rms"}
    (tmp_path / "causal/config.json").write_text(json.dumps(config), encoding="utf-8")
    with pytest.raises(UserError) as error:
        build(encoders["bert"].symbols, pretrained=str(tmp_path / "causal"))
    assert f"the encoder must have source_visibility both, but {tmp_path / 'causal'} has causal" in str(error.value)
    assert "query_key_norm none" in str(error.value)


def test_problems_with_a_checkpoint(encoders, tmp_path):
    path = tmp_path / "checkpoint.pt"
    torch.save({"state": 1}, path)
    with pytest.raises(UserError, match=r"must hold 'weights', as DeltaLM's own .* but holds state"):
        build(pretrained=str(path))
    torch.save({"weights": {}}, path)
    with pytest.raises(UserError, match=r"is no DeltaLM checkpoint: it lacks encoder.embed_tokens.weight"):
        build(pretrained=str(path))
    model = build(**TINY).state_dict()
    torch.save({"weights": model}, path)
    with pytest.raises(UserError, match=r"needs a dictionary whose padding is symbol 1, .* but it is symbol 0"):
        build(encoders["bert"].symbols, pretrained=str(path), encoder_attention_heads=2)
    for name in ("encoder.layers.0.fc1.weight", "decoder.embed_positions.weight"):
        torch.save({"weights": {**model, name: torch.ones(3)}}, path)
        with pytest.raises(UserError, match=rf"checkpoint: {name} must be a matrix, but has the shape \(3,\)"):
            build(pretrained=str(path))
    broken = {**model, "encoder.new.weight": torch.ones(1), "decoder.layers.1.fc1.bias": torch.ones(3)}
    del broken["encoder.layers.3.fc1.bias"]
    torch.save({"weights": broken}, path)
    with pytest.raises(UserError) as error:
        build(pretrained=str(path), encoder_attention_heads=2)
    assert "encoder.new.weight is unknown" in str(error.value)
    assert "encoder.layers.3.fc1.bias is missing" in str(error.value)
    assert "decoder.layers.1.fc1.bias must have the shape (24,), but has (3,)" in str(error.value)
    with pytest.raises(UserError, match=r"no such checkpoint file"):
        build(pretrained=str(tmp_path / "nothing.pt"))


def test_problems_with_options():
    with pytest.raises(UserError) as error:
        build(**{**TINY, "encoder_attention_heads": 3, "max_positions": 0, "activation_fn": "tanh", "dropout": 1.0})
    assert "--encoder-embed-dim must be a multiple of --encoder-attention-heads (3), but is 16" in str(error.value)
    assert "--max-positions must be at least 1, but is 0" in str(error.value)
    assert "--activation-fn must be one of gelu, gelu_tanh, relu, silu, but is tanh" in str(error.value)
    assert "--dropout must be at least 0 and below 1, but is 1" in str(error.value)
    with pytest.raises(UserError, match=r"--activation-fn must be one of gelu, gelu_tanh, relu .* but is silu"):
        build(**{**TINY, "activation_fn": "silu"})
    with pytest.raises(UserError, match=r"share one dictionary, but have 34 and 35 symbols: .* --joined-dictionary"):
        task = SimpleNamespace(source_dictionary=dictionary(), target_dictionary=dictionary(31))
        DeltaLMModel.build_model(DeltaLMConfig(**TINY), task)


def test_architectures_keep_given_values():
    cfg = DeltaLMConfig(encoder_layers=2)
    ARCH_CONFIG_REGISTRY["deltalm_large"](cfg)
    assert (cfg.encoder_layers, cfg.decoder_layers, cfg.layernorm_embedding) == (2, 12, "no")


def test_one_embedding_for_all():
    model = build(**TINY)
    assert model.encoder.embed_tokens is model.decoder.embed_tokens
    assert model.decoder.output_projection.weight is model.encoder.embed_tokens.weight
    assert set(COPIES) | set(TABLES) <= set(model.state_dict())
    assert model.decoder.output_projection.bias is None
