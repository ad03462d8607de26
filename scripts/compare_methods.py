"""Compare the fine-tuning methods on a benchmark: same start, same number of updates, several seeds.

    python scripts/compare_methods.py squad_qg --output out --seeds 1 2 -- --raw squad --encoder bert --updates 1000

Options after ``--`` are those of the recipe (docs/recipes.md), which runs for each method and seed. Stages that are
done are not repeated. The table, with the methods ordered by the mean of their first score, is written to
OUT/comparison.md.
"""

import argparse
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from s2sft_fairseq import cli
from s2sft_fairseq.recipes.benchmarks import GENERATION
from s2sft_fairseq.recipes.scores import read_scores

METHODS = ("causal", "masked", "pseudo_masked", "infilling")


def newest_scores(folder: Path, pattern: str = "*.json") -> dict[str, float]:
    """Return the newest scores of a run, if several sets were scored."""
    return read_scores(max(folder.glob(pattern), key=lambda path: path.stat().st_mtime))


def as_table(
    runs: Mapping[str, Sequence[Mapping[str, float]]], *, compared: str = "method", ranked: bool = True
) -> str:
    """Return a table with one row per method: mean, least and greatest value of each score over the method's runs.

    Args:
        runs: the scores of each run, by method.
        compared: heading of the column of method names.
        ranked: order the methods by the mean of their first score, the highest first.
    """
    names = list(next(iter(runs.values()))[0])
    methods = list(runs.items())
    if ranked:
        methods.sort(key=lambda item: -mean(scores[names[0]] for scores in item[1]))
    rows = [[compared, "seeds", *names], ["---"] * (len(names) + 2)]
    for method, of_seeds in methods:
        cells = [spread([scores[name] for scores in of_seeds]) for name in names]
        rows.append([method, str(len(of_seeds)), *cells])
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def spread(values: Sequence[float]) -> str:
    return f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})"


def write_table(table: str, path: Path) -> None:
    path.write_text(table, encoding="utf-8")
    print(f"\n{table}\nwrote {path}", flush=True)


def s2sft(*words: object) -> None:
    """Run a command of ``s2sft`` in this process; end the process if it fails."""
    print("$ s2sft", *words, flush=True)
    if status := cli.main([str(word) for word in words]):
        sys.exit(status)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the arguments before and after the first ``--``."""
    place = words.index("--") if "--" in words else len(words)
    return list(words[:place]), list(words[place + 1 :])


def main() -> None:
    own, of_recipe = split(sys.argv[1:])
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("task", choices=GENERATION, help="the name of a recipe")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR", help="output folder of the recipe")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="(default: 1 2)")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS), help="(default: all)")
    options = parser.parse_args(own)

    runs: dict[str, list[dict[str, float]]] = {method: [] for method in options.methods}
    # Seeds in the outer loop: a comparison that is stopped has about the same number of runs of each method.
    for seed in options.seeds:
        for method in options.methods:
            run = f"{method}-seed{seed}"
            words = ("--output", options.output, "--run", run, "--method", method, "--seed", seed)
            s2sft("recipe", options.task, *words, *of_recipe)
            runs[method].append(newest_scores(options.output / run))
    write_table(as_table(runs), options.output / "comparison.md")


if __name__ == "__main__":
    main()
