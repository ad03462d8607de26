"""What a server is told at its start: its limits, and who may use it."""

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
"""Of a reason."""


class Refused(Exception):
    """A request that is answered with a status other than 200, and with the reason."""

    def __init__(self, status: int, reason: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(reason)
        self.status, self.reason, self.headers = status, reason, dict(headers or {})

    def body(self) -> bytes:
        """Return the answer's JSON: ASCII, and short whatever of the request the reason quotes."""
        return json.dumps({"error": self.reason[:MOST_CHARACTERS]}).encode()


@dataclass(frozen=True)
class Limits:
    """What requests may cost. Each is an option of ``s2sft serve`` of the same name."""

    max_batch: int = 32
    """Sources that go through the model together, and most of one request."""
    max_wait_ms: float = 5.0
    """Milliseconds that a request waits for others to join its batch."""
    max_queue: int = 256
    """Sources that wait for the model."""
    max_concurrency: int = 128
    """Requests that are open at once."""
    max_body: int = 1_000_000
    """Bytes of a request's body."""
    max_length: int = 20_000
    """Characters of a source, of all its fields together, and of a target."""
    max_tokens: int = 512
    """Tokens that a request may ask for (``max_len``)."""
    max_beam: int = 16
    timeout: float = 60.0
    """Seconds from a request's first byte to its answer."""


@dataclass(frozen=True)
class Access:
    """Who may use a server."""

    local: bool = True
    """Bound to this machine alone: ``Host`` must name it, lest a web site's own name lead a browser here."""
    key_digest: bytes | None = None
    """SHA-256 of the key that requests must carry; None: no key is needed."""

    @classmethod
    def of(cls, host: str, key: str | None) -> "Access":
        """Return the rules for a server that is bound to `host` and has this key, if any."""
        return cls(host in LOCAL_NAMES, None if key is None else _digest(key.encode()))

    def allows_host(self, host: str) -> bool:
        """Whether a request may carry this ``Host`` header."""
        name = host.rpartition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
        return not self.local or name.lower() in LOCAL_NAMES

    def allows_key(self, authorization: bytes) -> bool:
        """Whether an ``Authorization`` header holds the key; takes as long for a wrong key as for the right one."""
        if self.key_digest is None:
            return True
        scheme, _, key = authorization.partition(b" ")
        return hmac.compare_digest(_digest(key.strip()), self.key_digest) and scheme.lower() == b"bearer"


def read_key(path: Path) -> str:
    """Return the key in a file: its only line.

    Raises:
        UserError: the file cannot be read, or holds no key that is hard to guess.
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
