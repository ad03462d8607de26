"""A small server on the loopback that answers ``huggingface_hub`` as the Hugging Face hub does."""

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Event, Thread
from urllib.parse import unquote, urlsplit

import pytest
from huggingface_hub import constants

REVISION = "main"


class Hub(ThreadingHTTPServer):
    """The server; `models` are folders by name, `files` lists what was downloaded; `is_silent`: no answers."""

    def __init__(self, models: dict[str, Path]) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.models = models
        self.files: list[str] = []
        self.is_silent = False
        self.closing = Event()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Hub
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_HEAD(self) -> None:
        self._answer()

    def do_GET(self) -> None:
        self._answer()

    def _answer(self) -> None:
        if self.server.is_silent:
            self.server.closing.wait()
            return
        path = unquote(urlsplit(self.path).path).strip("/")
        if path.startswith("api/models/"):
            self._describe(path.removeprefix("api/models/"))
            return
        model, _, rest = path.partition("/resolve/")
        _, _, name = rest.partition("/")
        file = self.server.models.get(model, Path("/nowhere")) / name
        if not file.is_file():
            self._send(404, b"", {"X-Error-Code": "EntryNotFound"})
            return
        content = file.read_bytes()
        if self.command == "GET":
            self.server.files.append(name)
        digest = hashlib.sha256(content).hexdigest()
        self._send(200, content, {"X-Repo-Commit": commit(model), "ETag": f'"{digest}"'})

    def _describe(self, path: str) -> None:
        for kind in ("/revision/", "/tree/"):
            model, found, revision = path.partition(kind)
            if found:
                break
        if model not in self.server.models:
            self._send(404, b"", {"X-Error-Code": "RepoNotFound"})
        elif revision not in ("", REVISION, commit(model)):
            self._send(404, b"", {"X-Error-Code": "RevisionNotFound"})
        elif found == "/tree/":
            self._send_json([_entry(self.server.models[model], file) for file in _files(self.server.models[model])])
        else:
            self._send_json({"id": model, "modelId": model, "sha": commit(model), "siblings": []})

    def _send_json(self, value: object) -> None:
        self._send(200, json.dumps(value).encode(), {"Content-Type": "application/json"})

    def _send(self, status: int, content: bytes, headers: dict[str, str]) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(content)


def commit(model: str) -> str:
    """Return the hash of the only commit of a model."""
    return hashlib.sha1(model.encode()).hexdigest()


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


def _entry(folder: Path, file: Path) -> dict[str, object]:
    name = file.relative_to(folder).as_posix()
    return {"type": "file", "path": name, "size": file.stat().st_size, "oid": hashlib.sha1(name.encode()).hexdigest()}


@contextmanager
def serving(monkeypatch: pytest.MonkeyPatch, cache: Path, models: dict[str, Path]) -> Iterator[Hub]:
    """Context manager of a hub that this process uses, with an empty cache."""
    server = Hub(models)
    monkeypatch.setattr(constants, "ENDPOINT", server.url)
    template = constants.HUGGINGFACE_CO_URL_TEMPLATE.partition("{repo_id}")[1:]
    monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", f"{server.url}/{''.join(template)}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.closing.set()
        server.shutdown()
        server.server_close()
        thread.join()
