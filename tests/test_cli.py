"""The console command: its table, its exit statuses, and the real commands in processes of their own."""

import os
import signal
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from s2sft_fairseq import __version__, cli
from s2sft_fairseq.errors import UserError


def test_help_lists_every_command(call_command):
    output = call_command("--help").stdout
    assert output == call_command().stdout == call_command("-h").stdout
    for name, (text, _) in cli.COMMANDS.items():
        assert f"  {name} " in output
        assert text in output


def test_unknown_command(call_command):
    done = call_command("trian", status=2)
    commands = ", ".join(cli.COMMANDS)
    assert done.stderr == f"error: s2sft has no command trian (did you mean train?): {commands}\n"
    done = call_command("xyzzy", status=2)
    assert done.stderr == f"error: s2sft has no command xyzzy: {commands}\n"


def test_the_version(call_command):
    for word in ("--version", "-V", "version"):
        assert call_command(word).stdout == f"s2sft_fairseq {__version__}\n"


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (("average", ".", "--lst", "3", "--output", "x"), "--lst: did you mean --last?"),
        (("average", ".", "--last", "3", "--ouput=x"), "--ouput: did you mean --output?"),
        (("train", "data", "--max-tokenz", "3"), "--max-tokenz: did you mean --max-tokens?"),
        (("train", "data", "--criterion", "mask_atention"), "did you mean mask_attention?"),
        (("fairseq-train",), "(did you mean train?)"),
        (("--verison",), "(did you mean --version?)"),
        (("export", ".", "--to", "y", "--fromat", "onnx"), "--fromat: did you mean --format?"),
    ],
)
def test_a_misspelled_option(call_command, words, hint):
    assert hint in call_command(*words, status=2).stderr


def test_options_that_are_right_are_not_corrected(call_command):
    said = call_command("average", ".", "--last", "three", "--out", "x", status=2).stderr
    assert "--last: invalid int value: 'three'" in said and "did you mean" not in said
    said = call_command("train", "data", "--random-init", "--max-tokens", "many", status=2).stderr
    assert "--max-tokens: invalid int value: 'many'" in said and "did you mean" not in said


@pytest.fixture
def call_raising(call_command, monkeypatch):
    """Call a command that raises `error`."""

    def call(error, **options):
        def run(arguments):
            assert arguments == ["x"]
            if callable(error):
                error()
            raise error

        monkeypatch.setitem(sys.modules, "s2sft_fairseq.commands.raising", SimpleNamespace(main=run))
        monkeypatch.setitem(cli.COMMANDS, "raise", ("", "raising"))
        return call_command("raise", "x", **options)

    return call


def test_a_mistake_of_the_user(call_raising):
    assert call_raising(UserError("two\nlines"), status=2).stderr == "error: two\nlines\n"


def test_the_traceback_on_demand(call_raising, monkeypatch):
    monkeypatch.setenv("S2SFT_DEBUG", "1")
    stderr = call_raising(UserError("text"), status=2).stderr
    assert stderr.startswith("Traceback (most recent call last):")
    assert stderr.endswith("\nerror: text\n")


def test_a_bug_keeps_its_traceback(call_raising):
    stderr = call_raising(ValueError("a bug"), status=1).stderr
    assert "in run\n" in stderr
    assert stderr.endswith("\nValueError: a bug\nerror: ValueError('a bug')\n")


def test_a_file_that_cannot_be_opened(call_raising):
    assert call_raising(Path("nothing").read_text, status=2).stderr == "error: nothing: No such file or directory\n"


@pytest.mark.parametrize(
    ("given", "spins"), [({}, "2000"), ({"GOMP_SPINCOUNT": "7"}, "7"), ({"OMP_WAIT_POLICY": "passive"}, None)]
)
def test_threads_wait_a_little_unless_the_user_says_otherwise(call_raising, monkeypatch, given, spins):
    for name in cli.WAITING:
        monkeypatch.setenv(name, "")  # monkeypatch restores it at the end
        monkeypatch.delenv(name)
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    call_raising(UserError("wrong"), status=2)
    assert os.environ.get("GOMP_SPINCOUNT") == spins


def test_interrupted(call_raising):
    assert call_raising(KeyboardInterrupt(), status=130).stderr == "s2sft raise: interrupted\n"


def test_a_closed_pipe_is_no_error(call_raising, monkeypatch):
    redirected = []
    monkeypatch.setattr(os, "dup2", lambda *descriptors: redirected.append(descriptors))
    monkeypatch.setattr(sys.stdout, "fileno", lambda: 1)
    assert call_raising(BrokenPipeError(), status=1).stderr == ""
    assert [target for _, target in redirected] == [1]


def test_training_prints_no_warnings(run_command, tiny_data, tiny_options, tmp_path):
    done = run_command("train", tiny_data, *tiny_options.training, "--max-update", 3, "--save-dir", "saved")
    assert (tmp_path / "saved" / "checkpoint_last.pt").exists()
    assert done.stderr == ""
    assert "WARNING" not in done.stdout
    assert "num_updates: 3 >= max_update: 3" in done.stdout


def test_generate_prints_its_results_alone_and_no_warnings(tiny_training, run_command, tiny_data):
    read = (tiny_data, "--path", tiny_training.checkpoint)
    done = run_command("generate", *read, "--beam", 2, "--batch-size", 8, "--cpu")
    lines = done.stdout.splitlines()
    assert {line[:2] for line in lines[:-1]} == {"S-", "T-", "H-", "D-", "P-"}
    assert sum(line.startswith("H-") for line in lines) == 10
    assert lines[-1].startswith("Generate test with beam=2")
    assert all(" | INFO | " in line for line in done.stderr.splitlines())


def test_interactive_answers_line_by_line_until_it_is_interrupted(tiny_training, start_command, tiny_data):
    process = start_command("interactive", tiny_data, "--path", tiny_training.checkpoint, "--beam", 2, "--cpu")
    for number in range(2):
        process.stdin.write("a b c\n")
        process.stdin.flush()
        answer = [process.stdout.readline() for _ in range(5)]
        assert answer[0] == f"S-{number}\ta b c\n"
        assert [line[:2] for line in answer] == ["S-", "W-", "H-", "D-", "P-"]
    process.send_signal(signal.SIGINT)
    _, stderr = process.communicate(timeout=60)
    assert process.returncode == 130
    assert stderr.splitlines()[-1] == "s2sft interactive: interrupted"
    assert "Traceback" not in stderr


def test_hydra_train(call_command, tiny_data, tmp_path):
    model = ("model=unilm", "+model.encoder_layers=1", "+model.encoder_embed_dim=16", "+model.encoder_ffn_embed_dim=32")
    model += ("model.random_init=true",)
    options = (
        "criterion=mask_attention",
        "optimizer=adam",
        "optimization.lr=[0.01]",
        "dataset.batch_size=8",
        "dataset.num_workers=0",
    )
    folders = (f"task.data={tiny_data}", f"checkpoint.save_dir={tmp_path}/saved", f"hydra.run.dir={tmp_path}/run")
    words = ("task=unilm_seq2seq", *model, "+model.encoder_attention_heads=2", *options, *folders)
    call_command("hydra-train", *words, "optimization.max_update=2", "common.cpu=true")
    assert (tmp_path / "saved" / "checkpoint_last.pt").exists()


def test_a_mistake_in_hydra_train(call_command, tmp_path):
    words = ("task=unilm_seq2seq", "task.data=/no/such/data", "model=unilm", f"hydra.run.dir={tmp_path}/run")
    done = call_command("hydra-train", *words, "dataset.batch_size=8", status=2)
    assert done.stderr.splitlines()[-1].startswith("error: data folder /no/such/data does not exist")
    assert "Traceback" not in done.stderr
