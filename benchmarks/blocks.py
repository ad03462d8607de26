r"""Decoding in blocks and with drafts from blocks: score, tokens per pass and sentences per second, in one run.

    python benchmarks/blocks.py --blocks-model blocks=runs/blocks/model --plain-model pseudo-masked=runs/plain/model \
        --source test.src --references test.refs.jsonl --threads 2

A plain model is decoded only greedily and with a beam of 5; a model that was trained in blocks is decoded in every
way. "no cache" is the sampler of masked diffusion, which reads source and target again in each pass. It uses the same
weights, one block for the whole target, and one sentence at a time.

The score is computed on all sources, decoded in the largest batches. "same" is the share of texts that are equal to
those of greedy search. Tokens/pass and rows/pass (tokens that a pass reads) are measured on the timed sentences, one by
one. "no cache" is timed on all sources. Speeds are those of the fastest of ``--repeats`` runs; each run times all ways
of a model in turn.
"""

import argparse
import itertools
import json
import logging
import os
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from records import write_records
from rouge_score.rouge_scorer import RougeScorer

from s2sft_fairseq import Seq2Seq
from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.objectives.finetuning import context_section
from s2sft_fairseq.objectives.packing import Section, collate
from s2sft_fairseq.objectives.ragged import Ragged

WHOLE = 10_000
"""A block length that no target exceeds: the whole target is one block."""
COLUMNS = ("ROUGE-L", "tokens/pass", "rows/pass", "same")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--blocks-model", nargs="+", required=True, metavar="NAME=FOLDER")
    parser.add_argument("--plain-model", nargs="*", default=[], metavar="NAME=FOLDER")
    parser.add_argument("--source", type=Path, required=True)
    parser.add_argument("--references", type=Path, required=True, help="lines of JSON with refs")
    parser.add_argument("--sources", type=int, default=120, help="evenly spaced")
    parser.add_argument("--timed", type=int, default=24, help="of these, for sentences a second")
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 4, 16])
    parser.add_argument("--blocks", type=int, nargs="*", default=[2, 4, 8, WHOLE])
    parser.add_argument("--confidence", type=float, nargs="*", default=[0.5, 0.7, 0.9, 1.0])
    parser.add_argument("--revise", type=float, nargs="*", default=[0.0], help="mask tokens again below these")
    parser.add_argument("--no-cache", type=float, nargs="*", default=[0.5], help="confidences")
    parser.add_argument("--drafts", type=int, nargs="*", default=[1, 2, 3, -1])
    parser.add_argument("--repeats", type=int, default=1, help="of the timed runs")
    parser.add_argument("--quantize", choices=["int8"], help="multiply in 8 bits")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--file", type=Path, default=Path("blocks.json"), help="of the records")
    options = parser.parse_args()
    logging.disable()
    torch.set_num_threads(options.threads)
    sources = evenly(options.source.read_text(encoding="utf-8").splitlines(), options.sources)
    lines = evenly(options.references.read_text(encoding="utf-8").splitlines(), options.sources)
    references = [json.loads(line)["refs"] for line in lines]
    print(f"{len(sources)} sentences, {options.threads} threads, load {os.getloadavg()[0]:.1f}")
    columns = [*COLUMNS, *(f"batch {size}" for size in options.batch_size)]
    print(f"| | {' | '.join(columns)} |\n{'|---' * (len(columns) + 1)}|")
    records: list[dict[str, Any]] = []
    timed = evenly(sources, options.timed)
    for which, path, ways in models(options):
        model, of_model, greedy = Counted(path, options.quantize), [], None
        for name, way in ways.items():
            texts, record = scored(model, way, sources, references, max(options.batch_size))
            greedy = greedy or texts
            record |= {"way": f"{which}: {name}"}
            record |= {"same": sum(a == b for a, b in zip(texts, greedy, strict=True)) / len(texts)}
            of_model.append(record)
            time_once(model, way, record, timed, options.batch_size)
            show(record, columns)
            write_records(options.file, records + of_model)
        records += of_model
        if options.repeats > 1:
            for _ in range(options.repeats - 1):
                for way, record in zip(ways.values(), of_model, strict=True):
                    time_once(model, way, record, timed, options.batch_size)
            print(f"The fastest of {options.repeats} runs:")
            for record in of_model:
                show(record, columns)
            write_records(options.file, records)


def show(record: dict[str, Any], columns: Sequence[str]) -> None:
    """Print a row of the table."""
    cells = [f"{record[name]:.2f}" if name in record else "" for name in columns]
    print(f"| {record['way']} | {' | '.join(cells)} |", flush=True)


def scored(
    model: "Counted",
    way: dict[str, Any],
    sources: Sequence[str],
    references: Sequence[Sequence[str]],
    batch_size: int,
) -> tuple[list[str], dict[str, Any]]:
    """Decode all sources in one way; return the texts, and a record with their score."""
    texts, tokens, seconds = model.generate(sources, batch_size, way)
    record = {"ROUGE-L": rouge_l(texts, references)}
    if "no_cache" in way:  # slow, and one sentence at a time: time it here, on all sources
        record |= {**model.counts(tokens), "batch 1": len(sources) / seconds}
    return texts, record


def time_once(
    model: "Counted", way: dict[str, Any], record: dict[str, Any], timed: Sequence[str], batch_sizes: Sequence[int]
) -> None:
    """Time the decoding of some sources in each batch size; the record keeps the fastest run (sentences/s)."""
    for size in () if "no_cache" in way else batch_sizes:
        _, tokens, seconds = model.generate(timed, size, way)
        if size == 1:
            record |= model.counts(tokens)
        record[f"batch {size}"] = max(record.get(f"batch {size}", 0.0), len(timed) / seconds)


def models(options: argparse.Namespace) -> Iterator[tuple[str, Path, dict[str, dict[str, Any]]]]:
    """Yield name and folder of each model, and the ways to decode it: arguments of `Seq2Seq.hypotheses` by name."""
    plain: dict[str, dict[str, Any]] = {"greedy": {"beam": 1}, "beam 5": {"beam": 5}}
    ways = dict(plain)
    for count in options.drafts:
        name = "drafts that pay" if count < 0 else f"{count} drafts"
        ways[name] = {"beam": 1, "draft_blocks": count}
    for block, confidence, revise in itertools.product(options.blocks, options.confidence, options.revise):
        name = f"blocks of {'the target' if block == WHOLE else block}, {confidence:g}"
        name += f" revised below {revise:g}" if revise else ""
        ways[name] = {"beam": 1, "decode_blocks": block, "confidence": confidence, "revise": revise}
    for confidence in options.no_cache:
        ways[f"no cache, {confidence:g}"] = {"no_cache": True, "confidence": confidence}
    for pairs, decodings in ((options.plain_model, plain), (options.blocks_model, ways)):
        for pair in pairs:
            name, folder = pair.split("=", 1)
            yield name, Path(folder), decodings


class Counted:
    """A model that counts its passes and the tokens that it reads."""

    def __init__(self, path: Path, quantize: str | None = None) -> None:
        self.model = Seq2Seq.from_pretrained(path, device="cpu", quantize=quantize)
        self.loaded = self.model._loaded
        (self.inner,) = self.loaded.models
        self.step, self.inner.step = self.inner.step, self._step
        self.passes = self.rows = 0

    def _step(self, state: Any, tokens: Any, *others: Any) -> Any:
        self.passes += 1
        self.rows += tokens.size(1)
        return self.step(state, tokens, *others)

    def counts(self, tokens: int) -> dict[str, float]:
        """Return tokens and rows per pass of the last call of `generate`, which wrote this many tokens."""
        return {"tokens/pass": tokens / self.passes, "rows/pass": self.rows / self.passes}

    def generate(self, sources: Sequence[str], batch_size: int, way: dict[str, Any]) -> tuple[list[str], int, float]:
        """Return texts, the number of their tokens (eos counts), and seconds."""
        self.passes, self.rows, started = 0, 0, time.perf_counter()
        if way.get("no_cache"):
            found = [self._without_cache(source, way["confidence"]) for source in sources]  # one by one
            tokens, texts = sum(map(len, found)), [self._text(ids) for ids in found]
        else:
            best = [each[0] for each in self.model.hypotheses(list(sources), batch_size=batch_size, **way)]
            tokens, texts = sum(len(each.tokens) for each in best), [each.text for each in best]
        return texts, tokens, time.perf_counter() - started

    def _text(self, ids: Sequence[int]) -> str:
        tokenizer, symbols = self.loaded.tokenizer, self.loaded.tokenizer.dictionary.symbols
        return tokenizer.decode(" ".join(symbols[number] for number in ids[:-1]))

    @torch.inference_mode()
    def _without_cache(self, source: str, confidence: float) -> list[int]:
        form = self.loaded.task.form
        laid_out = Ragged.of([form.source(self.loaded.ids(source))])
        context, count = context_section(laid_out, form), form.max_target
        block, ones = np.full(count, form.placeholder), np.ones(count, dtype=np.int64)
        forbidden = torch.tensor([*self.loaded.task.dictionary.never_generated(), form.placeholder])
        while (open_places := np.flatnonzero(block == form.placeholder)).size:
            placeholders = Section.of(
                Ragged.of([block]),
                first_position=int(laid_out.lengths[0]),
                segment=form.placeholder_segment,
                step=ones,
                group=ones,
                label=form.pad,
            )
            batch = collate([(context, placeholders)])
            at = torch.from_numpy(open_places) + len(context.token)
            log_probs = self.inner(**model_input(batch), labelled=at).log_softmax(dim=-1)
            log_probs[:, forbidden] = -torch.inf
            log_probs[open_places == 0, form.sep] = -torch.inf  # at least one token, as in decoding
            scores, tokens = log_probs.max(dim=-1)
            at_end = open_places == count - 1  # the target ends there at the latest
            scores[at_end], tokens[at_end] = 0.0, form.sep
            sure = (scores.exp() >= confidence).numpy()
            sure[int(scores.argmax())] = True
            block[open_places[sure]] = tokens.numpy()[sure]
            if form.sep in block:
                block[list(block).index(form.sep) :] = form.sep
            self.passes += 1
            self.rows += len(batch.token)
        found: list[int] = block[: list(block).index(form.sep) + 1 if form.sep in block else count].tolist()
        return found


def evenly(lines: Sequence[str], count: int) -> list[str]:
    """Return ``count`` evenly spaced lines, or all if there are fewer."""
    return [lines[len(lines) * number // count] for number in range(min(count, len(lines)))]


def rouge_l(texts: Sequence[str], references: Sequence[Sequence[str]]) -> float:
    """Return ROUGE-L in percent: the best one over the references of a text, averaged over texts."""
    scorer = RougeScorer(["rougeL"], use_stemmer=True)
    scores = [
        max(scorer.score(reference, text)["rougeL"].fmeasure for reference in of_text)
        for text, of_text in zip(texts, references, strict=True)
    ]
    return 100 * sum(scores) / len(scores)


if __name__ == "__main__":
    main()
