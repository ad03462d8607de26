"""UniLMv2's objectives one by one, on real text: pre-train a small model with each, fine-tune all on the same tasks.

    python scripts/unilmv2_ablation.py --text books --encoder minilm --output out \\
        --raw sst-2=glue cola=glue squad=squad squad_qg=squad

`--text` is a folder with train.txt and valid.txt, a paragraph a line and an empty line behind each document. A model is
pre-trained with each objective of Table 6, with equally many updates; it begins with `--encoder`, or, with
`--tokenizer-dir`, with random weights. Each is fine-tuned on each task with each seed, with equally many updates
again. What is done is not done again; the table, with the spread over the seeds, is written to OUT/ablation.md. Options
of the recipes, the same for all, stand behind ``--``.
"""

import argparse
from pathlib import Path
from statistics import mean

from ablation import ROOT, add_options, parse, pretrain, run
from compare_methods import read_scores

OBJECTIVES = ("ae", "ar", "par", "ae+ar", "ae+par")
RECIPES = {"squad": ("squad",), "squad_qg": ("squad_qg", "--method", "pseudo_masked")}
"""Recipe of a task and its options; every other task is one of GLUE."""


def fine_tune(task: str, raw: Path, encoder: Path, seed: int, options: argparse.Namespace) -> tuple[str, float]:
    """Fine-tune and score; returns the name of the first score, and its value."""
    name, *words = RECIPES.get(task, ("glue", "--glue-task", task))
    folder = options.output.resolve() / task / encoder.parent.name
    settings = ("--raw", raw.resolve(), "--output", folder, "--encoder", encoder, "--run", f"seed{seed}")
    counts = ("--seed", seed, "--updates", options.updates)
    recipe = ROOT / "scripts" / "recipes" / f"{name}.sh"
    run(["bash", recipe, *settings, *counts, *words, *options.of_recipe])
    # The newest, where several sets were scored.
    scored = max((folder / f"seed{seed}").glob("*.json"), key=lambda path: path.stat().st_mtime)
    return next(iter(read_scores(scored).items()))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES), help="(default: all)")
    options = parse(parser)

    head, rows = ["objective"], []
    for objective in options.objectives:
        further = ("--language-model", objective)
        encoder = pretrain("unilmv2-base", objective.replace("+", "-"), options, further=further)
        cells = [objective]
        for task, raw in options.tasks:
            scores = [fine_tune(task, raw, encoder, seed, options) for seed in options.seeds]
            values = [value for _, value in scores]
            cells.append(f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})")
            if not rows:
                head.append(f"{task}, {scores[0][0]}")
        rows.append(cells)
    lines = (head, ["---"] * len(head), *rows)
    table = "".join(f"| {' | '.join(row)} |\n" for row in lines)
    path = options.output.resolve() / "ablation.md"
    path.write_text(table, encoding="utf-8")
    print(f"\n{table}\nwrote {path}", flush=True)


if __name__ == "__main__":
    main()
