"""Fine-tuning in blocks and all ways of decoding, by the command lines: three memorized texts are written exactly."""

from pathlib import Path

import pytest
from command_output import generated, last_value
from hugging_face import initial_model, save

LINES = ["w5 w6 w7 w8 w9 w10 w11", "w8", "w9 w10 w9 w11"]
LEARNING = (
    *("--lr", "0.01", "--batch-size", "3", "--label-smoothing", "0", "--dropout", "0", "--attention-dropout", "0"),
    *("--max-source-positions", "40", "--max-target-positions", "12", "--cpu", "--num-workers", "0"),
    *("--save-dir", "tuned", "--no-epoch-checkpoints", "--save-interval", "9999", "--disable-validation"),
    *("--log-format", "simple", "--finetune-method", "blocks"),
)


@pytest.fixture
def data(call_command, tmp_path):
    save("bert-6-segments", initial_model("bert-6-segments", hidden_size=32, intermediate_size=48), tmp_path / "saved")
    call_command("convert", "saved", "--to", "encoder", "--max-positions", "65")
    Path("raw").mkdir()
    for split in ("train", "valid", "test"):
        for side in ("src", "tgt"):
            Path("raw", f"{split}.{side}").write_text("".join(f"{line}\n" for line in LINES), encoding="utf-8")
    words = ("-s", "src", "-t", "tgt", "--srcdict", "encoder/dict.txt", "--joined-dictionary", "--destdir", "data")
    call_command("preprocess", *words, *(f"--{split}pref=raw/{split}" for split in ("train", "valid", "test")))


WAYS = {
    "random:5": [(), ("--draft-blocks", "3"), ("--draft-blocks", "-1"), ("--decode-blocks", "4")],
    "target": [("--decode-blocks", "99"), ("--decode-blocks", "99", "--max-passes", "3")],
}


@pytest.mark.usefixtures("data")
@pytest.mark.parametrize("length", WAYS)
def test_from_pairs_to_text(call_command, until_learned, length):
    words = ("data", "--pretrained", "encoder", *LEARNING, "--block-length", length, "--block-loss-weight", "bound")

    def learned(log):
        return last_value(log.stdout, "loss", "| train | epoch") < 0.02

    until_learned(lambda updates: call_command("train", *words, "--max-update", updates), learned, 150)
    shown = ("--bpe", "pretrained", "--tokenizer-dir", "encoder", "--cpu", "--beam", "1")
    for way in WAYS[length]:
        done = call_command("generate", "data", "--path", "tuned/checkpoint_last.pt", *shown, *way)
        hypotheses = generated(done.stdout, "D")
        assert [hypotheses[number][0] for number in range(3)] == LINES, way
    # The checkpoint stores how it was trained.
    done = call_command("generate", "data", "--path", "tuned/checkpoint_last.pt", *shown)
    assert ("--decode-blocks" in done.stdout + done.stderr) == (length == "target")


@pytest.mark.usefixtures("data")
def test_options_that_are_refused(call_command):
    words = ("train", "data", "--pretrained", "encoder", *LEARNING, "--max-update", "1")
    wrong = (
        "--block-length",
        "0",
        "--word-flow-weight",
        "2",
        "--noise-schedule",
        "full",
        "--block-loss-weight",
        "bound",
    )
    error = call_command(*words, *wrong, status=2).stderr
    for found in (("--block-length", "'0'"), ("--word-flow-weight", "2"), ("--block-loss-weight", "full")):
        assert any(all(word in line for word in found) for line in error.splitlines()), found
    error = call_command(*words, "--finetune-method", "causal", "--block-length", "4", status=2).stderr
    assert "--block-length is for --finetune-method blocks, but that is causal" in error
