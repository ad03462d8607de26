"""The arguments passed to fairseq's commands: the plugin's folder, and its task unless another one is given."""

import json
import multiprocessing
import sys
from argparse import Namespace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import s2sft_fairseq
from s2sft_fairseq.commands import fairseq_command
from s2sft_fairseq.commands.fairseq_command import _defaults, complete, default_task, value_of
from s2sft_fairseq.errors import UserError

OWN = s2sft_fairseq.__path__[0]


def test_adds_the_plugin_and_its_task():
    assert complete(["data", "--cpu"]) == ["--task", "unilm_seq2seq", "data", "--cpu", "--user-dir", OWN]


@pytest.mark.parametrize("task", [["--task", "translation"], ["--task=translation"]])
def test_keeps_the_task_that_is_given(task):
    assert complete([*task, "data"]) == [*task, "data", "--user-dir", OWN]


@pytest.mark.parametrize("form", ["s2sft_fairseq", "s2sft_fairseq/", "./s2sft_fairseq", OWN])
def test_the_plugin_may_be_given_too(monkeypatch, form):
    monkeypatch.chdir(Path(OWN).parent)
    assert complete(["--user-dir", form])[-2:] == ["--user-dir", OWN]


def test_a_link_to_the_plugin_is_the_plugin(tmp_path):
    (tmp_path / "link").symlink_to(OWN)
    assert complete([f"--user-dir={tmp_path}/link"])[-2:] == ["--user-dir", OWN]


def test_refuses_a_folder_that_does_not_exist():
    with pytest.raises(UserError, match=r"--user-dir no/such/plugin: no such folder"):
        complete(["--user-dir", "no/such/plugin"])


def test_refuses_another_copy(tmp_path):
    (tmp_path / "s2sft_fairseq").mkdir()
    with pytest.raises(UserError, match=rf"another copy of the package that runs, {OWN}: .*python -m s2sft_fairseq in"):
        complete(["--user-dir", str(tmp_path / "s2sft_fairseq")])


def test_defaults_of_training():
    assert _defaults("train", ["data", "--pretrained", "encoder"]) == [
        *("--criterion", "mask_attention", "--arch", "unilm", "--optimizer", "fused_adamw", "--lr", "5e-5"),
        *("--clip-norm", "1.0", "--max-tokens", "4096", "--required-batch-size-multiple", "1"),
        *("--max-epoch", "10"),
    ]
    given = ["-a", "unilm_base", "--criterion=mask_attention", "--optimizer", "adam", "--lr=1e-3", "--clip-norm", "0"]
    given += ["--required-batch-size-multiple", "8"]
    assert _defaults("train", ["data", *given, "--batch-size", "8", "--max-update", "3"]) == []
    assert _defaults("train", ["data", "--task", "translation"]) == []


@pytest.mark.parametrize(("width", "lr"), [(768, "5e-5"), (1024, "2e-5")])
def test_the_learning_rate_follows_from_the_size(tmp_path, width, lr):
    """s2s-ft, Appendix A: 1e-5 to 3e-5 for large encoders. ERNIE-GEN pre-trains both sizes at the same rate."""
    for name in ("model.pt", "dict.txt"):
        (tmp_path / name).write_text("")
    described = {"sizes": {"encoder_embed_dim": width}, "vocab_size": 9, "newly_initialized": []}
    (tmp_path / "config.json").write_text(json.dumps(described))
    words = ["data", "--pretrained", str(tmp_path)]
    assert value_of(_defaults("train", words), "--lr") == lr
    assert value_of(_defaults("train", [*words, "--lr", "1"]), "--lr") is None
    assert value_of(_defaults("train", [*words, "--task", "ernie_gen_pretraining"]), "--lr") == "5e-5"
    (tmp_path / "config.json").write_text("{}")  # is reported when it is used
    assert value_of(_defaults("train", words), "--lr") == "5e-5"


def test_encoder_decoders_have_a_task_and_defaults_of_their_own():
    assert complete(["data", "--arch", "deltalm_base"])[:2] == ["--task", "deltalm_seq2seq"]
    assert _defaults("train", ["data", "-a", "deltalm"]) == [
        *("--criterion", "label_smoothed_cross_entropy", "--optimizer", "fused_adamw", "--lr", "1e-4"),
        *("--clip-norm", "1.0", "--max-tokens", "4096", "--required-batch-size-multiple", "1"),
        *("--max-epoch", "10", "--label-smoothing", "0.1"),
    ]
    given = ["--task", "deltalm_seq2seq", "--criterion", "cross_entropy", "--label-smoothing", "0.2"]
    assert "--label-smoothing" not in _defaults("train", given)
    assert _defaults("train", ["--task", "deltalm_pretraining"])[:4] == [
        "--criterion",
        "cross_entropy",
        "--arch",
        "deltalm",
    ]
    assert _defaults("generate", ["data", "--task", "deltalm_seq2seq"]) == []


@pytest.mark.parametrize(
    ("model", "task", "expected"),
    [
        (Namespace(_name="deltalm_base"), "deltalm_seq2seq", "deltalm_seq2seq"),
        ({"_name": "deltalm"}, "deltalm_pretraining", "deltalm_seq2seq"),
        (Namespace(arch="deltalm_large"), "translation", "translation"),
        (Namespace(_name="unilm"), "unilm_seq2seq", "unilm_seq2seq"),
        (None, None, "unilm_seq2seq"),
    ],
)
def test_the_task_follows_from_the_model(tmp_path, model, task, expected):
    path = tmp_path / "checkpoint.pt"
    torch.save({"cfg": {"model": model, "task": {"_name": task}}}, path)
    assert default_task(["data", "--path", f"{path}:other.pt"]) == expected


def test_a_damaged_file_has_no_task(tmp_path):
    (tmp_path / "checkpoint.pt").write_text("nothing")
    assert default_task(["--path", str(tmp_path / "checkpoint.pt")]) == "unilm_seq2seq"
    assert default_task(["--path", "no/such/file"]) == "unilm_seq2seq"


@pytest.mark.parametrize("given", [["--max-tokens=900"], ["--batch-size", "3"], ["--score-reference"]])
def test_by_default_memory_alone_limits_batches_of_generation(given):
    assert _defaults("generate", ["data", "--beam", "2"]) == ["--max-tokens", "1000000"]
    assert _defaults("generate", ["data", *given]) == []
    assert _defaults("generate", ["data", "--task", "translation"]) == []
    assert _defaults("interactive", ["data"]) == []


@pytest.mark.parametrize("command", ["validate", "generate", "interactive"])
def test_a_model_to_read_is_needed(call_command, command):
    stderr = call_command(command, "data", status=2).stderr
    assert stderr.startswith("error: --path is needed: the checkpoint file, or for an ensemble several of them")


def test_a_second_plugin_is_imported_beside_ours(call_command, tmp_path):
    plugin = tmp_path / "their_plugin"
    plugin.mkdir()
    (plugin / "__init__.py").write_text(
        "from fairseq.criterions import FairseqCriterion, register_criterion\n"
        "@register_criterion('their_criterion')\n"
        "class TheirCriterion(FairseqCriterion):\n"
        "    @staticmethod\n"
        "    def add_args(parser):\n"
        "        parser.add_argument('--their-option')\n"
    )
    words = ("--user-dir", "their_plugin", "--criterion", "their_criterion", "--arch", "unilm_tiny", "--help")
    output = call_command("train", *words).stdout
    assert "--their-option" in output
    assert "--finetune-method" in output


def test_workers_are_forks(monkeypatch):
    """Python 3.14 would start them anew, without the patches."""
    started = []
    module = SimpleNamespace(cli_main=lambda: started.append(multiprocessing.get_start_method()))
    monkeypatch.setitem(sys.modules, "fairseq_cli.train", module)
    monkeypatch.setitem(sys.modules, "fairseq_cli.hydra_train", module)
    monkeypatch.setattr(sys, "argv", ["s2sft"])
    before = multiprocessing.get_start_method(allow_none=True)
    try:
        multiprocessing.set_start_method("forkserver", force=True)
        fairseq_command.train(["data"])
        fairseq_command.hydra_train([])
        assert started == ["fork", "fork"]
        assert multiprocessing.get_start_method() == "forkserver"
        monkeypatch.setattr(sys, "platform", "darwin")
        fairseq_command.train(["data"])
        assert started[2:] == ["forkserver"]
    finally:
        multiprocessing.set_start_method(before, force=True)
