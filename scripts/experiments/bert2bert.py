"""BERT2BERT, the EncoderDecoderModel of transformers: the same encoder and data as in the learning curves.

    python scripts/experiments/bert2bert.py --data DATA --encoder MINILM --output out

OUTPUT is that of ``learning_curves.py``, whose texts, head and pseudo-masked models are used: run that first, on the
same machine, with the same number of threads and the same load beside it. Scores and seconds of each seed are
SCORES/SET/bert2bert-seedN.json; a seed whose file is there is not trained again. OUTPUT/SET-bert2bert.md and .png have
the scores over updates and minutes.

Encoder and decoder begin with the encoder's weights (Rothe et al., 2020), the head with the one that was computed for
the learning curves; only cross-attention is new. Batches have 16 pairs of similar length, the learning rate is constant
after 20 updates of warm-up, products are computed in bfloat16 (``torch.autocast``), gradients are clipped at 1, and
biases and norms do not decay, as in the learning curves. The learning rate is the best of four, by the loss of 320
held-out pairs after the most updates; ours was not chosen. Test sources are written greedily, after each number of
updates, and after as many seconds as pseudo-masked fine-tuning needed for the most updates. Seconds are those of
updates alone.

The hypothesis, written before the first run: BERT2BERT is below pseudo-masked fine-tuning at every budget and after the
same seconds, because its cross-attention begins at random.
"""

import argparse
import json
import math
import random
import sys
import time
import warnings
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from blocks import source_lines
from intervals import Interval, interval, table
from learning_curves import BUDGETS, POSITIONS, TARGETS, Curves, draw, read_curves
from logs import update_seconds

from s2sft_fairseq import cli
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.data.text_files import write_lines
from s2sft_fairseq.files import write_whole
from s2sft_fairseq.recipes.engine import Stages

LEARNING_RATES = (3e-5, 1e-4, 3e-4, 1e-3)
BATCH, WARMUP, HELD_OUT = 16, 20, 320
POOL = 50
"""Batches whose pairs are sorted by length."""
PAD, CLS, SEP = 0, 101, 102  # of BERT's vocabulary
SAME_TIME = "same seconds"
Pairs = list[tuple[list[int], list[int]]]
"""Ids of sources and targets, with [CLS] and [SEP]."""


class Bert2Bert:
    """A model in training."""

    def __init__(self, encoder: Path, head: Path, lr: float, seed: int) -> None:
        """Begin with an encoder, and with the head of a converted one."""
        from transformers import EncoderDecoderModel

        warnings.filterwarnings("ignore", "Version v4.12.0 introduces a better way", FutureWarning)
        torch.manual_seed(seed)
        self.model = EncoderDecoderModel.from_encoder_decoder_pretrained(encoder, encoder)
        self.model.config.decoder_start_token_id, self.model.config.pad_token_id = CLS, PAD
        fitted = load_checkpoint(head)["model"]
        predictions = self.model.decoder.cls.predictions
        with torch.no_grad():
            predictions.transform.dense.weight.copy_(fitted["lm_head.dense.weight"])
            predictions.transform.dense.bias.copy_(fitted["lm_head.dense.bias"])
            predictions.decoder.bias.copy_(fitted["lm_head.bias"])
        parameters = list(self.model.parameters())
        groups = [
            {"params": [value for value in parameters if value.ndim > 1], "weight_decay": 0.01},
            {"params": [value for value in parameters if value.ndim == 1], "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=lr, eps=1e-6, fused=True)
        self.warmup = torch.optim.lr_scheduler.LambdaLR(self.optimizer, lambda done: min(1.0, (done + 1) / WARMUP))
        self.updates, self.seconds = 0, 0.0

    def loss(self, pairs: Pairs) -> torch.Tensor:
        """Return the mean loss of the tokens of some pairs."""
        sources, targets = zip(*pairs, strict=True)
        labels = padded([ids[1:] for ids in targets])  # the decoder reads [CLS] before them
        ids = padded(sources)
        with torch.autocast("cpu", torch.bfloat16):
            loss: torch.Tensor = self.model(
                input_ids=ids, attention_mask=(ids != PAD).long(), labels=labels.masked_fill(labels == PAD, -100)
            ).loss
        return loss

    def train(self, batches: Iterator[Pairs], updates: float, seconds: float) -> None:
        """Train up to a number of updates, or of seconds, whichever comes first."""
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
    def held_out_loss(self, pairs: Pairs) -> float:
        """Return the mean loss of batches of held-out pairs."""
        self.model.eval()
        losses = [self.loss(batch).item() for batch in in_batches(pairs, BATCH)]
        return sum(losses) / len(losses)

    @torch.no_grad()
    def write(self, sources: list[list[int]], longest: int) -> list[list[int]]:
        """Write a text for each source, greedily, of at most ``longest`` tokens."""
        self.model.eval()
        special = {"decoder_start_token_id": CLS, "eos_token_id": SEP, "pad_token_id": PAD}
        written: list[list[int]] = []
        for batch in in_batches(sources, BATCH):
            ids = padded(batch)
            mask = (ids != PAD).long()
            search = {"num_beams": 1, "do_sample": False, "max_new_tokens": longest}
            written += self.model.generate(ids, attention_mask=mask, **search, **special).tolist()
        return written


def padded(texts: Sequence[list[int]]) -> torch.Tensor:
    """Return ids (B, T), padded to the longest text."""
    return torch.nn.utils.rnn.pad_sequence([torch.tensor(ids) for ids in texts], batch_first=True, padding_value=PAD)


def in_batches(items: Sequence[Any], size: int) -> Iterator[Any]:
    """Yield items in batches; the last one may be smaller."""
    return (items[start : start + size] for start in range(0, len(items), size))


def endless(pairs: Pairs, seed: int) -> Iterator[Pairs]:
    """Yield full batches of pairs of similar length, shuffled anew in each epoch, without end."""
    order, shuffled = random.Random(seed), list(pairs)
    while True:
        order.shuffle(shuffled)
        for pool in in_batches(shuffled, POOL * BATCH):
            batches = list(in_batches(sorted(pool, key=lambda pair: len(pair[0]) + len(pair[1])), BATCH))
            order.shuffle(batches)
            yield from (batch for batch in batches if len(batch) == BATCH)


class Comparison(Stages):
    """BERT2BERT beside the pseudo-masked models of the learning curves, on one data set."""

    def __init__(self, given: argparse.Namespace, name: str) -> None:
        self.given, self.curves = given, Curves(given, name)
        self.output, self.longest = self.curves.output, TARGETS[name]
        super().__init__("bert2bert", self.output / "bert2bert.jsonl", cli.call)

    def run(self) -> None:
        """Choose the learning rate, then train with each seed that has no scores yet."""
        from transformers import AutoTokenizer

        missing = [seed for seed in self.given.seeds if not self.seed_file(seed).exists()]
        if not missing:
            return
        choice = self.curves.scores / "bert2bert-lr.json"
        self.pin(self.output / "bert2bert.settings", [str(choice)], encoder=self.given.encoder.resolve())
        self.tokenizer = AutoTokenizer.from_pretrained(self.given.encoder)
        texts = self.output / "texts"
        sides = (("src", POSITIONS - self.longest), ("tgt", self.longest + 1))  # [CLS] of the target is not predicted
        pairs = list(zip(*(self.encode(texts / f"train.{side}", most) for side, most in sides), strict=True))
        self.sources = self.encode(texts / "test.src", POSITIONS - self.longest)
        random.Random(0).shuffle(pairs)
        self.held_out, self.pairs = pairs[:HELD_OUT], pairs[HELD_OUT:]
        lr = self.choose(choice)
        for seed in missing:
            self.stage(self.seed_file(seed), f"seed {seed}", partial(self.compare, lr, seed))

    def seed_file(self, seed: int) -> Path:
        """Return the file for scores and seconds."""
        return self.curves.scores / f"bert2bert-seed{seed}.json"

    def encode(self, path: Path, longest: int) -> list[list[int]]:
        """Return the ids of the texts of a file."""
        ids: list[list[int]] = self.tokenizer(source_lines(path), truncation=True, max_length=longest).input_ids
        return ids

    def start(self, lr: float, seed: int) -> Bert2Bert:
        return Bert2Bert(self.given.encoder, self.output / "encoder" / "model.pt", lr, seed)

    def choose(self, file: Path) -> float:
        """Return the learning rate with the lowest held-out loss. The file has the losses that are known so far."""
        losses: dict[str, float] = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
        for lr in LEARNING_RATES:
            if str(lr) not in losses:
                model = self.start(lr, 1)
                model.train(endless(self.pairs, 1), BUDGETS[-1], math.inf)
                losses[str(lr)] = model.held_out_loss(self.held_out)
                write_whole(file, lambda path: path.write_text(json.dumps(losses), encoding="utf-8"))
            self.say(f"learning rate {lr:g}: held-out loss {losses[str(lr)]:.3f}")
        return min(LEARNING_RATES, key=lambda lr: losses[str(lr)])

    def compare(self, lr: float, seed: int, made: Path) -> None:
        """Write scores and seconds of both systems at each budget, and of BERT2BERT after our seconds."""
        ours = self.our_seconds(seed)
        model, data = self.start(lr, seed), endless(self.pairs, seed)
        left: list[int | str] = [*BUDGETS, SAME_TIME]
        records: dict[int | str, dict[str, Any]] = {}
        while left:
            updates = math.inf if left[0] == SAME_TIME else float(left[0])
            model.train(data, updates, ours[BUDGETS[-1]] if SAME_TIME in left else math.inf)
            reached = left[0] if model.updates == updates else SAME_TIME
            left.remove(reached)
            texts = self.output / f"bert2bert-seed{seed}-{reached}.txt"
            ids = model.write(self.sources, self.longest)
            write_lines(texts, self.tokenizer.batch_decode(ids, skip_special_tokens=True))
            scores = self.curves.rouge_l(texts)
            records[reached] = {"updates": model.updates, "seconds": round(model.seconds, 1), "ROUGE-L": scores}
        made.write_text(json.dumps({"lr": lr, "theirs": records, "our seconds": ours}), encoding="utf-8")

    def our_seconds(self, seed: int) -> dict[int, float]:
        """Return the seconds of the updates of pseudo-masked fine-tuning up to each budget."""
        seconds = update_seconds(self.curves.run_folder("pseudo-masked", seed) / "train.log")
        return {budget: sum(value for done, value in seconds.items() if done <= budget) for budget in BUDGETS}


def report(comparison: Comparison, path: Path) -> None:
    """Write a table of both systems, with scores, seconds and differences, and draw the scores over minutes."""
    files = [comparison.seed_file(seed) for seed in comparison.given.seeds]
    found = [json.loads(file.read_text(encoding="utf-8")) for file in files]
    of_methods = read_curves(comparison.curves)["pseudo-masked"]
    rows: dict[str, list[object]] = {}
    ours: dict[float, Interval] = {}
    theirs: dict[float, Interval] = {}
    for name in (*map(str, BUDGETS), SAME_TIME):
        budget = BUDGETS[-1] if name == SAME_TIME else int(name)
        scores = np.array([of_seed["theirs"][name]["ROUGE-L"] for of_seed in found])
        updates, seconds = (
            float(np.mean([of_seed["theirs"][name][key] for of_seed in found])) for key in ("updates", "seconds")
        )
        our_seconds = float(np.mean([of_seed["our seconds"][str(budget)] for of_seed in found]))
        ours[our_seconds / 60] = interval(of_methods[budget])
        theirs[seconds / 60] = interval(scores)
        difference = interval(of_methods[budget] - scores)
        rows[name] = [interval(of_methods[budget]), f"{our_seconds:.0f}", interval(scores), f"{updates:.0f}"]
        rows[name] += [f"{seconds:.0f}", f"{difference}, {difference.verdict}"]
    columns = ["pseudo-masked", "seconds", "BERT2BERT", "updates", "seconds", "difference"]
    path.write_text(table(columns, rows), encoding="utf-8")
    in_time = dict(sorted(theirs.items()))  # the last row may be earlier than the one before it
    draw({"pseudo-masked": ours, "BERT2BERT": in_time}, "minutes", path.with_suffix(".png"))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, required=True, metavar="DIR")
    parser.add_argument("--encoder", type=Path, required=True, metavar="DIR")
    parser.add_argument("--output", type=Path, required=True, metavar="DIR")
    parser.add_argument("--scores", type=Path, metavar="DIR", help="(default: OUTPUT/scores)")
    parser.add_argument("--sets", nargs="+", choices=TARGETS, default=["e2e", "squad_qg", "gigaword"])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.set_defaults(methods=["pseudo-masked"], budgets=BUDGETS)
    given = parser.parse_args(arguments)
    given.output.mkdir(parents=True, exist_ok=True)
    for name in given.sets:
        comparison = Comparison(given, name)
        if status := cli.guarded("bert2bert", comparison.run):
            return status
        report(comparison, given.output / f"{name}-bert2bert.md")
    return 0


if __name__ == "__main__":
    sys.exit(main())
