"""fairseq's own RoBERTa checkpoints, compared with fairseq's live model."""

import json
from argparse import Namespace

import pytest
import torch
from fairseq.data import Dictionary
from fairseq.models.roberta import RobertaModel
from fairseq.models.roberta.model import base_architecture
from hugging_face import our_model, our_output, segments_of, texts

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer

SIZES = {
    "encoder_layers": 2,
    "encoder_embed_dim": 16,
    "encoder_ffn_embed_dim": 24,
    "encoder_attention_heads": 2,
    "max_positions": 40,
}


class Task:
    """The part of a task that the model needs."""

    def __init__(self, dictionary):
        self.source_dictionary = dictionary


@pytest.fixture(scope="module")
def dictionary():
    """Fairseq's four symbols, GPT-2's ids, a filler, and the mask that the task adds."""
    made = Dictionary()
    for number in range(50 - 6):
        made.add_symbol(str(13 + number))
    made.add_symbol("madeupword0000")
    made.add_symbol("<mask>")
    return made


@pytest.fixture(scope="module")
def theirs(dictionary):
    options = Namespace(arch="roberta_base", dropout=0.0, attention_dropout=0.0, tokens_per_sample=40, **SIZES)
    base_architecture(options)
    torch.manual_seed(0)
    model = RobertaModel.build_model(options, Task(dictionary)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            noise = torch.randn_like(parameter)
            parameter.copy_(1 + 0.2 * noise if "norm" in name and name.endswith("weight") else 0.3 * noise)
    return model, options


@pytest.fixture
def source(theirs, dictionary, tmp_path):
    model, options = theirs
    folder = tmp_path / "roberta.base"
    folder.mkdir()
    torch.save({"args": options, "model": model.state_dict()}, folder / "model.pt")
    # Without the mask, as in the files that fairseq publishes.
    lines = [f"{symbol} 1\n" for symbol in dictionary.symbols[4:] if symbol != "<mask>"]
    (folder / "dict.txt").write_text("".join(lines))
    return folder


def assert_same_logits(theirs, folder):
    model, _ = theirs
    ours = our_model(folder)
    # fairseq gives padding no position: test texts that fill the batch and one that does not
    tokens, real = texts([40, 12, 31], 1)
    with torch.no_grad():
        expected, _ = model(tokens, features_only=False)
    found = our_output(ours, tokens, real, segments_of(real, 1), logits=True)
    assert expected[real].std() > 0.1
    torch.testing.assert_close(found[real], expected[real], atol=1e-4, rtol=0)


def test_same_logits(source, theirs, tmp_path, dictionary):
    convert([str(source), "--to", str(tmp_path / "out")])
    assert_same_logits(theirs, tmp_path / "out")
    made = PretrainedDictionary.load(str(tmp_path / "out" / "dict.txt"))
    assert made.symbols == dictionary.symbols
    assert (made.bos(), made.pad(), made.eos(), made.unk(), made.mask()) == (0, 1, 2, 3, 49)


def test_an_untied_output_matrix(source, theirs, tmp_path):
    model, options = theirs
    untied = Namespace(**{**vars(options), "untie_weights_roberta": True})
    other = RobertaModel.build_model(untied, Task(model.encoder.dictionary)).eval()
    own = 0.3 * torch.randn(50, 16)
    other.load_state_dict({**model.state_dict(), "encoder.lm_head.weight": own})
    torch.save({"args": untied, "model": other.state_dict()}, source / "model.pt")
    convert([str(source), "--to", str(tmp_path / "out")])
    assert_same_logits((other, untied), tmp_path / "out")


@pytest.mark.parametrize("changes", [{"no_scale_embedding": False}, {"encoder_learned_pos": False}])
def test_options_of_other_models(source, theirs, tmp_path, changes):
    model, options = theirs
    torch.save({"args": Namespace(**{**vars(options), **changes}), "model": model.state_dict()}, source / "model.pt")
    with pytest.raises(UserError, match=f"configuration's {next(iter(changes))} must be "):
        convert([str(source), "--to", str(tmp_path / "out")])


def test_a_tokenizer_that_is_elsewhere(source, theirs, dictionary, tmp_path, capsys):
    """Ids remain those of the dictionary next to the weights; encoders without a tokenizer are converted too."""
    convert([str(source), "--to", str(tmp_path / "bare")])
    assert "no tokenizer: its files (encoder.json and vocab.bpe, or" in capsys.readouterr().out
    gpt2 = tmp_path / "gpt2"
    gpt2.mkdir()
    # Here GPT-2's numbers 13 to 56 stand for letters.
    letters = {chr(ord("A") + number - 13): number for number in range(13, 57)}
    (gpt2 / "encoder.json").write_text(json.dumps(letters))
    (gpt2 / "vocab.bpe").write_text("#version: 0.2\n")
    convert([str(source), "--tokenizer-dir", str(gpt2), "--to", str(tmp_path / "out")])
    assert "no tokenizer" not in capsys.readouterr().out
    made = PretrainedDictionary.load(str(tmp_path / "out" / "dict.txt"))
    assert made.symbols == dictionary.symbols
    assert open_tokenizer(tmp_path / "out").encode("BAD") == "14 13 16"
    assert_same_logits(theirs, tmp_path / "out")


def test_the_names_of_older_releases(source, theirs, tmp_path):
    """The encoder was called decoder, its first layer norm had another name, and projections were fused."""
    model, options = theirs
    states = {}
    for name, value in model.state_dict().items():
        states[name.replace("encoder.", "decoder.", 1).replace("layernorm_embedding", "emb_layer_norm")] = value
    for layer in range(2):
        prefix = f"decoder.sentence_encoder.layers.{layer}.self_attn."
        for kind in ("weight", "bias"):
            parts = [states.pop(f"{prefix}{part}_proj.{kind}") for part in "qkv"]
            states[f"{prefix}in_proj_{kind}"] = torch.cat(parts)
    # InfoXLM's training left a queue next to the encoder, and fine-tuned models have a head.
    states["xlco_queue"] = torch.zeros(3, 16)
    states["classification_heads.mnli.dense.weight"] = torch.zeros(16, 16)
    torch.save({"args": options, "model": states}, source / "model.pt")
    convert([str(source / "model.pt"), "--to", str(tmp_path / "out")])
    assert_same_logits(theirs, tmp_path / "out")


def test_options_as_a_configuration(source, theirs, tmp_path):
    """Since fairseq 0.10, checkpoints hold a configuration in place of plain options."""
    model, options = theirs
    torch.save({"args": None, "cfg": {"model": options}, "model": model.state_dict()}, source / "model.pt")
    convert([str(source), "--to", str(tmp_path / "out")])
    assert_same_logits(theirs, tmp_path / "out")


def test_a_configuration_in_place_of_options_that_lack_the_sizes(source, theirs, tmp_path):
    model, _ = theirs
    torch.save({"args": Namespace(arch="infoxlm"), "model": model.state_dict()}, source / "model.pt")
    with pytest.raises(UserError, match=r"/model\.pt: the configuration must have encoder_layers, .*arch$"):
        convert([str(source), "--to", str(tmp_path / "out")])
    assert not (tmp_path / "out").exists()
    (tmp_path / "sizes.json").write_text(str(SIZES).replace("'", '"'))
    convert([str(source), "--to", str(tmp_path / "out"), "--config", str(tmp_path / "sizes.json")])
    assert_same_logits(theirs, tmp_path / "out")


def test_a_checkpoint_of_our_own(tmp_path, tiny_training):
    with pytest.raises(UserError, match=r"is a checkpoint of this plugin's own: .*--finetune-from-model.*s2sft export"):
        convert([str(tiny_training.checkpoint), "--to", str(tmp_path / "out")])
    assert "model" in load_checkpoint(tiny_training.checkpoint)
