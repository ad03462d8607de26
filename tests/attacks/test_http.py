"""Clients of `s2sft serve` that send nearly HTTP, send slowly, or go away: all others are answered."""

import contextlib
import json
import random
import socket

import pytest

pytest.importorskip("uvicorn", reason="the extra serve is not installed")
from served import serving

BODY = json.dumps({"source": "abc"}).encode()
HEAD = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
REQUESTS = (
    HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n" % len(BODY) + BODY + b"\r\n0\r\n\r\n",
    HEAD + b"Expect: 100-continue\r\nContent-Length: %d\r\n\r\n" % len(BODY) + BODY,
    b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n",
    b"HEAD / HTTP/1.0\r\nHost: localhost\r\n\r\n",
    b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
)


def damaged(draw: random.Random) -> bytes:
    """Return a few requests in a row, some of them with changed, lacking or further bytes."""
    sent = b""
    for _ in range(draw.randint(1, 3)):
        request = bytearray(draw.choice(REQUESTS))
        for _ in range(draw.choice([0, 0, 1, 3])):
            at = draw.randrange(len(request))
            kind = draw.randrange(3)
            end = at + draw.randint(1, 4)
            request[at : at if kind == 2 else end] = b"" if kind == 1 else draw.randbytes(1)
        sent += request
    return sent


def test_nearly_http(caplog):
    draw = random.Random(1)
    statuses = set()
    with serving(max_wait_ms=0) as served:
        for _ in range(200):
            with socket.create_connection(("127.0.0.1", served.port), timeout=10) as client:
                client.sendall(damaged(draw))
                if draw.random() < 0.3:
                    continue  # it goes before it is answered
                found = b""
                with contextlib.suppress(OSError):  # it was refused, and goes on sending
                    client.shutdown(socket.SHUT_WR)
                    while block := client.recv(65536):
                        found += block
                statuses.update(part[:3] for part in found.split(b"HTTP/1.1 ")[1:])
        assert served.generate("last").status == 200
        served.wait_until(lambda: not served.server.server_state.connections)
    assert {b"200", b"400"} <= statuses <= {b"100", b"200", b"400", b"403", b"404", b"405", b"422"}
    assert "Traceback" not in caplog.text


def test_many_that_send_slowly_do_not_stop_the_others():
    with serving(timeout=1) as served, contextlib.ExitStack() as stack:
        for begun in (b"", b"GET / HT", HEAD, HEAD + b"Content-Length: 100\r\n\r\n{") * 25:
            client = stack.enter_context(socket.create_connection(("127.0.0.1", served.port)))
            client.sendall(begun)
        assert served.generate("a").status == 200
        served.wait_until(lambda: not served.server.server_state.connections)
