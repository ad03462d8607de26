"""One model for one token or many per pass: blocks beside pseudo-masked fine-tuning, from the same start.

    python scripts/experiments/blocks.py --data DATA --encoder MINILM --output out

DATA holds the folders ``e2e`` (train.src, train.tgt, valid.multi.jsonl, test.multi.jsonl) and ``squad_qg`` (train,
valid and test as .src.gz and .tgt.gz, passage and answer with [SEP] between them). For each set, method and seed
``s2sft finetune`` trains with equally many updates; then ``benchmarks/blocks.py`` decodes a part of the test set in
every way.

Hypotheses, written before the first run:

1. Token by token, greedily and with a beam of 5, the model of mixed block lengths is behind pseudo-masked fine-tuning
   by no more than the seeds of that differ.
2. Drafts from blocks give 2 tokens a pass or more, and 1.6 times the speed of greedy search for single sentences.
3. Blocks of 4 or 8 tokens with a threshold give 3 times the speed of greedy search within a point of ROUGE-L.

What is done is not done again. Results: OUTPUT/SET-METHOD-seedN/finetune.json, and OUTPUT/SET-seedN.json.
"""

import argparse
import gzip
import json
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq import cli

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "blocks.py"
METHODS = {
    "pseudo_masked": (),
    "blocks": ("--block-length", "random:8", "--noise-schedule", "cosine"),
}
TARGETS = {"e2e": 64, "squad_qg": 32}


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--encoder", required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=800, help="of 16 pairs")
    parser.add_argument("--label-smoothing", default="0", help="confidences are capped by it (default: 0)")
    parser.add_argument("--scored-on", type=int, default=500, help="test sources, for the scores with a beam of 5")
    parser.add_argument("--sources", type=int, default=200, help="test sources that are decoded in every way")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    for name in options.sets:
        files = prepare(name, options.data / name, options.output)
        for seed in options.seeds:
            models = {method: train(options, files, name, method, further, seed) for method, further in METHODS.items()}
            decode(options, files, models, options.output / f"{name}-seed{seed}.json")


def prepare(name: str, folder: Path, out: Path) -> dict[str, list[Path]]:
    """Return the files of the pairs, and those of the test set as the benchmark reads them."""
    source, references = out / f"{name}.test.src", out / f"{name}.test.refs.jsonl"
    if name == "e2e":
        pairs = {"train": [folder / "train.src", folder / "train.tgt"]}
        pairs |= {split: [folder / f"{split}.multi.jsonl"] for split in ("valid", "test")}
        rows = [json.loads(line) for line in pairs["test"][0].read_text(encoding="utf-8").splitlines()]
        test = [(row["src"], row["refs"]) for row in rows]
    else:
        pairs = {
            split: [folder / f"{split}.{side}.gz" for side in ("src", "tgt")] for split in ("train", "valid", "test")
        }
        sides = [gzip.decompress(path.read_bytes()).decode().split("\n")[:-1] for path in pairs["test"]]
        test = [(text, [target]) for text, target in zip(*sides, strict=True)]
    source.write_text("".join(f"{text}\n" for text, _ in test), encoding="utf-8")
    references.write_text("".join(json.dumps({"refs": refs}) + "\n" for _, refs in test), encoding="utf-8")
    return {**pairs, "benchmark": [source, references]}


def train(
    options: argparse.Namespace, files: dict[str, list[Path]], name: str, method: str, further: Sequence[str], seed: int
) -> Path:
    """Train a model and score it with a beam of 5; return its folder."""
    run = options.output / f"{name}-{method}-seed{seed}"
    words: list[object] = ["finetune", "--encoder", options.encoder, "--output", run, "--method", method, "--cpu"]
    for split in ("train", "valid", "test"):
        words += [f"--{split}", *files[split]]
    words += ["--target", "refs"] if name == "e2e" else []
    words += ["--metric", "loss", "--candidates", 1, "--updates", options.updates, "--batch", 16, "--seed", seed]
    words += ["--max-target", TARGETS[name], "--label-smoothing", options.label_smoothing]
    words += ["--scored-on", options.scored_on]
    words += ["--", *further] if further else []
    if status := cli.main([str(word) for word in words]):
        sys.exit(status)
    return run / "model"


def decode(options: argparse.Namespace, files: dict[str, list[Path]], models: dict[str, Path], made: Path) -> None:
    """Decode in every way, in a process of its own."""
    if made.exists():
        return
    source, references = files["benchmark"]
    words: list[object] = [sys.executable, BENCHMARK, "--model", models["blocks"], "--plain", models["pseudo_masked"]]
    words += ["--source", source, "--references", references, "--sources", options.sources]
    partial = made.with_suffix(".partial")
    subprocess.run([*map(str, words), "--file", str(partial)], check=True)
    partial.rename(made)


if __name__ == "__main__":
    main()
