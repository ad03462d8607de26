"""BERT2BERT, the EncoderDecoderModel of transformers: the same encoder and data as in the learning curves.

    python scripts/experiments/bert2bert.py --data DATA --encoder MINILM --output out

OUTPUT is that of ``learning_curves.py``, whose texts and pseudo-masked models are compared with: run that first, with
the same number of threads. Encoder and decoder begin with the encoder's weights (Rothe et al., 2020); cross-attention
and the head are new. Batches have 16 pairs, the learning rate is constant after 20 updates of warm-up, and gradients
are clipped at 1, as in the learning curves. The learning rate is the best of three by the loss of held-out pairs after
the most updates, with seed 1. The test sources are written greedily at each budget, and beyond the budgets until the
training has taken as long as the pseudo-masked one.

The hypothesis, written before the first run: BERT2BERT is below pseudo-masked fine-tuning at every budget and after the
same minutes, because its cross-attention, 10 % of its parameters, begins at random.
"""

import argparse
import json
import math
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blocks import source_lines
from intervals import interval
from learning_curves import BUDGETS, TARGETS, Curves, read_curves

from s2sft_fairseq import cli
from s2sft_fairseq.recipes.engine import Stages

LEARNING_RATES = (1e-4, 3e-4, 1e-3)
BATCH, WARMUP, HELD_OUT = 16, 20, 320
SOURCE_POSITIONS = 192


class Bert2Bert:
    """A model in training."""

    def __init__(self, encoder: Path, target_positions: int, lr: float, seed: int) -> None:
        from transformers import AutoTokenizer, EncoderDecoderModel

        warnings.filterwarnings("ignore", "Version v4.12.0 introduces a better way", FutureWarning)
        torch.manual_seed(seed)
        self.tokenizer = AutoTokenizer.from_pretrained(encoder)
        self.model = EncoderDecoderModel.from_encoder_decoder_pretrained(encoder, encoder)
        self.model.config.decoder_start_token_id = self.tokenizer.cls_token_id
        self.model.config.pad_token_id = self.tokenizer.pad_token_id
        self.target_positions = target_positions
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=lr, eps=1e-6, weight_decay=0.01, fused=True)
        self.warmup = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda done: min(1.0, (done + 1) / WARMUP))
        self.updates, self.seconds = 0, 0.0

    def loss(self, pairs: list[tuple[str, str]]) -> torch.Tensor:
        """Return the mean loss of the tokens of some pairs."""
        sources, targets = zip(*pairs, strict=True)
        read = self.encode(sources, SOURCE_POSITIONS)
        labels = self.encode(targets, self.target_positions).input_ids[:, 1:]  # without [CLS], which the decoder reads
        return self.model(**read, labels=labels.masked_fill(labels == self.tokenizer.pad_token_id, -100)).loss

    def encode(self, texts: Any, longest: int) -> Any:
        """Return the padded ids of some texts."""
        return self.tokenizer(list(texts), padding=True, truncation=True, max_length=longest, return_tensors="pt")

    def train(self, batches: Iterator[list[tuple[str, str]]], updates: int, seconds: float = math.inf) -> None:
        """Train up to a number of updates, and no longer than some seconds in all."""
        self.model.train()
        while self.updates < updates and self.seconds < seconds:
            start = time.perf_counter()
            self.loss(next(batches)).backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            self.optimizer.step()
            self.warmup.step()
            self.optimizer.zero_grad()
            self.updates += 1
            self.seconds += time.perf_counter() - start
            if self.updates % 50 == 0:
                print(f"bert2bert: {self.updates} updates, {self.seconds:.0f} s", flush=True)

    @torch.no_grad()
    def held_out_loss(self, pairs: list[tuple[str, str]]) -> float:
        """Return the mean loss of batches of held-out pairs."""
        self.model.eval()
        losses = [self.loss(batch).item() for batch in in_batches(pairs)]
        return sum(losses) / len(losses)

    @torch.no_grad()
    def write(self, sources: list[str]) -> list[str]:
        """Write a text for each source, greedily."""
        self.model.eval()
        written: list[str] = []
        for texts in in_batches(sources):
            read = self.encode(texts, SOURCE_POSITIONS)
            ids = self.model.generate(
                **read,
                num_beams=1,
                do_sample=False,
                max_new_tokens=self.target_positions,
                decoder_start_token_id=self.tokenizer.cls_token_id,
                eos_token_id=self.tokenizer.sep_token_id,
                pad_token_id=self.tokenizer.pad_token_id,
            )
            written += self.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return written


def in_batches(items: Sequence[Any]) -> Iterator[Any]:
    """Yield items in batches; the last one may be smaller."""
    return (items[start : start + BATCH] for start in range(0, len(items), BATCH))


def endless(pairs: Sequence[tuple[str, str]], seed: int) -> Iterator[list[tuple[str, str]]]:
    """Yield full batches of pairs, shuffled anew in each epoch, without end."""
    order, shuffled = random.Random(seed), list(pairs)
    while True:
        order.shuffle(shuffled)
        yield from (batch for batch in in_batches(shuffled) if len(batch) == BATCH)


class Comparison(Stages):
    """BERT2BERT beside the pseudo-masked models of the learning curves, on one data set."""

    def __init__(self, given: argparse.Namespace, name: str) -> None:
        self.given, self.curves = given, Curves(given, name)
        self.output = self.curves.output
        super().__init__("bert2bert", self.output / "bert2bert.jsonl", cli.call)
        texts = self.output / "texts"
        pairs = list(zip(source_lines(texts / "train.src"), source_lines(texts / "train.tgt"), strict=True))
        random.Random(0).shuffle(pairs)
        self.held_out, self.pairs = pairs[:HELD_OUT], pairs[HELD_OUT:]
        self.sources = source_lines(texts / "test.src")

    def run(self) -> None:
        """Choose the learning rate, then train with each seed."""
        choice = self.output / "bert2bert-lr.json"
        self.stage(choice, choice.name, self.choose)
        losses: dict[str, float] = json.loads(choice.read_text(encoding="utf-8"))
        lr = float(min(losses, key=lambda name: losses[name]))
        for seed in self.given.seeds:
            made = self.output / f"bert2bert-seed{seed}.json"
            self.stage(made, made.name, lambda made, seed=seed: self.compare(lr, seed, made))

    def start(self, lr: float, seed: int) -> Bert2Bert:
        return Bert2Bert(self.given.encoder, TARGETS[self.curves.set], lr, seed)

    def choose(self, made: Path) -> None:
        """Write the held-out loss of each learning rate."""
        losses = {}
        for lr in LEARNING_RATES:
            model = self.start(lr, 1)
            model.train(endless(self.pairs, 1), BUDGETS[-1])
            losses[str(lr)] = model.held_out_loss(self.held_out)
            self.say(f"learning rate {lr:g}: held-out loss {losses[str(lr)]:.3f}")
        made.write_text(json.dumps(losses), encoding="utf-8")

    def compare(self, lr: float, seed: int, made: Path) -> None:
        """Write scores and seconds of both systems at each budget, and of BERT2BERT after our seconds, too."""
        ours = self.our_seconds(seed)
        model, data = self.start(lr, seed), endless(self.pairs, seed)
        records = []
        for budget, limit in [*((budget, math.inf) for budget in BUDGETS), (10 * BUDGETS[-1], ours[BUDGETS[-1]])]:
            model.train(data, budget, limit)
            texts = self.output / f"bert2bert-seed{seed}-{model.updates}.txt"
            texts.write_text("".join(f"{text}\n" for text in model.write(self.sources)), encoding="utf-8")
            scores = [round(score, 4) for score in self.curves.rouge_l(texts)]
            records.append({"updates": model.updates, "seconds": round(model.seconds, 1), "ROUGE-L": scores})
        made.write_text(json.dumps({"lr": lr, "theirs": records, "our seconds": ours}), encoding="utf-8")

    def our_seconds(self, seed: int) -> dict[int, float]:
        """Return the seconds of pseudo-masked fine-tuning up to each budget, with those of starting it."""
        folder = str(self.curves.run_folder("pseudo-masked", seed))
        seconds: dict[int, float] = {}
        for line in (self.output / "commands.jsonl").read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            words = record["command"]
            if words[1] == "train" and folder in words and not record["status"]:
                budget = int(words[words.index("--max-update") + 1])
                seconds[budget] = record["seconds"] + sum(seconds.values())
        return seconds


def tabulate(comparison: Comparison, path: Path) -> None:
    """Write a table of both systems: scores with intervals, seconds, and differences."""
    seeds = comparison.given.seeds
    found = [
        json.loads((comparison.output / f"bert2bert-seed{seed}.json").read_text(encoding="utf-8")) for seed in seeds
    ]
    ours = read_curves(comparison.curves)["pseudo-masked"]
    lines = ["| updates | pseudo-masked | seconds | BERT2BERT | seconds | difference |\n", "|---" * 6 + "|\n"]
    for number, budget in enumerate((*BUDGETS, None)):
        theirs = np.array([of_seed["theirs"][number]["ROUGE-L"] for of_seed in found])
        spent = np.mean([of_seed["theirs"][number]["seconds"] for of_seed in found])
        our_scores = ours[budget or BUDGETS[-1]]
        our_spent = np.mean([of_seed["our seconds"][str(budget or BUDGETS[-1])] for of_seed in found])
        difference = interval(our_scores - theirs)
        name = budget or f"{BUDGETS[-1]}, and the same time"
        cells = [name, interval(our_scores), f"{our_spent:.0f}", interval(theirs), f"{spent:.0f}", difference]
        lines.append(f"| {' | '.join(map(str, cells))} |\n")
    path.write_text("".join(lines), encoding="utf-8")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--encoder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--sets", nargs="+", choices=TARGETS, default=list(TARGETS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.set_defaults(methods=["pseudo-masked"])
    given = parser.parse_args()
    for name in given.sets:
        comparison = Comparison(given, name)
        if status := cli.guarded("bert2bert", comparison.run):
            return status
        tabulate(comparison, given.output / f"{name}-bert2bert.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
