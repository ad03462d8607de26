"""Gain of drafts in greedy search: tokens per pass and sentences per second, for each kind and number of drafts.

    python benchmarks/drafts.py --path run/checkpoint_best.pt --data data

The same test sentences are decoded with and without drafts, in batches of several sizes. "tokens/pass" is the mean
number of tokens that a pass of the model adds to a hypothesis: 1 without drafts. "gain" is the ratio of sentences/s to
the search without drafts at the same batch size. "same" is the share of hypotheses that are equal to those of that
search: where two tokens are equally probable to the last digits, the rounding of larger products may choose the other
one.
"""

import argparse
import json
import logging
import os
import time
from pathlib import Path
from typing import Any

import torch
from fairseq.dataclass.configs import GenerationConfig
from fine_tuned import add_options, batches, load
from torch import Tensor

from s2sft_fairseq.models.inference import prepare_for_inference

NO_DRAFTS: dict[str, int] = {}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--batch-size", type=int, nargs="+", default=[1, 4, 16], metavar="N")
    parser.add_argument("--placeholders", type=int, nargs="*", default=[1, 2], metavar="N", help="numbers of drafts")
    parser.add_argument("--source", type=int, nargs="*", default=[2, 4], metavar="N", help="numbers of drafts")
    parser.add_argument("--no-repeat-ngram-size", type=int, default=0, metavar="N")
    parser.add_argument("--min-len", type=int, default=1, metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE", help="of the numbers in JSON")
    options = parser.parse_args()
    logging.disable()
    settings = [
        NO_DRAFTS,
        *({"draft_placeholders": number} for number in options.placeholders),
        *({"draft_source": number} for number in options.source),
    ]
    load_average = os.getloadavg()[0]
    print(f"{options.sentences} sentences, {torch.get_num_threads()} threads, load {load_average:.1f}")
    print("batch  drafts                 tokens/pass  sentences/s   gain    same")
    results = []
    for batch_size in options.batch_size:
        plain: dict[str, Any] = {}
        for drafts in settings:
            found = decode(options, batch_size, drafts)
            plain = plain or found
            same = sum(plain["hypotheses"][number] == tokens for number, tokens in found["hypotheses"].items())
            record = {
                "batch_size": batch_size,
                "drafts": drafts,
                "tokens_per_pass": found["tokens"] / found["passes"],
                "sentences_per_second": len(found["hypotheses"]) / found["seconds"],
                "gain": plain["seconds"] / found["seconds"],
                "same": same / len(found["hypotheses"]),
            }
            results.append(record)
            name = ", ".join(f"{kind.removeprefix('draft_')} {number}" for kind, number in drafts.items()) or "none"
            print(
                f"{batch_size:5}  {name:21}  {record['tokens_per_pass']:11.2f}  {record['sentences_per_second']:11.2f}"
                f"  {record['gain']:5.2f}  {100 * record['same']:5.1f} %",
                flush=True,
            )
    if options.output:
        chosen = {key: str(value) for key, value in vars(options).items() if key != "output"}
        text = json.dumps({"options": chosen, "load": load_average, "results": results}, indent=2)
        options.output.write_text(f"{text}\n", encoding="utf-8")


def decode(options: argparse.Namespace, batch_size: int, drafts: dict[str, int]) -> dict[str, Any]:
    """Decode; return hypotheses by sentence, seconds, tokens and passes; a pass over N sentences counts as N."""
    model, task = load(options, **drafts)
    prepare_for_inference(model, bf16=False, quantize="none")
    search = GenerationConfig(beam=1, min_len=options.min_len, no_repeat_ngram_size=options.no_repeat_ngram_size)
    generator = task.build_generator([model], search)
    passes = 0
    step = model.step

    def counted(state: Any, tokens: Tensor, *others: Any) -> Tensor:
        nonlocal passes
        passes += len(tokens)
        return step(state, tokens, *others)

    model.step = counted
    samples = list(batches(task, options.sentences, batch_size))
    hypotheses: dict[int, list[int]] = {}
    start = time.perf_counter()
    for sample in samples:
        for number, (best, *_) in zip(sample["id"].tolist(), generator.generate([model], sample), strict=True):
            hypotheses[number] = best["tokens"].tolist()
    seconds = time.perf_counter() - start
    tokens = sum(map(len, hypotheses.values()))
    return {"hypotheses": hypotheses, "seconds": seconds, "tokens": tokens, "passes": passes}


if __name__ == "__main__":
    main()
