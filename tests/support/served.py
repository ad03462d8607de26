"""A server of `s2sft serve` in a thread of its own, with a model without weights."""

import contextlib
import http.client
import json
import socket
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace

import numpy as np
import uvicorn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.serve.app import create_app
from s2sft_fairseq.serve.connections import configuration, prompt_socket
from s2sft_fairseq.serve.settings import Access, Limits


class FakeModel:
    """Returns reversed sources; remembers its batches, and waits for `go` in each."""

    def __init__(self) -> None:
        self.batches: list[tuple[list, dict]] = []
        self.go = threading.Event()
        self.go.set()
        self.seconds = 0.0

    def hypotheses(self, sources, numbers=None, **options):
        self.batches.append((list(sources), options))
        assert self.go.wait(20)
        time.sleep(self.seconds)
        if "bug" in sources:
            raise ValueError("a secret of /the/server")
        if "wrong" in sources:
            raise UserError("the source is wrong")
        return [
            [
                SimpleNamespace(text=text, score=-0.5, tokens=list(text), log_probs=[-0.1] * len(text))
                for text in [str(source)[::-1]] * options.get("num_return", 1)
            ]
            for source in sources
        ]

    def score(self, sources, targets):
        return [
            SimpleNamespace(total=-float(len(target)), tokens=list(target), log_probs=[-1.0] * len(target))
            for target in targets
        ]

    def search_defaults(self):
        return {
            "beam": 3,
            "num_return": 2,
            "max_len": 7,
            "length_penalty": 0.5,
            "no_repeat_ngram": 0,
            "sampling": False,
        }

    def attention(self, source, target):
        weights = np.full((len(target), len(source)), 1 / len(source))
        return SimpleNamespace(source=list(source), target=list(target), weights=weights)


class Served:
    """A client of a server; `server` is uvicorn's."""

    def __init__(self, server: uvicorn.Server, model: FakeModel) -> None:
        self.server, self.model = server, model
        self.port = server.servers[0].sockets[0].getsockname()[1]

    def ask(self, path, body=None, *, method=None, headers=(), raw=None, timeout=20):
        """Return status, headers and JSON (or text) of an answer; `body` becomes JSON, `raw` is sent unchanged."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        sent = raw if body is None else json.dumps(body)
        kind = {"Content-Type": "application/json"} if sent is not None else {}
        method = method or ("GET" if sent is None else "POST")
        with contextlib.closing(connection):
            connection.request(method, path, sent, {**kind, **dict(headers)})
            answer = connection.getresponse()
            text = answer.read().decode()
        is_json = answer.headers.get("Content-Type", "").startswith("application/json")
        return SimpleNamespace(
            status=answer.status, headers=answer.headers, text=text, json=json.loads(text) if is_json and text else None
        )

    def generate(self, source, **options):
        return self.ask("/generate", {"source": source, **options})

    def metric(self, name: str) -> float:
        """Return the value of a line of /metrics."""
        lines = dict(line.rsplit(" ", 1) for line in self.ask("/metrics").text.splitlines() if line[0] != "#")
        return float(lines.get(name, 0))

    def wait_until(self, condition) -> None:
        """Wait for a condition that another thread makes true."""
        end = time.monotonic() + 10
        while not condition():
            assert time.monotonic() < end, "not within 10 seconds"
            time.sleep(0.005)


@contextlib.contextmanager
def serving(model=None, access: Access | None = None, **limits) -> Iterator[Served]:
    """Run a server on a free port of this machine; yield its client."""
    model = model or FakeModel()
    app = create_app(model, Limits(**limits), access, name="fake")
    address = prompt_socket(socket.AF_INET)
    address.bind(("127.0.0.1", 0))
    server = uvicorn.Server(configuration(app, Limits(**limits)))
    thread = threading.Thread(target=server.run, args=[[address]])
    thread.start()
    try:
        while not server.started:
            assert thread.is_alive()
            time.sleep(0.002)
        yield Served(server, model)
    finally:
        model.go.set()
        server.should_exit = True
        thread.join(20)
