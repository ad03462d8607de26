"""Quality and speed of a fine-tuned model in bfloat16 and 8 bits, on the test set of its data.

    python benchmarks/quantized_quality.py --path run/checkpoint_best.pt --data data --tokenizer-dir encoder

The same sentences are decoded by the model as it was loaded, then packed, in bfloat16, and in int8. "same" is the share
of best hypotheses that are equal to those of the model as it was loaded. "score" is the mean difference of the scores
of the best hypotheses, "|score|" the mean absolute difference. ROUGE is F1 in percent with stemming, against the
targets as the data holds them. "s" is the time of decoding in seconds, without loading and packing.
"""

import argparse
import json
import logging
import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq.dataclass.configs import GenerationConfig
from fine_tuned import add_options, batches, load
from rouge_score.rouge_scorer import RougeScorer

from s2sft_fairseq.models.inference import prepare_for_inference
from s2sft_fairseq.tokenization.folder import open_tokenizer

MEASURES = ("rouge1", "rouge2", "rougeL")
SETTINGS: dict[str, dict[str, Any] | None] = {
    "as loaded": None,
    "packed": {"bf16": False, "quantize": "none"},
    "bf16": {"bf16": True, "quantize": "none"},
    "int8": {"bf16": False, "quantize": "int8"},
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_options(parser)
    parser.add_argument("--tokenizer-dir", type=Path, required=True, metavar="DIR")
    parser.add_argument("--batch-size", type=int, default=16, metavar="N")
    parser.add_argument("--beam", type=int, default=5, metavar="N")
    parser.add_argument("--length-penalty", default="length", metavar="KIND")
    parser.add_argument("--lenpen", type=float, default=1.0, metavar="X")
    parser.add_argument("--min-len", type=int, default=1, metavar="N")
    parser.add_argument("--no-repeat-ngram-size", type=int, default=0, metavar="N")
    parser.add_argument("--output", type=Path, metavar="FILE", help="of the numbers in JSON")
    options = parser.parse_args()
    logging.disable()
    tokenizer = open_tokenizer(options.tokenizer_dir)
    results: dict[str, dict[str, float]] = {}
    load = os.getloadavg()[0]
    print(f"{options.sentences} sentences, beam {options.beam}, {torch.get_num_threads()} threads, load {load:.1f}")
    print(f"{'':10}   R-1    R-2    R-L    same     score   |score|      s")
    loaded: list[tuple[list[int], float]] = []
    for name, setting in SETTINGS.items():
        hypotheses, targets, seconds, dictionary = decode(options, setting)
        loaded = loaded or hypotheses
        texts, references = (
            [tokenizer.decode(dictionary.string(tokens)) for tokens in rows]
            for rows in ([tokens for tokens, _ in hypotheses], targets)
        )
        pairs = list(zip(hypotheses, loaded, strict=True))
        differences = np.array([score - other for (_, score), (_, other) in pairs])
        results[name] = {
            **rouge(texts, references),
            "same": 100 * sum(tokens == other for (tokens, _), (other, _) in pairs) / len(pairs),
            "score_difference": float(differences.mean()),
            "absolute_score_difference": float(np.abs(differences).mean()),
            "seconds": seconds,
        }
        *quality, signed, absolute, seconds = results[name].values()
        numbers = " ".join(f"{value:6.2f}" for value in quality)
        print(f"{name:10} {numbers} %  {signed:+.5f}  {absolute:.5f}  {seconds:6.1f}", flush=True)
    if options.output:
        settings = {key: str(value) for key, value in vars(options).items() if key != "output"}
        text = json.dumps({"options": settings, "load": load, "results": results}, indent=2)
        options.output.write_text(f"{text}\n", encoding="utf-8")


def decode(
    options: argparse.Namespace, setting: dict[str, Any] | None
) -> tuple[list[tuple[list[int], float]], list[list[int]], float, Any]:
    """Decode the sentences; return the best hypothesis of each with its score, targets, seconds and dictionary."""
    model, task = load(options, length_penalty=options.length_penalty)
    if setting is not None:
        prepare_for_inference(model, **setting)
    search = GenerationConfig(
        beam=options.beam,
        lenpen=options.lenpen,
        min_len=options.min_len,
        no_repeat_ngram_size=options.no_repeat_ngram_size,
    )
    generator = task.build_generator([model], search)
    samples = list(batches(task, options.sentences, options.batch_size))
    found: dict[int, tuple[list[int], float]] = {}
    targets: dict[int, list[int]] = {}
    start = time.perf_counter()
    for sample in samples:
        for number, (best, *_), target in zip(
            sample["id"].tolist(), generator.generate([model], sample), sample["target"].tolist(), strict=True
        ):
            found[number] = (best["tokens"].tolist(), float(best["score"]))
            targets[number] = [token for token in target if token not in generator.symbols_to_strip_from_output]
    seconds = time.perf_counter() - start
    numbers = sorted(found)
    return [found[n] for n in numbers], [targets[n] for n in numbers], seconds, task.target_dictionary


def rouge(hypotheses: Sequence[str], references: Sequence[str]) -> dict[str, float]:
    """Return mean F1 in percent, with stemming."""
    scorer = RougeScorer(MEASURES, use_stemmer=True)
    scores = [scorer.score(reference, hypothesis) for reference, hypothesis in zip(references, hypotheses, strict=True)]
    return {name: 100 * float(np.mean([score[name].fmeasure for score in scores])) for name in MEASURES}


if __name__ == "__main__":
    main()
