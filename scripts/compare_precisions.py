"""Compare trainings in float32, with bfloat16 products (``--amp``) and with ``--factored-moments``.

    python scripts/compare_precisions.py DATA --pretrained ENCODER --output out --updates 1000 --seeds 1 2 3

All trainings begin with the same weights, and those with one seed have the same batches. DATA is binarized
(the demo writes demo-out/short/binarized, and the encoder demo-out/short/encoder). Each run has its log in OUT; runs
that are done are not repeated. The table of held-out losses is written to OUT/precisions.md, with the mean distances
between training losses: of one seed in two precisions, and of two seeds in float32. On a CPU without bfloat16
instructions, ``--amp`` computes in float32, so that "bfloat16" shows nothing there.
"""

import argparse
import sys
from itertools import combinations
from pathlib import Path
from statistics import mean

from compare_methods import spread, write_table

from s2sft_fairseq import cli
from s2sft_fairseq.plots.training import parse
from s2sft_fairseq.recipes.engine import Stages, options
from s2sft_fairseq.recipes.training import NEVER

PRECISIONS: dict[str, dict[str, bool]] = {
    "float32": {},
    "bfloat16": {"amp": True},
    "factored": {"factored_moments": True},
}
POINTS = 50
"""Number of training losses of a run that are compared; each is the mean over an equal part of the updates."""


class Runs(Stages):
    """The trainings, and their table."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given = given
        super().__init__("compare_precisions", given.output / "commands.jsonl", cli.call)

    def run(self) -> None:
        """Run the missing trainings, and write the table."""
        curves = {}
        for seed in self.given.seeds:
            for name in self.given.precisions:
                log = self.given.output / f"{name}-{seed}.log"
                self.stage(log, f"{name}, seed {seed}", lambda made, seed=seed, name=name: self.fit(made, seed, name))
                curves[name, seed] = read_losses(log)
        write_table(table(curves), self.given.output / "precisions.md")

    def fit(self, log: Path, seed: int, precision: str) -> None:
        given, updates = self.given, self.given.updates
        words = [
            *(given.data, "--finetune-method", "pseudo_masked", "--no-save", "--num-workers", 0),
            *options(arch="unilm", pretrained=given.pretrained, criterion="mask_attention", label_smoothing=0.1),
            *options(max_source_positions=64, max_target_positions=24, max_tokens=given.max_tokens, seed=seed),
            *options(optimizer="fused_adamw", lr="3e-4", lr_scheduler="polynomial_decay", clip_norm="1.0"),
            *options(
                warmup_updates=updates // 16, max_update=updates, total_num_update=updates, **PRECISIONS[precision]
            ),
            *options(validate_interval_updates=updates // 4, validate_interval=NEVER, log_file=log),
            *options(log_interval=max(1, updates // POINTS), log_format="json", no_progress_bar=True, cpu=True),
        ]
        self.train(given.output, words, updates)


def read_losses(log: Path) -> dict[str, list[float]]:
    """Return the losses of a log by kind, ``training`` and ``held out``."""
    found: dict[str, list[float]] = {"training": [], "held out": []}
    for line in log.read_text(encoding="utf-8").splitlines():
        if parsed := parse(line):
            found[parsed[0]].append(float(parsed[1]["loss"]))
    return found


def table(curves: dict[tuple[str, int], dict[str, list[float]]]) -> str:
    """Return the last held-out loss of each precision, and the distances between training losses, in Markdown."""

    def distance(one: tuple[str, int], other: tuple[str, int]) -> float:
        pairs = zip(curves[one]["training"], curves[other]["training"], strict=False)
        return mean(abs(a - b) for a, b in pairs)

    rows = ["| | held-out loss, bits a token |", "|---|---|"]
    for name in dict.fromkeys(precision for precision, _ in curves):
        last = [losses["held out"][-1] for (precision, _), losses in curves.items() if precision == name]
        rows.append(f"| {name} | {spread(last)} |")
    pairs = list(combinations(curves, 2))
    kinds = {
        **{
            f"one seed, {' and '.join(names)}": [
                (a, b) for a, b in pairs if a[1] == b[1] and {a[0], b[0]} == set(names)
            ]
            for names in combinations(dict.fromkeys(precision for precision, _ in curves), 2)
        },
        "float32, two seeds": [(a, b) for a, b in pairs if a[0] == b[0] == "float32"],
    }
    rows += ["", "| training losses of | mean distance, bits a token |", "|---|---|"]
    rows += [f"| {kind} | {mean(distance(a, b) for a, b in of):.4f} |" for kind, of in kinds.items() if of]
    return "\n".join(rows) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("data", type=Path, help="binarized pairs")
    parser.add_argument("--pretrained", type=Path, required=True, metavar="DIR", help="the converted encoder")
    parser.add_argument("--output", type=Path, required=True, metavar="OUT", help="where logs and table go")
    parser.add_argument("--updates", type=int, default=1000, metavar="N")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3], metavar="N")
    parser.add_argument("--max-tokens", type=int, default=1024, metavar="N", help="positions of a batch")
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16"], choices=PRECISIONS)
    given = parser.parse_args()
    given.output.mkdir(parents=True, exist_ok=True)
    return cli.guarded("compare_precisions", Runs(given).run)


if __name__ == "__main__":
    sys.exit(main())
