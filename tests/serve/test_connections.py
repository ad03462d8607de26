"""What becomes of connections: prompt answers, clients that send slowly, half, or nothing, and too many of them."""

import contextlib
import errno
import http.client
import json
import logging
import resource
import socket
import statistics
import time

import pytest

from s2sft_fairseq.errors import UserError

connections = pytest.importorskip("s2sft_fairseq.serve.connections", reason="the extra serve is not installed")
from s2sft_fairseq.serve.settings import Limits  # noqa: E402


def raw_request(source="abc", version="1.1", path="/generate"):
    body = json.dumps({"source": source}).encode()
    lines = (f"POST {path} HTTP/{version}", "Host: localhost", "Content-Type: application/json")
    return "\r\n".join([*lines, f"Content-Length: {len(body)}", "", ""]).encode() + body


def connect(served):
    return contextlib.closing(socket.create_connection(("127.0.0.1", served.port), timeout=10))


def read_all(client):
    found = b""
    while block := client.recv(65536):
        found += block
    return found


def answers(found):
    """Return the statuses of all answers in what a client has received."""
    return [int(part[:3]) for part in found.split(b"HTTP/1.1 ")[1:]]


def error_of(found):
    return json.loads(found.partition(b"\r\n\r\n")[2])["error"]


def test_answers_on_an_open_connection_do_not_wait(serve):
    served = serve(max_wait_ms=0)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    seconds = []
    with contextlib.closing(connection):
        for path in ["/page.js", "/health"] * 10:
            start = time.perf_counter()
            connection.request("GET", path)
            assert connection.getresponse().read()
            seconds.append(time.perf_counter() - start)
    assert statistics.median(seconds) < 0.03  # 44 ms without TCP_NODELAY


def test_the_socket_sends_at_once():
    for family in (socket.AF_INET, socket.AF_INET6):
        with connections.prompt_socket(family) as made:
            assert made.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY)


@pytest.mark.parametrize("begun", [b"", b"GET /health HTTP/1.1\r\nHost: loc"])
def test_headers_that_do_not_come(serve, begun):
    served = serve(timeout=0.3)
    with connect(served) as client:
        client.sendall(begun)
        found = read_all(client)
    assert answers(found) == [408] * bool(begun)
    assert not begun or "headers" in error_of(found)
    served.wait_until(lambda: not served.server.server_state.connections)


def test_headers_that_come_byte_by_byte_after_an_answer(serve):
    served = serve(timeout=0.3)
    end = time.monotonic() + 10
    with connect(served) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.settimeout(0.05)
        found = b""
        while time.monotonic() < end:
            with contextlib.suppress(TimeoutError):
                if not (block := client.recv(65536)):
                    break
                found += block
            with contextlib.suppress(OSError):
                client.sendall(b"G")
        assert answers(found) == [200, 408]


def test_a_body_of_a_get_that_does_not_end(serve, monkeypatch):
    monkeypatch.setattr(connections, "HEAD_SECONDS", 0.2)
    served = serve()
    with connect(served) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n")
        client.sendall(b"a")
        served.wait_until(lambda: served.server.server_state.total_requests)
        client.sendall(b"b")
        with contextlib.suppress(ConnectionResetError):
            read_all(client)
        served.wait_until(lambda: not served.server.server_state.connections)


def test_a_client_that_does_not_take_its_answer(serve, monkeypatch):
    monkeypatch.setattr(connections, "GRACE_SECONDS", 0.2)
    served = serve(timeout=1, max_length=5_000_000, max_body=10_000_000)
    with connect(served) as client:
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        client.sendall(raw_request("a" * 1_000_000))
        served.wait_until(lambda: served.server.server_state.connections)
        served.wait_until(lambda: not served.server.server_state.connections)
    assert served.generate("a").status == 200


def test_a_client_that_ends_its_side_is_answered(serve):
    served = serve()
    served.model.seconds = 0.2
    with connect(served) as client:
        client.sendall(raw_request())
        client.shutdown(socket.SHUT_WR)
        found = read_all(client)
    assert answers(found) == [200]
    assert json.loads(found.partition(b"\r\n\r\n")[2])["results"][0][0]["text"] == "cba"


def test_requests_in_a_row_before_the_end_are_all_answered(serve):
    served = serve()
    with connect(served) as client:
        client.sendall(raw_request("abc") + raw_request("def") + b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        client.shutdown(socket.SHUT_WR)
        assert answers(read_all(client)) == [200, 200, 200]


def test_a_long_wait_after_the_end_of_the_request(serve, monkeypatch):
    """The server looks whether the client is still there; HTTP/1.0 has no interim answers."""
    monkeypatch.setattr(connections, "FIRST_PROBE", 0.02)
    monkeypatch.setattr(connections, "NEXT_PROBE", 0.02)
    served = serve()
    served.model.seconds = 0.3
    for version in ("1.1", "1.0"):
        with connect(served) as client:
            client.sendall(raw_request(version=version))
            client.shutdown(socket.SHUT_WR)
            *interim, last = answers(read_all(client))
        assert last == 200
        assert set(interim) == ({100} if version == "1.1" else set())


def test_a_request_that_ends_within_its_body(serve):
    served = serve()
    with connect(served) as client:
        client.sendall(raw_request()[:-3])
        client.shutdown(socket.SHUT_WR)
        assert read_all(client) == b""


@pytest.mark.parametrize(
    "sent",
    [
        b"no HTTP\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # no Host
        b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n",
    ],
)
def test_no_valid_http(serve, sent, caplog):
    served = serve()
    with connect(served) as client:
        client.sendall(sent)
        found = read_all(client)
    assert answers(found) == [400]
    assert "HTTP" in error_of(found)
    assert b"x-content-type-options: nosniff" in found
    assert "Traceback" not in caplog.text
    assert served.ask("/health").status == 200


def test_a_request_in_a_row_that_is_no_valid_http(serve):
    served = serve()
    broken = b"POST /generate HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nxyz\r\n"
    with connect(served) as client:
        client.sendall(raw_request() + broken)
        assert answers(read_all(client)) == [200, 400]
        served.wait_until(lambda: not served.server.server_state.connections)


def test_a_body_that_breaks_after_its_answer(serve, caplog):
    with connect(serve()) as client:
        client.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
        assert client.recv(65536).startswith(b"HTTP/1.1 200")
        client.sendall(b"xyz\r\n")
        with contextlib.suppress(ConnectionResetError):
            read_all(client)  # ends, because the server closes the connection
    assert "Traceback" not in caplog.text


def test_more_clients_than_there_may_be(serve, monkeypatch):
    monkeypatch.setattr(connections, "MOST_CONNECTIONS", 4)
    served = serve()
    with contextlib.ExitStack() as stack:
        for _ in range(4):
            stack.enter_context(connect(served))
        served.wait_until(lambda: len(served.server.server_state.connections) == 4)
        fifth, sixth = (stack.enter_context(connect(served)) for _ in range(2))
        assert read_all(sixth) == b""
        fifth.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
        found = read_all(fifth)
    assert answers(found) == [503]
    assert "4 clients" in error_of(found)
    assert b"retry-after: 1" in found
    served.wait_until(lambda: not served.server.server_state.connections)
    assert served.ask("/health").status == 200


@pytest.mark.parametrize(("limit", "most", "backlog"), [(4000, 1950, 256), (200, 50, 25), (-1, 2048, 256)])
def test_connections_leave_files_for_others(monkeypatch, limit, most, backlog):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (limit, limit))
    monkeypatch.setattr(connections.os, "listdir", lambda _: ["fd"] * 100)
    found = connections.configuration(None, Limits())
    assert (found.http.keywords["most"], found.backlog) == (most, backlog)


def test_too_few_files(monkeypatch):
    monkeypatch.setattr(resource, "getrlimit", lambda _: (8, 8))
    with pytest.raises(UserError, match=r"ulimit -n"):
        connections.configuration(None, Limits())


def test_a_message_that_clients_can_cause_is_logged_seldom(caplog, monkeypatch):
    now = [0.0]
    monkeypatch.setattr(connections.time, "monotonic", lambda: now[0])
    log = logging.getLogger("asyncio")
    accept_error = "socket.accept() out of system resource\nsocket: <fd=%s>"
    with connections.seldom_logged("asyncio"):
        for number in range(1000):
            log.error(accept_error, number, exc_info=OSError(errno.EMFILE, "Too many open files"))
        log.error("another")
        now[0] += connections.SELDOM_SECONDS
        log.error(accept_error, 1)
    texts = [record.getMessage() for record in caplog.records if record.name == "asyncio"]
    assert len(texts) == 3
    assert texts[1] == "another"
    assert "999 more" in texts[2]
    assert not log.filters
