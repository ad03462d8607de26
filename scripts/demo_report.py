"""The end of the demo: ten examples, ROUGE beside its baselines, the loss curves, and where everything lies."""

import argparse
import json
import random
from pathlib import Path

import matplotlib
from rouge_score.rouge_scorer import RougeScorer
from training_log import parse

matplotlib.use("Agg")
import matplotlib.pyplot as plt

MEASURES = ("rouge1", "rouge2", "rougeL")
LEAD_WORDS = 12
RECORDED = Path(__file__).parent / "demo_recorded.json"


def read_hypotheses(path: Path) -> dict[int, str]:
    """Read the detokenised best hypotheses of fairseq-generate by the numbers of their lines."""
    found = {}
    for line in path.read_text(encoding="utf-8").split("\n"):
        if line.startswith("D-"):
            number, _, text = line[2:].split("\t")
            found[int(number)] = text
    return found


def rouge(hypotheses: list[str], references: list[str]) -> dict[str, float]:
    """Return mean F1 in percent, with stemming."""
    scorer = RougeScorer(MEASURES, use_stemmer=True)
    scores = [scorer.score(reference, hypothesis) for reference, hypothesis in zip(references, hypotheses, strict=True)]
    return {name: 100 * sum(score[name].fmeasure for score in scores) / len(scores) for name in MEASURES}


def plot(log: Path, output: Path) -> None:
    """Draw the loss of training and held-out data over the updates."""
    curves: dict[str, list[tuple[int, float]]] = {"training": [], "held out": []}
    for line in log.read_text(encoding="utf-8").splitlines():
        if parsed := parse(line):
            kind, record = parsed
            curves[kind].append((int(record["num_updates"]), float(record["loss"])))
    if empty := [name for name, points in curves.items() if not points]:
        raise SystemExit(f"error: {log} must hold the losses of training and held-out data, but has none: {empty}")
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, points in curves.items():
        axes.plot(*zip(*sorted(points), strict=True), label=name, marker="o" if name == "held out" else None)
    axes.set(xlabel="updates", ylabel="loss (bits a token)", title="Fine-tuning")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(output, dpi=120)


def main() -> None:
    """Report on one run."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("results", "source", "reference", "log", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--setting", required=True, help="what was run, such as docstrings-default")
    options = parser.parse_args()

    hypotheses = read_hypotheses(options.results)
    sources, references = (path.read_text(encoding="utf-8").split("\n") for path in (options.source, options.reference))
    numbers = sorted(hypotheses)
    wanted = [references[n] for n in numbers]
    generated = [hypotheses[n] for n in numbers]
    lead = [" ".join(sources[n].split()[:LEAD_WORDS]) for n in numbers]

    print("\nTen of the held-out texts:")
    for n in sorted(random.Random(0).sample(numbers, min(10, len(numbers)))):
        print(f"\n  text       {sources[n][:110]}{'...' if len(sources[n]) > 110 else ''}")
        print(f"  reference  {references[n]}")
        print(f"  generated  {hypotheses[n]}")

    scores = {"this run": rouge(generated, wanted), f"lead ({LEAD_WORDS} words)": rouge(lead, wanted)}
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.is_file() else {}
    for name, entry in recorded.items():
        if entry["setting"] == options.setting.removesuffix("-from-scratch"):
            scores[f"{name} (recorded)"] = entry["rouge"]
    print(f"\nROUGE F1 on {len(numbers)} texts (rouge-score, stemmed):  R-1   R-2   R-L")
    for name, values in scores.items():
        print(f"  {name:45} " + " ".join(f"{values[measure]:5.1f}" for measure in MEASURES))

    scores_file, curves_file = options.output / "rouge.json", options.output / "loss.png"
    scores_file.write_text(json.dumps({"setting": options.setting, "texts": len(numbers), **scores}, indent=2) + "\n")
    plot(options.log, curves_file)
    print(f"\nWritten: {options.results} (all hypotheses)\n         {scores_file}\n         {curves_file}")


if __name__ == "__main__":
    main()
