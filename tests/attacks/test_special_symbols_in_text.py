"""Text that spells a special symbol is text: in targets it ends nothing, in sources it separates documented fields."""

import json
import logging
from pathlib import Path

import numpy as np
import pytest
from tokenizer_folders import write_sentencepiece, write_wordpiece

from s2sft_fairseq import Seq2Seq
from s2sft_fairseq.api.understanding import Classifier
from s2sft_fairseq.commands.tokenize import main as tokenize
from s2sft_fairseq.corpora.pairs import Fields, write_pairs
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.plots.attention import attend
from s2sft_fairseq.plots.lengths import measure
from s2sft_fairseq.tokenization.folder import open_tokenizer

SPELLED = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]


@pytest.fixture(scope="module")
def model(tiny_parts):
    return Seq2Seq.from_pretrained(tiny_parts / "model", device="cpu")


def lines(path: Path, *texts: str) -> Path:
    path.write_text("".join(f"{text}\n" for text in texts))
    return path


def tokenized(folder: Path, *words: object) -> dict[str, list[str]]:
    tokenize(list(map(str, ["--tokenizer-dir", folder / "tokenizer", "--output-dir", folder / "out", *words])))
    return {path.name: path.read_text().splitlines() for path in (folder / "out").iterdir()}


@pytest.mark.parametrize("separator", [(), ("--separator", "[SEP]")])
def test_targets_of_files(tmp_path, capsys, separator):
    write_wordpiece(tmp_path / "tokenizer")
    source = lines(tmp_path / "train.src", "the [SEP] a", "the")
    target = lines(tmp_path / "train.tgt", "a [SEP] b", "[PAD]")
    found = tokenized(tmp_path, "--input", source, target, *separator)
    assert found["train.src"] == ["the [SEP] a", "the"]
    assert found["train.tgt"] == ["a [UNK] s ##e ##p [UNK] b", "[UNK] p ##a ##d [UNK]"]
    printed = capsys.readouterr().out
    assert printed.count("1 lines have separators") == 1


def test_fields_of_json(tmp_path):
    write_wordpiece(tmp_path / "tokenizer")
    record = json.dumps({"p": "a [SEP] b", "a": "c", "q": "[SEP]"})
    path = lines(tmp_path / "train.jsonl", record)
    found = tokenized(tmp_path, "--input", path, "--source", "p", "a", "--target", "q")
    assert found["train.src"][0].split().count("[SEP]") == 1
    assert found["train.tgt"] == ["[UNK] s ##e ##p [UNK]"]
    found = tokenized(tmp_path, "--input", path, "--source", "p", "a", "--separator", " [SEP] ")
    assert found["train.src"] == ["a [SEP] b [SEP] c"]


def test_texts_of_no_source(tmp_path):
    """Files of other names, such as those of translations, hold no fields unless a separator says so."""
    write_sentencepiece(tmp_path / "tokenizer")
    text = lines(tmp_path / "train.de", "the </s> [SEP] dog")
    assert "</s>" not in tokenized(tmp_path, "--input", text)["train.de"][0].split()
    found = tokenized(tmp_path, "--input", text, "--separator", "[SEP]")
    assert found["train.de"][0].split().count("</s>") == 1


def test_fields_of_pairs(tmp_path):
    """With several keys, a separator in a field would be one more field: an error, as in the corpora."""
    records = [json.dumps({"q": "x [SEP] y", "p": "z", "t": "a [SEP] b"}), json.dumps({"q": "x", "p": "z", "t": "b"})]
    path = lines(tmp_path / "train.jsonl", *records)
    with pytest.raises(UserError, match=r"train.jsonl:1: the source holds \[SEP\], which separates fields"):
        write_pairs({"train": [path], "valid": [path]}, tmp_path / "made", Fields(("q", "p"), "t"))


@pytest.mark.parametrize("spelled", SPELLED)
def test_targets_in_python(model, spelled):
    """No symbol of this vocabulary spells a bracket, so each piece is unknown."""
    (score,) = model.score(["a b"], [f"a {spelled} b"])
    assert score.tokens == ["a", "[UNK]", "[UNK]", "[UNK]", "b", "[SEP]"]


def test_sources_in_python(model, caplog):
    caplog.set_level(logging.INFO)
    as_line, as_fields, as_text = (
        model.attention(source, "a").source for source in ("a [SEP] b", ("a", "b"), ("a [SEP] b",))
    )
    assert as_line == as_fields == ["[CLS]", "a", "[SEP]", "b", "[SEP]"]
    assert as_text == ["[CLS]", "a", "[UNK]", "[UNK]", "[UNK]", "b", "[SEP]"]
    assert "1 of 1 sources have [SEP], which begins another field" in caplog.text
    assert model.attention("[CLS][MASK]", "a").source == ["[CLS]", *["[UNK]"] * 6, "[SEP]"]


def test_texts_of_a_classifier(tmp_path):
    """Only the fields of a text are separated; the model gets the lines of symbols."""

    class Recorder(Classifier):
        def __init__(self, folder: Path) -> None:
            self._tokenizer, self._source_names, self.lines = open_tokenizer(folder), (), []

        def _logits(self, lines):
            self.lines += lines
            return [np.zeros(1)] * len(lines)

        def _prediction(self, logits):
            return logits

    classifier = Recorder(write_wordpiece(tmp_path))
    classifier(["a [SEP] b", ("a", "b"), ("a [SEP]", "b")])
    assert [line.split().count("[SEP]") for line in classifier.lines] == [0, 1, 1]


def test_generation_from_a_file(tiny_parts, call_command, tmp_path):
    lines(tmp_path / "in.txt", *(f"a {spelled}" for spelled in SPELLED), "a")
    words = ("--path", tiny_parts / "model", "--input", "in.txt", "--output", "out.txt", "--cpu", "--max-len-b", 2)
    done = call_command("generate", *words)
    assert "in.txt: 1 lines have separators, which begin further fields" in done.stderr
    assert "in.txt: 12 of 19 symbols are unknown to the vocabulary, such as in 'a [PAD]'" in done.stderr


def test_figures(tiny_parts, tmp_path):
    for side in ("src", "tgt"):
        lines(tmp_path / f"a.{side}", "a [SEP] b")
    files = [tmp_path / "a.src", tmp_path / "a.tgt"]
    sources, targets = measure(files, "train", tiny_parts / "encoder", None, None)
    assert (sources.positions.tolist(), targets.positions.tolist()) == ([5], [6])
    attended = attend(tiny_parts / "model", "a [SEP] b", "[SEP]")
    assert attended.tokens[:9] == ["[CLS]", "a", "[SEP]", "b", "[SEP]", *["[UNK]"] * 3, "[SEP]"]
