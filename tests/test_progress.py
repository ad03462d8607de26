"""What commands show on a terminal while they work; elsewhere nothing, but for lines of the log."""

import importlib.util
import io
import json
import logging
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from exported import write_model_folder
from tiny import TINY_SIZES, tiny_dictionary, tiny_model
from tiny_deltalm import write_deltalm
from tokenizer_folders import write_wordpiece

from s2sft_fairseq import checksums, cli, progress
from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.checkpoints.saving import save_checkpoint
from s2sft_fairseq.corpora.docstrings import CorpusSettings, build_corpus
from s2sft_fairseq.corpora.line_aligned import draw_small
from s2sft_fairseq.corpora.pairs import write_pairs
from s2sft_fairseq.corpora.reading import Example, Malformed
from s2sft_fairseq.corpora.squad import SquadQuestion
from s2sft_fairseq.corpora.writing import write_corpus, write_labelled
from s2sft_fairseq.data.text_files import check_texts
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation import bleu, coco, examples, rouge, statistics
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.exports import onnx
from s2sft_fairseq.exports.comparison import compare
from s2sft_fairseq.exports.original import Original
from s2sft_fairseq.files import added_files
from s2sft_fairseq.models.head_initialization import initialize_head
from s2sft_fairseq.progress import bar, bar_of_bytes, of_command, sentence_progress, step
from s2sft_fairseq.question_answering.questions import Question
from s2sft_fairseq.question_answering.squad_windows import WindowMaker, write_windows
from s2sft_fairseq.recipes.finetune_trials import Trials, average
from s2sft_fairseq.tasks import prediction
from s2sft_fairseq.tokenization.folder import open_tokenizer


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture
def terminal(monkeypatch):
    """A terminal as the error stream of `progress`, on which bars appear at once."""
    stream = Terminal()
    monkeypatch.setattr(progress, "DELAY", 0)
    monkeypatch.setattr(progress, "sys", SimpleNamespace(stderr=stream))
    return stream


@pytest.fixture
def shown(monkeypatch, terminal, tmp_path):
    """``shown(work)``: what ``work(folder)`` shows on a terminal, by its text: the count of a bar, "" for a line.

    It is called twice with an empty folder. The first time, the error stream is a file, where nothing may be shown.
    """
    root, found, close = logging.getLogger(), {}, progress._Bar.close
    monkeypatch.setattr(root, "handlers", root.handlers[:])
    monkeypatch.setattr(root, "level", root.level)
    monkeypatch.setattr(sys, "argv", sys.argv)

    def record(self):
        if not self.disable and not isinstance(self, progress._LoggedProgress):
            is_step = self.bar_format == "{desc} ..."
            found[self.desc] = "" if is_step else f"{self.n}/{'?' if self.total is None else self.total}{self.unit}"
        close(self)

    def run(work):
        for name, stream in (("file", io.StringIO()), ("terminal", terminal)):
            monkeypatch.setattr(sys, "stderr", stream)
            progress.sys.stderr = stream
            monkeypatch.setattr(checksums, "_checked", set())
            (tmp_path / name).mkdir()
            with of_command():
                work(tmp_path / name)
            if name == "file":
                assert found == {} and "\r" not in stream.getvalue()
        assert all(f"\r{text}" in terminal.getvalue() for text in found)
        return found

    monkeypatch.setattr(progress._Bar, "close", record)
    return run


def test_a_bar(terminal):
    with of_command():
        assert list(bar("abc", "letters", " letters")) == ["a", "b", "c"]
        with bar(what="counted", unit=" things", total=5) as counted:
            counted.update(5)
    first, second = terminal.getvalue().split("counted")[0], terminal.getvalue()
    assert "letters:   0%" in first and "| 0/3 [00:00<?, ? letters/s]" in first
    assert "| 0/5 [00:00<?, ? things/s]" in second
    assert second.endswith(" \r")  # it is gone


def test_only_on_terminals_and_in_commands(terminal):
    assert list(bar("abc", "letters")) == ["a", "b", "c"]
    with step("a step"):
        pass
    progress.sys.stderr = io.StringIO()
    with of_command(), bar(what="counted", total=5) as counted, step("a step"):
        counted.update(5)
    assert progress.sys.stderr.getvalue() == terminal.getvalue() == ""


def test_what_ends_soon_is_not_shown(terminal, monkeypatch):
    monkeypatch.setattr(progress, "DELAY", 2)
    with of_command():
        list(bar("abc", "letters"))
    assert terminal.getvalue() == ""


def test_a_command_within_another(terminal):
    with of_command():
        progress.sys.stderr = io.StringIO()
        with of_command():
            list(bar("abc", "letters"))
        assert progress.sys.stderr.getvalue() == ""
    assert "letters" in terminal.getvalue()


@pytest.mark.parametrize("error", [UserError("wrong"), KeyboardInterrupt()])
def test_nothing_is_left_by_an_error(terminal, error):
    def examples():
        yield from bar("abc", "letters")

    def work():
        held = examples()
        next(held)
        raise error

    with pytest.raises(type(error)) as raised, of_command():  # which keeps `held`
        work()
    assert terminal.getvalue().endswith(" \r")
    assert raised.value is error


def test_bytes(shown, tmp_path):
    for name in ("a.txt", "b.txt", "c.gz"):
        (tmp_path / name).write_bytes(b"12345")

    def work(_):
        bar_of_bytes("known", [tmp_path / "a.txt", tmp_path / "b.txt"]).close()
        bar_of_bytes("compressed", [tmp_path / "a.txt", tmp_path / "c.gz"]).close()
        bar_of_bytes("missing", [tmp_path / "nothing"]).close()

    assert shown(work) == {"known": "0/10B", "compressed": "0/?B", "missing": "0/?B"}


def test_sentences_in_the_log(monkeypatch, caplog, capsys):
    monkeypatch.setattr(progress, "_SECONDS_BETWEEN_LINES", 0)
    caplog.set_level(logging.INFO)
    # Without those left by a command in another test.
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    with sentence_progress(100, 20) as counted:
        for _ in range(4):
            counted.update(20)
    lines = [record.getMessage() for record in caplog.records]
    # The end has a line of its own.
    assert [line.partition(", ")[0] for line in lines] == [f"{number} of 100 sentences" for number in (40, 60, 80)]
    assert all(" sentences/s, " in line and line.endswith(" left") for line in lines)
    assert capsys.readouterr() == ("", "")


def test_sentences_on_a_terminal(terminal):
    """Python asks for this one."""
    with sentence_progress(100, 20) as counted:
        counted.update(80)
    assert "| 20/100 [00:00<?, ? sentences/s]" in terminal.getvalue()
    before = terminal.getvalue()
    with sentence_progress(100, 20, bar=False) as counted:
        counted.update(80)
    assert terminal.getvalue() == before


def test_what_finetune_logs_has_its_bars_on_the_terminal(shown, tmp_path):
    def work(_):
        with Trials.logged(SimpleNamespace(output=tmp_path)):
            print("in the log", file=sys.stderr)
            with of_command(), sentence_progress(5, 0) as counted:
                counted.update(5)

    assert shown(work) == {"": "5/5 sentences"}
    assert (tmp_path / "generate.log").read_text() == "in the log\n" * 2


def test_checksums_and_disk(shown):
    def work(folder):
        with added_files(folder) as made:
            (made / "a").write_bytes(bytes(3))
            (made / "b").write_bytes(bytes(4))
        save_checkpoint({"model": {}}, folder / "c.pt")
        assert list(checksums.check_folder(folder)) == []

    size = None

    def first(folder):
        nonlocal size
        work(folder)
        size = (folder / "c.pt").stat().st_size

    found = shown(first)
    read, _, total = found.pop("check checkpoints").partition("/")
    assert total == f"{size}B" and 0 < int(read) < size  # its members
    assert found.keys() == {"checksums", *(name for name in found if name.startswith("sync "))}
    assert found["checksums"] == "7/7B"


def test_weights(shown, tmp_path, capsys):
    def work(folder):
        paths = [folder / f"{number}.pt" for number in range(2)]
        for path in paths:
            save_checkpoint({"model": {"a": torch.ones(2), "b": torch.ones(3), "c": torch.ones(4)}}, path)
        average(paths, folder / "average.pt")
        cli.call("average", [str(folder), "--pattern", "?.pt", "--output", str(folder / "b.pt")])
        write_pretrained(folder, Conversion("BERT", {"embeddings.tokens.weight": torch.ones(2, 2)}, {}))

    found = shown(work)
    assert found["read"] == found["check"] == "2/2 checkpoints"
    assert found["average"] == found["check the weights of 1.pt"] == "3/3 tensors"
    lines = [name for name, count in found.items() if not count]
    assert lines == ["write average.pt", f"write {tmp_path / 'terminal' / 'b.pt'}", "write model.pt"]
    assert "check 0.pt" in found
    with pytest.raises(UserError):
        check_finite("bad.pt", {"a": torch.tensor([torch.inf])})


def test_text_files(shown, tmp_path):
    (tmp_path / "src").write_text("a b\nc\n")
    (tmp_path / "tgt").write_text("é\nf\n")
    assert shown(lambda _: check_texts([[tmp_path / "src", tmp_path / "tgt"]])) == {"check": "11/11B"}


def test_tokenize(shown, tmp_path):
    write_wordpiece(tmp_path / "tokenizer")
    (tmp_path / "train.txt").write_text("the quick\na\nb\n")
    (tmp_path / "pairs.jsonl").write_text(json.dumps({"src": "a", "tgt": "b"}) + "\n")
    files = ("--input", str(tmp_path / "train.txt"), str(tmp_path / "pairs.jsonl"))
    words = ["--tokenizer-dir", str(tmp_path / "tokenizer"), *files, "--workers", "1"]
    assert shown(lambda folder: cli.call("tokenize", [*words, "--output-dir", str(folder)])) == {
        "checksums": "18/18B",
        "check": "14/14B",
        "check pairs.jsonl": "1/? lines",
        "train.txt": "3/3 lines",
        "pairs.src, pairs.tgt": "1/1 lines",
    }


def test_preprocess(shown, tiny_corpus, tiny_options):
    found = shown(lambda folder: cli.call("preprocess", tiny_options.preprocess(tiny_corpus, folder / "data")))
    assert found["check"].split("/")[0] == found["check"].split("/")[1].removesuffix("B")
    assert found[f"binarize {tiny_corpus}/train.src"] == ""


def test_span_vocab(shown, tmp_path):
    write_wordpiece(tmp_path / "tokenizer")
    (tmp_path / "train.txt").write_text("the quick a b\nthe quick a b\n")
    files = ["--tokenizer-dir", str(tmp_path / "tokenizer"), "--input", str(tmp_path / "train.txt")]
    words = [*files, "--min-count", "1", "--workers", "1"]
    found = shown(lambda folder: cli.call("span-vocab", [*words, "--output", str(folder / "spans.txt")]))
    assert {found[name] for name in ("words", "n-grams")} == {"2/2 lines"}
    assert {found[name] for name in ("bigrams", "trigrams")} == {"1/1 ranges"}


def example(number: int) -> Example:
    return Example(Path("raw"), number, (f"a{number}",), ("b",))


def test_corpora(shown, tmp_path):
    three = [example(number) for number in range(3)]

    def work(folder):
        write_corpus({"train": three}, folder / "corpus", Malformed())
        write_labelled({"test": three}, folder / "classes", Malformed(), classes=["b"])
        assert list(draw_small(three, Malformed(), 1)) == three
        (tmp_path / "pairs.tsv").write_text("".join(f"a{number}\tb\n" for number in range(10)))
        write_pairs({"train": [tmp_path / "pairs.tsv"]}, folder / "pairs")

    found = shown(work)
    assert found["test"] == "3/3 examples"
    assert found["train"] == "8/? examples"  # the last one: that of the pairs, which are read while they are written
    assert found["draw"] == "3/3 pairs"
    assert found["hold out"] == "10/? pairs"


def test_questions(shown, tmp_path):
    maker = WindowMaker(open_tokenizer(write_wordpiece(tmp_path / "tokenizer")), max_positions=12, max_query=2)
    question = SquadQuestion(Path("dev"), "1", "1", "the", "a b c", (("b", 2),))
    found = shown(lambda folder: write_windows({"train": [question]}, folder / "out", Malformed(), windows=maker))
    assert found["train"] == "1/? questions"


def test_docstrings(shown, tmp_path, monkeypatch):
    (tmp_path / "path" / "one_module_alone").mkdir(parents=True)
    (tmp_path / "path" / "one_module_alone" / "__init__.py").write_text("'''A.'''\n")
    monkeypatch.syspath_prepend(tmp_path / "path")
    found = shown(lambda _: build_corpus(CorpusSettings(packages=("one_module_alone",))))
    assert found == {"find sources": "1/1 packages", "docstrings": "1/1 files"}


def test_the_head(shown, tmp_path):
    path, model = tmp_path / "text", tiny_model(1)
    path.write_text("w5 w6 w7\n" * 60)

    def work(_):
        weights = {name: value for name, value in model.state_dict().items() if not name.startswith("lm_head.")}
        missing = ["lm_head.bias", "lm_head.dense.bias", "lm_head.dense.weight"]
        sizes = {name: value for name, value in vars(model.cfg).items() if name in TINY_SIZES}
        conversion = Conversion("BERT", weights, sizes, missing=missing)
        initialize_head(conversion, tiny_dictionary(), fit_head=path, output_prior=path)

    found = shown(work)
    assert found["build the model"] == ""
    assert found["fit the head"] == "2/2 batches"
    assert found["count the symbols"] == "60/60 lines"


TEXTS = [examples.Example("a cat sat on the mat", ("a cat sat on a mat", "the cat sat")) for _ in range(3)]


@pytest.mark.parametrize(
    ("package", "metric", "expected"),
    [
        ("rouge_score", rouge.rouge, {"ROUGE": "3/3 texts"}),
        ("sacrebleu", bleu.sacrebleu, {"BLEU of 3 texts": "", "BLEU": "3/3 texts"}),
        ("nltk", bleu.dialogue_bleu, {"dialogue BLEU": "3/3 texts"}),
        ("pycocoevalcap", coco.coco_bleu, {"BLEU-4": "3/3 texts"}),
        ("pycocoevalcap", coco.coco_rouge, {"ROUGE-L": "3/3 texts"}),
    ],
)
def test_metrics(shown, package, metric, expected):
    if not importlib.util.find_spec(package):
        pytest.skip(f"{package} is not installed")
    assert shown(lambda _: metric(TEXTS, Settings())) == expected


def test_programs_of_metrics(shown, tmp_path, monkeypatch):
    """METEOR's Java starts while its bar shows nothing yet."""
    monkeypatch.setattr(coco, "optional_module", lambda *_: SimpleNamespace(Meteor=lambda: None))
    monkeypatch.setattr(coco, "tool", lambda name: name)
    monkeypatch.setattr(coco.shutil, "which", lambda name: name)
    monkeypatch.setattr(coco, "_Meteor", lambda _: SimpleNamespace(counts=lambda example: [1.0]))
    (tmp_path / "data").mkdir()
    (tmp_path / "data" / "smart_common_words.txt").touch()
    monkeypatch.setattr(rouge, "_script", lambda: tmp_path / "ROUGE-1.5.5.pl")
    monkeypatch.setattr(rouge, "_perl", lambda *_: "X ROUGE-1 Eval 1.X R:0.5 P:0.5 F:0.5\n")

    def work(_):
        coco.meteor(TEXTS, Settings())
        rouge.perl_rouge(TEXTS, Settings())

    assert shown(work) == {
        "METEOR": "3/3 texts",
        "write for ROUGE-1.5.5.pl": "3/3 texts",
        "ROUGE-1.5.5.pl scores 3 texts": "",
    }


def test_resamples(shown):
    values = statistics.Means({"x": [0.5] * 6})
    assert shown(lambda _: statistics.differences(values, 3, 20, 0)) == {
        "exchanges": "20/20 samples",
        "bootstrap": "20/20 samples",
    }


def test_texts_to_score(shown, tmp_path):
    for name in ("hyp", "ref"):
        (tmp_path / name).write_text("a\nb\n")
    found = shown(lambda _: examples.read_examples(tmp_path / "hyp", [tmp_path / "ref"], None, Settings()))
    assert found == {"check": "8/8B", f"read {tmp_path / 'hyp'}": "2/2 lines"}


def test_answers(shown):
    question = Question("1", 1, [(0, 2)], None, "a b", [(0, 1), (2, 3)])
    task = SimpleNamespace(questions=lambda *_: [question] * 3)

    def work(folder):
        files = {"output": folder / "answers.json", "null_odds": None, "null_threshold": None, "n_best_file": None}
        options = SimpleNamespace(subset="valid", max_answer=2, n_best=2, **files)
        prediction._write_answers(task, [np.zeros((6, 2), np.float32)] * 3, options)

    assert shown(work) == {"choose the answers": "3/3 questions"}


def test_comparisons(shown):
    def search(texts):
        return [[1] for _ in texts]

    def logits(text, ids):
        return torch.zeros(2, 4)

    assert shown(lambda _: compare("x", ["a", "b"], search, search, logits, logits)) == {"compare logits": "2/2 texts"}


def test_exports(shown, tmp_path, capsys):
    pytest.importorskip("transformers", reason="transformers is not installed")
    model = write_deltalm(tmp_path / "model")
    words = [str(model), "--format", "hugging_face", "--to"]
    found = shown(lambda folder: cli.call("export", [*words, str(folder / "made")]))
    program = next(name for name in found if name.startswith("transformers "))
    assert found[program] == "1/1 batches"
    assert found[""] == "11/11 sentences"
    assert found["write model.safetensors"] == found[f"load {tmp_path / 'terminal' / 'made'}"] == ""
    assert found[f"load {model}"] == ""


def test_engines(shown, tmp_path, capsys):
    pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")
    model = write_deltalm(tmp_path / "model")
    words = [str(model), "--format", "ctranslate2", "--to"]
    found = shown(lambda folder: cli.call("export", [*words, str(folder / "made")]))
    assert found["make the weights for ctranslate2, float32"] == found["write model.bin"] == ""


def test_graphs(shown, tmp_path, monkeypatch):
    pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
    monkeypatch.setattr(onnx, "write_graph", lambda model, file: file.touch())
    monkeypatch.setattr(onnx, "_quantize", lambda file, destination: destination.touch())
    monkeypatch.setattr(onnx, "open_onnx", lambda folder: None)
    monkeypatch.setattr(onnx, "_compare", lambda *_: None)
    write_model_folder(tmp_path / "model")
    original = Original(tmp_path / "model", "--format onnx")
    found = shown(lambda folder: onnx.export_to_onnx(original, folder / "made", [], quantize=True))
    assert found["trace the graph"] == found["quantize model.onnx"] == ""


def test_models_are_loaded(shown, tiny_parts, tmp_path):
    shutil.copy(tiny_parts / "checkpoints" / "checkpoint_last.pt", tmp_path / "model.pt")
    (tmp_path / "in.txt").write_text("a b\nc\n")
    model, text = str(tmp_path / "model.pt"), str(tmp_path / "in.txt")
    words = ["--path", model, "--tokenizer-dir", str(tiny_parts / "encoder"), "--input", text, "--cpu", "--beam", "1"]
    found = shown(lambda folder: cli.call("generate", [*words, "--output", str(folder / "out.txt")]))
    assert found[f"load {model}"] == ""
    assert found[""] == "2/2 sentences"
