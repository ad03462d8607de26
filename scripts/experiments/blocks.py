"""One model for one token or many tokens per pass: compare blocks with pseudo-masked fine-tuning, from the same start.

    python scripts/experiments/blocks.py --data DATA --encoder MINILM --output out

DATA holds the folders ``e2e`` (train.src, train.tgt, valid.multi.jsonl, test.multi.jsonl) and ``squad_qg`` (train,
valid and test as .src.gz and .tgt.gz, passage and answer with [SEP] between them). ``s2sft finetune`` trains a model
for each set, seed and method, for the same number of updates. The methods are pseudo-masked; blocks; and blocks on the
greedy outputs of the pseudo-masked model in place of the targets (sequence-level distillation: Kim and Rush, 2016; Gu
et al., 2018, for parallel decoding). Then ``benchmarks/blocks.py`` decodes a part of the test set in every way.

Hypotheses, written before the first run:

1. Token by token, greedily and with a beam of 5, the score of the model with mixed block lengths is below that of
   pseudo-masked fine-tuning by no more than the seeds of the latter differ.
2. Drafts from blocks give 2 tokens per pass or more, and 1.6 times the speed of greedy search for single sentences.
3. Blocks of 4 or 8 tokens with a threshold give 3 times the speed of greedy search within a point of ROUGE-L.

A fourth was added after a first look at one seed, before the distilled models were trained: their drafts are right more
often, because a model writes a source in one way, and people write it in many ways.

Stages that are done are not repeated. Results are OUTPUT/SET-METHOD-seedN/finetune.json, OUTPUT/SET-seedN.json, and for
all seeds OUTPUT/SET.md and OUTPUT/SET.png. The records of single seeds are in ``docs/blocks``. Records that are copied
to OUTPUT are not made again, so different machines can train different seeds.
"""

import argparse
import gzip
import itertools
import json
import statistics
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from s2sft_fairseq import cli

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "blocks.py"
IN_BLOCKS = ("--block-length", "random:8", "--noise-schedule", "cosine", "--word-flow-weight", "0.5")
METHODS: dict[str, tuple[str, ...]] = {"blocks": IN_BLOCKS, "pseudo_masked": (), "distilled": IN_BLOCKS}
TARGETS = {"e2e": 64, "squad_qg": 32}
ENDINGS = {
    "squad_qg": (".src.gz", ".tgt.gz"),
    "gigaword": (".src", ".tgt"),
    # From German to English, which is the language of the encoder.
    "multi30k_en-de": (".tgt", ".src"),
}
"""Endings of the names of files with sources and targets, which are aligned by line."""
LOST = 10.0
"""Points of ROUGE-L below the best from which a point is not drawn."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--encoder", required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--updates", type=int, default=400, help="of 16 pairs")
    parser.add_argument("--label-smoothing", default="0", help="confidences are capped by it (default: 0)")
    parser.add_argument("--scored-on", type=int, default=500, help="test sources, for the scores with a beam of 5")
    parser.add_argument("--sources", type=int, default=120, help="test sources that are decoded in every way")
    options = parser.parse_args(arguments)
    options.output.mkdir(parents=True, exist_ok=True)
    files = {name: prepare(name, options.data / name, options.output) for name in options.sets}
    records_of = {
        (name, seed): options.output / f"{name}-seed{seed}.json" for name in options.sets for seed in options.seeds
    }
    missing = [run for run, file in records_of.items() if not file.exists()]
    models = {(name, seed): train_all(options, files[name], name, seed) for name, seed in missing}
    for name, seed in missing:
        decode(options, files[name], models[name, seed], records_of[name, seed])
    for name in options.sets:
        records = [json.loads(records_of[name, seed].read_text(encoding="utf-8")) for seed in options.seeds]
        tabulate(records, options.output / f"{name}.md")
        draw(records, options.output / f"{name}.png")


def prepare(name: str, folder: Path, out: Path) -> dict[str, list[Path]]:
    """Write the test set as the benchmark reads it; return its files and those of the pairs."""
    source, references = out / f"{name}.test.src", out / f"{name}.test.refs.jsonl"
    if name == "e2e":
        pairs = {"train": [folder / "train.src", folder / "train.tgt"]}
        pairs |= {split: [folder / f"{split}.multi.jsonl"] for split in ("valid", "test")}
        rows = [json.loads(line) for line in pairs["test"][0].read_text(encoding="utf-8").splitlines()]
        test = [(row["src"], row["refs"]) for row in rows]
    else:
        pairs = {split: [folder / f"{split}{end}" for end in ENDINGS[name]] for split in ("train", "valid", "test")}
        sides = [source_lines(path) for path in pairs["test"]]
        test = [(text, [target]) for text, target in zip(*sides, strict=True)]
    source.write_text("".join(f"{text}\n" for text, _ in test), encoding="utf-8")
    references.write_text("".join(json.dumps({"refs": refs}) + "\n" for _, refs in test), encoding="utf-8")
    return {**pairs, "benchmark": [source, references]}


def train_all(options: argparse.Namespace, files: dict[str, list[Path]], name: str, seed: int) -> dict[str, Path]:
    """Train with each method; return the model folders."""
    models = {method: train(options, files, method, name, seed) for method in ("blocks", "pseudo_masked")}
    pairs = [options.output / f"{name}-distilled-seed{seed}.{side}" for side in ("src", "tgt")]
    source, target = pairs
    if not target.exists():
        # Only as many sources as the updates read, each once.
        texts = dict.fromkeys(source_lines(files["train"][0]))
        source.write_text("".join(f"{text}\n" for text in list(texts)[: 16 * options.updates]), encoding="utf-8")
        run("generate", "--path", models["pseudo_masked"], "--input", source, "--output", target, "--beam", 1, "--cpu")
    return models | {"distilled": train(options, {**files, "train": pairs}, "distilled", name, seed)}


def source_lines(path: Path) -> list[str]:
    """Return the lines of a file, which may be compressed."""
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode().split("\n")[:-1]


def run(*words: object) -> None:
    """Run a command of s2sft; end the process if it fails."""
    if status := cli.main([str(word) for word in words]):
        sys.exit(status)


def train(options: argparse.Namespace, files: dict[str, list[Path]], method: str, name: str, seed: int) -> Path:
    """Train a model and score it with a beam of 5; return the model folder."""
    out = options.output / f"{name}-{method}-seed{seed}"
    words: list[object] = ["finetune", "--encoder", options.encoder, "--output", out, "--cpu"]
    words += ["--method", "blocks" if METHODS[method] else method]
    for split in ("train", "valid", "test"):
        words += [f"--{split}", *files[split]]
    words += ["--target", "refs"] if name == "e2e" else []
    words += ["--metric", "loss", "--candidates", 1, "--updates", options.updates, "--batch", 16, "--seed", seed]
    words += ["--max-target", TARGETS[name], "--label-smoothing", options.label_smoothing]
    words += ["--scored-on", options.scored_on]
    words += ["--", *METHODS[method]] if METHODS[method] else []
    run(*words)
    return out / "model"


def decode(options: argparse.Namespace, files: dict[str, list[Path]], models: dict[str, Path], made: Path) -> None:
    """Decode in every way in another process."""
    source, references = files["benchmark"]
    names = {method: f"{method.replace('_', '-')}={folder}" for method, folder in models.items()}
    words: list[object] = [sys.executable, BENCHMARK, "--plain-model", names["pseudo_masked"]]
    words += ["--blocks-model", names["blocks"], names["distilled"]]
    words += ["--source", source, "--references", references, "--sources", options.sources]
    partial = made.with_suffix(".partial")
    subprocess.run([*map(str, words), "--file", str(partial)], check=True)
    partial.rename(made)


Records = list[dict[str, Any]]


def tabulate(seeds: Sequence[Records], file: Path) -> None:
    """Write a Markdown table of means over seeds; the score also has its standard deviation."""
    by_seed = [{record["way"]: record for record in records} for records in seeds]
    columns = [name for name in seeds[0][0] if name != "way"]
    lines = [f"| | {' | '.join(columns)} |", "|---" * (len(columns) + 1) + "|"]
    for way, first in by_seed[0].items():
        cells = []
        for column in columns:
            values = [records[way][column] for records in by_seed if way in records and column in first]
            spread = f" ± {statistics.stdev(values):.2f}" if column == "ROUGE-L" and len(values) > 1 else ""
            cells.append(f"{statistics.mean(values):.2f}{spread}" if values else "")
        lines.append(f"| {way} | {' | '.join(cells)} |")
    file.write_text("\n".join(lines) + "\n", encoding="utf-8")


def draw(seeds: Sequence[Records], file: Path) -> None:
    """Plot the score over tokens per pass and over sentences/s: means over seeds, a row of panels for each model.

    The lines connect numbers of drafts, and confidences of a block length. The greedy search and the beam of the
    pseudo-masked model are in all panels. Points `LOST` or more below the best score are left out.
    """
    import matplotlib

    matplotlib.use("agg")
    from matplotlib import pyplot

    models: dict[str, dict[str, list[str]]] = {}
    for record in seeds[0]:
        model, way = record["way"].split(": ", 1)
        family = "drafts" if way.endswith("drafts") else way.rsplit(", ", 1)[0]
        models.setdefault(model, {}).setdefault(family, []).append(record["way"])
    plain, *others = models
    found: dict[str, Records] = {}
    for record in itertools.chain(*seeds):
        found.setdefault(record["way"], []).append(record)
    best = max(map(_score, found.values()))
    figure, axes = pyplot.subplots(
        len(others), 2, figsize=(11, 4 * len(others)), sharex="col", sharey=True, layout="constrained", squeeze=False
    )
    for row, model in zip(axes, others, strict=True):
        families = {f"{plain}: {family}": ways for family, ways in models[plain].items()} | models[model]
        for axis, column in zip(row, ("tokens/pass", "batch 1"), strict=True):
            markers = itertools.cycle("P*oXsd^vD<>")
            for (family, ways), marker in zip(families.items(), markers, strict=False):
                drawn = [found[way] for way in ways if best - _score(found[way]) < LOST]
                x = [statistics.mean(record[column] for record in records) for records in drawn]
                spread = [_spread(record["ROUGE-L"] for record in records) for records in drawn]
                style = {"fmt": f"-{marker}" if len(ways) > 1 else marker, "capsize": 2, "linewidth": 1}
                axis.errorbar(x, list(map(_score, drawn)), yerr=spread, label=family, **style)
        row[0].set_ylabel(f"{model}: ROUGE-L")
    for axis, label in zip(axes[-1], ("tokens per pass", "sentences/s, one by one"), strict=True):
        axis.set_xlabel(label)
    figure.legend(*axes[0, 0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(file, dpi=90)


def _score(records: Records) -> float:
    return statistics.mean(record["ROUGE-L"] for record in records)


def _spread(values: Iterable[float]) -> float:
    found = list(values)
    return statistics.stdev(found) if len(found) > 1 else 0.0


if __name__ == "__main__":
    main()
