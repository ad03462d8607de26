"""Soak test: whether memory, open files and speed stay constant over hours of work.

    python benchmarks/soak.py generation --model MODEL --source test.src --minutes 60 --file soak.json
    python benchmarks/soak.py serve      --model MODEL --source test.src --minutes 60 --file soak.json
    python benchmarks/soak.py training   --data DATA --pretrained ENCODER --save-dir DIR --minutes 60 --file soak.json
    python benchmarks/soak.py report     --file soak.json --draw soak.png

Every `--every` seconds it samples resident memory and open files of the process, and its work since the last sample:
updates, or sentences of a file that is read again and again. Work is divided by wall time, and by the CPU time of the
process, which other programs on the machine affect less. A soak test can be run in pieces: each run adds samples to the
file, and training continues from the checkpoint that SIGTERM makes it save. The report compares the last quarter of
each piece with the second quarter; in the first quarter, kernels are chosen and memory pools fill. Memory is the
lowest, the mean and the highest value: a leak raises all three. The lowest and the highest one are single samples.
Training keeps freed memory for some updates and then returns it, and a server is rarely sampled between two batches.
Work is the mean, because a sample has few batches.
"""

import argparse
import itertools
import json
import os
import re
import signal
import statistics
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from records import write_records

S2SFT = (sys.executable, "-m", "s2sft_fairseq")
PAGE = os.sysconf("SC_PAGE_SIZE")

WINDOW = 20
"""Samples of a point in the picture."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("kind", choices=["generation", "serve", "training", "report"])
    parser.add_argument("--model", type=Path)
    parser.add_argument("--source", type=Path)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--pretrained", type=Path)
    parser.add_argument("--save-dir", type=Path, default=Path("soak"))
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every", type=float, default=15, help="seconds between samples")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--file", type=Path, default=Path("soak.json"), help="of the samples")
    parser.add_argument("--draw", type=Path, help="of the report, a picture")
    options = parser.parse_args()
    samples = json.loads(options.file.read_text(encoding="utf-8")) if options.file.exists() else []
    if options.kind == "report":
        report(samples, options.draw)
        return
    piece = 1 + max((each["piece"] for each in samples if each["kind"] == options.kind), default=0)
    work = {"generation": generation, "serve": serve, "training": training}[options.kind]
    started = before = time.monotonic()
    done_before = cpu_before = 0.0
    for process, done in work(options):
        now = time.monotonic()
        if now - before >= options.every:
            cpu = cpu_seconds(process)
            sample = {
                "kind": options.kind,
                "piece": piece,
                "seconds": round(now - started, 1),
                "speed": round((done - done_before) / (now - before), 3),
                "cpu_speed": round((done - done_before) / (cpu - cpu_before), 3),
            }
            samples.append({**sample, **used_by(process)})
            write_records(options.file, samples)
            print(samples[-1], flush=True)
            before, done_before, cpu_before = now, done, cpu
        if now - started >= 60 * options.minutes:
            break


def used_by(process: int) -> dict[str, int]:
    """Return the resident memory in kB and the number of open files of a process."""
    resident = int(Path(f"/proc/{process}/statm").read_text(encoding="utf-8").split()[1]) * PAGE // 1024
    return {"resident_kB": resident, "files": len(os.listdir(f"/proc/{process}/fd"))}


def cpu_seconds(process: int) -> float:
    """Return the CPU time that all threads of a process have used, in seconds."""
    fields = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def batches(options: argparse.Namespace) -> Iterator[list[str]]:
    """Yield batches of sources, again and again."""
    lines = itertools.cycle(options.source.read_text(encoding="utf-8").splitlines())
    while True:
        yield list(itertools.islice(lines, options.batch))


def generation(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Generate in this process; yield its id and the number of sentences so far."""
    from s2sft_fairseq import Seq2Seq

    model, done = Seq2Seq.from_pretrained(options.model, device="cpu"), 0
    for sources in batches(options):
        model.generate(sources, batch_size=options.batch)
        done += len(sources)
        yield os.getpid(), done


def serve(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Send requests to a server, two at a time; yield its process id and the number of sentences so far."""
    port = 8765
    words = [*S2SFT, "serve", str(options.model), "--port", str(port)]
    with subprocess.Popen(words, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as server:
        try:
            wait_for(f"http://127.0.0.1:{port}/health", server)
            done, lock, texts = [0], threading.Lock(), batches(options)

            def ask() -> None:
                while server.poll() is None:
                    with lock:
                        sources = next(texts)
                    body = json.dumps({"source": sources}).encode()
                    request = urllib.request.Request(
                        f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"}
                    )
                    try:
                        with urllib.request.urlopen(request, timeout=120) as answer:
                            answer.read()
                    except OSError:  # the server is ending; if a request fails otherwise, the reported speed falls
                        return
                    with lock:
                        done[0] += len(sources)

            for _ in range(2):
                threading.Thread(target=ask, daemon=True).start()
            while server.poll() is None:
                time.sleep(1)
                yield server.pid, done[0]
        finally:
            server.terminate()
    sys.exit(f"the server ended with {server.returncode}")


def wait_for(url: str, server: subprocess.Popen) -> None:
    """Wait until a server answers."""
    while server.poll() is None:
        try:
            with urllib.request.urlopen(url, timeout=5):
                return
        except OSError:
            time.sleep(0.5)
    sys.exit(f"the server ended with {server.returncode}")


def training(options: argparse.Namespace) -> Iterator[tuple[int, int]]:
    """Train in another process, which SIGTERM ends; yield its id and the number of updates so far."""
    words = [*S2SFT, "train", str(options.data), "--pretrained", str(options.pretrained), "--cpu", "--batch-size"]
    words += [str(options.batch), "--max-update", "1000000", "--lr", "1e-5", "--save-dir", str(options.save_dir)]
    words += ["--save-interval-updates", "200", "--keep-interval-updates", "1", "--no-epoch-checkpoints"]
    words += [
        "--log-format",
        "simple",
        "--log-interval",
        "5",
        "--no-model-folder",
        "--validate-interval-updates",
        "400",
    ]
    first: int | None = None
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        try:
            for line in process.stdout:
                if found := re.search(r"num_updates=(\d+)", line):
                    first = int(found[1]) if first is None else first
                    yield process.pid, int(found[1]) - first
        finally:
            process.send_signal(signal.SIGTERM)
            process.stdout.read()
    sys.exit(f"the training ended with {process.returncode}")


def report(samples: Sequence[dict[str, Any]], picture: Path | None) -> None:
    """Print how the last quarter of each piece differs from its second quarter."""
    columns = (
        ("lowest memory, MB", "resident_kB", min, 1024),
        ("mean", "resident_kB", statistics.mean, 1024),
        ("highest", "resident_kB", max, 1024),
        ("files", "files", statistics.median, 1),
        ("work/s", "speed", statistics.mean, 1),
        ("work per CPU second", "cpu_speed", statistics.mean, 1),
    )
    print("| | minutes | " + " | ".join(f"{title} | change" for title, *_ in columns) + " |")
    print("|---" * (2 + 2 * len(columns)) + "|")
    for kind, piece in sorted({(each["kind"], each["piece"]) for each in samples}):
        own = [each for each in samples if (each["kind"], each["piece"]) == (kind, piece)]
        quarter = max(1, len(own) // 4)
        cells = [f"{kind} {piece}", f"{own[-1]['seconds'] / 60:.0f}"]
        for _, name, summary, unit in columns:
            second, last = (
                summary([each[name] for each in part]) for part in (own[quarter : 2 * quarter], own[-quarter:])
            )
            cells += [f"{last / unit:.4g}", f"{100 * (last / second - 1):+.1f} %"]
        print(f"| {' | '.join(cells)} |")
    if picture is not None:
        draw(samples, picture)


def draw(samples: Sequence[dict[str, Any]], picture: Path) -> None:
    """Plot each window of 20 samples: the lowest, mean and highest memory, open files, and mean work.

    Open files and work are divided by their means over the whole piece.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    pieces = sorted({(each["kind"], each["piece"]) for each in samples})
    figure, (memory, files, work) = pyplot.subplots(3, 1, figsize=(8, 7), sharex=True, layout="constrained")
    for kind, piece in pieces:
        own = [each for each in samples if (each["kind"], each["piece"]) == (kind, piece)]
        windows = [own[start : start + WINDOW] for start in range(0, len(own) - WINDOW + 1, WINDOW)]
        minutes = [statistics.mean(each["seconds"] for each in window) / 60 for window in windows]
        values = [[each["resident_kB"] / 2**20 for each in window] for window in windows]
        (line,) = memory.plot(minutes, list(map(statistics.mean, values)), label=f"{kind} {piece}")
        memory.fill_between(minutes, list(map(min, values)), list(map(max, values)), color=line.get_color(), alpha=0.15)
        for axis, name in ((files, "files"), (work, "speed")):
            whole = statistics.mean(each[name] for each in own)
            axis.plot(minutes, [statistics.mean(each[name] for each in window) / whole for window in windows])
    memory.set(ylabel="memory, GiB", ylim=(0, None))
    files.set(ylabel="open files / mean", ylim=(0.9, 1.1))
    work.set(ylabel="work / mean", ylim=(0.8, 1.2), xlabel="minutes")
    memory.legend(fontsize=8)
    figure.savefig(picture, dpi=110)


if __name__ == "__main__":
    main()
