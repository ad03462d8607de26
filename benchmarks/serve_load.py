"""`s2sft serve` under load: throughput and waiting times of one client and of many, memory, and broken requests.

    python benchmarks/serve_load.py MODEL --texts FILE [--clients 64] [--seconds 60] [--malformed 10000]

Starts the server twice: for one client that sends one request at a time (with --max-wait-ms 0, so that the server does
not wait for others), and for --clients clients, which send their next request as soon as they have an answer. Broken
requests follow. The texts of the two runs are compared: batches must not change them. Runs on Linux only, because it
reads memory from /proc.
"""

import argparse
import contextlib
import http.client
import json
import random
import signal
import socket
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import quantiles

JUNK = [None, True, -1, 1e308, "", "\x00", [], {}, [[[]]], {"a": {"b": []}}, "\ud800", 10**30, float("nan")]
PATHS = ("/generate", "/score", "/attention", "/nothing", "/../../etc/passwd")
DECLARED = {200, 404, 413, 422, 429, 503, 504}
QUARTERS = 4


@dataclass
class Tally:
    """The answers that a number of clients got."""

    seconds: list[float] = field(default_factory=list)
    statuses: Counter[int] = field(default_factory=Counter)
    texts: dict[str, str] = field(default_factory=dict)
    changed: int = 0
    """Answers that differed from the first one for the same source."""

    def add(self, source: str, status: int, body: bytes, seconds: float) -> None:
        """Count an answer."""
        self.statuses[status] += 1
        if status == 200:
            self.seconds.append(seconds)
            text = json.loads(body)["results"][0][0]["text"]
            self.changed += self.texts.setdefault(source, text) != text

    def line(self, name: str, wall: float) -> str:
        """Return a line with throughput, and median and 95th percentile of the times."""
        cuts = quantiles(self.seconds, n=20)
        return (
            f"{name}: {len(self.seconds) / wall:.1f} requests/s, p50 {1000 * cuts[9]:.0f} ms, "
            f"p95 {1000 * cuts[18]:.0f} ms, statuses {dict(self.statuses)}, "
            f"{self.changed} of {len(self.seconds)} texts changed"
        )


class Server:
    """A server in its own process."""

    def __init__(self, model: Path, options: Sequence[str]) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        words = ["-m", "s2sft_fairseq", "serve", str(model), "--port", str(self.port), *options]
        self.process = subprocess.Popen([sys.executable, *words], stderr=subprocess.PIPE, text=True)
        assert self.process.stderr
        self.log: list[str] = []
        for line in self.process.stderr:
            self.log.append(line)
            if "the page is at" in line:
                break
        else:
            raise SystemExit("".join(self.log))
        threading.Thread(target=self._read_log, daemon=True).start()

    def _read_log(self) -> None:
        assert self.process.stderr
        self.log.extend(self.process.stderr)

    def megabytes(self) -> float:
        """Return the resident memory of the server in MB."""
        status = Path(f"/proc/{self.process.pid}/status").read_text(encoding="ascii")
        return next(int(line.split()[1]) / 1024 for line in status.splitlines() if line.startswith("VmRSS"))

    def stop(self) -> int:
        """Stop the server with SIGTERM, as an operator does; return its exit status."""
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(90)


@contextlib.contextmanager
def serving(model: Path, *options: str) -> Iterator[Server]:
    """Yield a server that is stopped after the ``with`` block."""
    server = Server(model, options)
    try:
        yield server
    finally:
        status = server.stop()
        print(
            f"  exit status {status} after SIGTERM, {sum('Traceback' in line for line in server.log)} tracebacks logged"
        )


def ask_for(
    server: Server, sources: Sequence[str], options: dict, until: float, tally: Tally, lock: threading.Lock
) -> None:
    """Send one request after another on one connection."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=120)
    draw = random.Random(threading.get_ident())
    while time.monotonic() < until:
        source = draw.choice(sources)
        body = json.dumps({"source": source, **options})
        start = time.monotonic()
        connection.request("POST", "/generate", body, {"Content-Type": "application/json"})
        answer = connection.getresponse()
        content = answer.read()
        with lock:
            tally.add(source, answer.status, content, time.monotonic() - start)


def load(server: Server, clients: int, seconds: float, sources: Sequence[str], options: dict, tally: Tally) -> float:
    """Let clients send requests in parallel; return the seconds until the last answer."""
    start, lock = time.monotonic(), threading.Lock()
    arguments = (server, sources, options, start + seconds, tally, lock)
    threads = [threading.Thread(target=ask_for, args=arguments) for _ in range(clients)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return time.monotonic() - start


def malformed(draw: random.Random) -> bytes:
    """Return a broken body: junk in a field, only junk, cut off, bytes changed, random bytes, too deep or too large."""
    body: dict[str, object] = {"source": "a text", "beam": 1, "max_len": 2}
    kind = draw.randrange(7)
    if kind == 0:
        body[draw.choice(["source", "target", "beam", "num_return", "max_len", "length_penalty", "x"])] = draw.choice(
            JUNK
        )
    raw = bytearray(json.dumps(draw.choice(JUNK) if kind == 1 else body).encode())
    if kind == 2:
        del raw[draw.randrange(len(raw)) :]
    elif kind == 3:
        for _ in range(draw.randint(1, 5)):
            raw[draw.randrange(len(raw))] = draw.randrange(256)
    elif kind == 4:
        raw = bytearray(draw.randbytes(draw.randrange(200)))
    elif kind == 5:
        raw = bytearray(draw.choice([b"[", b'{"source":']) * draw.randrange(1, 5000))
    elif kind == 6 and draw.random() < 0.05:
        raw = bytearray(b'{"source": "' + b"a" * draw.randrange(20_000, 2_000_000) + b'"}')
    return bytes(raw)


def send_malformed(server: Server, count: int) -> Counter[int]:
    """Send broken requests; fail if the status of an answer is not one that the server declares."""
    draw, statuses = random.Random(1), Counter[int]()
    for _ in range(count):
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
        raw, path = malformed(draw), draw.choice(PATHS)
        connection.request("POST", path, raw, {"Content-Type": draw.choice(["application/json", "text/plain"])})
        answer = connection.getresponse()
        text = answer.read()
        connection.close()
        statuses[answer.status] += 1
        if answer.status not in DECLARED or b"Traceback" in text:
            raise SystemExit(f"{path} {raw[:300]!r}: {answer.status} {text[:300]!r}")
    return statuses


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path)
    parser.add_argument("--texts", type=Path, required=True, help="sources, a line each")
    parser.add_argument("--clients", type=int, default=64)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seconds-alone", type=float, default=20.0)
    parser.add_argument("--malformed", type=int, default=10_000)
    parser.add_argument(
        "--options", type=json.loads, default={"beam": 1, "max_len": 32}, help="of each request, as JSON"
    )
    parser.add_argument("--serve-options", nargs="*", default=[], help="of s2sft serve, without their --: max-batch=64")
    args = parser.parse_args()
    sources = args.texts.read_text(encoding="utf-8").splitlines()[:200]
    given = [word for option in args.serve_options for word in f"--{option}".split("=", 1)]

    tally = Tally()
    with serving(args.model, *given, "--max-wait-ms", "0") as server:
        load(server, 1, 3, sources, args.options, Tally())  # warm-up
        wall = load(server, 1, args.seconds_alone, sources, args.options, tally)
        print(tally.line("one at a time", wall))
        alone = len(tally.seconds) / wall
    together = Tally(texts=tally.texts)
    with serving(args.model, *given) as server:
        load(server, args.clients, 5, sources, args.options, Tally())
        memory, wall = [server.megabytes()], 0.0
        for _ in range(QUARTERS):
            wall += load(server, args.clients, args.seconds / QUARTERS, sources, args.options, together)
            memory.append(server.megabytes())
        print(together.line(f"{args.clients} clients", wall))
        print(f"  {len(together.seconds) / wall / alone:.2f} times one at a time")
        print(f"  MB of memory, each quarter: {', '.join(f'{each:.0f}' for each in memory)}")
        start = time.monotonic()
        statuses = send_malformed(server, args.malformed)
        print(
            f"{args.malformed} broken requests in {time.monotonic() - start:.0f} s: statuses {dict(statuses)}, memory "
            f"{server.megabytes():.0f} MB"
        )


if __name__ == "__main__":
    main()
