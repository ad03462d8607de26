"""A RoBERTa-like dictionary, with fairseq's four symbols first, and a model without segments."""

import pytest
from command_output import generated

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint


@pytest.fixture
def data(toy, call_command, tmp_path):
    """The toy task with such a dictionary; its file does not list the four symbols."""
    (tmp_path / "dict.txt").write_text("".join(f"{symbol} 1\n" for symbol in [*"hgfedcba", "<mask>"]))
    files = ("--trainpref", toy.raw / "train", "--validpref", toy.raw / "valid", "--testpref", toy.raw / "mixed")
    words = ("-s", "src", "-t", "tgt", "--srcdict", "dict.txt", "--joined-dictionary", "--destdir", "data")
    assert "Dictionary: 13 types" in call_command("preprocess", *words, *files).stdout
    return tmp_path / "data"


@pytest.mark.parametrize("method", ["causal", "masked", "pseudo_masked"])
def test_trains_and_generates(data, toy, call_command, tmp_path, method):
    options = ("--num-segments", "0", "--finetune-method", method, "--max-update", "20", "--save-dir", "saved")
    call_command("train", data, *toy.training, *options)
    model = load_checkpoint(tmp_path / "saved" / "checkpoint_last.pt")["model"]
    assert len(model["embeddings.tokens.weight"]) == 13
    assert not any("segments" in name for name in model)
    path = ("--path", "saved/checkpoint_last.pt")
    done = call_command("generate", data, *path, "--cpu", "--beam", "3", "--min-len", "3")
    hypotheses = generated(done.stdout)
    assert sorted(hypotheses) == list(range(13))
    for number, source in enumerate((toy.raw / "mixed.src").read_text().splitlines()):
        words = hypotheses[number][0].split()
        assert len(words) >= 3 if source.strip() else words == []
        assert set(words) <= set("abcdefgh")
    assert "a b <unk> d" in generated(done.stdout, "S")[6]
