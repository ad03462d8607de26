"""The settings of a server: its limits, and who may use it."""

import hashlib
import hmac
import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from s2sft_fairseq.errors import UserError

LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
FEWEST_KEY_CHARACTERS = 16
MOST_CHARACTERS = 1000
"""Maximum length of the reason in an answer."""


class Refused(Exception):
    """A refused request: the status of its answer, which is not 200, and the reason."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})

    def body(self) -> bytes:
        """Return the JSON of the answer, in ASCII, with the reason cut: it may quote a long request."""
        return json.dumps({"error": self.reason[:MOST_CHARACTERS]}).encode()


@dataclass(frozen=True)
class Limits:
    """The limits of requests. Each has an option of ``s2sft serve`` with the same name."""

    max_batch: int = 32
    """Sources in a batch of the model, and in one request."""
    max_wait_ms: float = 5.0
    """Milliseconds that a request waits for others to join its batch."""
    max_queue: int = 256
    """Sources that wait for the model."""
    max_concurrency: int = 128
    """Requests that are open at the same time."""
    max_body: int = 1_000_000
    """Bytes of a request's body."""
    max_length: int = 20_000
    """Characters of a source, counting all its fields, and of a target."""
    max_tokens: int = 512
    """Tokens that a request may ask for (``max_len``)."""
    max_beam: int = 16
    """Beam size that a request may ask for (``beam``)."""
    timeout: float = 60.0
    """Seconds for a request, from the start of reading its body to its answer."""


@dataclass(frozen=True)
class Access:
    """Who may use a server."""

    local: bool = True
    """The server is bound to this machine only. ``Host`` must name it: this prevents DNS rebinding by web sites."""
    key_digest: bytes | None = None
    """SHA-256 of the key that requests must have; None: no key is needed."""

    @classmethod
    def of(cls, host: str, key: str | None) -> "Access":
        """Return the rules for a server that is bound to `host` and has this key, if any."""
        return cls(host in LOCAL_NAMES, None if key is None else _digest(key.encode()))

    def allows_host(self, host: str) -> bool:
        """Return whether a request may have this ``Host`` header."""
        name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        return not self.local or name.lower() in LOCAL_NAMES

    def allows_key(self, authorization: bytes) -> bool:
        """Return whether an ``Authorization`` header holds the key. The comparison takes constant time."""
        if self.key_digest is None:
            return True
        scheme, _, key = authorization.partition(b" ")
        return hmac.compare_digest(_digest(key.strip()), self.key_digest) and scheme.lower() == b"bearer"


def read_key(path: Path) -> str:
    """Return the key in a file, its only line.

    Raises:
        UserError: the file cannot be read, has several lines or spaces, or its key is too short.
    """
    try:
        key = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it holds other characters than ASCII"
        raise UserError(f"--api-key-file {path} cannot be read: {reason}") from None
    if len(key) < FEWEST_KEY_CHARACTERS or not key.isprintable() or " " in key:
        raise UserError(
            f"--api-key-file must hold one line of at least {FEWEST_KEY_CHARACTERS} characters without spaces, but "
            f"{path} holds {len(key)} characters in {len(key.splitlines())} lines"
        )
    return key


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
