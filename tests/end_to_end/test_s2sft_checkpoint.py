"""A model that the s2s-ft program fine-tuned: once converted, it decodes at once, with the program's output."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from command_output import generated

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint

GOLDEN = Path(__file__).resolve().parents[1] / "golden"
SYMBOLS = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *(f"w{i}" for i in range(5, 97))]
SEP, UNK = 3, 1


@pytest.fixture(scope="module")
def recorded():
    with np.load(GOLDEN / "decode_abs.npz") as arrays:
        return dict(arrays)


@pytest.fixture
def checkpoint(tmp_path):
    """Files as the program writes them: a copy of the tied matrix, the buffer of its loss, no tokenizer."""
    with np.load(GOLDEN / "weights_abs.npz") as arrays:
        weights = {name: torch.from_numpy(array) for name, array in arrays.items()}
    weights["cls.predictions.decoder_weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
    weights["crit_mask_lm_smoothed.one_hot"] = torch.zeros(1, 97)
    folder = tmp_path / "ckpt-10000"
    folder.mkdir()
    torch.save(weights, folder / "pytorch_model.bin")
    config = json.loads((GOLDEN / "train_abs.json").read_text())["config"]
    (folder / "config.json").write_text(json.dumps({**config, "model_type": "bert"}))
    vocabulary = tmp_path / "tokenizer"
    vocabulary.mkdir()
    (vocabulary / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in SYMBOLS))
    return folder


@pytest.mark.parametrize(("mode", "method"), [("mask", None), ("mask", "masked"), ("shift", "causal")])
def test_writes_the_output_of_the_program(call_command, tmp_path, checkpoint, recorded, mode, method):
    named = ("--finetune-method", method) if method else ()
    done = call_command("convert", checkpoint, "--tokenizer-dir", "tokenizer", "--to", "model", *named)
    assert ("fine-tuned with pseudo_masked, the program's default" in done.stdout) == (method is None)
    lines = [" ".join(SYMBOLS[token] for token in recorded[f"src/{i}"]) for i in range(8)]
    Path("test.src").write_text("".join(f"{line}\n" for line in lines))
    words = ("-s", "src", "-t", "tgt", "--only-source", "--srcdict", "model/dict.txt", "--testpref", "test")
    call_command("preprocess", *words, "--destdir", "data")
    Path("data/dict.tgt.txt").write_bytes(Path("data/dict.src.txt").read_bytes())
    # The limits of the recording: 46 source tokens in mask mode, 47 in shift mode, 16 of the target.
    limits = ("--max-source-positions", "48", "--max-target-positions", "16")
    done = call_command("generate", "data", "-s", "src", "-t", "tgt", "--path", "model/model.pt", "--beam", 1, *limits)
    hypotheses = generated(done.stdout)
    compared = 0
    for i, ids in enumerate(recorded[f"{mode}/greedy/ids"].tolist()):
        expected = ids[: ids.index(SEP)] if SEP in ids else ids[:15]
        if UNK not in expected:  # which we never write
            assert hypotheses[i][0].split() == [SYMBOLS[token] for token in expected[:15]]
            compared += 1
    assert compared >= 6


def test_the_layer_norm_of_its_decoder(call_command, checkpoint):
    call_command("convert", checkpoint, "--tokenizer-dir", "tokenizer", "--to", "model")
    assert load_checkpoint("model/model.pt")["cfg"]["model"]["layer_norm_eps"] == 1e-5
    assert json.loads(Path("model/config.json").read_text())["sizes"]["layer_norm_eps"] == 1e-5


def test_an_encoder_without_fine_tuning_is_refused(call_command, checkpoint, tmp_path):
    """A pretrained encoder is a checkpoint too; generating with it is an error that says what is missing."""
    weights = load_checkpoint(checkpoint / "pytorch_model.bin")
    del weights["cls.predictions.decoder_weight"]
    torch.save(weights, checkpoint / "pytorch_model.bin")
    call_command("convert", checkpoint, "--tokenizer-dir", "tokenizer", "--to", "model")
    Path("test.src").write_text("w5 w6\n")
    words = ("-s", "src", "-t", "tgt", "--only-source", "--srcdict", "model/dict.txt", "--testpref", "test")
    call_command("preprocess", *words, "--destdir", "data")
    Path("data/dict.tgt.txt").write_bytes(Path("data/dict.src.txt").read_bytes())
    done = call_command("generate", "data", "-s", "src", "-t", "tgt", "--path", "model/model.pt", status=2)
    assert "error: model/model.pt: the checkpoint does not say how it was fine-tuned" in done.stderr


def test_a_method_for_an_encoder_without_a_head(call_command, checkpoint):
    weights = load_checkpoint(checkpoint / "pytorch_model.bin")
    bare = {name: value for name, value in weights.items() if not name.startswith("cls")}
    torch.save(bare, checkpoint / "pytorch_model.bin")
    words = ("--tokenizer-dir", "tokenizer", "--to", "model", "--finetune-method", "masked")
    done = call_command("convert", checkpoint, *words, status=2)
    assert (
        "error: --finetune-method is for checkpoints that are fine-tuned, but this one lacks lm_head.bias"
        in done.stderr
    )
    assert not Path("model").exists()
