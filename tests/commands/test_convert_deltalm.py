"""`s2sft convert` on DeltaLM: the official files, and checkpoints of trainings."""

import json
from argparse import Namespace
from types import SimpleNamespace

import pytest
import torch
from hugging_face import save, their_model
from official_deltalm import POSITIONS, WIDTH, official_weights, pieces_of, write_official

from s2sft_fairseq.checkpoints.deltalm import COPIES
from s2sft_fairseq.checkpoints.deltalm import official_weights as by_our_names
from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.convert import main
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.deltalm import DeltaLMConfig, DeltaLMModel
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.tokenization.folder import open_tokenizer

TOKENS = "encoder.embed_tokens.weight"


@pytest.fixture
def source(tmp_path):
    return write_official(tmp_path / "official")


def convert(source, destination, *words):
    main([str(source), "--to", str(destination), *map(str, words)])


def build(folder, **options):
    symbols = PretrainedDictionary.load(str(folder / "dict.txt"))
    task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
    return DeltaLMModel.build_model(DeltaLMConfig(pretrained=str(folder), **options), task).eval()


@pytest.mark.parametrize("name", ["", "deltalm-base.pt"])
def test_the_official_files(source, tmp_path, capsys, name):
    out = tmp_path / "out"
    convert(source / name, out, "--add-language-tokens", "en,de", "--sentinels", 100)
    assert sorted(path.name for path in out.iterdir()) == [
        *("SHA256SUMS", "added_tokens.json", "config.json", "dict.txt", "model.pt", "spm.model"),
    ]
    pieces = pieces_of(source)
    named = [*("<s>", "<pad>", "</s>", "<unk>"), *pieces, "<mask>", "madeupword0000", "madeupword0001"]
    sentinels = [f"<extra_id_{number}>" for number in range(100)]
    symbols = PretrainedDictionary.load(str(out / "dict.txt")).symbols
    assert symbols == [*named, *sentinels, "__en__", "__de__"]
    weights = by_our_names(official_weights(len(named) + 100))
    found = load_checkpoint(out / "model.pt")["model"]
    rows = len(named) + 100
    for key, value in weights.items():
        if key not in COPIES:
            assert torch.equal(found[key][: len(value)], value), key
    assert set(found) == {*weights, *COPIES}
    # New tokens start as the mean of all others.
    torch.testing.assert_close(found[TOKENS][rows:], found[TOKENS][:rows].mean(dim=0).expand(2, -1))
    printed = capsys.readouterr().out
    assert f"the last 100 rows are sentinels, <extra_id_0> (id {len(named)}) to <extra_id_99>" in printed
    assert f"added: __en__ (id {rows}), __de__ (id {rows + 1})" in printed
    tokenizer = open_tokenizer(out)
    line = tokenizer.encode("The quick brown fox __de__")
    assert line.split()[-1] == "__de__" and set(line.split()[:-1]) <= set(pieces)
    assert tokenizer.decode(line) == "The quick brown fox __de__"
    # A model that starts with the folder has all of its weights.
    state = build(out).state_dict()
    assert all(torch.equal(state[key], value) for key, value in found.items())


def test_more_sentinels_and_a_second_conversion(source, tmp_path):
    """A folder of an earlier conversion is replaced; sentinels beyond the checkpoint's own are added."""
    convert(source, tmp_path / "out", "--add-language-tokens", "en")
    convert(source, tmp_path / "out", "--sentinels", 102, "--add-token", "[S]")
    symbols = PretrainedDictionary.load(str(tmp_path / "out" / "dict.txt")).symbols
    assert symbols[-4:] == ["<extra_id_99>", "[S]", "<extra_id_100>", "<extra_id_101>"]


def test_sixteen_bits(tmp_path):
    """Weights keep the type that they have in the file, and are trained in 32 bits."""
    source = write_official(tmp_path / "official", dtype=torch.float16)
    convert(source, tmp_path / "out", "--add-language-tokens", "en")
    found = load_checkpoint(tmp_path / "out" / "model.pt")["model"]
    assert {value.dtype for value in found.values()} == {torch.float16}
    model = build(tmp_path / "out")
    assert {value.dtype for value in model.parameters()} == {torch.float32}
    assert torch.equal(model.encoder.embed_tokens.weight, found[TOKENS].float())


def test_the_large_model_has_no_layer_norm_after_its_embeddings(tmp_path):
    source = write_official(tmp_path / "official", embedding_norm=False)
    convert(source, tmp_path / "out")
    assert PretrainedEncoder.open(tmp_path / "out").sizes == {
        **{"encoder_layers": 4, "decoder_layers": 2, "encoder_embed_dim": WIDTH, "encoder_ffn_embed_dim": 96},
        **{"layernorm_embedding": "no", "max_positions": POSITIONS},
    }
    assert build(tmp_path / "out").encoder.layernorm_embedding is None


@pytest.mark.parametrize("positions", [30, 50])
def test_positions(source, tmp_path, positions):
    convert(source, tmp_path / "out", "--max-positions", positions)
    model = build(tmp_path / "out")
    assert model.max_positions() == (positions, positions)
    table = load_checkpoint(source / "deltalm-base.pt")["weights"]["tgt_embedding.embed_positions.weight"]
    expected = torch.cat([table, table[2:]])[: positions + 2]
    assert torch.equal(model.decoder.embed_positions.weight, expected)


def test_a_checkpoint_of_the_official_program(source, tmp_path):
    """A fine-tuned checkpoint: options in a Namespace, fairseq's names, version buffers, and no row for the mask."""
    rows = 4 + len(pieces_of(source))
    weights = {
        name: value[:rows] if "embed_tokens" in name else value for name, value in official_weights(rows).items()
    }
    state = by_our_names(weights)
    state |= {"encoder.version": torch.tensor([3.0]), "decoder.version": torch.tensor([3.0])}
    state["decoder.output_projection.weight"] = state["decoder.embed_tokens.weight"]
    options = Namespace(arch="deltalm_base", encoder_attention_heads=4, activation_fn="gelu", encoder_layers=4,
                        pretrained_deltalm_checkpoint="gone.pt", max_positions=512)  # fmt: skip
    torch.save({"args": None, "cfg": {"model": options}, "model": state}, source / "deltalm-base.pt")
    convert(source, tmp_path / "out", "--add-language-tokens", "en")
    symbols = PretrainedDictionary.load(str(tmp_path / "out" / "dict.txt")).symbols
    assert symbols[rows:] == ["<mask>", "__en__"]
    model = build(tmp_path / "out")
    assert torch.equal(model.encoder.embed_tokens.weight[:rows], weights["tgt_embedding.embed_tokens.weight"])
    assert model.encoder.layers[0].self_attn.num_heads == 4
    assert model.max_positions() == (POSITIONS, POSITIONS)


def test_a_checkpoint_of_this_plugin(tmp_path):
    """One that began with BERT, whose padding is symbol 0: position tables have one row more than positions."""
    main(
        [str(save("bert", their_model("bert", num_hidden_layers=4), tmp_path / "bert")), "--to", str(tmp_path / "ours")]
    )
    trained = build(tmp_path / "ours")
    state = {"model": trained.state_dict(), "cfg": {"model": {"_name": "deltalm", **trained.settled_options}}}
    torch.save(state, tmp_path / "checkpoint.pt")
    convert(tmp_path / "checkpoint.pt", tmp_path / "out", "--tokenizer-dir", tmp_path / "ours", "--add-token", "[S]")
    assert PretrainedEncoder.open(tmp_path / "out").sizes["max_positions"] == 40
    model = build(tmp_path / "out")
    assert model.settled_options == trained.settled_options
    for name, value in trained.state_dict().items():
        assert torch.equal(model.state_dict()[name][: len(value)], value), name


def test_errors_in_the_files(source, tmp_path):
    with pytest.raises(UserError, match=r"^--finetune-method, --output-prior: .*deltalm-base\.pt is DeltaLM"):
        convert(source, tmp_path / "out", "--finetune-method", "causal", "--output-prior", "x")
    with pytest.raises(UserError, match=r"--add-language-tokens must be different names, .* but is 'en,en'"):
        convert(source, tmp_path / "out", "--add-language-tokens", "en,en")
    state = torch.load(source / "deltalm-base.pt")
    (source / "deltalm-large.pt").write_bytes((source / "deltalm-base.pt").read_bytes())
    with pytest.raises(UserError, match=r"but holds deltalm-base\.pt, deltalm-large\.pt"):
        convert(source, tmp_path / "out")
    (source / "deltalm-large.pt").unlink()
    del state["weights"]["decoder.layers.1.ffn_2.fc1.bias"]
    state["weights"]["encoder.layers.0.ffn.fc1.bias"] = torch.ones(3)
    torch.save(state, source / "deltalm-base.pt")
    with pytest.raises(UserError) as error:
        convert(source, tmp_path / "out")
    assert error.value.problems == [
        "decoder.layers.1.fc1.bias is missing",
        "encoder.layers.0.fc1.bias must have the shape (96,), but has (3,)",
    ]
    del state["weights"]["src_embedding.embed_positions.weight"]
    torch.save(state, source / "deltalm-base.pt")
    with pytest.raises(UserError, match=r"it lacks encoder\.embed_positions\.weight"):
        convert(source, tmp_path / "out")
    (source / "dict.txt").unlink()
    with pytest.raises(UserError, match=r"deltalm-base\.pt needs its own dict\.txt beside it: .* <s>, <pad>, </s>, "):
        convert(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_it_is_no_encoder(source, tmp_path):
    convert(source, tmp_path / "out")
    assert json.loads((tmp_path / "out" / "config.json").read_text())["model"] == "deltalm"
    task = SimpleNamespace(source_dictionary=PretrainedDictionary.load(str(tmp_path / "out" / "dict.txt")))
    with pytest.raises(UserError, match=r"--pretrained .*out holds DeltaLM: train it with --arch deltalm"):
        UnilmModel.build_model(UnilmConfig(pretrained=str(tmp_path / "out")), task)
