"""The end of the demo: ten examples, ROUGE beside its baselines, the loss curves, and where everything lies."""

import argparse
import json
import random
from pathlib import Path

from s2sft_fairseq.evaluation.evaluate import evaluate
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.lead import Lead
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.recipes.loss_curves import plot

MEASURES = {"ROUGE-1": "rouge1", "ROUGE-2": "rouge2", "ROUGE-L": "rougeL"}
LEAD = Lead(12, "words")
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
    pairs = [Example(hypothesis, (reference,)) for hypothesis, reference in zip(hypotheses, references, strict=True)]
    scores = {score.name: score.value for score in evaluate(pairs, Settings())}
    return {key: scores[name] for name, key in MEASURES.items()}


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
    lead = [LEAD.of(sources[n]) for n in numbers]

    print("\nTen of the held-out texts:")
    for n in sorted(random.Random(0).sample(numbers, min(10, len(numbers)))):
        print(f"\n  text       {sources[n][:110]}{'...' if len(sources[n]) > 110 else ''}")
        print(f"  reference  {references[n]}")
        print(f"  generated  {hypotheses[n]}")

    scores = {"this run": rouge(generated, wanted), str(LEAD): rouge(lead, wanted)}
    recorded = json.loads(RECORDED.read_text(encoding="utf-8")) if RECORDED.is_file() else {}
    for name, entry in recorded.items():
        if entry["setting"] == options.setting.removesuffix("-from-scratch"):
            scores[f"{name} (recorded)"] = entry["rouge"]
    print(f"\nROUGE F1 on {len(numbers)} texts (rouge-score, stemmed):  R-1   R-2   R-L")
    for name, values in scores.items():
        print(f"  {name:45} " + " ".join(f"{values[key]:5.1f}" for key in MEASURES.values()))

    scores_file, curves_file = options.output / "rouge.json", options.output / "loss.png"
    scores_file.write_text(json.dumps({"setting": options.setting, "texts": len(numbers), **scores}, indent=2) + "\n")
    plot(options.log, curves_file)
    print(f"\nWritten: {options.results} (all hypotheses)\n         {scores_file}\n         {curves_file}")


if __name__ == "__main__":
    main()
