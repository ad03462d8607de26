"""DeBERTa's files: what they hold besides the encoder, their tokenizer, and unsupported settings."""

import json

import pytest
import torch
from hugging_face import VOCAB_SIZE, our_model, save, their_model
from safetensors.torch import load_file, save_file

from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.convert import main as convert
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer

transformers = pytest.importorskip("transformers", reason="transformers is not installed")
TEXT = "the quick brown fox judges a lazy dog"


@pytest.fixture
def saved(tmp_path):
    return save("deberta", their_model("deberta"), tmp_path / "saved")


def with_weights(folder, change):
    """Change the names of a folder's tensors."""
    weights = load_file(folder / "model.safetensors")
    save_file(change(weights), folder / "model.safetensors")


def with_settings(folder, **settings):
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps({**config, **settings}))


def as_the_authors_name_it(weights):
    """Name the head as DeBERTa's own program does, and transformers with ``legacy: false``."""
    return {
        name.replace("cls.predictions.transform.", "lm_predictions.lm_head.").replace(
            "cls.predictions.", "lm_predictions.lm_head."
        ): value
        for name, value in weights.items()
    }


def test_the_head_of_the_authors_program(saved, tmp_path):
    convert([str(saved), "--to", str(tmp_path / "expected")])
    with_weights(saved, as_the_authors_name_it)
    assert "lm_predictions.lm_head.bias" in load_file(saved / "model.safetensors")
    convert([str(saved), "--to", str(tmp_path / "found")])
    expected, found = (load_checkpoint(tmp_path / name / "model.pt")["model"] for name in ("expected", "found"))
    assert found.keys() == expected.keys()
    assert all(torch.equal(found[name], value) for name, value in expected.items())


def test_a_detector_of_replaced_tokens_has_no_head(saved, tmp_path, capsys):
    """In version 3, the files' language model head belongs to another model, the generator of its pre-training."""
    detector = {
        "mask_predictions.dense.weight": torch.ones(16, 16),
        "mask_predictions.classifier.weight": torch.ones(1, 16),
    }
    unread = {"deberta.embeddings.position_embeddings.weight": torch.ones(40, 16)}
    with_weights(saved, lambda weights: {**as_the_authors_name_it(weights), **detector, **unread})
    convert([str(saved), "--to", str(tmp_path / "encoder")])
    encoder = PretrainedEncoder.open(tmp_path / "encoder")
    assert encoder.newly_initialized == [
        *("lm_head.bias", "lm_head.dense.bias", "lm_head.dense.weight"),
        *("lm_head.layer_norm.bias", "lm_head.layer_norm.weight"),
    ]
    unused = next(line for line in capsys.readouterr().out.splitlines() if line.startswith("unused: "))
    assert {*detector, *unread, "lm_predictions.lm_head.dense.weight"} <= set(
        unused.removeprefix("unused: ").split(", ")
    )
    # So the head can be fitted.
    (tmp_path / "text").write_text(f"{open_tokenizer(saved).encode(TEXT)}\n" * 3)
    text = str(tmp_path / "text")
    convert([str(saved), "--to", str(tmp_path / "fitted"), "--fit-head", text, "--output-prior", text])
    assert our_model(tmp_path / "fitted").lm_head.dense.weight.std() > 0
    assert PretrainedEncoder.open(tmp_path / "fitted").newly_initialized == ["lm_head.layer_norm.bias"]


def test_sentencepiece_with_its_mask_and_the_padding_of_the_vocabulary(saved, tmp_path):
    """[MASK] has the id after the pieces; the rows after it have no token."""
    convert([str(saved), "--to", str(tmp_path / "encoder")])
    dictionary = PretrainedDictionary.load(str(tmp_path / "encoder" / "dict.txt"))
    tokenizer = open_tokenizer(tmp_path / "encoder")
    pieces = tokenizer.model.get_piece_size()
    assert (dictionary.pad(), dictionary.bos(), dictionary.eos(), dictionary.unk()) == (0, 1, 2, 3)
    assert (dictionary.mask(), len(dictionary)) == (pieces, VOCAB_SIZE)
    assert dictionary.symbols[pieces + 1 :] == [f"madeupword{number:04d}" for number in range(VOCAB_SIZE - pieces - 1)]
    assert tokenizer.decode(tokenizer.encode(TEXT)) == TEXT
    assert "[MASK]" not in tokenizer.encode(f"{TEXT} [MASK]").split()
    # The tokenizer of transformers agrees, and so does its tokenizer.json in place of the SentencePiece model.
    theirs = transformers.DebertaV2Tokenizer.from_pretrained(saved)
    ids = [dictionary.index(symbol) for symbol in tokenizer.encode(TEXT).split()]
    assert theirs(TEXT)["input_ids"] == [1, *ids, 2]
    assert theirs.mask_token_id == dictionary.mask()
    theirs.save_pretrained(tmp_path / "json")
    assert open_tokenizer(tmp_path / "json").encode(TEXT) == tokenizer.encode(TEXT)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"conv_kernel_size": 3}, "conv_kernel_size must be 0 for this model, but is 3$"),
        ({"position_biased_input": True}, "position_biased_input must be False for this model, but is True$"),
        ({"relative_attention": False}, "relative_attention must be True for this model, but is False$"),
        ({"embedding_size": 8}, "embedding_size must be 16 for this model, but is 8$"),
        ({"attention_head_size": 4}, "attention_head_size must be 8 for this model, but is 4$"),
        ({"pos_att_type": ["p2p", "c2p"]}, r"pos_att_type must be c2p, p2c or both, but is \['p2p', 'c2p'\]$"),
        ({"pos_att_type": None}, r"pos_att_type must be c2p, p2c or both, but is \[\]$"),
    ],
)
def test_unsupported_settings(saved, tmp_path, settings, message):
    with_settings(saved, **settings)
    with pytest.raises(UserError, match=rf"saved/model\.safetensors: the configuration's {message}"):
        convert([str(saved), "--to", str(tmp_path / "encoder")])


def test_attention_terms_joined_with_bars_as_in_published_files(saved, tmp_path):
    with_settings(saved, pos_att_type="p2c|c2p")
    convert([str(saved), "--to", str(tmp_path / "encoder")])
    assert PretrainedEncoder.open(tmp_path / "encoder").sizes["disentangled_attention"] == "both"
