"""DeltaLM from three starts on the same pairs: random weights, a random encoder, pre-training by span corruption.

    python scripts/deltalm_starts.py --raw multi30k --output out

`--raw` is the folder of Multi30k's raw files. A SentencePiece model is trained on the training pairs. "random" is the
model's own initialization; "encoder" an XLM-R-like encoder of random weights, from which encoder and decoder begin;
"pre-trained" that encoder after span corruption of both sides and translation span corruption, on the same pairs. Each
is fine-tuned with equally many updates for each seed; the last checkpoint and the average of the last five are scored
by sacreBLEU. What is done is not done again; the table is written to OUT/starts.md.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from statistics import mean

import torch
from compare_methods import read_scores
from sentencepiece import SentencePieceTrainer
from torch import nn

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes
from s2sft_fairseq.objectives.span_corruption import SENTINEL

ROOT = Path(__file__).resolve().parents[1]
STARTS = ("random", "encoder", "pre-trained")
SENTINELS = 30
POSITIONS = 128
MODEL = {"encoder_layers": 4, "encoder_embed_dim": 128, "encoder_ffn_embed_dim": 512, "encoder_attention_heads": 2}
OPTIMIZATION = ("--optimizer", "fused_adamw", "--adam-betas", "(0.9, 0.98)", "--clip-norm", "1.0", "--dropout", "0.1")
SAVING = ("--keep-interval-updates", 5, "--validate-interval", 10**6, "--save-interval", 10**6)


class Experiment:
    """Its stages, each of which makes a file or a folder."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options, self.output = options, options.output.resolve()

    def run(self) -> None:
        """Do what is not done yet, and write the table."""
        for name, work in (
            ("corpus", self.corpus),
            ("tokenizer", self.tokenizer),
            ("tokens", self.tokens),
            ("data", self.binarize),
            ("encoder", self.encoder),
            ("deltalm", self.pretrain),
        ):
            self.stage(self.output / name, work)
        rows = ["| start | seeds | last checkpoint | average of the last five |\n", "| --- | --- | --- | --- |\n"]
        for start in STARTS:
            for seed in self.options.seeds:
                folder = self.output / f"{start}-seed{seed}"
                self.stage(folder, lambda made, start=start, seed=seed: self.fine_tune(made, start, seed))
                for name in ("last", "average"):
                    self.stage(folder / f"{name}.json", lambda made, folder=folder, name=name: self.score(made, name))
            runs = [self.output / f"{start}-seed{seed}" for seed in self.options.seeds]
            found = [[read_scores(run / f"{name}.json")["BLEU"] for run in runs] for name in ("last", "average")]
            cells = [f"{mean(values):.2f} ({min(values):.2f} to {max(values):.2f})" for values in found]
            rows.append(f"| {start} | {len(runs)} | {' | '.join(cells)} |\n")
        (self.output / "starts.md").write_text("".join(rows), encoding="utf-8")
        print(f"\n{''.join(rows)}\nwrote {self.output / 'starts.md'}", flush=True)

    def stage(self, made: Path, work: Callable[[Path], None]) -> None:
        """Make a file or folder under another name first, unless it is there."""
        if made.exists():
            print(f"{made}: done before", flush=True)
            return
        print(f"{made} ...", flush=True)
        partial = made.with_name(f"{made.name}.partial")
        partial.parent.mkdir(parents=True, exist_ok=True)
        work(partial)
        partial.rename(made)

    def python(self, *words: object) -> None:
        """Run Python with these words, measured; ends the process if it fails."""
        measured = [sys.executable, ROOT / "scripts" / "recipes" / "measured.py", self.output / "commands.jsonl"]
        if status := subprocess.run([*map(str, [*measured, sys.executable, *words])], cwd=ROOT).returncode:
            sys.exit(status)

    def s2sft(self, *words: object) -> None:
        self.python("-m", "s2sft_fairseq", *words)

    def corpus(self, made: Path) -> None:
        self.python(ROOT / "preprocess" / "multi30k.py", "--raw", self.options.raw.resolve(), "--output", made)

    def tokenizer(self, made: Path) -> None:
        made.mkdir(exist_ok=True)
        corpus = self.output / "corpus"
        SentencePieceTrainer.train(
            input=[str(corpus / "train.src"), str(corpus / "train.tgt")],
            model_prefix=str(made / "sentencepiece.bpe"),
            vocab_size=self.options.vocab,
            minloglevel=2,
        )

    def tokens(self, made: Path) -> None:
        files = [self.output / "corpus" / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")]
        words = ("--tokenizer-dir", self.output / "tokenizer", "--output-dir", made, "--dict", made / "dict.txt")
        shutil.rmtree(made, ignore_errors=True)
        made.mkdir()
        self.s2sft("tokenize", "--input", *files, *words)
        with (made / "dict.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{SENTINEL.format(number)} 1\n" for number in range(SENTINELS))

    def binarize(self, made: Path) -> None:
        """Pairs, and each side as plain text: one document, which is cut into blocks."""
        tokens = self.output / "tokens"
        shutil.rmtree(made, ignore_errors=True)
        common = ("--srcdict", tokens / "dict.txt", "--workers", 1)
        sets = ("--trainpref", tokens / "train", "--validpref", tokens / "valid")
        self.s2sft("preprocess", "-s", "src", "-t", "tgt", "--joined-dictionary", *sets, *common, "--destdir", made)
        for side in ("src", "tgt"):
            sets = ("--trainpref", tokens / f"train.{side}", "--validpref", tokens / f"valid.{side}")
            self.s2sft("preprocess", "--only-source", *sets, *common, "--destdir", made / side)

    def encoder(self, made: Path) -> None:
        """Random weights, drawn as fairseq's Transformer draws them, with the files of the tokenizer.

        XLM-R begins with a standard deviation of 0.02 whatever the width; at this one what comes of the source would be
        too small to be learnt from in so few updates.
        """
        torch.manual_seed(1)
        dictionary = self.output / "tokens" / "dict.txt"
        cfg = UnilmConfig(**MODEL, max_positions=POSITIONS, num_segments=0)
        complete_sizes(cfg)
        model = UnilmModel(cfg, vocab_size=len(dictionary.read_text(encoding="utf-8").splitlines()), pad=1)
        for name, value in model.named_parameters():
            if name.startswith("embeddings.") and value.dim() == 2:
                nn.init.normal_(value, std=cfg.encoder_embed_dim**-0.5)
            elif value.dim() == 2:
                nn.init.xavier_uniform_(value)
        sizes = {name: getattr(cfg, name) for name in SIZES}
        write_pretrained(made, Conversion("XLM-R", model.state_dict(), sizes))
        shutil.copy(dictionary, made)
        shutil.copy(self.output / "tokenizer" / "sentencepiece.bpe.model", made)

    def train(self, made: Path, updates: int, *words: object) -> None:
        """Train; a training that was stopped goes on."""
        every = max(1, updates // 20)
        self.s2sft(
            *("train", self.output / "data", *words, *OPTIMIZATION, "--max-tokens", self.options.max_tokens),
            *("--lr-scheduler", "polynomial_decay", "--warmup-updates", updates // 10, "--max-update", updates),
            *("--validate-interval-updates", every, "--save-interval-updates", every, *SAVING, "--save-dir", made),
            *("--log-interval", max(1, updates // 100), "--no-progress-bar", "--cpu", "--num-workers", 0),
        )

    def pretrain(self, made: Path) -> None:
        words = ("--task", "deltalm_pretraining", "--arch", "deltalm", "--pretrained", self.output / "encoder")
        data = ("--text-languages", "src,tgt", "--lang-pairs", "src-tgt", "--tokens-per-sample", 100)
        constant = ("--temperature", 1, "--lr", self.options.pretraining_lr)
        self.train(made, self.options.pretraining_updates, *words, *data, *constant)

    def fine_tune(self, made: Path, start: str, seed: int) -> None:
        sizes = [word for name, value in MODEL.items() for word in (f"--{name.replace('_', '-')}", value)]
        begin = {
            "random": ("--arch", "deltalm_tiny", "--random-init", *sizes, "--max-positions", POSITIONS),
            "encoder": ("--arch", "deltalm", "--pretrained", self.output / "encoder"),
            "pre-trained": ("--arch", "deltalm", "--pretrained", self.output / "deltalm" / "checkpoint_last.pt"),
        }[start]
        loss = ("--criterion", "label_smoothed_cross_entropy", "--label-smoothing", "0.1")
        self.train(made, self.options.updates, *begin, *loss, "--lr", self.options.lr, "--seed", seed)

    def score(self, made: Path, name: str) -> None:
        """Translate the test set of 2016 with the last checkpoint of a run, or the average of its last five."""
        run, corpus = made.parent, self.output / "corpus"
        checkpoint, found = run / f"checkpoint_{name}.pt", run / f"{name}.out"
        if not checkpoint.exists():
            self.python(ROOT / "scripts" / "average_checkpoints.py", run, "--last", 5, "--output", checkpoint)
        words = ("--path", checkpoint, "--tokenizer-dir", self.output / "encoder", "--beam", 5, "--cpu")
        if not found.exists():
            self.s2sft("generate", *words, "--input", corpus / "test.src", "--output", found, "--no-progress-bar")
        self.s2sft("evaluate", "--task", "bleu", "--hyp", found, "--ref", corpus / "test.refs.jsonl", "--json", made)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--raw", type=Path, required=True, metavar="DIR", help="Multi30k's raw files")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--vocab", type=int, default=4000, metavar="N", help="pieces (default: 4000)")
    parser.add_argument("--max-tokens", type=int, default=2048, metavar="N", help="of a batch (default: 2048)")
    parser.add_argument("--lr", default="2e-3", metavar="X", help="of fine-tuning (default: 2e-3)")
    parser.add_argument("--pretraining-lr", default="5e-4", metavar="X", help="(default: 5e-4)")
    parser.add_argument("--pretraining-updates", type=int, default=1000, metavar="N", help="(default: 1000)")
    parser.add_argument("--updates", type=int, default=600, metavar="N", help="of fine-tuning (default: 600)")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2], metavar="N", help="(default: 1 2)")
    options = parser.parse_args()
    if not options.raw.is_dir():
        parser.error(f"--raw must be a folder, but {options.raw} is none")
    # Other settings would be mixed with what is there: they are noted beside it.
    options.output.mkdir(parents=True, exist_ok=True)
    file = options.output / "settings.json"
    settings = {name: str(value) for name, value in vars(options).items() if name not in ("output", "seeds")}
    if file.exists() and json.loads(file.read_text(encoding="utf-8")) != settings:
        parser.error(f"{options.output} holds files of other settings ({file}); name another folder, or remove it")
    file.write_text(json.dumps(settings, indent=1), encoding="utf-8")
    Experiment(options).run()


if __name__ == "__main__":
    main()
