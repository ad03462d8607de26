"""Measure one cell of `long_inputs.py` in its own process: read its JSON from stdin, write its record to stdout."""

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from process_facts import facts, memory

MASKED_SHARE = 0.3  # of the positions, as in ModernBERT's own pre-training
NEW_TOKENS = 64  # room for further tokens in the incremental state


@dataclass(frozen=True)
class Cell:
    """One system on one text."""

    system: str
    task: str
    """``prefill`` or ``update``."""
    length: int
    layers: int
    vocab: int
    threads: int
    repeats: int
    """Timed runs, after one warm-up run."""


def ours(cell: Cell, tokens: torch.Tensor, at: torch.Tensor) -> tuple[Callable[[], Any], Callable[[], float]]:
    """Return the task of a cell, and a function that measures the seconds of attention in its local layers."""
    import s2sft_fairseq.plugin  # noqa: F401  (patches fairseq, so it comes first)
    from s2sft_fairseq.models.architectures import ARCHITECTURES
    from s2sft_fairseq.models.inference import prepare_for_inference
    from s2sft_fairseq.models.unilm import UnilmModel
    from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
    from s2sft_fairseq.modules.lm_head import Targets
    from s2sft_fairseq.modules.matmul import use_matmul
    from s2sft_fairseq.modules.packed_attention import packed_attention
    from s2sft_fairseq.modules.visibility import PackedColumns

    cfg = UnilmConfig(
        **ARCHITECTURES["modernbert_base"] | {"encoder_layers": cell.layers}, dropout=0.0, attention_dropout=0.0
    )
    complete_sizes(cfg)
    model = UnilmModel(cfg, vocab_size=cell.vocab, pad=0)
    positions, segments = torch.arange(cell.length), torch.zeros_like(tokens)
    columns = PackedColumns.given(tokens, positions, segments, [cell.length])
    local = [index for index, pattern in enumerate(model.patterns) if pattern.window]
    heads, width = cfg.encoder_attention_heads, cfg.encoder_embed_dim
    qkv = torch.randn(cell.length, 3, heads, width // heads, requires_grad=cell.task == "update")

    def prefill() -> None:
        with torch.inference_mode():
            model.prefill(tokens, positions, segments, [cell.length], num_tokens=NEW_TOKENS)

    def update() -> None:
        model.zero_grad(set_to_none=True)
        losses = model(*columns[:7], labelled=at, targets=Targets(tokens[at], excluded=0))
        (losses.loss / len(at)).backward()

    def local_seconds() -> float:
        def attend() -> None:
            with torch.set_grad_enabled(cell.task == "update"):
                attended = packed_attention(qkv, plan)
                if attended.requires_grad:
                    attended.backward(torch.ones_like(attended))

        # The last layer of a prefill does not attend.
        count = len([index for index in local if cell.task == "update" or index < cell.layers - 1])
        plan = model._packed_plans(columns, qkv.dtype)[local[0]].attention
        return count * least_seconds(attend, cell.repeats)

    if cell.task == "prefill":
        model.eval()
        prepare_for_inference(model, bf16=False, quantize="none")
        return prefill, local_seconds
    use_matmul("auto")
    return update, local_seconds


def transformers(cell: Cell, tokens: torch.Tensor, at: torch.Tensor) -> Callable[[], Any]:
    """Return the task of a cell with ``ModernBertForMaskedLM``; the head scores only the masked positions."""
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    symbols = dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id", "cls_token_id", "sep_token_id"), 0)
    config = ModernBertConfig(vocab_size=cell.vocab, num_hidden_layers=cell.layers, sparse_prediction=True, **symbols)
    model = ModernBertForMaskedLM._from_config(config, attn_implementation="sdpa")
    labels = torch.full_like(tokens, -100).index_copy(0, at, tokens[at]).unsqueeze(0)
    inputs = tokens.unsqueeze(0)

    def prefill() -> None:
        with torch.inference_mode():
            model.model(input_ids=inputs)

    def update() -> None:
        model.zero_grad(set_to_none=True)
        model(input_ids=inputs, labels=labels).loss.backward()

    model.train(cell.task == "update")
    return prefill if cell.task == "prefill" else update


def least_seconds(task: Callable[[], Any], repeats: int) -> float:
    """Run a task once to warm up, then several times; return the seconds of the fastest run."""
    seconds = []
    for _ in range(repeats + 1):
        start = time.perf_counter()
        task()
        seconds.append(time.perf_counter() - start)
    return min(seconds[1:])


def main() -> None:
    cell = Cell(**json.load(sys.stdin))
    torch.set_num_threads(cell.threads)
    torch.manual_seed(0)
    record = facts()
    tokens = torch.randint(1, cell.vocab, (cell.length,))
    at = torch.randperm(cell.length)[: int(MASKED_SHARE * cell.length)].sort().values
    if cell.system == "ours":
        task, local_seconds = ours(cell, tokens, at)
    else:
        task, local_seconds = transformers(cell, tokens, at), None
    record["seconds"], record["peak_bytes"] = least_seconds(task, cell.repeats), memory("VmHWM")
    record["local_seconds"] = local_seconds() if local_seconds else None
    json.dump(record, sys.stdout)


if __name__ == "__main__":
    main()
