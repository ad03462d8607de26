"""The checks of every request before it reaches the application: access, size and time.

This is plain ASGI, because the gate must count the body while it reads it, and must notice while the model works that
the client has disconnected.
"""

import asyncio
import contextlib
import logging
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from typing import Any

from s2sft_fairseq.serve.metrics import Metrics
from s2sft_fairseq.serve.settings import HEADERS, Access, Limits, Refused

logger = logging.getLogger(__name__)

Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Message, Receive, Send], Awaitable[None]]

READ_AND_DROPPED = 8
"""A too large body is read up to this multiple of the limit, so that its sender receives the answer."""


class ClientGoneError(Exception):
    """The client disconnected before the answer."""


class Gate:
    """An ASGI application that checks requests before it passes them to another one."""

    def __init__(
        self,
        app: Application,
        access: Access,
        limits: Limits,
        metrics: Metrics,
        free: Iterable[str],
        paths: Iterable[str],
    ) -> None:
        """Wrap `app`.

        Args:
            app: the application.
            access: who may use it.
            limits: the gate enforces the size of a body, the number of open requests, and the time of each.
            metrics: counts each answer.
            free: paths that need no key: the page itself, and ``/health``.
            paths: all paths that exist; metrics count all others as "other".
        """
        self._app, self._access, self._limits, self._metrics = app, access, limits, metrics
        self._free, self._paths = frozenset(free), frozenset(paths)
        self._open = 0

    async def __call__(self, scope: Message, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        answer = Answer(send)
        start = time.monotonic()
        try:
            await self._admit(scope, receive, answer)
        except ClientGoneError:
            answer.status = 499  # nothing was sent; other servers log this status, too
        except Refused as refused:
            await answer.refuse(refused)
        except Exception:
            if not answer.status:  # else the error was logged and answered
                await answer.refuse(unexpected())
        finally:
            path = scope["path"] if scope["path"] in self._paths else "other"
            self._metrics.count_request(path, answer.status, time.monotonic() - start)

    async def _admit(self, scope: Message, receive: Receive, answer: "Answer") -> None:
        headers = dict(scope["headers"])  # of repeated headers, the last
        self._check_sender(scope, headers)
        if scope["method"] in ("GET", "HEAD"):  # these read no body and do not wait for the model
            await self._app({**scope, "method": "GET"}, receive, answer)  # the server leaves out the body for HEAD
            return
        if scope.get("query_string"):
            raise Refused(422, "options belong into the JSON of the body, not into the address")
        if self._open >= self._limits.max_concurrency:
            reason = f"{self._open} requests are open, and at most {self._limits.max_concurrency} may be"
            raise Refused(503, reason, {"Retry-After": "1"})
        self._open += 1
        try:
            async with asyncio.timeout(self._limits.timeout):
                body = await self._body(headers, receive)
                await self._unless_gone(self._app(scope, _replay(body), answer), receive)
        except TimeoutError:
            raise Refused(504, f"no answer within {self._limits.timeout:g} seconds") from None
        finally:
            self._open -= 1

    def _check_sender(self, scope: Message, headers: dict[bytes, bytes]) -> None:
        host = headers.get(b"host", b"").decode("latin-1")
        if not self._access.allows_host(host):
            raise Refused(403, "this server answers to localhost only: the Host header names another")
        origin = headers.get(b"origin", b"").decode("latin-1")
        if not self._access.allows_origin(origin, host):
            raise Refused(403, "this server answers no page of another origin")
        if scope["path"] not in self._free and not self._access.allows_key(headers.get(b"authorization", b"")):
            raise Refused(401, "the header Authorization: Bearer KEY is needed", {"WWW-Authenticate": "Bearer"})

    async def _body(self, headers: dict[bytes, bytes], receive: Receive) -> bytes:
        """Read the body and check its real size, independent of the claimed length."""
        most = self._limits.max_body
        chunks, size, more = [], 0, True
        claimed = headers.get(b"content-length", b"0")
        if claimed.isdigit() and int(claimed) > READ_AND_DROPPED * most:
            raise Refused(
                413, f"the body has {int(claimed)} bytes, and at most {most} are taken", {"Connection": "close"}
            )
        while more and size <= READ_AND_DROPPED * most:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientGoneError
            chunk, more = message.get("body", b""), message.get("more_body", False)
            size += len(chunk)
            if size <= most:
                chunks.append(chunk)
            else:
                chunks.clear()
        if size > most:
            raise Refused(413, f"the body has more than {most} bytes, which is the most", {"Connection": "close"})
        return b"".join(chunks)

    @staticmethod
    async def _unless_gone(work: Awaitable[None], receive: Receive) -> None:
        """Await the work; cancel it if the client disconnects."""
        working, gone = asyncio.ensure_future(work), asyncio.ensure_future(_until_gone(receive))
        try:
            await asyncio.wait({working, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise ClientGoneError
            working.result()
        finally:
            for task in (working, gone):
                task.cancel()
                with contextlib.suppress(asyncio.CancelledError, Exception):
                    await task


class Answer:
    """Sends an answer with the common headers, and records its status."""

    def __init__(self, send: Send) -> None:
        self._send = send
        self.status = 0
        """The status of the answer; 0 before it begins."""

    async def __call__(self, message: Message) -> None:
        """Send a part of the answer."""
        if message["type"] == "http.response.start":
            self.status = message["status"]
            message["headers"] = [*message.get("headers", []), *HEADERS]
        await self._send(message)

    async def refuse(self, refused: Refused) -> None:
        """Answer with the reason, unless another answer has begun."""
        if self.status:
            return
        body = refused.body()
        await self({"type": "http.response.start", "status": refused.status, "headers": refused.lines(body)})
        await self({"type": "http.response.body", "body": body})


def unexpected() -> Refused:
    """Return the answer to an unexpected exception, and log its traceback with an id that the answer names."""
    name = uuid.uuid4().hex[:12]
    logger.exception(f"error {name}")
    return Refused(500, f"an error within the server; its log tells more of error {name}")


def _replay(body: bytes) -> Receive:
    """Return a `receive` that returns a body that was already read, and then waits forever."""
    parts = [body]

    async def receive() -> Message:
        if not parts:
            await asyncio.Event().wait()
        return {"type": "http.request", "body": parts.pop(), "more_body": False}

    return receive


async def _until_gone(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
