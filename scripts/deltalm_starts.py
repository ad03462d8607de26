"""Train DeltaLM from three starts on the same pairs: random weights, a random encoder, span corruption.

    python scripts/deltalm_starts.py --raw multi30k --output out

`--raw` is the folder of Multi30k's raw files. A SentencePiece model is trained on the training pairs. The starts are

* random: the model's own initialization
* encoder: encoder and decoder begin with the weights of a random encoder like XLM-R
* pre-trained: the model of "encoder" after span corruption of both sides, and translation span corruption, on the same
  pairs

Each start is fine-tuned with each seed for the same number of updates. sacreBLEU scores the last checkpoint and the
average of the last five. Stages that are done are not repeated; the table is written to OUT/starts.md.
"""

import argparse
import shutil
import sys
from functools import partial
from pathlib import Path

import torch
from compare_methods import read_scores, spread, write_table
from sentencepiece import SentencePieceTrainer
from torch import nn

from s2sft_fairseq import cli
from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes
from s2sft_fairseq.objectives.span_corruption import SENTINEL
from s2sft_fairseq.recipes.engine import Stages, options
from s2sft_fairseq.recipes.training import NEVER

STARTS = ("random", "encoder", "pre-trained")
SENTINELS = 30
POSITIONS = 128
MODEL = {"encoder_layers": 4, "encoder_embed_dim": 128, "encoder_ffn_embed_dim": 512, "encoder_attention_heads": 2}
OPTIMIZATION = {"optimizer": "fused_adamw", "adam_betas": "(0.9, 0.98)", "clip_norm": "1.0", "dropout": "0.1"}


class Experiment(Stages):
    """The stages of the experiment; each makes a file or a folder."""

    def __init__(self, given: argparse.Namespace) -> None:
        self.given, self.output = given, given.output.resolve()
        super().__init__("starts", self.output / "commands.jsonl", cli.call)

    def run(self) -> None:
        """Run the stages that are not done, and write the table."""
        settings = {name: value for name, value in vars(self.given).items() if name not in ("output", "seeds")}
        self.pin(self.output / "settings.json", ["corpus"], **settings)
        for name, work in (
            ("corpus", lambda made: self.s2sft("prepare", "multi30k", raw=self.given.raw.resolve(), output=made)),
            ("tokenizer", self.tokenizer),
            ("tokens", self.tokens),
            ("data", self.binarize),
            ("encoder", self.encoder),
            ("deltalm", self.pretrain),
        ):
            self.stage(self.output / name, name, work)
        rows = ["| start | seeds | last checkpoint | average of the last five |\n", "| --- | --- | --- | --- |\n"]
        for start in STARTS:
            runs = [self.output / f"{start}-seed{seed}" for seed in self.given.seeds]
            for run, seed in zip(runs, self.given.seeds, strict=True):
                self.stage(run, run.name, partial(self.fine_tune, start, seed))
                for name in ("last", "average"):
                    self.stage(run / f"{name}.json", f"score {run.name}", partial(self.score, name))
            found = [[read_scores(run / f"{name}.json")["BLEU"] for run in runs] for name in ("last", "average")]
            rows.append(f"| {start} | {len(runs)} | {' | '.join(map(spread, found))} |\n")
        write_table("".join(rows), self.output / "starts.md")

    def tokenizer(self, made: Path) -> None:
        made.mkdir()
        corpus = self.output / "corpus"
        SentencePieceTrainer.train(
            input=[str(corpus / "train.src"), str(corpus / "train.tgt")],
            model_prefix=str(made / "sentencepiece.bpe"),
            vocab_size=self.given.vocab,
            minloglevel=2,
        )

    def tokens(self, made: Path) -> None:
        files = [self.output / "corpus" / f"{split}.{side}" for split in ("train", "valid") for side in ("src", "tgt")]
        made.mkdir()
        named = {"tokenizer_dir": self.output / "tokenizer", "output_dir": made, "dict": made / "dict.txt"}
        self.s2sft("tokenize", input=files, **named)
        with (made / "dict.txt").open("a", encoding="utf-8") as file:
            file.writelines(f"{SENTINEL.format(number)} 1\n" for number in range(SENTINELS))

    def binarize(self, made: Path) -> None:
        """Binarize the pairs, and each side as plain text: one document, which is cut into samples."""
        tokens = self.output / "tokens"
        common = {"srcdict": tokens / "dict.txt", "workers": 1}
        sides = ("-s", "src", "-t", "tgt", "--joined-dictionary")
        self.s2sft("preprocess", *sides, trainpref=tokens / "train", validpref=tokens / "valid", destdir=made, **common)
        for side in ("src", "tgt"):
            sets = {"trainpref": tokens / f"train.{side}", "validpref": tokens / f"valid.{side}"}
            self.s2sft("preprocess", "--only-source", destdir=made / side, **sets, **common)

    def encoder(self, made: Path) -> None:
        """Write an encoder of random weights, initialized like fairseq's Transformer, with the files of the tokenizer.

        XLM-R begins with a standard deviation of 0.02 at any width. At this width, the signal from the source would be
        too small to learn from it in this number of updates.
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

    def train_saved(self, made: Path, updates: int, *words: str, **named: object) -> None:
        """Train; resume a training that was stopped."""
        every, saved = max(1, updates // 20), made.with_suffix(".training")
        interval = {"validate_interval_updates": every, "save_interval_updates": every, "keep_interval_updates": 5}
        schedule = {"lr_scheduler": "polynomial_decay", "warmup_updates": updates // 10, "max_update": updates}
        run = {"log_interval": max(1, updates // 100), "no_progress_bar": True, "cpu": True, "num_workers": 0}
        epochs = {"validate_interval": NEVER, "save_interval": NEVER, "save_dir": saved}
        common = OPTIMIZATION | schedule | interval | epochs | run
        self.s2sft("train", self.output / "data", *words, max_tokens=self.given.max_tokens, **common, **named)
        saved.rename(made)

    def pretrain(self, made: Path) -> None:
        model = options(task="deltalm_pretraining", arch="deltalm", pretrained=self.output / "encoder")
        data = options(text_languages="src,tgt", lang_pairs="src-tgt", tokens_per_sample=100)
        named = {"temperature": 1, "lr": self.given.pretraining_lr}
        self.train_saved(made, self.given.pretraining_updates, *model, *data, **named)

    def fine_tune(self, start: str, seed: int, made: Path) -> None:
        begin = {
            "random": {"arch": "deltalm_tiny", "random_init": True, **MODEL, "max_positions": POSITIONS},
            "encoder": {"arch": "deltalm", "pretrained": self.output / "encoder"},
            "pre-trained": {"arch": "deltalm", "pretrained": self.output / "deltalm" / "checkpoint_last.pt"},
        }[start]
        loss = {"criterion": "label_smoothed_cross_entropy", "label_smoothing": "0.1"}
        self.train_saved(made, self.given.updates, **begin, **loss, lr=self.given.lr, seed=seed)

    def score(self, name: str, made: Path) -> None:
        """Translate the 2016 test set with the last checkpoint of a run, or the average of its last five, and score."""
        run, corpus = made.parent, self.output / "corpus"
        checkpoint, found = run / f"checkpoint_{name}.pt", run / f"{name}.out"
        if not checkpoint.exists():
            self.s2sft("average", run, last=5, output=checkpoint)
        if not found.exists():
            named = {"path": checkpoint, "tokenizer_dir": self.output / "encoder", "beam": 5, "cpu": True}
            self.s2sft("generate", **named, input=corpus / "test.src", output=found)
        self.s2sft("evaluate", task="bleu", hyp=found, ref=corpus / "test.refs.jsonl", json=made)


def main() -> int:
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
    given = parser.parse_args()
    if not given.raw.is_dir():
        parser.error(f"--raw must be a folder, but {given.raw} is not one")
    return cli.guarded("deltalm_starts", Experiment(given).run)


if __name__ == "__main__":
    sys.exit(main())
