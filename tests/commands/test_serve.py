import re
import signal
import socket
import subprocess
import sys
import urllib.request
from types import SimpleNamespace

import pytest
from processes import ROOT, environment

from s2sft_fairseq.commands import serve
from s2sft_fairseq.serve.settings import Limits


@pytest.fixture
def run(monkeypatch):
    """Call the command with a model that is not loaded; return what it would serve."""
    calls = []
    monkeypatch.setattr(serve, "run", lambda model, options, key, address: calls.append((model, options, key)))
    monkeypatch.setattr(serve, "bind", lambda host, port: None)
    monkeypatch.setattr(
        "s2sft_fairseq.Seq2Seq", SimpleNamespace(from_pretrained=lambda *_, **__: "model"), raising=False
    )

    def call(*words):
        serve.main(words)
        return calls[-1]

    return call


def test_defaults(run, tmp_path):
    model, options, key = run(str(tmp_path))
    assert (model, key, options.host, options.port) == ("model", None, "127.0.0.1", 8000)
    assert Limits(**{name: getattr(options, name) for name in serve.LIMITS}) == Limits()


def test_another_address_with_a_key(run, tmp_path):
    path = tmp_path / "key"
    path.write_text("0123456789abcdef\n")
    _, options, key = run(str(tmp_path), "--host", "0.0.0.0", "--api-key-file", str(path))
    assert (options.host, key) == ("0.0.0.0", "0123456789abcdef")


def test_another_address_without_a_key(run, tmp_path):
    assert run(str(tmp_path), "--host", "0.0.0.0", "--open-to-all")[1].host == "0.0.0.0"


def test_problems_are_reported_together(call_command):
    words = ("--host", "0.0.0.0", "--max-batch", "0", "--timeout", "nan", "--port", "70000", "--max-queue", "-1")
    stderr = call_command("serve", "no/such/model", *words, status=2).stderr
    for text in (
        "--host 0.0.0.0 is reached from other machines: give --api-key-file FILE, or --open-to-all",
        "--max-batch must be at least 1, but is 0",
        "--timeout must be at least 1, but is nan",
        "--port must be from 0 to 65535, but is 70000",
        "--max-queue must be at least --max-batch (0), but is -1",
        "the model must be a folder, a checkpoint or a name on the hub, but no/such/model is not there",
    ):
        assert text in stderr


def test_a_key_for_everybody(call_command, tmp_path):
    words = ("--api-key-file", tmp_path / "key", "--open-to-all")
    assert "exclude each other" in call_command("serve", tmp_path, *words, status=2).stderr


def test_an_address_that_is_taken(call_command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stderr = call_command("serve", tmp_path, "--port", port, status=2).stderr
    assert f"--host 127.0.0.1 and --port {port} are no free address: Address already in use" in stderr


def test_without_the_extra(call_command, tmp_path, monkeypatch):
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    stderr = call_command("serve", tmp_path, status=2).stderr
    assert "s2sft serve needs fastapi and uvicorn: pip install 's2sft_fairseq[serve]'" in stderr


PROGRAM = """
import sys
from pathlib import Path
from served import FakeModel
from s2sft_fairseq import cli
from s2sft_fairseq.commands import serve
def main(arguments):
    options = serve._parser().parse_args(arguments)
    serve.run(FakeModel(), options, None, serve.bind(options.host, options.port))
serve.main = main
sys.exit(cli.main(["serve", *sys.argv[1:]]))
"""


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_it(number, tmp_path):
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    process = subprocess.Popen(
        [sys.executable, "-c", PROGRAM, str(tmp_path), "--port", "0"],
        env=environment(PYTHONPATH=f"{ROOT}:{ROOT}/tests/support"),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    log = iter(process.stderr)  # the iterator ends with the process
    port = next(found[1] for line in log if (found := re.search(r"the page is at http://127.0.0.1:(\d+)/", line)))
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=10) as answer:
        assert answer.status == 200
    process.send_signal(number)
    out, err = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, ""), err
