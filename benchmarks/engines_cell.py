"""Measure one cell of `engines.py` in its own process: read its JSON from stdin, write its record to stdout."""

import json
import random
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from engines import Cell
from engines_models import model_path
from generation_grid import parse_lengths
from process_facts import facts, memory

Generate = Callable[[Sequence[str]], Any]


def make_texts(cell: Cell) -> list[str]:
    """Draw sources of random words, the longest first, as decoding sorts them.

    Their lengths, two special symbols included, are those of the cell.
    """
    draw, (low, high) = random.Random(cell.seed), parse_lengths(cell.lengths)[0]
    lengths = sorted((draw.randint(low, high) for _ in range(cell.sentences)), reverse=True)
    return [" ".join(f"w{draw.randrange(cell.vocab - 10)}" for _ in range(length - 2)) for length in lengths]


def ours(folder: Path, cell: Cell, steps: int) -> Generate:
    """Return generation through `Seq2Seq`, in PyTorch or in another engine."""
    from s2sft_fairseq import Seq2Seq

    options: dict[str, Any] = {}
    if cell.system == "ours":
        quantized = cell.precision == "int8"
        options = {"dtype": "float32" if quantized else cell.precision, "quantize": "int8" if quantized else None}
    model = Seq2Seq.from_pretrained(folder, device="cpu", **options)
    search = {"beam": cell.beam, "min_len": steps - 1, "max_len": steps - 1, "early_stop": "fairseq"}
    return lambda texts: model.hypotheses(list(texts), batch_size=len(texts), **search)


def of_transformers(folder: Path, cell: Cell, steps: int) -> Generate:
    """Return generation by ``generate`` of transformers."""
    import transformers

    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder, trust_remote_code=True)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder, trust_remote_code=True, dtype=torch.float32)
    model.eval()

    @torch.inference_mode()
    def generate(texts: Sequence[str]) -> Any:
        batch = tokenizer(list(texts), return_tensors="pt", padding=True)
        return model.generate(**batch, num_beams=cell.beam, min_new_tokens=steps, max_new_tokens=steps)

    return generate


def bert2bert(cell: Cell, steps: int) -> Generate:
    """Return generation by a BERT encoder and a BERT decoder with cross-attention, each of the size of ours."""
    from generation_baselines import bert2bert as make
    from generation_systems import FIRST_WORD, PAD, SEP, Setting

    longest = parse_lengths(cell.lengths)[0][1]
    setting = Setting(cell.config, cell.vocab, longest, steps, cell.beam, torch.device("cpu"), cell.seed)
    decode = make(setting)

    @torch.inference_mode()
    def generate(texts: Sequence[str]) -> Any:
        rows = [torch.tensor([*(FIRST_WORD + int(word[1:]) for word in text.split()), SEP]) for text in texts]
        return decode(torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD), lambda: None)

    return generate


def measure(cell: Cell) -> dict[str, Any]:
    """Run a cell and return its figures."""
    texts, steps = make_texts(cell), parse_lengths(cell.lengths)[1]
    place = model_path(Path(cell.folder), cell.config, cell.vocab, cell.seed)
    if cell.system == "bert2bert":
        generate = bert2bert(cell, steps)
    elif cell.system == "transformers":
        generate = of_transformers(place / "transformers-float32", cell, steps)
    else:
        name = "model" if cell.system == "ours" else f"{cell.system}-{cell.precision}"
        generate = ours(place / name, cell, steps)
    loaded = memory("VmRSS")
    batches = [texts[start : start + cell.batch] for start in range(0, len(texts), cell.batch)]
    generate(batches[-1])  # warm-up
    runs = [[_seconds(generate, batch) for batch in batches] for _ in range(cell.repeats)]
    best = min(runs, key=sum)
    return {
        "sentences_per_second": cell.sentences / sum(best),
        "p50": statistics.median(best),
        "p95": float(np.percentile(best, 95)),
        "seconds": [sum(run) for run in runs],
        "loaded_bytes": loaded,
        "peak_bytes": memory("VmHWM"),
    }


def _seconds(generate: Generate, batch: Sequence[str]) -> float:
    start = time.perf_counter()
    generate(batch)
    return time.perf_counter() - start


def main() -> None:
    cell = Cell(**json.load(sys.stdin))
    torch.set_num_threads(cell.threads)
    before = facts()
    print(json.dumps({**before, **measure(cell)}))


if __name__ == "__main__":
    main()
