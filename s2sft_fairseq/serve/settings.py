"""The settings of a server: its limits, and who may use it."""

import hashlib
import hmac
import json
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from http import HTTPStatus
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError, as_option, shown
from s2sft_fairseq.received import regular_file

logger = logging.getLogger(__name__)

LOCAL_NAMES = ("127.0.0.1", "localhost", "::1")
HIGHEST_PORT = 65535
_HOST = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[0-9A-Za-z._-]+))(?::(?P<port>[0-9]{1,5}))?")
"""A Host header: a name or an address, IPv6 in brackets, and perhaps a port. It has no user and no blank."""
HEADERS = (
    (
        b"content-security-policy",
        b"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; base-uri 'none'; "
        b"form-action 'none'; frame-ancestors 'none'",
    ),
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"cache-control", b"no-store"),
)
"""Headers of every answer."""
FEWEST_KEY_CHARACTERS, MOST_KEY_CHARACTERS = 16, 4096
_KEY = re.compile(rb"[!-~]{%d,%d}" % (FEWEST_KEY_CHARACTERS, MOST_KEY_CHARACTERS))
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

    def lines(self, body: bytes) -> list[tuple[bytes, bytes]]:
        """Return the headers of the answer, without those of every answer."""
        headers = {"content-type": "application/json", "content-length": str(len(body)), **self.headers}
        return [(name.lower().encode(), value.encode()) for name, value in headers.items()]

    def as_http(self) -> bytes:
        """Return the answer as a server sends it that then closes the connection."""
        body = self.body()
        lines = [*self.lines(body), *HEADERS, (b"connection", b"close")]
        status = f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}".encode()
        return b"\r\n".join([status, *(b": ".join(line) for line in lines), b"", body])


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

    def __post_init__(self) -> None:
        """Check the limits.

        Raises:
            UserError: naming every limit that is out of range.
        """
        if problems := list(limit_problems(vars(self), least={"timeout": SHORTEST})):
            raise UserError.of(problems)


SHORTEST = 0.001
"""The shortest timeout in Python, in seconds."""
MOST_COUNT = 2**31 - 1
RANGES: Mapping[str, tuple[float, float]] = {"max_wait_ms": (0, 60_000), "timeout": (1, 86_400)}
"""The least and the largest value of a limit; all others are counts from 1 to `MOST_COUNT`."""


def limit_problems(limits: Mapping[str, Any], least: Mapping[str, float] | None = None) -> Iterator[str]:
    """Yield an error for each limit that is no number or out of range.

    Args:
        limits: the limits by name.
        least: least values other than those of `RANGES`.
    """
    for name, value in limits.items():
        lowest, highest = RANGES.get(name, (1, MOST_COUNT))
        lowest = (least or {}).get(name, lowest)
        kinds = (int, float) if name in RANGES else (int,)
        if not isinstance(value, kinds) or isinstance(value, bool) or not value >= lowest:  # also true of NaN
            yield f"{as_option(name)} must be at least {lowest:g}, but is {shown(value)}"
        elif value > highest:
            yield f"{as_option(name)} must be at most {highest:,}, but is {shown(value)}"


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
        if not self.local:
            return True
        found = _HOST.fullmatch(host)
        if not found or int(found["port"] or 0) > HIGHEST_PORT:
            return False
        if found["v6"]:
            return found["v6"] == "::1"
        return found["name"].lower() in LOCAL_NAMES

    @staticmethod
    def allows_origin(origin: str, host: str) -> bool:
        """Return whether a page of this origin may send requests to this host: it is the server's own, or no page."""
        return origin in ("", f"http://{host}", f"https://{host}")

    def allows_key(self, authorization: bytes) -> bool:
        """Return whether an ``Authorization`` header holds the key. The comparison takes constant time."""
        if self.key_digest is None:
            return True
        scheme, _, key = authorization.partition(b" ")
        return hmac.compare_digest(_digest(key.strip()), self.key_digest) and scheme.lower() == b"bearer"


def read_key(path: Path) -> str:
    """Return the key in a file, its only line; warn if others on this machine can read it.

    Raises:
        UserError: the file is no regular file, cannot be read, has several lines or blanks, or its key is too short.
    """
    try:
        with regular_file(path).open("rb") as file:
            content = file.read(MOST_KEY_CHARACTERS + 1)
            mode = os.fstat(file.fileno()).st_mode
    except OSError as error:
        raise UserError(f"--api-key-file {path} cannot be read: {error.strerror}") from None
    except UserError as error:
        raise UserError(f"--api-key-file {error}") from None
    key = content.removesuffix(b"\n").removesuffix(b"\r")
    if not _KEY.fullmatch(key):
        raise UserError(
            f"--api-key-file must hold one line of {FEWEST_KEY_CHARACTERS} to {MOST_KEY_CHARACTERS} printable ASCII "
            f"characters without blanks, but {path} holds {len(content)} bytes in {len(content.splitlines())} lines"
        )
    if mode & stat.S_IROTH:
        logger.warning(f"--api-key-file {path} can be read by everybody on this machine: chmod o-r {path}")
    return key.decode()


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()
