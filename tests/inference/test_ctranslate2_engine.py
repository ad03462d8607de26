"""CTranslate2 in place of PyTorch: the same hypotheses and scores by every interface."""

import json
import shutil

import pytest
import torch
from tiny_deltalm import TEXTS, VARIANTS, assert_same, exported_pairs

from s2sft_fairseq import Seq2Seq
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.commands.export import main as export
from s2sft_fairseq.errors import UserError, package

pytest.importorskip("ctranslate2", reason="ctranslate2 is not installed")


@pytest.fixture(scope="module")
def pair_of(tmp_path_factory):
    """A function from a name in `VARIANTS` to the model folder and the exported one."""
    return exported_pairs(tmp_path_factory.mktemp("models"), "ctranslate2")


@pytest.mark.parametrize("name", VARIANTS)
def test_hypotheses(pair_of, name):
    model, exported = map(Seq2Seq.from_pretrained, pair_of(name))
    expected = model.hypotheses(TEXTS)
    assert len({best[0].text for best in expected}) > 2
    assert_same(exported.hypotheses(TEXTS), expected)
    if name == "languages":
        assert_same(exported.hypotheses(TEXTS, target_lang="fr"), model.hypotheses(TEXTS, target_lang="fr"))


@pytest.mark.parametrize(
    "options",
    [
        {"beam": 1},
        {"beam": 1, "max_len": 3},  # which all hypotheses reach
        {"beam": 4, "num_return": 3},
        {"beam": 4, "num_return": 2, "length_penalty": 0.0},
        {"beam": 4, "length_penalty": 0.0},
        {"beam": 3, "early_stop": "never"},
        {"beam": 3, "early_stop": "fairseq"},
        {"beam": 3, "min_len": 4},
        {"beam": 3, "max_len": 2, "max_len_ratio": 1.0},
        {"beam": 3, "batch_size": 2},
    ],
)
def test_options(pair_of, options):
    model, exported = map(Seq2Seq.from_pretrained, pair_of())
    assert_same(exported.hypotheses(TEXTS, **options), model.hypotheses(TEXTS, **options))


def test_every_hypothesis_ends(pair_of):
    """Also at the maximum length, where CTranslate2 does not force eos."""
    _, exported = pair_of()
    found = Seq2Seq.from_pretrained(exported).hypotheses(TEXTS, beam=4, num_return=4, max_len=3)
    for best in found:
        assert 1 <= len(best) <= 4
        assert len({tuple(each.tokens) for each in best}) == len(best)
        assert all(each.tokens[-1] == "</s>" and len(each.tokens) <= 4 for each in best)
        assert [each.score for each in best] == sorted((each.score for each in best), reverse=True)


def test_a_blocked_ngram(pair_of):
    _, exported = pair_of()
    for (found,) in Seq2Seq.from_pretrained(exported).hypotheses(TEXTS, beam=3, no_repeat_ngram=2):
        pairs = list(zip(found.tokens, found.tokens[1:], strict=False))
        assert len(set(pairs)) == len(pairs)


def test_an_empty_source(pair_of):
    """CTranslate2 writes an empty hypothesis for it."""
    assert Seq2Seq.from_pretrained(pair_of()[1]).generate(["", TEXTS[0]])[0] == ""


def test_the_command_line(pair_of, call_command, tmp_path):
    model, exported = pair_of("languages")
    (tmp_path / "in.txt").write_text("".join(f"{text}\n" for text in TEXTS))
    given = ("--input", "in.txt", "-t", "fr", "--nbest", "2")
    call_command("generate", "--path", model, *given, "--output", "ours.jsonl")
    done = call_command("generate", "--path", exported, *given, "--output", "theirs.jsonl", "--engine", "ctranslate2")
    assert "6 lines; 6 sentences" in done.stdout
    written = [(tmp_path / name).read_text().splitlines() for name in ("ours.jsonl", "theirs.jsonl")]
    for ours, theirs in zip(*(map(json.loads, lines) for lines in written), strict=True):
        assert ours["index"] == theirs["index"]
        for one, other in zip(ours["hypotheses"], theirs["hypotheses"], strict=True):
            assert (one["text"], one["tokens"]) == (other["text"], other["tokens"])
            assert other["score"] == pytest.approx(one["score"], abs=1e-4)
    wrong = call_command("generate", "--path", model, *given, "--output", "x", "--engine", "ctranslate2", status=None)
    assert "--engine ctranslate2 needs a model for it, but --path" in wrong.stderr
    half = call_command("generate", "--path", exported, *given, "--output", "x.jsonl", "--bf16", status=None)
    assert "--bf16 is for models that PyTorch runs" in half.stderr


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"sampling": True}, "sampling"),
        ({"temperature": 0.5}, "temperature"),
        ({"beam": 42}, "beam must be at most half of the 82 symbols"),
        ({"beam": 2, "num_return": 3}, r"num_return must not exceed beam \(2\)"),
    ],
)
def test_options_that_it_does_not_support(pair_of, options, named):
    with pytest.raises(UserError, match=named):
        Seq2Seq.from_pretrained(pair_of()[1]).generate(TEXTS, **options)


def test_commands_that_need_pytorch(pair_of, tmp_path, call_command):
    _, exported = pair_of()
    model = Seq2Seq.from_pretrained(exported)
    for call in (
        lambda: model.score(TEXTS[:1], ["a"]),
        lambda: list(model.stream("a")),
        lambda: model.encode(["a"]),
        lambda: model.attention("a", "b"),
    ):
        with pytest.raises(UserError, match=r"^this is a model for ctranslate2, which can only generate"):
            call()
    with pytest.raises(UserError, match=r"which only s2sft generate --input and Seq2Seq can run"):
        load_checkpoint(exported)
    with pytest.raises(UserError, match=r"holds a model for ctranslate2"):
        export([str(exported), "--format", "hugging_face", "--to", str(tmp_path / "out")])
    refused = call_command("generate", "data", "--path", exported, status=None)
    assert refused.status != 0


@pytest.mark.parametrize("kind", ["int8", "int8_float32", "float16", "bfloat16"])
def test_quantized(pair_of, tmp_path, kind, capsys):
    model, exported = pair_of()
    export([str(model), "--format", "ctranslate2", "--to", str(tmp_path / "small"), "--quantize", kind])
    assert f", {kind}: " in capsys.readouterr().out
    card = (tmp_path / "small" / "README.md").read_text()
    assert kind in card and "| equal hypotheses |" in card
    sizes = [(folder / "model.bin").stat().st_size for folder in (tmp_path / "small", exported)]
    assert sizes[0] < 0.75 * sizes[1]
    # The scores of a quantized model are near those of the model.
    found, expected = (Seq2Seq.from_pretrained(path).hypotheses(TEXTS) for path in (tmp_path / "small", model))
    for (one,), (other,) in zip(found, expected, strict=True):
        assert one.score == pytest.approx(other.score, abs=0.3)


def test_only_encoder_decoders(tmp_path, tiny_training):
    words = [str(tiny_training.checkpoint), "--format", "ctranslate2", "--to", str(tmp_path / "out")]
    with pytest.raises(UserError, match=r"^--format ctranslate2 is for encoder-decoders \(deltalm\)"):
        export(words)


def test_damaged_and_missing(pair_of, tmp_path, monkeypatch):
    _, exported = pair_of()
    shutil.copytree(exported, tmp_path / "model")
    (tmp_path / "model" / "model.bin").write_bytes(b"nothing")
    (tmp_path / "model" / "SHA256SUMS").unlink()
    with pytest.raises(UserError, match=r"model\.bin cannot be read by ctranslate2: "):
        Seq2Seq.from_pretrained(tmp_path / "model")
    config = json.loads((tmp_path / "model" / "config.json").read_text())
    (tmp_path / "model" / "config.json").write_text(json.dumps({**config, "engine": "other"}))
    with pytest.raises(UserError, match=r"engine must be one of ctranslate2"):
        Seq2Seq.from_pretrained(tmp_path / "model")
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2", None)
    with pytest.raises(UserError, match=r"needs the package ctranslate2, which is not installed"):
        package("ctranslate2", "this")


def test_random_numbers_are_left_alone(pair_of):
    exported = Seq2Seq.from_pretrained(pair_of()[1])
    torch.manual_seed(7)
    expected = torch.rand(1)
    torch.manual_seed(7)
    exported.generate(TEXTS[0])
    assert torch.equal(torch.rand(1), expected)
