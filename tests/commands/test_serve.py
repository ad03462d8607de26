import contextlib
import http.client
import os
import re
import resource
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
from processes import ROOT, environment

from s2sft_fairseq.commands import serve
from s2sft_fairseq.errors import UserError, as_option
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


@pytest.mark.parametrize("name", serve.LIMITS)
def test_numbers_without_sense(call_command, tmp_path, name):
    option = as_option(name)
    for value in ("nan", "inf", "-inf", "-1", "1e300", "9" * 30, "many"):
        stderr = call_command("serve", tmp_path, f"{option}={value}", status=2).stderr
        assert option in stderr.splitlines()[-1]  # below argparse's usage


def test_a_key_for_everybody(call_command, tmp_path):
    words = ("--api-key-file", tmp_path / "key", "--open-to-all")
    assert "exclude each other" in call_command("serve", tmp_path, *words, status=2).stderr


def test_an_address_that_is_taken(call_command, tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        stderr = call_command("serve", tmp_path, "--port", port, status=2).stderr
    assert f"--host 127.0.0.1 and --port {port} are no free address: Address already in use" in stderr


@pytest.mark.parametrize("host", ["256.256.256.256", "a" * 300, "..", "ä" * 100])
def test_an_address_that_cannot_be(host):
    with pytest.raises(UserError, match="--host"):
        serve.bind(host, 0)


def test_without_the_extra(call_command, tmp_path, monkeypatch):
    monkeypatch.setattr(serve.importlib.util, "find_spec", lambda name: None)
    stderr = call_command("serve", tmp_path, status=2).stderr
    assert "s2sft serve needs fastapi and uvicorn: pip install 's2sft_fairseq[serve]'" in stderr


PROGRAM = """
import sys
from served import FakeModel
from s2sft_fairseq import cli
from s2sft_fairseq.commands import serve
def main(arguments):
    options = serve._parser().parse_args(arguments)
    model = FakeModel()
    model.seconds = 0.5
    serve.run(model, options, None, serve.bind(options.host, options.port))
serve.main = main
sys.exit(cli.main(["serve", *sys.argv[1:]]))
"""


def usual_signals():
    """Undo what nohup does to the process of the tests."""
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


@contextlib.contextmanager
def served(folder, before=usual_signals):
    """Start a server whose model takes half a second, in a process; yield the process and the port."""
    pytest.importorskip("uvicorn", reason="the extra serve is not installed")
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(
            [sys.executable, "-c", PROGRAM, str(folder), "--port", "0"],
            env=environment(PYTHONPATH=f"{ROOT}:{ROOT}/tests/support"),
            stdout=subprocess.PIPE,
            stderr=log,
            preexec_fn=before,
        )
    try:
        end = time.monotonic() + 60
        while not (found := re.search(r"http://127.0.0.1:(\d+)/", (folder / "log").read_text())):
            assert process.poll() is None and time.monotonic() < end, (folder / "log").read_text()
            time.sleep(0.02)
        yield process, int(found[1])
    finally:
        process.kill()
        process.communicate(timeout=20)


def ask(port):
    """Send a request and return its connection."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20)
    connection.request("POST", "/generate", '{"source": "abc"}', {"Content-Type": "application/json"})
    return connection


@pytest.mark.process
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP])
def test_a_signal_ends_it_after_the_open_requests(number, tmp_path):
    with served(tmp_path) as (process, port):
        connection = ask(port)
        time.sleep(0.2)
        process.send_signal(number)
        assert connection.getresponse().status == 200
        connection.close()
        out, _ = process.communicate(timeout=20)
    assert (process.returncode, out) == (0, b""), (tmp_path / "log").read_text()


@pytest.mark.process
def test_more_connections_than_files_under_nohup(tmp_path):
    """Clients get an error, the log stays short, the processor idle, and afterwards all is well."""

    def before():
        resource.setrlimit(resource.RLIMIT_NOFILE, (60, 60))
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    with served(tmp_path, before) as (process, port), contextlib.ExitStack() as stack:
        clients = [stack.enter_context(socket.create_connection(("127.0.0.1", port), 5)) for _ in range(150)]
        start = processor_seconds(process)
        time.sleep(1.5)
        assert processor_seconds(process) - start < 0.5
        assert b"HTTP/1.1 200" not in clients[-1].recv(1000)
        stack.close()
        process.send_signal(signal.SIGHUP)
        time.sleep(0.2)
        assert ask(port).getresponse().status == 200
        assert (tmp_path / "log").stat().st_size < 5000


def processor_seconds(process):
    fields = Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
