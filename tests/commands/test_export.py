"""`s2sft export`: from our checkpoints to folders that `transformers` reads."""

import json
from pathlib import Path
from types import SimpleNamespace
from unittest.mock import Mock

import pytest
import torch
from hugging_face import (
    BYTES,
    our_model,
    our_output,
    save,
    segments_of,
    texts,
    their_model,
    their_output,
    write_tokenizer,
)
from safetensors import SafetensorError

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.hugging_face import WEIGHTS
from s2sft_fairseq.exports.hugging_face import export_to_hugging_face as export
from s2sft_fairseq.exports.hugging_face import write_tokenizer as write_tokenizer_files
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary

transformers = pytest.importorskip("transformers", reason="transformers is not installed")


@pytest.fixture
def encoder(tmp_path):
    convert([str(save("bert", their_model("bert"), tmp_path / "bert")), "--to", str(tmp_path / "encoder")])
    return tmp_path / "encoder"


def assert_same_logits(exported, ours, lengths, kind="AutoModelForMaskedLM"):
    theirs = getattr(transformers, kind).from_pretrained(exported).eval()
    tokens, real = texts(lengths, ours.embeddings.tokens.padding_idx)
    segments = segments_of(real, getattr(theirs.config, "type_vocab_size", 0))
    expected = their_output(theirs, tokens, real, segments)[real]
    found = our_output(ours, tokens, real, segments, logits=True)[real]
    torch.testing.assert_close(found, expected, atol=1e-4, rtol=0)


def test_a_fine_tuned_checkpoint(call_command, tmp_path, encoder, capsys):
    """Its own weights are written, with the tokenizer of the encoder from which it was trained."""
    Path("raw").mkdir()
    for split in ("train", "valid"):
        for side in ("src", "tgt"):
            Path("raw", f"{split}.{side}").write_text("w5 w6 w7\nw8 w9\n" * 8)
    files = ("--trainpref", "raw/train", "--validpref", "raw/valid", "--destdir", "data")
    words = ("-s", "src", "-t", "tgt", "--srcdict", "encoder/dict.txt", "--joined-dictionary")
    call_command("preprocess", *words, *files)
    limits = ("--max-source-positions", "20", "--max-target-positions", "12", "--cpu")
    saving = ("--save-dir", "tuned", "--no-epoch-checkpoints", "--max-update", "3", "--lr", "0.01")
    call_command("train", "data", "--pretrained", "encoder", *limits, *saving)
    words = ("--tokenizer-dir", "encoder", "--format", "hugging_face", "--to", "exported")
    done = call_command("export", "tuned/checkpoint_best.pt", *words)
    assert "wrote exported: BertForMaskedLM, " in done.stdout
    assert sorted(path.name for path in Path("exported").iterdir()) == [
        *("SHA256SUMS", "config.json", "model.safetensors", "vocab.txt")
    ]
    tuned = load_checkpoint("tuned/checkpoint_best.pt")["model"]
    model = our_model(encoder)
    assert not torch.equal(tuned["layers.0.fc1.weight"], model.layers[0].fc1.weight)
    model.load_state_dict(tuned)
    assert_same_logits("exported", model, [19, 30])
    tokenizer = transformers.AutoTokenizer.from_pretrained("exported")
    assert tokenizer("w5 w6")["input_ids"] == [2, 5, 6, 3]


def write_adapters(encoder, file, **state):
    """Write a checkpoint of random adapters of an encoder, and return the model."""
    task = SimpleNamespace(source_dictionary=PretrainedDictionary.load(str(encoder / "dict.txt")))
    cfg = UnilmConfig(pretrained=str(encoder), lora_rank=2, lora_alpha=3.0, lora_targets="all", dropout=0.0)
    model = UnilmModel.build_model(cfg, task)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter += 0.1 * torch.randn(parameter.shape) * parameter.requires_grad
    torch.save({"model": model.state_dict(), "cfg": {"model": vars(cfg)}, **state}, file)
    return model.eval()


def test_adapters_are_merged(tmp_path, encoder):
    """The encoder is read from its folder during training, or from its new folder."""
    model = write_adapters(encoder, tmp_path / "adapters.pt")
    export(tmp_path / "adapters.pt", tmp_path / "exported", encoder)
    assert_same_logits(tmp_path / "exported", model, [19, 30])
    moved = encoder.rename(tmp_path / "moved")
    with pytest.raises(UserError, match=r"encoder must be a folder .*; adapters need the encoder that they were"):
        export(tmp_path / "adapters.pt", tmp_path / "other", moved)
    export(tmp_path / "adapters.pt", tmp_path / "again", moved, moved)
    assert (tmp_path / "again" / WEIGHTS).read_bytes() == (tmp_path / "exported" / WEIGHTS).read_bytes()
    with pytest.raises(UserError, match=r"^--pretrained is for checkpoints with adapters \(--lora-rank\), but .*model"):
        export(moved / "model.pt", tmp_path / "other", moved, moved)


@pytest.mark.parametrize(
    ("name", "method", "said"),
    [
        ("qwen2", "causal", "give it <|begin_of_text|>, the source and <|end_of_text|>"),
        ("gemma3", "pseudo_masked", "it was trained with pseudo_masked, which predicts at placeholders"),
    ],
)
def test_a_fine_tuned_language_model(tmp_path, name, method, said, capsys):
    """Adapters are merged; the command says whether another program generates with it as in training."""
    convert([str(save(name, their_model(name), tmp_path / "saved")), "--to", str(tmp_path / "start")])
    layout = {"layout": {"finetune_method": method}}
    model = write_adapters(tmp_path / "start", tmp_path / "adapters.pt", task_state=layout)
    export(tmp_path / "adapters.pt", tmp_path / "exported", tmp_path / "start")
    assert_same_logits(tmp_path / "exported", model, [19, 30], "AutoModelForCausalLM")
    assert said in capsys.readouterr().out


def test_xlm_roberta_stays_one(tmp_path):
    saved = save("xlm-roberta", their_model("xlm-roberta"), tmp_path / "saved")
    convert([str(saved), "--to", str(tmp_path / "encoder")])
    export(tmp_path / "encoder", tmp_path / "exported")
    config = json.loads((tmp_path / "exported" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("xlm-roberta", ["XLMRobertaForMaskedLM"])
    assert (config["bos_token_id"], config["pad_token_id"], config["eos_token_id"]) == (0, 1, 2)
    assert_same_logits(tmp_path / "exported", our_model(tmp_path / "encoder"), [12])


def test_the_ids_of_fairseq_become_those_of_roberta(tmp_path):
    """Fairseq's dictionary names GPT-2's ids; RoBERTa's vocab.json names the tokens themselves."""
    saved = save("roberta", their_model("roberta"), tmp_path / "saved")
    # The same model with fairseq's dictionary, in which the tokens have another order.
    tokens = {token: number for number, token in enumerate(BYTES)}
    gpt2 = tmp_path / "gpt2"
    gpt2.mkdir()
    (gpt2 / "encoder.json").write_text(json.dumps(tokens))
    (gpt2 / "vocab.bpe").write_text("#version: 0.2\n")
    order = list(range(len(BYTES)))[::-1]
    (gpt2 / "dict.txt").write_text("".join(f"{number} 1\n" for number in order))
    convert([str(saved), "--tokenizer-dir", str(gpt2), "--to", str(tmp_path / "encoder")])
    export(tmp_path / "encoder", tmp_path / "exported")
    ids = json.loads((tmp_path / "exported" / "vocab.json").read_text())
    assert ids == {
        **{"<s>": 0, "<pad>": 1, "</s>": 2, "<unk>": 3, "<mask>": 49},
        **{BYTES[number]: 4 + place for place, number in enumerate(order)},
    }
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "exported")
    assert tokenizer("ab c")["input_ids"] == [0, *(ids[token] for token in ("a", "b", "Ġ", "c")), 2]


def test_a_relative_position_bias(tmp_path, encoder, capsys):
    """No model of Hugging Face has one; the export is in UniLM's own format, which can be read again."""
    state = load_checkpoint(encoder / "model.pt")
    state["model"]["relative_position.weight"] = torch.randn(2, 32)
    state["cfg"]["model"]["relative_position_bins"] = 32
    torch.save(state, tmp_path / "relative.pt")
    export(tmp_path / "relative.pt", tmp_path / "unilm", encoder)
    assert "this is UniLM's own format, for s2sft convert" in capsys.readouterr().out
    convert([str(tmp_path / "unilm"), "--to", str(tmp_path / "again")])
    again = load_checkpoint(tmp_path / "again" / "model.pt")["model"]
    assert again.keys() == state["model"].keys()
    assert all(torch.equal(again[name], value) for name, value in state["model"].items())


def test_what_cannot_be_exported(tmp_path, encoder, monkeypatch):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("precious")
    with pytest.raises(UserError, match=r"^--to .*full must be new or empty, but holds notes\.txt"):
        export(encoder, tmp_path / "full")
    with pytest.raises(UserError, match=r"^--tokenizer-dir is needed for .*model\.pt: the folder of the encoder"):
        export(encoder / "model.pt", tmp_path / "out")
    torch.save({"model": {}, "cfg": {"model": {"encoder_layers": 1}}}, tmp_path / "other.pt")
    with pytest.raises(UserError, match=r"other\.pt must be a checkpoint of s2sft train, or a folder of s2sft convert"):
        export(tmp_path / "other.pt", tmp_path / "out", encoder)
    larger = tmp_path / "larger"
    write_tokenizer("wordpiece", larger)
    with (larger / "vocab.txt").open("a") as file:
        file.write("more\n")
    with pytest.raises(UserError, match=r"larger has 51 symbols, but .*encoder was trained with 50$"):
        export(encoder, tmp_path / "out", larger)
    monkeypatch.setattr("safetensors.torch.save_file", Mock(side_effect=SafetensorError("No space left on device")))
    with pytest.raises(UserError, match=r"^model\.safetensors could not be written: No space left on device$"):
        export(encoder, tmp_path / "out")
    monkeypatch.setitem(__import__("sys").modules, "safetensors.torch", None)
    with pytest.raises(UserError, match=r"model\.safetensors needs the package safetensors, which is not installed"):
        export(encoder, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_vocabulary_with_capitals_keeps_them(tmp_path):
    """Transformers would lower-case the text of a vocab.txt that nothing is said about."""
    source = tmp_path / "source"
    source.mkdir()
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "The", "cat"]
    (source / "vocab.txt").write_text("".join(f"{word}\n" for word in words))
    for name, settings, expected in (("silent", None, [6, 7]), ("stated", {"do_lower_case": True}, [5, 7])):
        if settings:
            (source / "tokenizer_config.json").write_text(json.dumps(settings))
        (tmp_path / name).mkdir()
        write_tokenizer_files(source, read_vocabulary(source), tmp_path / name)
        tokenizer = transformers.BertTokenizer.from_pretrained(tmp_path / name)
        assert tokenizer("The cat", add_special_tokens=False)["input_ids"] == expected
