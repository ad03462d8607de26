"""Connections of clients: how many there may be, how long each may wait, and what becomes of a client that goes silent.

uvicorn reads and writes HTTP; its own connections have no time limit but that between two requests.
"""

import asyncio
import contextlib
import logging
import os
import resource
import socket
import time
from collections.abc import Iterator
from functools import partial
from typing import Any

import uvicorn
from h11 import IDLE, SEND_RESPONSE
from uvicorn.protocols.http.h11_impl import H11Protocol

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.serve.settings import Limits, Refused

logger = logging.getLogger(__name__)

HEAD_SECONDS = 10.0
"""Seconds for the headers of a request, from the connection or the first byte."""
GRACE_SECONDS = 5.0
"""Seconds after the time limit of a request, or the last answer, until the connection is cut."""
REFUSED_SECONDS = 1.0
FIRST_PROBE, NEXT_PROBE = 2.0, 1.0
"""Seconds after which the server looks whether a client that sends no more still waits for its answer."""
PROBE = b"HTTP/1.1 100 Continue\r\n\r\n"
MOST_CONNECTIONS, MOST_BACKLOG = 2048, 256
FEWEST_FILES = 16
"""Files that a server needs to be able to open."""
SELDOM_SECONDS = 30.0


def configuration(app: Any, limits: Limits) -> uvicorn.Config:
    """Return the settings of uvicorn.

    Half of the files that this process can still open are for connections, and a quarter for those that wait to be
    accepted. So accepting cannot fail, and the model can open files, whatever clients do.

    Raises:
        UserError: this process can open too few files.
    """
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    free = (4 * MOST_CONNECTIONS if limit == resource.RLIM_INFINITY else limit) - len(os.listdir("/dev/fd"))
    if free < FEWEST_FILES:
        raise UserError(
            f"the server must be able to open {FEWEST_FILES} files more, but the limit of this process (ulimit -n) "
            f"leaves {max(free, 0)}"
        )
    most = min(MOST_CONNECTIONS, free // 2)
    return uvicorn.Config(
        app,
        http=partial(Connection, limits=limits, most=most),  # type: ignore[arg-type]
        backlog=min(MOST_BACKLOG, free // 4),  # asyncio accepts as many at once
        log_config=None,  # keep the log settings of the command
        access_log=False,
        server_header=False,
        proxy_headers=False,
        ws="none",
        lifespan="on",
        timeout_graceful_shutdown=int(limits.timeout) + 1,
    )


class Connection(H11Protocol):
    """The connection of a client.

    It has one time limit at any moment: for the headers of a request, for its answer, and for the client to take the
    answer.
    """

    def __init__(self, *args: Any, limits: Limits, most: int, **options: Any) -> None:
        """Serve a client.

        Args:
            args: of uvicorn.
            limits: the time of a request.
            most: connections that may be open at the same time.
            options: of uvicorn.
        """
        super().__init__(*args, **options)
        self._limits, self._most = limits, most
        self._phase = ""
        self._deadline: asyncio.TimerHandle | None = None
        self._probe: asyncio.TimerHandle | None = None
        self._sends_no_more = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Refuse the client if too many are connected."""
        super().connection_made(transport)
        count = len(self.connections)
        if count <= self._most:
            self._enter("head")
        elif count <= self._most + self._most // 4:
            reason = f"{self._most} clients are connected, and no more can be"
            self._refuse(Refused(503, reason, {"Retry-After": "1"}))
        else:
            self.transport.abort()

    def data_received(self, data: bytes) -> None:
        """Take bytes of a request."""
        if self._phase == "refused":
            return
        super().data_received(data)
        if self._phase != "refused":
            self._enter("answer" if self._is_busy() else "head")

    def eof_received(self) -> bool:  # type: ignore[override]
        """Answer a client that has sent a whole request and sends no more; return whether the connection stays open."""
        if self._phase == "refused" or not self._is_busy() or self.cycle.more_body:
            return False
        self._sends_no_more = True
        self._probe = self.loop.call_later(FIRST_PROBE, self._send_probe)
        return True

    def on_response_complete(self) -> None:
        """Go on with the next request, or wait for it."""
        super().on_response_complete()  # begins with the next request, if it is there already
        if self._phase == "refused":
            return
        if self._is_busy():
            self._phase = ""
            self._enter("answer")
            return
        if self._sends_no_more:
            self.transport.close()
        self._enter("taking")

    def connection_lost(self, exc: Exception | None) -> None:
        """End the time limits."""
        self._cancel()
        if self._probe:
            self._probe.cancel()
        super().connection_lost(exc)

    def send_400_response(self, msg: str) -> None:
        """Answer bytes that are no HTTP."""
        has_answered = self.conn.our_state not in (IDLE, SEND_RESPONSE)
        if self._is_busy():
            self.cycle.disconnected = True  # nothing else is sent
            self.cycle.message_event.set()
        if has_answered:
            self.transport.close()
        else:
            self._refuse(Refused(400, "the request is no valid HTTP"))

    def _is_busy(self) -> bool:
        """Return whether a request is being answered."""
        return self.cycle is not None and not self.cycle.response_complete

    def _refuse(self, refused: Refused) -> None:
        """Send an answer and close the connection, but read on for a moment: a close at once may drop the answer."""
        self.transport.write(refused.as_http())
        self._enter("refused")
        if self._sends_no_more or self.transport.get_write_buffer_size():
            self.transport.close()  # when all is sent
            return
        with contextlib.suppress(OSError):  # the client has gone
            self.transport.write_eof()

    def _enter(self, phase: str) -> None:
        """Start the time limit of a phase, unless it runs."""
        if phase == self._phase:
            return
        self._cancel()
        self._phase = phase
        seconds = {
            "head": min(HEAD_SECONDS, self._limits.timeout),
            "answer": self._limits.timeout + GRACE_SECONDS,
            "taking": self._limits.timeout + GRACE_SECONDS,
            "refused": REFUSED_SECONDS,
        }
        self._deadline = self.loop.call_later(seconds[phase], self._late)

    def _cancel(self) -> None:
        if self._deadline:
            self._deadline.cancel()

    def _late(self) -> None:
        has_begun = bool(self.conn.trailing_data[0])
        if self._phase == "head" and self.conn.our_state is IDLE and has_begun:
            self._refuse(Refused(408, f"the headers of a request must come within {HEAD_SECONDS:g} seconds"))
        else:
            self.transport.abort()

    def _send_probe(self) -> None:
        """Send an interim answer, which clients ignore: the second one fails if the client has closed the connection.

        Without it, a client that has gone looks like one that has ended its side only.
        """
        if not self._is_busy() or self.cycle.response_started or self.cycle.scope["http_version"] == "1.0":
            return
        self.transport.write(PROBE)
        self._probe = self.loop.call_later(NEXT_PROBE, self._send_probe)


def prompt_socket(family: int) -> socket.socket:
    """Return a TCP socket whose connections send small answers at once.

    Otherwise the body of an answer waits until the client has acknowledged its headers, which takes it 40 ms.
    """
    made = socket.socket(family, socket.SOCK_STREAM)
    made.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)  # connections inherit it
    return made


class Seldom(logging.Filter):
    """Passes each message once in `SELDOM_SECONDS`; the next one says how many there were in between."""

    def __init__(self) -> None:
        super().__init__()
        self._last: dict[tuple[int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether a message is written."""
        key = (record.levelno, str(record.msg).partition("\n")[0])
        now = time.monotonic()
        then, count = self._last.get(key, (-SELDOM_SECONDS, 0))
        if now - then < SELDOM_SECONDS:
            self._last[key] = (then, count + 1)
            return False
        self._last[key] = (now, 0)
        if count:
            record.msg = f"{record.msg} ({count:,} more of these in between)"
        return True


@contextlib.contextmanager
def seldom_logged(*names: str) -> Iterator[None]:
    """Context manager that lets each message of these loggers pass seldom: clients can cause any number."""
    seldom = Seldom()
    loggers = [logging.getLogger(name) for name in names]
    for each in loggers:
        each.addFilter(seldom)
    try:
        yield
    finally:
        for each in loggers:
            each.removeFilter(seldom)
