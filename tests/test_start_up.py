"""Commands start quickly: those that need neither PyTorch nor fairseq import neither."""

import json
import os
import subprocess
import sys

import pytest

from s2sft_fairseq import cli

pytestmark = pytest.mark.process

HELP = [name for name in cli.COMMANDS if name not in cli._OPTIONS_OF_FAIRSEQ]
WORK = {
    "tokenize": ["--tokenizer-dir", ".", "--input", "train.src", "--output-dir", "tokens", "--dict", "tokens/dict.txt"],
    "span-vocab": ["--tokenizer-dir", ".", "--input", "train.src", "--output", "spans.txt"],
    "evaluate": ["--task", "gigaword", "--hyp", "test.src", "--ref", "test.tgt"],
    "score": ["--sys", "test.src", "--ref", "test.tgt"],
}

# Run each command in a process of its own, forked before anything is imported; list the heavy modules it has imported.
PROGRAM = """
import json, os, sys
from s2sft_fairseq import cli
for name, words in json.loads(sys.argv[1]).items():
    sys.stdout.flush()
    if os.fork() == 0:
        out = os.dup(1)
        os.dup2(2, 1)
        try:
            status = cli.main([name, *words])
        except SystemExit as end:
            status = end.code
        heavy = [module for module in ("torch", "fairseq", "transformers") if module in sys.modules]
        os.write(out, json.dumps([name, status or 0, heavy]).encode() + b"\\n")
        os._exit(0)
    os.wait()
"""


def imported(commands: dict[str, list[str]], folder) -> dict[str, list]:
    command = [sys.executable, "-c", PROGRAM, json.dumps(commands)]
    done = subprocess.run(command, cwd=folder, env=os.environ, capture_output=True, text=True, timeout=300)
    found = {name: [status, heavy] for name, status, heavy in map(json.loads, done.stdout.splitlines())}
    assert found == {name: [0, []] for name in commands}, done.stderr
    return found


def test_help(tmp_path):
    imported({name: ["--help"] for name in HELP}, tmp_path)


def test_work_without_tensors(tiny_corpus, tmp_path):
    for path in tiny_corpus.iterdir():
        if path.is_file():
            (tmp_path / path.name).write_bytes(path.read_bytes())
    symbols = [line.split()[0] for line in (tmp_path / "dict.txt").read_text().splitlines()]
    (tmp_path / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    imported(WORK, tmp_path)


def test_generate_imports_ray_only_to_use_it():
    program = """
import sys
from s2sft_fairseq import cli
try:
    cli.main(["generate", "--help"])
finally:
    assert "ray" not in sys.modules
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "--actors" in done.stdout


def test_scientific_packages_are_imported_when_they_are_used():
    """Fairseq's own metrics still work, although their packages are not imported with it."""
    program = """
import sys
import s2sft_fairseq.plugin
assert not {"sklearn", "scipy", "pyarrow"} & set(sys.modules)
from fairseq.criterions import sentence_prediction
print(sentence_prediction.f1_score([1, 0, 1], [1, 1, 1]), sentence_prediction.pearsonr([1, 2, 3], [2, 4, 6])[0])
assert {"sklearn", "scipy"} <= set(sys.modules)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert [float(word) for word in done.stdout.split()] == pytest.approx([0.8, 1.0])
