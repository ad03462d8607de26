"""What ``s2sft finetune`` says at the end: warnings about texts, the baseline, the encoder's name, what is kept."""

import json
from pathlib import Path

import pytest

from s2sft_fairseq import finetune
from s2sft_fairseq.recipes import recipe
from s2sft_fairseq.recipes.finetune import STAGES, Finetuning
from s2sft_fairseq.recipes.finetune_trials import name_of_encoder, text_problems
from s2sft_fairseq.recipes.settings import Settings
from s2sft_fairseq.signals import INTERRUPTED, STATUS


@pytest.fixture
def stages(tmp_path):
    """The stages of an output folder, with a validation set of targets of 2 and 4 words."""
    made = Finetuning.__new__(Finetuning)
    made.name, made.output, made.corpus, made.model = "finetune", tmp_path, tmp_path / "corpus", tmp_path / "model"
    made.settings, made.record = Settings(Finetuning.declared), {"seconds": {}}
    made.files, made.evaluation = {}, ["--task", "rouge"]
    made.corpus.mkdir()
    (made.corpus / "valid.tgt").write_text("a b\na b c d\n")
    return made


@pytest.mark.parametrize(
    ("texts", "problems"),
    [
        (["a", "b", "c", "a"], []),
        (["", " ", "b", "c"], ["2 of 4 texts are empty"]),
        ([""] * 9, ["9 of 9 texts are empty"]),
        (["a"] * 5 + ["b"], ["the same text is written for 5 of 6 sources: 'a'"]),
        (["a"] * 3, []),
        ([""] * 2 + ["a"] * 4, ["2 of 6 texts are empty", "the same text is written for 4 of 6 sources: 'a'"]),
        ([], []),
    ],
)
def test_texts_with_problems(texts, problems):
    assert list(text_problems(texts)) == problems


def scores(value):
    return [{"name": "ROUGE-L", "value": value}, {"name": "BLEU", "value": 2 * value}]


@pytest.mark.parametrize(
    ("metric", "ours", "leads", "problem"),
    [
        ("rouge-l", 10.0, 12.0, ["ROUGE-L 10.0 is no better than the first 3 words of the sources (12.0)"]),
        ("bleu", 10.0, 10.0, ["BLEU 20.0 is no better than the first 3 words of the sources (20.0)"]),
        ("loss", 1.0, 2.0, ["ROUGE-L 1.0 is no better than the first 3 words of the sources (2.0)"]),
        ("rouge-l", 12.0, 10.0, []),
        ("rouge-l", 12.0, None, []),
    ],
)
def test_a_model_that_is_no_better_than_the_lead(stages, tmp_path, metric, ours, leads, problem):
    stages.settings.metric = metric
    stages.record |= {"scores": scores(ours), "baseline": scores(leads) if leads else []}
    (tmp_path / "scored.txt").write_text("x\ny\n")
    found = list(stages.warnings(tmp_path / "scored.txt"))
    assert len(found) == len(problem) and all(map(str.startswith, found, problem))


def test_the_lead_is_scored_beside_the_final_texts_alone(stages, monkeypatch, tmp_path):
    given = []

    def printed(self, command, *words, **named):
        given.append(named["lead"])
        named["json"].write_text(json.dumps({"systems": {"ours": {"scores": scores(1.0)}, "lead": {"scores": []}}}))
        return "table"

    monkeypatch.setattr(Finetuning, "printed", printed)
    assert stages.scores(tmp_path / "x.txt", "choosing") == {"ROUGE-L": 1.0, "BLEU": 2.0}
    assert stages.scores(tmp_path / "scored.txt", "scored") == {"ROUGE-L": 1.0, "BLEU": 2.0}
    assert given == [None, "3-words"]


def test_warnings_are_printed(stages, tmp_path, capsys):
    (tmp_path / "scored.scores").write_text("table\n")
    stages.record["warnings"] = ["9 of 9 texts are empty"]
    stages.report()
    assert "\nwarning: 9 of 9 texts are empty\n" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("config", "name"),
    [
        ({"_name_or_path": "bert-base-uncased"}, "bert-base-uncased"),
        ({"_name_or_path": "owner/name"}, "owner/name"),
        ({"_name_or_path": "/models/x/y/minilm"}, "minilm"),
        ({"_name_or_path": ""}, "model"),
        ({"_name_or_path": 7}, "model"),
        ({"_name_or_path": "/"}, "model"),
        ({}, "model"),
        ([], "model"),
        (None, "model"),
        ({"format": "s2sft_fairseq model", "training": {"encoder": "bert-base-uncased"}}, "bert-base-uncased"),
        ({"format": "s2sft_fairseq model", "training": {}}, "model"),
    ],
)
def test_the_name_of_the_encoder(tmp_path, config, name):
    (tmp_path / "model").mkdir()
    if config is not None:
        (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    assert name_of_encoder(tmp_path / "model") == name
    (tmp_path / "model" / "best.pt").touch()
    assert name_of_encoder(tmp_path / "model" / "best.pt") == name


@pytest.mark.parametrize("error", [KeyboardInterrupt(), SystemExit(INTERRUPTED), SystemExit(STATUS)])
def test_what_an_interrupted_run_leaves(stages, tmp_path, capsys, error):
    for name in STAGES[1:3]:
        (tmp_path / name).mkdir()
    (tmp_path / "candidates").mkdir()
    (tmp_path / "candidates" / "update-48.pt").touch()
    (tmp_path / "checkpoints").mkdir()
    (tmp_path / "checkpoints" / "status.json").write_text('{"updates": 60}')
    stages.settings.updates = 240
    with pytest.raises(type(error)), stages.interruptions():
        raise error
    assert capsys.readouterr().out == (
        f"finetune: interrupted: 3 of 7 parts are done, the training is saved at update 60 of 240, in {tmp_path}; the "
        "same command, or call, goes on from there\n"
    )


def test_other_ends_say_nothing(stages, capsys):
    with pytest.raises(SystemExit), stages.interruptions():
        raise SystemExit(2)
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("status", "error"), [(INTERRUPTED, KeyboardInterrupt), (STATUS, SystemExit)])
def test_the_end_of_a_program_that_is_interrupted(tmp_path, monkeypatch, status, error):
    """After Ctrl-C a training ends by a status, which in Python is an exception as after Ctrl-C anywhere else."""

    def run(self):
        raise SystemExit(status)

    monkeypatch.setattr(Finetuning, "run", run)
    (tmp_path / "encoder").mkdir()
    with pytest.raises(error):
        finetune(tmp_path / "encoder", [("a", "b")], output=tmp_path / "out")


def test_an_encoder_of_the_hub_keeps_its_name(stages, tmp_path, monkeypatch):
    """Its folder in the cache has the name of a commit."""
    monkeypatch.setattr(recipe, "local_path", lambda name: tmp_path / "5d2f")
    stages.settings.encoder, stages.settings.tokenizer_dir = "owner/name@main", ""
    stages.find_encoder()
    assert (stages.settings.encoder, stages.hub_name) == (str(tmp_path / "5d2f"), "owner/name")
    monkeypatch.setattr(recipe, "local_path", Path)
    stages.hub_name, stages.settings.encoder = "", str(tmp_path)
    stages.find_encoder()
    assert stages.hub_name == ""
