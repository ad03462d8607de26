"""``s2sft recipe``: the list of recipes; tests/recipes runs them."""

import pytest
from raw_corpora import RAW, UNDERSTANDING


@pytest.mark.parametrize("words", [(), ("--help",), ("--list",)])
def test_help(call_command, words):
    printed = call_command("recipe", *words).stdout
    names = [line.split()[0] for line in printed.splitlines() if line.startswith("  ")]
    assert names == sorted([*RAW, *UNDERSTANDING])
    assert "XSum: from a BBC article to its one-sentence summary." in printed


@pytest.mark.parametrize("name", ["stages", "../demo"])
def test_no_recipe(call_command, name):
    failed = call_command("recipe", name, status=2)
    assert failed.stderr.endswith(f"xqg, xsum, but is {name}\n")


def test_values_that_look_like_options(call_command):
    words = ("--updates", 9, "--dry-run", "--decoding", "--greedy", "--layout", "--share-all", "--", "--fp16")
    train, generate = call_command("recipe", "e2e", *words).stdout.splitlines()
    assert " --share-all " in train and train.endswith(" --fp16") and " --greedy " in generate
