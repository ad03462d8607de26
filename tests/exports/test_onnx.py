"""A generator with an encoder in onnxruntime: logits and hypotheses equal those of this package."""

import sys
from pathlib import Path

import pytest
import torch
from exported import METHODS, ROLES, TEXTS, some_texts, write_model_folder
from searches import LENGTHS, SEARCHES, assert_same, batch_of, search_options, sources
from tiny import ENCODERS, LANGUAGE_MODELS, PAD, tiny_form, tiny_model

onnxruntime = pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from s2sft_fairseq import Seq2Seq  # noqa: E402
from s2sft_fairseq.errors import UserError  # noqa: E402
from s2sft_fairseq.exports.onnx import Exported, export_to_onnx  # noqa: E402
from s2sft_fairseq.exports.original import Original  # noqa: E402
from s2sft_fairseq.inference.generator import SequenceGenerator  # noqa: E402
from s2sft_fairseq.inference.onnx_engine import OnnxModel, open_onnx  # noqa: E402
from s2sft_fairseq.models.onnx_graph import write_graph  # noqa: E402
from s2sft_fairseq.models.unilm_config import has_causal_source  # noqa: E402


@pytest.fixture(scope="module")
def graphs(tmp_path_factory):
    """A model with each kind of encoder, and its onnxruntime version; made once."""
    folder, made = tmp_path_factory.mktemp("graphs"), {}

    def get(kind):
        if kind not in made:
            model = tiny_model(1, **{**ENCODERS, **LANGUAGE_MODELS}[kind])
            write_graph(model, folder / f"{kind}.onnx")
            session = onnxruntime.InferenceSession(folder / f"{kind}.onnx", providers=["CPUExecutionProvider"])
            made[kind] = model, OnnxModel(session, model.cfg.max_positions, causal_sources=has_causal_source(model.cfg))
        return made[kind]

    return get


@pytest.mark.parametrize("method", [method for method in METHODS if method != "masked"])
@pytest.mark.parametrize(
    "kind",
    # deberta is refused; an export takes seconds
    [
        kind if kind in ("absolute", "modernbert", "llama") else pytest.param(kind, marks=pytest.mark.slow)
        for kind in (*ENCODERS, *LANGUAGE_MODELS)
        if kind != "deberta"
    ],
)
@pytest.mark.rounding
def test_every_encoder_and_method(graphs, kind, method):
    """In a batch and alone; also a source of one position."""
    ours, theirs = graphs(kind)
    form, options = tiny_form(method), search_options(beam=3)
    source = sources(form, (*LENGTHS, 0))
    expected = SequenceGenerator([ours], form, options).generate([], batch_of(source))
    generator = SequenceGenerator([theirs], form, options)
    assert_same(generator.generate([], batch_of(source)), expected)
    for row, alone in zip(source, expected, strict=True):
        assert_same(generator.generate([], batch_of(row[row != PAD][None])), [alone])


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.rounding
def test_every_search(graphs, name):
    ours, theirs = graphs("modernbert")
    form, options = tiny_form(), search_options(**SEARCHES[name])
    found = []
    for model in (ours, theirs):
        torch.manual_seed(1)
        found.append(SequenceGenerator([model], form, options).generate([], batch_of(sources(form))))
    assert_same(found[1], found[0])


def test_many_steps(graphs):
    """Slots are reused, and their number grows if there are too few."""
    form, options = tiny_form(max_target=40), search_options(beam=4, max_len_b=38, min_len=30)
    source = sources(form)
    expected, found = (
        SequenceGenerator([each], form, options).generate([], batch_of(source)) for each in graphs("absolute")
    )
    assert_same(found, expected)


@pytest.mark.parametrize(("kind", "quantize"), [("gemma", False), ("qwen2", True)])
@pytest.mark.rounding
def test_the_folder_of_a_language_model(tmp_path, kind, quantize):
    """It says that sources are causal, and how wide heads are."""
    write_model_folder(tmp_path / "model", method="causal", **LANGUAGE_MODELS[kind])
    original = Original(tmp_path / "model", "--format onnx")
    export_to_onnx(original, tmp_path / "out", TEXTS, quantize=quantize)
    exported = Exported(open_onnx(tmp_path / "out"), original)
    ids = [5, 6, 7]
    if quantize:
        difference = exported.logits(TEXTS[0], ids) - original.model.logits(TEXTS[0], ids)
        assert 0 < difference.abs().mean() < 0.3 * original.model.logits(TEXTS[0], ids).std()
        return
    texts, theirs = some_texts(100), Seq2Seq.from_pretrained(tmp_path / "out")
    for beam in (1, 3):
        assert theirs.generate(texts, beam=beam) == original.model.generate(texts, beam=beam)


@pytest.mark.parametrize("layout", [{"source_segments": "0,1"}, {"source_segments": "dialogue"}])
def test_the_folder(tmp_path, layout, capsys):
    """The export compares logits, and `Seq2Seq` reads the folder."""
    sizes = ROLES if layout["source_segments"] == "dialogue" else {}
    write_model_folder(tmp_path / "model", layout=layout, search={"beam": 3}, **sizes)
    original = Original(tmp_path / "model", "--format onnx")
    export_to_onnx(original, tmp_path / "out", TEXTS)
    assert f"onnxruntime {onnxruntime.__version__}, float32: 4 of 4 hypotheses are equal" in capsys.readouterr().out
    exported = Exported(open_onnx(tmp_path / "out"), original)
    for text in TEXTS:
        theirs = exported.logits(text, [5, 6, 7])
        torch.testing.assert_close(theirs, original.model.logits(text, [5, 6, 7]), atol=1e-4, rtol=0)
    ours, theirs = Seq2Seq.from_pretrained(tmp_path / "model"), Seq2Seq.from_pretrained(tmp_path / "out")
    for options in ({}, {"beam": 2, "num_return": 2}, {"sampling": True, "seed": 3}):
        assert theirs.generate(TEXTS, **options) == ours.generate(TEXTS, **options)
    with pytest.raises(UserError, match="this is a model for onnx, which can only generate"):
        theirs.score(["w5"], ["w6"])
    assert "| largest difference of logits |" in (tmp_path / "out" / "README.md").read_text()


def test_the_command_lines(call_command, tmp_path, monkeypatch):
    write_model_folder(tmp_path / "model", search={"beam": 3})
    Path("texts").write_text("".join(f"{text}\n" for text in TEXTS))
    call_command("generate", "--path", "model", "--input", "texts", "--output", "ours")
    done = call_command("export", "model", "--format", "onnx", "--verify", "texts", "--to", "float32")
    assert "4 of 4 hypotheses are equal" in done.stdout
    engine = ("generate", "--engine", "onnx", "--input", "texts", "--output")
    call_command(*engine, "theirs", "--path", "float32")
    assert Path("theirs").read_text() == Path("ours").read_text()
    call_command("export", "model", "--format", "onnx", "--quantize", "int8", "--to", "int8")
    call_command(*engine, "of-int8", "--path", "int8")
    assert len(Path("of-int8").read_text().splitlines()) == len(TEXTS)
    theirs = Exported(open_onnx(Path("int8")), original := Original(Path("model"), ""))
    difference = theirs.logits(TEXTS[0], []) - original.model.logits(TEXTS[0], [])
    assert 0 < difference.abs().mean() < 0.2 * original.model.logits(TEXTS[0], []).std()
    done = call_command(*engine, "more", "--path", "model", status=2)
    assert "--engine onnx needs a model for it, but --path model is one for pytorch" in done.stderr
    done = call_command(*engine, "more", "--path", "float32", "--cuda-graphs", "on", status=2)
    assert "--cuda-graphs on needs a GPU, but the model is on cpu" in done.stderr
    done = call_command("export", "model", "--format", "onnx", "--quantize", "float16", "--to", "out", status=2)
    assert "--quantize must be float32 or int8 with --format onnx, but is float16" in done.stderr
    Path("int8/model.onnx").write_bytes(b"damaged")
    assert "int8/model.onnx is damaged" in call_command(*engine, "more", "--path", "int8", status=2).stderr
    monkeypatch.setenv("S2SFT_SKIP_CHECKSUMS", "1")
    done = call_command(*engine, "more", "--path", "int8", status=2)
    assert "model.onnx cannot be read by onnxruntime" in done.stderr
    for name in ("onnxruntime", "onnxscript"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            done = call_command("export", "model", "--format", "onnx", "--to", "out", status=2)
            assert f"--format onnx needs the package {name}, which is not installed" in done.stderr
