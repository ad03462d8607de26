"""``s2sft recipe``: which script it hands over to; tests/scripts runs the recipes."""

import os
import sys

import pytest
from raw_corpora import RAW, UNDERSTANDING

from s2sft_fairseq.commands import recipe


def test_names():
    assert recipe.names() == sorted([*RAW, *UNDERSTANDING])


def test_a_recipe_takes_over_with_this_python(call_command, monkeypatch):
    started = []
    monkeypatch.setattr(os, "execvpe", lambda *call: started.append(call))
    call_command("recipe", "e2e", "--raw", "a folder", "--", "--lr", 1)
    ((file, words, environment),) = started
    assert (file, words[0], words[2:]) == ("bash", "bash", ["--raw", "a folder", "--", "--lr", "1"])
    assert words[1].endswith("/recipes/e2e.sh") and os.path.isfile(words[1])
    assert environment["PYTHON"] == sys.executable
    assert environment["PATH"] == os.environ["PATH"]


@pytest.mark.parametrize("words", [(), ("--help",)])
def test_help(call_command, words):
    printed = call_command("recipe", *words).stdout
    assert all(f"\n  {name} " in printed for name in recipe.names())
    assert "XSum: from a BBC article to its one-sentence summary." in printed


@pytest.mark.parametrize("name", ["stages", "../demo"])
def test_no_recipe(call_command, name):
    failed = call_command("recipe", name, status=2)
    assert failed.stderr.endswith(f"xqg, xsum, but is {name}\n")
