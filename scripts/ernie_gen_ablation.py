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

from ablation import add_options, parse, pretrain
from compare_methods import as_table, newest_scores, s2sft, write_table

from s2sft_fairseq.recipes.benchmarks import GENERATION

# Name of the row, the pre-training that it starts from, method, whether noise is added.
ROWS = (
    ("causal", "word", "causal", False),
    ("pseudo-masked", "word", "pseudo_masked", False),
    ("infilling", "word", "infilling", False),
    ("infilling, noise", "word", "infilling", True),
    ("infilling, noise, span pre-training", "span", "infilling", True),
)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--noise-prob", default="0.5", metavar="X", help="of the rows with noise (default: 0.5)")
    options = parse(parser, list(GENERATION))

    encoders = {
        "word": pretrain("ernie-gen-base", "word", options, "--word-flow-only"),
        "span": pretrain("ernie-gen-base", "span", options),
    }
    for task, raw in options.tasks:
        found: dict[str, list[dict[str, float]]] = {name: [] for name, *_ in ROWS}
        for seed in options.seeds:
            for name, flow, method, noise in ROWS:
                folder, run_name = options.output / f"{task}-{flow}", f"{method}{'-noise' * noise}-seed{seed}"
                settings = ("--method", method, "--seed", seed, "--updates", options.updates, "--run", run_name)
                if method == "infilling":  # the presets of some recipes have noise of their own
                    settings += ("--noise-prob", options.noise_prob if noise else 0, "--noise-symbol", "")
                files = ("--raw", raw, "--output", folder, "--encoder", encoders[flow])
                s2sft("recipe", task, *files, *settings, *options.of_recipe)
                found[name].append(newest_scores(folder / run_name))
        write_table(as_table(found, ranked=False), options.output / f"{task}.md")


if __name__ == "__main__":
    main()
