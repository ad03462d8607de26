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
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import mean

from compare_methods import read_scores

ROOT = Path(__file__).resolve().parents[1]
OBJECTIVES = ("ae", "ar", "par", "ae+ar", "ae+par")
RECIPES = {"squad": ("squad",), "squad_qg": ("squad_qg", "--method", "pseudo_masked")}
"""Recipe of a task and its options; every other task is one of GLUE."""


def run(command: Sequence[object]) -> None:
    """Run a command; ends the process if it fails."""
    print("$", *command, flush=True)
    if status := subprocess.run([str(word) for word in command], cwd=ROOT).returncode:
        sys.exit(status)


def pretrain(objective: str, options: argparse.Namespace) -> Path:
    """Pre-train with an objective; returns the folder of the encoder."""
    output, name = options.output.resolve() / "text", objective.replace("+", "-")
    if options.encoder:
        begin, further = ("--encoder", options.encoder.resolve()), ()
    else:
        begin, further = ("--tokenizer-dir", options.tokenizer_dir.resolve()), ("--arch", options.arch)
    words = ["--text", options.text.resolve(), *begin, "--output", output]
    words += ["--run", name, "--updates", options.pretraining_updates, "--device-tokens", options.pretraining_tokens]
    further += ("--language-model", objective, "--lr", options.pretraining_lr)
    further += ("--update-freq", 1, "--attention-dropout", 0, "--cpu", "--num-workers", 0)
    run([sys.executable, ROOT / "scripts" / "pretrain.py", "unilmv2-base", *words, "--", *further])
    return output / name / "encoder"


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
    words = sys.argv[1:]
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR", help="for pre-training")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--encoder", type=Path, metavar="DIR", help="pre-training begins with it")
    start.add_argument("--tokenizer-dir", type=Path, metavar="DIR", help="such as BERT's vocab.txt: random weights")
    parser.add_argument("--raw", nargs="+", required=True, metavar="TASK=DIR", help="tasks and their raw files")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--objectives", nargs="+", choices=OBJECTIVES, default=list(OBJECTIVES), help="(default: all)")
    parser.add_argument("--arch", default="unilm_tiny", help="of random weights (default: unilm_tiny)")
    parser.add_argument("--pretraining-updates", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument(
        "--pretraining-tokens", type=int, default=8192, metavar="N", help="positions of an update (default: 8192)"
    )
    parser.add_argument("--pretraining-lr", default="1e-3", metavar="X", help="(default: 1e-3)")
    parser.add_argument("--updates", type=int, default=600, metavar="N", help="of fine-tuning (default: 600)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="(default: 1 2)")
    options = parser.parse_args(words[:place])
    options.of_recipe = words[place + 1 :]
    if wrong := [text for text in options.raw if "=" not in text]:
        parser.error(f"--raw must be TASK=DIR, but is {', '.join(wrong)}")

    tasks = [(task, Path(raw)) for task, _, raw in (text.partition("=") for text in options.raw)]
    head, rows = ["objective"], []
    for objective in options.objectives:
        encoder = pretrain(objective, options)
        cells = [objective]
        for task, raw in tasks:
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
