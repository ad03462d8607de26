"""ERNIE-GEN's parts one by one, on real text: pre-train a small model, fine-tune it on two tasks, compare.

    python scripts/ernie_gen_ablation.py --text books --encoder minilm --raw gigaword=DIR e2e=DIR --output out

`--text` is a folder with train.txt and valid.txt, a paragraph a line and an empty line behind each document. Two models
are pre-trained with equally many updates, word by word alone and span by span too; they begin with `--encoder`, or,
with `--tokenizer-dir`, with random weights. From the first causal, pseudo-masked and infilling fine-tuning begin, the
last one with and without noise; from the second infilling with noise. Every training has the same number of updates for
each seed. What is done is not done again; the table is written to OUT/TASK.md. Options of the recipes, the same for
all, stand behind ``--``.
"""

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from compare_methods import as_table, read_scores

ROOT = Path(__file__).resolve().parents[1]
# Name of the row, the pre-training that it starts from, method, whether noise is added.
ROWS = (
    ("causal", "word", "causal", False),
    ("pseudo-masked", "word", "pseudo_masked", False),
    ("infilling", "word", "infilling", False),
    ("infilling, noise", "word", "infilling", True),
    ("infilling, noise, span pre-training", "span", "infilling", True),
)


def run(command: Sequence[object]) -> None:
    print("$", *command, flush=True)
    if status := subprocess.run([str(word) for word in command], cwd=ROOT).returncode:
        sys.exit(status)


def pretrain(flow: str, options: argparse.Namespace) -> Path:
    """Pre-train with one or two flows; returns the folder of the encoder."""
    output = options.output.resolve() / "text"
    if options.encoder:
        begin, further = ("--encoder", options.encoder.resolve()), ()
    else:
        begin, further = ("--tokenizer-dir", options.tokenizer_dir.resolve()), ("--arch", options.arch)
    words = ["--text", options.text.resolve(), *begin, "--output", output]
    words += ["--run", flow, "--updates", options.pretraining_updates, "--device-tokens", options.pretraining_tokens]
    words += ["--word-flow-only"] * (flow == "word")
    further += ("--lr", options.pretraining_lr, "--update-freq", 1, "--attention-dropout", 0)
    further += ("--cpu", "--num-workers", 0)
    run([sys.executable, ROOT / "scripts" / "pretrain.py", "ernie-gen-base", *words, "--", *further])
    return output / flow / "encoder"


def main() -> None:
    words = sys.argv[1:]
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR", help="for pre-training")
    start = parser.add_mutually_exclusive_group(required=True)
    start.add_argument("--encoder", type=Path, metavar="DIR", help="pre-training begins with it")
    start.add_argument("--tokenizer-dir", type=Path, metavar="DIR", help="such as BERT's vocab.txt: random weights")
    parser.add_argument("--raw", nargs="+", required=True, metavar="TASK=DIR", help="recipes and their raw files")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--arch", default="unilm_tiny", help="of random weights (default: unilm_tiny)")
    parser.add_argument("--pretraining-updates", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument(
        "--pretraining-tokens", type=int, default=8192, metavar="N", help="positions of an update (default: 8192)"
    )
    parser.add_argument("--pretraining-lr", default="1e-3", metavar="X", help="(default: 1e-3)")
    parser.add_argument("--updates", type=int, default=600, metavar="N", help="of fine-tuning (default: 600)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="(default: 1 2)")
    parser.add_argument("--noise-prob", default="0.5", metavar="X", help="of the rows with noise (default: 0.5)")
    options = parser.parse_args(words[:place])
    of_recipe = words[place + 1 :]
    if wrong := [text for text in options.raw if "=" not in text]:
        parser.error(f"--raw must be TASK=DIR, but is {', '.join(wrong)}")

    output = options.output.resolve()
    encoders = {flow: pretrain(flow, options) for flow in ("word", "span")}
    for task, _, raw in (text.partition("=") for text in options.raw):
        found: dict[str, list[dict[str, float]]] = {name: [] for name, *_ in ROWS}
        for seed in options.seeds:
            for name, flow, method, noise in ROWS:
                folder, run_name = output / f"{task}-{flow}", f"{method}{'-noise' * noise}-seed{seed}"
                settings = ("--method", method, "--seed", seed, "--updates", options.updates, "--run", run_name)
                further = ("--noise-prob", options.noise_prob) if noise else ()
                run(["bash", ROOT / "scripts" / "recipes" / f"{task}.sh", "--raw", Path(raw).resolve(), "--output",
                     folder, "--encoder", encoders[flow], *settings, *of_recipe, "--", *further])  # fmt: skip
                (scores,) = (folder / run_name).glob("*.json")
                found[name].append(read_scores(scores))
        table = as_table(found, ranked=False)
        (output / f"{task}.md").write_text(table, encoding="utf-8")
        print(f"\n{table}\nwrote {output / f'{task}.md'}", flush=True)


if __name__ == "__main__":
    main()
