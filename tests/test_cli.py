"""The console command: its table, its exit statuses, and the real commands in processes of their own."""

import os
import signal
import subprocess
import sys

import pytest
from fairseq import utils

from s2sft_fairseq import cli
from s2sft_fairseq.errors import UserError


def test_help_lists_every_command(call_command):
    output = call_command("--help").stdout
    assert output == call_command().stdout == call_command("-h").stdout
    for name, (text, _) in cli.COMMANDS.items():
        assert f"  {name} " in output
        assert text in output


def test_unknown_command(call_command):
    done = call_command("trian", status=2)
    assert done.stderr == f"error: s2sft has no command trian: {', '.join(cli.COMMANDS)}\n"


@pytest.fixture
def call_raising(call_command, monkeypatch):
    """Call a command that raises `error`."""

    def call(error, **options):
        def run(arguments):
            assert arguments == ["x"]
            if callable(error):
                error()
            raise error

        monkeypatch.setitem(cli.COMMANDS, "raise", ("", run))
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
    assert call_raising(lambda: open("nothing"), status=2).stderr == "error: nothing: No such file or directory\n"


def test_an_assertion_of_fairseq_about_the_options(call_raising):
    stderr = call_raising(lambda: utils.resolve_max_positions(), status=2).stderr if False else None
    assert stderr is None
