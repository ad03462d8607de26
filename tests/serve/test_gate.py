"""Who may send requests, how many, and how long they may take."""

import asyncio
import http.client
import json
import socket
import threading

import pytest

from s2sft_fairseq.serve.gate import Gate
from s2sft_fairseq.serve.metrics import Metrics
from s2sft_fairseq.serve.settings import Access, Limits

KEY = "0123456789abcdef"


def in_background(function, *args, **options):
    """Call a function in a thread; the returned list gets its result."""
    results = []
    thread = threading.Thread(target=lambda: results.append(function(*args, **options)))
    thread.start()
    return thread, results


@pytest.mark.parametrize("path", ["/", "/page.js", "/health", "/metrics", "/nothing", "/generate"])
def test_every_answer_has_the_headers(shared, path):
    headers = shared.ask(path).headers
    assert headers["X-Content-Type-Options"] == "nosniff"
    policy = dict(part.split(" ", 1) for part in headers["Content-Security-Policy"].split("; "))
    assert policy["default-src"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == "'self'"
    assert policy["frame-ancestors"] == "'none'"
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert "Server" not in headers


def test_refusals_have_the_headers_too(serve):
    done = serve(max_body=10).ask("/generate", {"source": "a" * 20})
    assert done.status == 413
    assert done.headers["X-Content-Type-Options"] == "nosniff"


def test_another_host(shared):
    assert shared.ask("/health", headers={"Host": "evil.example"}).status == 403
    assert shared.ask("/health", headers={"Host": f"localhost:{shared.port}"}).status == 200


def test_another_origin(shared):
    own = f"http://127.0.0.1:{shared.port}"
    statuses = [
        shared.ask("/generate", {"source": "a"}, headers={"Origin": origin}).status
        for origin in (own, "http://evil.example", "http://127.0.0.1:1", "null")
    ]
    assert statuses == [200, 403, 403, 403]


def test_a_preflight_of_another_origin(shared):
    done = shared.ask("/generate", method="OPTIONS", headers={"Access-Control-Request-Method": "POST"})
    assert done.status == 405


@pytest.mark.parametrize(
    ("path", "without"), [("/", 200), ("/page.js", 200), ("/health", 200), ("/metrics", 401), ("/openapi.json", 401)]
)
def test_what_needs_the_key(serve, path, without):
    served = serve(access=Access.of("0.0.0.0", KEY))
    assert served.ask(path).status == without
    assert served.ask(path, headers={"Authorization": f"Bearer {KEY}"}).status == 200


def test_the_model_needs_the_key(serve):
    served = serve(access=Access.of("0.0.0.0", KEY))
    done = served.generate("a")
    assert (done.status, done.headers["WWW-Authenticate"]) == (401, "Bearer")
    assert served.ask("/generate", {"source": "a"}, headers={"Authorization": "Bearer 0123456789abcdeg"}).status == 401
    assert served.ask("/generate", {"source": "a"}, headers={"Authorization": f"Bearer {KEY}"}).status == 200
    assert len(served.model.batches) == 1


def test_a_large_body(serve):
    served = serve(max_body=100)
    assert served.ask("/generate", raw=b'{"source": "' + b"a" * 86 + b'"}').status == 200  # 100 bytes
    for size in (87, 500, 5000):
        done = served.ask("/generate", raw=b'{"source": "' + b"a" * size + b'"}')
        assert done.status == 413 and "100" in done.json["error"]
    assert len(served.model.batches) == 1


def test_a_large_body_in_chunks_without_a_length(serve):
    served = serve(max_body=100)
    assert served.ask("/generate", raw=iter([b'{"source": ', b'"a"}'])).status == 200
    assert served.ask("/generate", raw=iter([b"[" * 30] * 4)).status == 413


def test_an_endless_body_is_not_read_to_its_end():
    """The gate alone is tested, because a socket may buffer any amount."""
    read, sent = [], []

    async def receive():
        read.append(1000)
        return {"type": "http.request", "body": b"x" * 1000, "more_body": True}

    async def send(message):
        sent.append(message)

    async def app(*_):
        pytest.fail("the application was called")

    gate = Gate(app, Access(local=False), Limits(max_body=5000), Metrics(), free=(), paths=())
    scope = {"type": "http", "method": "POST", "path": "/generate", "headers": []}
    asyncio.run(gate(scope, receive, send))
    assert sent[0]["status"] == 413 and json.loads(sent[1]["body"])["error"]
    assert sum(read) == 41_000


def test_too_many_open_requests(serve):
    served = serve(max_concurrency=1)
    served.model.go.clear()
    thread, results = in_background(served.generate, "a")
    served.wait_until(lambda: served.model.batches)
    refused = served.generate("b")
    assert (refused.status, refused.headers["Retry-After"]) == (503, "1")
    assert served.ask("/health").status == served.ask("/").status == 200
    served.model.go.set()
    thread.join()
    assert results[0].status == served.generate("b").status == 200


def test_no_answer_in_time(serve):
    served = serve(timeout=0.2, max_batch=1)
    served.model.go.clear()
    running, results = in_background(served.generate, "a")
    served.wait_until(lambda: served.model.batches)
    waiting = served.generate("b")
    running.join()
    assert [results[0].status, waiting.status] == [504, 504]
    assert "0.2 seconds" in waiting.json["error"]
    assert served.metric("s2sft_queue_length") == 0
    served.model.go.set()
    assert served.generate("c").status == 200
    assert [batch for batch, _ in served.model.batches] == [["a"], ["c"]]


def test_a_body_that_does_not_arrive(serve):
    served = serve(timeout=0.2)
    connection = http.client.HTTPConnection("127.0.0.1", served.port, timeout=10)
    connection.putrequest("POST", "/generate")
    connection.putheader("Content-Length", "100")
    connection.endheaders(b'{"source"')
    assert connection.getresponse().status == 504
    connection.close()


def test_a_client_that_has_gone_is_dropped(serve):
    served = serve(max_batch=1)
    served.model.go.clear()
    thread, _ = in_background(served.generate, "first")
    served.wait_until(lambda: served.model.batches)
    body = b'{"source": "gone"}'
    head = (
        f"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
    )
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(head.encode() + b"\r\n\r\n" + body)
        served.wait_until(lambda: served.metric("s2sft_queue_length") == 1)
    served.wait_until(lambda: served.metric("s2sft_queue_length") == 0)
    served.wait_until(lambda: served.metric('s2sft_requests_total{path="/generate",status="499"}') == 1)
    served.model.go.set()
    thread.join()
    assert served.generate("last").status == 200
    assert [batch for batch, _ in served.model.batches] == [["first"], ["last"]]


def test_a_client_that_goes_before_its_body_has_come(serve):
    served = serve()
    with socket.create_connection(("127.0.0.1", served.port)) as client:
        client.sendall(b"POST /generate HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9\r\n\r\n{")
    served.wait_until(lambda: served.metric('s2sft_requests_total{path="/generate",status="499"}') == 1)


def test_metrics_name_no_path_that_a_client_makes_up(serve):
    served = serve()
    served.ask("/made-up")
    served.ask("/made-up-too")
    assert served.metric('s2sft_requests_total{path="other",status="404"}') == 2
    assert "made-up" not in served.ask("/metrics").text


def test_shutdown_finishes_running_requests_and_refuses_new_ones(serve):
    served = serve(max_batch=1)
    served.model.go.clear()
    asked = [in_background(served.generate, source) for source in ("running", "waiting")]
    served.wait_until(lambda: served.metric("s2sft_queue_length") == 1)
    served.server.should_exit = True
    served.wait_until(lambda: not served.server.servers[0].is_serving())
    with pytest.raises(ConnectionRefusedError):
        served.generate("late")
    served.model.go.set()
    for thread, results in asked:
        thread.join()
        assert results[0].status == 200
