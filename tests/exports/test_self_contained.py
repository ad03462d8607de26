"""A generator exported to transformers with its code: logits and hypotheses equal those of this package."""

import itertools
import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from exported import METHODS, ROLES, TEXTS, some_texts, write_model_folder
from tiny import ENCODERS, LANGUAGE_MODELS, SEP, SWITCHES

transformers = pytest.importorskip("transformers", reason="transformers is not installed")

from s2sft_fairseq.errors import UserError  # noqa: E402
from s2sft_fairseq.exports.modeling_s2sft import S2SFTForConditionalGeneration  # noqa: E402
from s2sft_fairseq.exports.original import Original  # noqa: E402
from s2sft_fairseq.exports.self_contained import (  # noqa: E402
    MODELLING,
    export_self_contained,
    generation_config,
    write_self_contained,
)

REFUSED = ("rotary-post", "deberta")
"""Kinds of encoders that the code in the folder does not support."""
SEARCHES = {
    "greedy": {"beam": 1},
    "beam": {"beam": 3},
    "fairseq's early stop": {"beam": 3, "early_stop": "fairseq", "lenpen": 0.3},
    "negative length penalty": {"beam": 2, "lenpen": -0.5, "min_len": 3},
    "unfinished": {"beam": 3, "keep_unfinished": True, "max_len_b": 5, "no_repeat_ngram_size": 2},
}


class SelfContained:
    """A folder as transformers runs it."""

    def __init__(self, folder):
        self.model = S2SFTForConditionalGeneration.from_pretrained(folder).eval()
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(folder, config=self.model.config)

    def search(self, texts, batch_size=16):
        found = []
        for start in range(0, len(texts), batch_size):
            batch = self.batch(list(texts[start : start + batch_size]))
            rows = self.model.generate(**batch)[:, 1:].tolist()
            found += [row[: row.index(SEP)] if SEP in row else row for row in rows]
        return found

    @torch.inference_mode()
    def logits(self, text, ids):
        return self.model(**self.batch([text]), labels=torch.tensor([[*ids, SEP]])).logits[0]

    def batch(self, texts):
        options = {"return_tensors": "pt", "padding": True, "truncation": True}
        return self.tokenizer(texts, split_special_tokens=False, **options)


def search(original, texts, **options):
    """Return the ids of the best hypothesis of each text, without eos."""
    best = [original.model.ids(found[0].tokens) for found in original.model.hypotheses(list(texts), **options)]
    return [ids[:-1] if ids[-1] == SEP else ids for ids in best]


def exported(folder, **options):
    write_model_folder(folder / "model", **options)
    original = Original(folder / "model", "--self-contained")
    (folder / "out").mkdir()
    assert write_self_contained(original, folder / "out") == []
    return original, SelfContained(folder / "out")


def assert_same(original, theirs, texts=TEXTS):
    """Compare outputs; float32 logits differ by some rounding errors, up to 2.7e-5 on one of the tested processors."""
    hypotheses = search(original, texts)
    assert theirs.search(texts) == hypotheses
    assert theirs.search(texts, batch_size=1) == hypotheses
    for text, ids in zip(texts, hypotheses, strict=True):
        torch.testing.assert_close(theirs.logits(text, ids), original.model.logits(text, ids), atol=1e-4, rtol=0)


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("kind", [kind for kind in ENCODERS if kind not in REFUSED])
@pytest.mark.rounding
def test_every_encoder_and_method(tmp_path, kind, method):
    assert_same(*exported(tmp_path, kind=kind, method=method))


@pytest.mark.parametrize("name", SWITCHES)
@pytest.mark.rounding
def test_every_switch_alone(tmp_path, name):
    assert_same(*exported(tmp_path, **SWITCHES[name]))


@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
@pytest.mark.rounding
def test_language_models(tmp_path, kind, method):
    """100 texts, greedily and by beam search, padded on either side."""
    original, theirs = exported(tmp_path, method=method, search={"beam": 3}, **LANGUAGE_MODELS[kind])
    assert_same(original, theirs)
    texts = some_texts(100)
    for beam, side in ((1, "left"), (3, "right")):
        theirs.tokenizer.padding_side = side
        theirs.model.generation_config.update(num_beams=beam, num_return_sequences=1)
        assert theirs.search(texts) == search(original, texts, beam=beam)


@pytest.mark.parametrize("kind", LANGUAGE_MODELS)
def test_cached_steps(tmp_path, kind):
    """Steps with a cache give the logits of a full pass, whatever the padding of the source."""
    original, theirs = exported(tmp_path, method="causal", **LANGUAGE_MODELS[kind])
    ids = [7, 8, 9, 7, 8, 30]
    for text in TEXTS:
        expected = original.model.logits(text, ids)
        for side in ("left", "right"):
            theirs.tokenizer.padding_side = side
            batch = theirs.batch([text, TEXTS[-1]])
            sources, cache = theirs.model.read(**batch), transformers.DynamicCache()
            steps = [theirs.model.write(torch.tensor([[number]] * 2), sources, cache) for number in (SEP, *ids)]
            torch.testing.assert_close(torch.cat(steps, dim=1)[0], expected, atol=1e-4, rtol=0)


def test_unsupported_encoders(tmp_path):
    write_model_folder(tmp_path / "model", kind="rotary-post")
    original = Original(tmp_path / "model", "--self-contained")
    with pytest.raises(UserError) as raised:
        write_self_contained(original, tmp_path)
    named = [problem.split(", but ")[0] for problem in raised.value.problems]
    assert named == [
        "--self-contained needs --lm-head bert or plain",
        "--self-contained needs --lm-head-activation-fn None",
    ]


@pytest.mark.parametrize("what", ["--self-contained", "--format onnx"])
def test_disentangled_attention_is_refused(tmp_path, what):
    write_model_folder(tmp_path / "model", kind="deberta")
    with pytest.raises(UserError, match=f"^{what} .*model was trained with --disentangled-attention both$"):
        Original(tmp_path / "model", what)


@pytest.mark.parametrize("name", SEARCHES)
@pytest.mark.rounding
def test_searches(tmp_path, name):
    assert_same(*exported(tmp_path, kind="modernbert", search=SEARCHES[name]))


@pytest.mark.parametrize(
    ("layout", "sizes"),
    [
        ({"source_segments": "0,1"}, {}),
        ({"source_segments": "0,1,...", "target_segment": 0, "placeholder_segment": 1}, {}),
        ({"source_segments": "dialogue", "source_truncation": "left"}, ROLES),
        ({"placeholder": "w5"}, {}),
    ],
)
@pytest.mark.parametrize("method", ["causal", "pseudo_masked"])
def test_layouts(tmp_path, method, layout, sizes):
    texts = [*TEXTS, "w5 [SEP] w6 w7 [SEP] [SEP] w8"]
    assert_same(*exported(tmp_path, method=method, layout=layout, **sizes), texts)


def test_padding_on_the_left(tmp_path):
    original, theirs = exported(tmp_path)
    theirs.tokenizer.padding_side = "left"
    assert theirs.search(TEXTS) == search(original, TEXTS)


def test_long_sources_are_cut_as_ours(tmp_path):
    long = " ".join(f"w{5 + place % 40}" for place in range(40))
    for method, side in itertools.product(METHODS, ("left", "right")):
        original, theirs = exported(tmp_path / method / side, method=method, layout={"source_truncation": side})
        assert theirs.search([long]) == search(original, [long])
        batch = theirs.tokenizer([long], return_tensors="pt")
        with pytest.raises(ValueError, match=r"may have 24 positions, but one has 4[12]: .*truncation=True"):
            theirs.model.generate(**batch)


def test_without_a_cache(tmp_path):
    _, theirs = exported(tmp_path)
    batch = theirs.tokenizer(list(TEXTS), return_tensors="pt", padding=True)
    cached, whole = (theirs.model.generate(**batch, use_cache=cache) for cache in (True, False))
    assert torch.equal(cached, whole)


def test_several_hypotheses_and_samples(tmp_path):
    """Samples of one step follow the softmax of the logits without forbidden tokens."""
    original, theirs = exported(tmp_path)
    batch = theirs.tokenizer([TEXTS[0]], return_tensors="pt")
    assert theirs.model.generate(**batch, num_return_sequences=3).size(0) == 3
    torch.manual_seed(1)
    options = {"do_sample": True, "num_beams": 1, "top_k": 0, "min_length": 0, "max_length": 4}
    drawn = theirs.model.generate(**batch, **options, num_return_sequences=4000)[:, 1]
    logits = original.model.logits(TEXTS[0], [])[0].clone()
    logits[list(original.options.never_generated)] = -torch.inf
    shares = torch.bincount(drawn, minlength=len(logits)) / len(drawn)
    torch.testing.assert_close(shares, logits.softmax(-1), atol=0.04, rtol=0)


def test_the_loss_ignores_places_without_a_label(tmp_path):
    original, theirs = exported(tmp_path)
    batch = theirs.tokenizer([TEXTS[0]], return_tensors="pt")
    labels = torch.tensor([[7, 8, 3, -100]])
    found = theirs.model(**batch, labels=labels).loss
    expected = torch.nn.functional.cross_entropy(original.model.logits(TEXTS[0], [7, 8]), labels[0, :3])
    torch.testing.assert_close(found, expected)


def test_a_search_that_transformers_lacks_is_reported(tmp_path, capsys):
    search = {"length_penalty": "gnmt", "max_len_a": 0.5, "temperature": 0.7, "beam": 2}
    layout = {"source_truncation": "left,right", "source_field_positions": "8,4"}
    write_model_folder(tmp_path / "model", search=search, layout=layout)
    with pytest.raises(UserError, match=r"out is written, but differs from the model"):
        export_self_contained(Original(tmp_path / "model", "--self-contained"), tmp_path / "out", TEXTS)
    told, card = capsys.readouterr().out, (tmp_path / "out" / "README.md").read_text()
    for option in (
        "--length-penalty gnmt",
        "--max-len-a 0.5",
        "--temperature 0.7",
        "--source-truncation left,right",
        "-positions 8,4",
    ):
        assert option in told
        assert option in card


def test_an_empty_source_is_not_compared(tmp_path, capsys):
    """It gives an empty text here, and any other there."""
    write_model_folder(tmp_path / "model")
    export_self_contained(Original(tmp_path / "model", "--self-contained"), tmp_path / "out", ["", *TEXTS])
    assert "4 of 4 hypotheses are equal" in capsys.readouterr().out


def test_sampling_becomes_the_default(tmp_path):
    write_model_folder(tmp_path / "model", search={"sampling": True, "sampling_topp": 0.9, "temperature": 0.8})
    original = Original(tmp_path / "model", "--self-contained")
    config = generation_config(original.form, original.options)
    assert (config["do_sample"], config["top_p"], config["top_k"], config["temperature"]) == (True, 0.9, 0, 0.8)
    greedy = generation_config(original.form, replace(original.options, sampling=False, beam=1, nbest=1))
    assert (greedy["num_beams"], "do_sample" in greedy, "length_penalty" in greedy) == (1, False, False)


@pytest.mark.process
def test_the_command_line(call_command, tmp_path):
    """The folder runs where this package cannot be imported, and its card says what was compared."""
    write_model_folder(tmp_path / "model", search={"beam": 3})
    (tmp_path / "texts").write_text("".join(f"{text}\n" for text in TEXTS))
    words = ("--format", "hugging_face", "--self-contained", "--verify", "texts", "--to", "out")
    done = call_command("export", "model", *words)
    assert f"transformers {transformers.__version__}: 4 of 4 hypotheses are equal" in done.stdout
    card = (tmp_path / "out" / "README.md").read_text()
    assert "library_name: transformers" in card
    assert "| equal hypotheses | 4 of 4 |" in card
    assert (tmp_path / "out" / MODELLING.name).read_bytes() == MODELLING.read_bytes()
    script = f"""
import json, sys
sys.modules["s2sft_fairseq"] = sys.modules["fairseq"] = None
from transformers import AutoModelForSeq2SeqLM, AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("out", trust_remote_code=True)
model = AutoModelForSeq2SeqLM.from_pretrained("out", trust_remote_code=True)
batch = tokenizer({list(TEXTS)!r}, return_tensors="pt", padding=True, truncation=True)
print(json.dumps(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True)))
model.save_pretrained("saved")
"""
    environment = {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": "1", "PATH": ""}
    found = subprocess.run(
        [sys.executable, "-c", script], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert found.returncode == 0, found.stderr
    original = Original(tmp_path / "model", "--self-contained")
    symbols = original.loaded.tokenizer.dictionary.symbols
    expected = [" ".join(symbols[number] for number in ids) for ids in search(original, [(text,) for text in TEXTS])]
    assert json.loads(found.stdout.splitlines()[-1]) == expected
    again = S2SFTForConditionalGeneration.from_pretrained(tmp_path / "saved")
    assert all(torch.equal(again.state_dict()[name], value) for name, value in original.weights().items())


def test_what_cannot_be_exported(call_command, tmp_path):
    write_model_folder(tmp_path / "model")
    words = ("export", "model", "--to", "out")
    done = call_command(*words, "--self-contained", status=2)
    assert "--self-contained is for --format hugging_face, but --format is model" in done.stderr
    done = call_command(*words, "--verify", "texts", status=2)
    assert "--verify is for generators in another program's format, but --format is model" in done.stderr
    hugging_face = (*words, "--format", "hugging_face", "--self-contained")
    done = call_command(*hugging_face, "--verify", "texts", status=2)
    assert "--verify texts must be a text file" in done.stderr
    config = json.loads(Path("model/config.json").read_text())
    config["cfg"]["task"]["_name"] = "unilm_classification"
    Path("model/config.json").write_text(json.dumps(config))
    done = call_command(*hugging_face, status=2)
    assert "--self-contained is for models of the task unilm_seq2seq, but model is one of unilm_class" in done.stderr
    assert not Path("out").exists()
