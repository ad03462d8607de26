"""UniLMv2's objectives one by one, on real text: pre-train a small model with each, fine-tune all on the same tasks.

    python scripts/unilmv2_ablation.py --text books --encoder minilm --output out \\
        --raw sst-2=glue cola=glue squad=squad squad_qg=squad

`--text` is a folder with train.txt and valid.txt, a paragraph a line and an empty line behind each document. A model is
pre-trained with each objective of Table 6, with equally many updates; it begins with `--encoder`, or, with
`--tokenizer-dir`, with random weights. Each is fine-tuned on each task with each seed, with equally many updates
again. What is done is not done again; the table of a task, with the spread over the seeds, is written to OUT/TASK.md.
Options of the recipes, the same for all tasks of a command, stand behind ``--``.
"""

import argparse
from pathlib import Path

from ablation import ROOT, add_options, parse, pretrain, run
from compare_methods import as_table, read_scores

OBJECTIVES = ("ae", "ar", "par", "ae+ar", "ae+par")
RECIPES = {"squad": ("squad",), "squad_qg": ("squad_qg", "--method", "pseudo_masked")}
"""Recipe of a task and its options; every other task is one of GLUE."""


def fine_tune(task: str, raw: Path, encoder: Path, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Fine-tune and score; returns the scores by their names."""
    name, *words = RECIPES.get(task, ("glue", "--glue-task", task))
    folder = options.output.resolve() / task / encoder.parent.name
    settings = ("--raw", raw.resolve(), "--output", folder, "--encoder", encoder, "--run", f"seed{seed}")
    counts = ("--seed", seed, "--updates", options.updates)
    recipe = ROOT / "scripts" / "recipes" / f"{name}.sh"
    run(["bash", recipe, *settings, *counts, *words, *options.of_recipe])
    # The newest, where several sets were scored.
    scored = max((folder / f"seed{seed}").glob("*.json"), key=lambda path: path.stat().st_mtime)
    return read_scores(scored)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES), help="(default: all)")
    options = parse(parser)

    encoders = {
        objective: pretrain(
            "unilmv2-base", objective.replace("+", "-"), options, further=("--language-model", objective)
        )
        for objective in options.objectives
    }
    for task, raw in options.tasks:
        found = {
            objective: [fine_tune(task, raw, encoder, seed, options) for seed in options.seeds]
            for objective, encoder in encoders.items()
        }
        table = as_table(found, compared="objective", ranked=False)
        path = options.output.resolve() / f"{task}.md"
        path.write_text(table, encoding="utf-8")
        print(f"\n{table}\nwrote {path}", flush=True)


if __name__ == "__main__":
    main()
