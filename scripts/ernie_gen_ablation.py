"""Ablation of ERNIE-GEN's parts on real text: pre-train a small model, fine-tune it on tasks, compare.

    python scripts/ernie_gen_ablation.py --text books --encoder minilm --raw gigaword=DIR e2e=DIR --output out

`--text` is a folder with train.txt and valid.txt: one paragraph per line, and an empty line after each document. Two
models are pre-trained with the same number of updates: one with the word-by-word flow only, one with the span-by-span
flow too. They begin with `--encoder`, or with random weights if `--tokenizer-dir` is given. The first model is
fine-tuned with the causal, pseudo-masked and infilling objectives, infilling with and without noise; the second model
with infilling and noise. All fine-tunings have the same number of updates for each seed. Stages that are done are not
repeated; the table of a task is written to OUT/TASK.md. Options after ``--`` go to all recipes.
"""

import argparse

from ablation import add_options, parse, pretrain
from compare_methods import as_table, newest_scores, s2sft, write_table

from s2sft_fairseq.recipes.benchmarks import GENERATION

# Name of the row, pre-training that it starts from, method, whether noise is added.
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
                if method == "infilling":  # presets of some recipes set their own noise
                    settings += ("--noise-prob", options.noise_prob if noise else 0, "--noise-symbol", "")
                files = ("--raw", raw, "--output", folder, "--encoder", encoders[flow])
                s2sft("recipe", task, *files, *settings, *options.of_recipe)
                found[name].append(newest_scores(folder / run_name))
        write_table(as_table(found, ranked=False), options.output / f"{task}.md")


if __name__ == "__main__":
    main()
