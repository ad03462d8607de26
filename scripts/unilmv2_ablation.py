r"""Ablation of UniLMv2's objectives on real text: pre-train a small model with each, fine-tune all on the same tasks.

    python scripts/unilmv2_ablation.py --text books --encoder minilm --output out \
        --raw sst-2=glue cola=glue squad=squad squad_qg=squad

`--text` is a folder with train.txt and valid.txt: one paragraph per line, and an empty line after each document. A
model is pre-trained with each objective of Table 6, for the same number of updates. It begins with `--encoder`, or with
random weights if `--tokenizer-dir` is given. Each model is fine-tuned on each task with each seed, for the same number
of updates. Stages that are done are not repeated. The table of a task, with the spread over the seeds, is written to
OUT/TASK.md. Options after ``--`` go to the recipes of all tasks.
"""

import argparse
from pathlib import Path

from ablation import add_options, parse, pretrain
from compare_methods import as_table, newest_scores, s2sft, write_table

from s2sft_fairseq.corpora.glue import TASKS as GLUE

OBJECTIVES = ("ae", "ar", "par", "ae+ar", "ae+par")
TASKS = {name: ("glue", "--glue-task", name) for name in GLUE}
TASKS |= {"squad": ("squad",), "squad_qg": ("squad_qg", "--method", "pseudo_masked")}
"""Recipe and options of each task."""


def fine_tune(task: str, raw: Path, encoder: Path, seed: int, options: argparse.Namespace) -> dict[str, float]:
    """Fine-tune and score; return the scores by name."""
    name, *words = TASKS[task]
    folder = options.output / task / encoder.parent.name
    settings = ("--raw", raw, "--output", folder, "--encoder", encoder, "--run", f"seed{seed}")
    s2sft("recipe", name, *settings, "--seed", seed, "--updates", options.updates, *words, *options.of_recipe)
    # valid.json: of MNLI's two sets the matched one.
    return newest_scores(folder / f"seed{seed}", "*.json" if name == "squad_qg" else "valid.json")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES), help="(default: all)")
    options = parse(parser, list(TASKS))

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
        write_table(as_table(found, compared="objective", ranked=False), options.output / f"{task}.md")


if __name__ == "__main__":
    main()
