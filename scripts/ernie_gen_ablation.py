"""ERNIE-GEN's parts one by one, on real text: pre-train a tiny model, fine-tune it on two tasks, compare.

    python scripts/ernie_gen_ablation.py --text books --tokenizer-dir vocab --raw gigaword=DIR e2e=DIR --output out

`--text` is a folder with train.txt and valid.txt, a paragraph a line and an empty line behind each document. Two models
of `--arch` are pre-trained with equally many updates, word by word alone and span by span too. From the first causal,
pseudo-masked and infilling fine-tuning begin, the last one with and without noise; from the second infilling with
noise. Every training has the same number of updates for each seed. What is done is not done again; the table is written
to OUT/TASK.md. Options of the recipes, the same for all, stand behind ``--``.
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


def s2sft(*words: object) -> None:
    """Run a command of ours; ends the process if it fails."""
    run([sys.executable, "-m", "s2sft_fairseq", *words])


def run(command: Sequence[object]) -> None:
    print("$", *command, flush=True)
    if status := subprocess.run([str(word) for word in command], cwd=ROOT).returncode:
        sys.exit(status)


def prepare(text: Path, tokenizer: Path, folder: Path) -> None:
    """Tokenize and binarize the text, and find the spans."""
    if (folder / "spans.txt").exists():
        return
    words = ("--tokenizer-dir", tokenizer, "--output-dir", folder / "tokens", "--dict", folder / "dict.txt")
    s2sft("tokenize", "--input", text / "train.txt", text / "valid.txt", *words)
    train, valid = folder / "tokens" / "train.txt", folder / "tokens" / "valid.txt"
    options = ("--only-source", "--srcdict", folder / "dict.txt", "--destdir", folder / "data")
    s2sft("preprocess", "--trainpref", train, "--validpref", valid, *options)
    s2sft("span-vocab", "--input", train, "--tokenizer-dir", tokenizer, "--output", folder / "spans.txt")


def pretrain(flow: str, options: argparse.Namespace, tokenizer: Path, folder: Path) -> Path:
    """Pre-train with one or two flows; returns the folder of the encoder."""
    encoder = folder / f"{flow}-encoder"
    if encoder.exists():
        return encoder
    spans = ("--span-vocab", folder / "spans.txt") if flow == "span" else ()
    updates, saved = options.pretraining_updates, folder / f"{flow}-checkpoints"
    schedule = ("--lr-scheduler", "polynomial_decay", "--warmup-updates", updates // 10, "--max-update", updates)
    saving = ("--save-interval-updates", max(1, updates // 10), "--keep-interval-updates", 1, "--no-epoch-checkpoints")
    held_out = ("--validate-interval-updates", max(1, updates // 10), "--validate-interval", 1000000)
    log = ("--log-format", "json", "--log-file", folder / f"{flow}.log", "--log-interval", max(1, updates // 100))
    words = ("--arch", options.arch, "--max-positions", 512, "--lr", options.pretraining_lr, "--max-tokens", 8192)
    others = ("--dropout", 0.1, "--attention-dropout", 0, "--seed", 1, "--cpu", "--num-workers", 0)
    s2sft("train", folder / "data", "--task", "ernie_gen_pretraining", *words, *schedule, *saving, *held_out, *log,
          *others, *spans, "--save-dir", saved)  # fmt: skip
    export = ("--tokenizer-dir", tokenizer, "--to", f"{encoder}.partial")
    s2sft("export", saved / "checkpoint_last.pt", *export)
    Path(f"{encoder}.partial").rename(encoder)
    return encoder


def main() -> None:
    words = sys.argv[1:]
    place = words.index("--") if "--" in words else len(words)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="DIR", help="for pre-training")
    parser.add_argument("--tokenizer-dir", type=Path, required=True, metavar="DIR", help="such as BERT's vocab.txt")
    parser.add_argument("--raw", nargs="+", required=True, metavar="TASK=DIR", help="recipes and their raw files")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--arch", default="unilm_tiny", help="(default: unilm_tiny)")
    parser.add_argument("--pretraining-updates", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument("--pretraining-lr", default="1e-3", metavar="X", help="(default: 1e-3)")
    parser.add_argument("--updates", type=int, default=600, metavar="N", help="of fine-tuning (default: 600)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="(default: 1 2)")
    parser.add_argument("--noise-prob", default="0.5", metavar="X", help="of the rows with noise (default: 0.5)")
    options = parser.parse_args(words[:place])
    of_recipe = words[place + 1 :]
    if wrong := [text for text in options.raw if "=" not in text]:
        parser.error(f"--raw must be TASK=DIR, but is {', '.join(wrong)}")

    output, tokenizer = options.output.resolve(), options.tokenizer_dir.resolve()
    prepare(options.text.resolve(), tokenizer, output / "text")
    encoders = {flow: pretrain(flow, options, tokenizer, output / "text") for flow in ("word", "span")}
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
