"""Compare the fine-tuning methods on a benchmark: from the same start, with equally many updates, with several seeds.

    python scripts/compare_methods.py squad_qg --output out --seeds 1 2 -- --raw squad --encoder bert --updates 1000

What stands behind ``--`` are options of the recipe (docs/recipes.md), which is run for each method and seed; what is
done is not done again. The table, methods in the order of their mean first score, is written to OUT/comparison.md.
"""

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import mean

from s2sft_fairseq import cli
from s2sft_fairseq.recipes.benchmarks import GENERATION

METHODS = ("causal", "masked", "pseudo_masked", "infilling")


def read_scores(path: Path) -> dict[str, float]:
    """Return the scores of one run by their names, from what ``s2sft evaluate --json`` wrote."""
    system, *_ = json.loads(path.read_text(encoding="utf-8"))["systems"].values()  # and maybe a baseline
    return {score["name"]: score["value"] for score in system["scores"]}


def newest_scores(folder: Path, pattern: str = "*.json") -> dict[str, float]:
    """Return the scores of a run; the newest, where several sets were scored."""
    return read_scores(max(folder.glob(pattern), key=lambda path: path.stat().st_mtime))


def as_table(
    runs: Mapping[str, Sequence[Mapping[str, float]]], *, compared: str = "method", ranked: bool = True
) -> str:
    """Return a row a method: the mean of each score over the runs of the method, and the least and the greatest.

    Args:
        runs: the scores of each run of each method.
        compared: head of the column of their names.
        ranked: order the methods by the mean of their first score, the best first.
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
    """Run a command of ``s2sft`` in this process; ends the process if it fails."""
    print("$ s2sft", *words, flush=True)
    if status := cli.main([str(word) for word in words]):
        sys.exit(status)


def split(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the words before and behind the first ``--``."""
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
    # Seed after seed, so that a comparison that is stopped has as many runs of each method as it can.
    for seed in options.seeds:
        for method in options.methods:
            run = f"{method}-seed{seed}"
            words = ("--output", options.output, "--run", run, "--method", method, "--seed", seed)
            s2sft("recipe", options.task, *words, *of_recipe)
            runs[method].append(newest_scores(options.output / run))
    write_table(as_table(runs), options.output / "comparison.md")


if __name__ == "__main__":
    main()
