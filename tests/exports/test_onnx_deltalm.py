"""DeltaLM in onnxruntime: the same hypotheses and scores by every interface."""

import pytest
import torch
from tiny_deltalm import TEXTS, VARIANTS, assert_same, exported_pairs

pytest.importorskip("onnxruntime", reason="onnxruntime is not installed")
pytest.importorskip("onnx", reason="onnx is not installed")
pytest.importorskip("onnxscript", reason="onnxscript is not installed")

from s2sft_fairseq import Seq2Seq
from s2sft_fairseq.api.loading import load
from s2sft_fairseq.checksums import write_checksums
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.onnx import ExportedDeltaLM
from s2sft_fairseq.inference.onnx_engine import open_onnx


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory):
    """A function from a name in `VARIANTS` to the model folder and the exported one."""
    return exported_pairs(tmp_path_factory.mktemp("models"), "onnx")


@pytest.mark.parametrize(
    "name",
    # an export takes seconds
    [name if name in ("plain", "languages") else pytest.param(name, marks=pytest.mark.slow) for name in VARIANTS],
)
@pytest.mark.rounding
def test_logits_and_hypotheses(pair_of, name):
    """In a batch, and alone."""
    folders = pair_of(name)
    model, exported = map(Seq2Seq.from_pretrained, folders)
    expected = model.hypotheses(TEXTS)
    assert len({best[0].text for best in expected}) > 2
    assert_same(exported.hypotheses(TEXTS), expected)
    assert_same(exported.hypotheses(TEXTS, batch_size=1), expected)
    if name == "languages":
        assert_same(exported.hypotheses(TEXTS, target_lang="fr"), model.hypotheses(TEXTS, target_lang="fr"))
    stepwise = ExportedDeltaLM(open_onnx(folders[1]), load(folders[0], None, "cpu", "float32", None))
    for text in TEXTS:
        torch.testing.assert_close(stepwise.logits(text, [5, 6, 7]), model.logits(text, [5, 6, 7]), atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1},
        {"beam": 4, "num_return": 3},
        {"beam": 4, "num_return": 4, "max_len": 3},
        {"beam": 4, "length_penalty": 0.0},
        {"beam": 3, "early_stop": "never"},
        {"beam": 3, "early_stop": "fairseq"},
        {"beam": 3, "min_len": 4, "no_repeat_ngram": 2},
        {"beam": 2, "temperature": 0.7},
        {"sampling": True, "top_k": 5, "beam": 2, "seed": 3},
    ],
)
@pytest.mark.rounding
def test_options(pair_of, options):
    """All options of the search that PyTorch's model has."""
    model, exported = map(Seq2Seq.from_pretrained, pair_of())
    assert_same(exported.hypotheses(TEXTS, **options), model.hypotheses(TEXTS, **options))


def test_the_command_lines(pair_of, call_command, tmp_path):
    model, exported = pair_of("languages")
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    given = ("--input", "in.txt", "-t", "fr")
    call_command("generate", "--path", model, *given, "--output", "ours")
    call_command("generate", "--path", exported, *given, "--output", "theirs", "--engine", "onnx")
    assert (tmp_path / "theirs").read_text() == (tmp_path / "ours").read_text()
    assert "| equal hypotheses | 11 of 11 |" in (exported / "README.md").read_text()
    done = call_command("export", model, "--format", "onnx", "--quantize", "int8", "--to", "int8")
    assert "onnxruntime" in done.stdout
    quantized = ExportedDeltaLM(open_onnx(tmp_path / "int8"), loaded := load(model, None, "cpu", "float32", None))
    expected = Seq2Seq(loaded).logits(TEXTS[0], [])
    assert 0 < (quantized.logits(TEXTS[0], []) - expected).abs().mean() < 0.2 * expected.std()
    (tmp_path / "int8" / "encoder.onnx").write_bytes(b"damaged")
    write_checksums(tmp_path / "int8")
    done = call_command("generate", "--path", "int8", *given, "--output", "more", status=2)
    assert "encoder.onnx cannot be read by onnxruntime" in done.stderr


def test_what_needs_the_model_itself(pair_of):
    exported = Seq2Seq.from_pretrained(pair_of()[1])
    with pytest.raises(UserError, match="this is a model for onnx, which can only generate"):
        exported.score(["a"], ["b"])
