"""Compare hypotheses of all interfaces: Python, ``s2sft generate``, ``fairseq-generate`` and ``s2sft serve``.

    python scripts/compare_doors.py MODEL --input sources.txt --output out --beam 5 --nbest 2

MODEL is a model folder. Prints, for each interface, how many sources have the same hypotheses as in Python, and the
largest difference of their scores. Exits with 1 if a text differs.
"""

import argparse
import json
import os
import re
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

import s2sft_fairseq
from s2sft_fairseq import Seq2Seq

Found = list[list[tuple[str, float]]]
"""The hypotheses of each source, as text and score."""
TOGETHER = 16
"""Sources per request or batch."""


def of_python(given: argparse.Namespace, sources: list[str]) -> Found:
    model = Seq2Seq.from_pretrained(given.model, device="cpu")
    found = model.hypotheses(sources, beam=given.beam, num_return=given.nbest, progress=True)
    # In files, a text with line ends is one line.
    return [[(re.sub(r"\s*[\r\n]+\s*", " ", each.text), each.score) for each in best] for best in found]


def of_command(given: argparse.Namespace, output: Path) -> Found:
    made = output / "generated.jsonl"
    files = ("--path", given.model, "--input", given.input, "--output", made, "--overwrite")
    run("-m", "s2sft_fairseq", "generate", *files, "--beam", given.beam, "--nbest", given.nbest, "--cpu")
    lines = map(json.loads, made.read_text(encoding="utf-8").splitlines())
    return [[(each["text"], each["score"]) for each in line["hypotheses"]] for line in lines]


def of_fairseq(given: argparse.Namespace, output: Path) -> Found:
    """Tokenize, binarize and generate with fairseq's commands; read texts and scores (in bits) from the output."""
    dictionary = given.model / "dict.txt"
    words = ("--tokenizer-dir", given.model, "--input", given.input, "--output-dir", output / "tokens")
    run("-m", "s2sft_fairseq", "tokenize", *words)
    (output / "tokens" / given.input.name).rename(output / "tokens" / "test.src")
    words = ("--only-source", "--source-lang", "src", "--target-lang", "tgt", "--srcdict", dictionary)
    run("-m", "s2sft_fairseq", "preprocess", *words, "--testpref", output / "tokens/test", "--destdir", output / "data")
    (output / "data" / "dict.tgt.txt").write_bytes(dictionary.read_bytes())
    plugin = Path(s2sft_fairseq.__path__[0])
    words = ("--user-dir", plugin, "--task", "unilm_seq2seq", "--path", given.model / "model.safetensors", "--cpu")
    bpe = ("--bpe", "pretrained", "--tokenizer-dir", given.model)
    search = ("--beam", given.beam, "--nbest", given.nbest, "--batch-size", TOGETHER, *search_of(given.model))
    printed = run("-m", "fairseq_cli.generate", output / "data", *words, *bpe, *search)
    found: dict[int, list[tuple[str, float]]] = {}
    for line in printed.split("\n"):
        if line.startswith("D-"):
            number, score, text = line[2:].split("\t")
            found.setdefault(int(number), []).append((text, float(score) * 0.6931471805599453))
    return [found[number] for number in sorted(found)]


def search_of(model: Path) -> list[str]:
    """Return the search settings of a model folder as options, because ``fairseq-generate`` does not read them."""
    search = json.loads((model / "config.json").read_text(encoding="utf-8"))["search"]
    return [word for name, value in search.items() if name != "beam" for word in (f"--{name.replace('_', '-')}", value)]


def of_server(given: argparse.Namespace, sources: list[str]) -> Found:
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    words = ("-m", "s2sft_fairseq", "serve", given.model, "--port", port, "--device", "cpu")
    server = subprocess.Popen([sys.executable, *map(str, words)], stderr=subprocess.DEVNULL)
    try:
        wait_for(f"http://127.0.0.1:{port}/health")
        found: Found = []
        for start in range(0, len(sources), TOGETHER):
            asked = {"source": sources[start : start + TOGETHER], "beam": given.beam, "num_return": given.nbest}
            headers = {"Content-Type": "application/json"}
            request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", json.dumps(asked).encode(), headers)
            with urllib.request.urlopen(request) as answer:
                results = json.load(answer)["results"]
            found += [[(each["text"], each["score"]) for each in best] for best in results]
        return found
    finally:
        server.terminate()
        server.wait()


def wait_for(address: str) -> None:
    for _ in range(120):
        try:
            urllib.request.urlopen(address).close()
        except (urllib.error.URLError, OSError):
            time.sleep(0.5)
        else:
            return
    raise TimeoutError(f"{address} does not answer")


def run(*words: object) -> str:
    command = [sys.executable, *map(str, words)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env={**os.environ})
    return done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, help="a model folder")
    parser.add_argument("--input", type=Path, required=True, metavar="FILE", help="a source a line")
    parser.add_argument("--output", type=Path, required=True, metavar="OUT", help="an empty folder for what is made")
    parser.add_argument("--beam", type=int, default=5, metavar="N")
    parser.add_argument("--nbest", type=int, default=2, metavar="N")
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    sources = given.input.read_text(encoding="utf-8").removesuffix("\n").split("\n")
    expected = of_python(given, sources)
    doors = {
        "s2sft generate": of_command(given, given.output),
        "fairseq-generate": of_fairseq(given, given.output),
        "s2sft serve": of_server(given, sources),
    }
    differs = False
    for name, found in doors.items():
        pairs = list(zip(expected, found, strict=True))
        same = sum([text for text, _ in one] == [text for text, _ in other] for one, other in pairs)
        largest = max(abs(a[1] - b[1]) for one, other in pairs for a, b in zip(one, other, strict=True))
        print(f"{name}: {same} of {len(sources)} sources as in Python, scores within {largest:.1e}", flush=True)
        differs |= same < len(sources)
    return int(differs)


if __name__ == "__main__":
    sys.exit(main())
