"""The shortest possible time of decoding at placeholders: the work that it needs, and the rates of the machine.

Letters: N sentences, K beams, S source positions, T target tokens, H width, I inner width, V vocabulary, L layers.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

FLOAT32_BYTES = 4
MATRIX_SIDE = 2048
BUFFER_NUMBERS = 1 << 26  # 256 MiB, more than the caches of most processors hold


class Sizes(NamedTuple):
    """The sizes that determine the work of a model with BERT's layers and a tied head."""

    layers: int
    width: int
    ffn_width: int
    vocab: int


class Work(NamedTuple):
    """The work of one batch; an addition and a multiplication are two FLOPs."""

    prefill_flops: int
    step_flops: list[int]
    """FLOPs of each step."""
    step_bytes: list[int]
    """Weights and cached keys and values that each step must read, in float32."""


class Rates(NamedTuple):
    """The rates that the machine sustains."""

    flops: float
    """FLOP/s of float32 products of large matrices, by the fastest library of PyTorch."""
    bytes: float
    """Bytes/s of reading or copying a large buffer."""
    bf16_flops: float = 0.0
    """FLOP/s of the same products in bfloat16; 0: not measured."""


def needed_work(sizes: Sizes, source_lengths: Sequence[int], target_length: int, beam: int) -> Work:
    """Count the work that decoding needs: only matrix products, without padding, each computed once.

    A source is encoded once for all its beams; the last layer computes only its keys and values. In each hypothesis,
    step t reads the last token, which attends to S + t positions, and a placeholder, which attends to one more. The
    last layer computes key and value of the last token, and everything for the placeholder; the head works on the
    placeholder alone. The first step has no last token, and only one hypothesis, because all beams begin alike. A step
    reads all weights once for the batch, keys and values of a source once for all its beams, and keys and values of the
    tokens before the last one once for each beam, as if beams shared no tokens.

    Args:
        sizes: sizes of the model.
        source_lengths: S of each sentence, special symbols counted.
        target_length: T.
        beam: K.
    """
    layers, width, ffn_width, vocab = sizes
    square, ffn = width * width, width * ffn_width
    weights = layers * (4 * square + 2 * ffn) + square + width * vocab
    all_layers = 2 * (4 * square + 2 * ffn)  # FLOPs of a token in the matrices of a layer
    key_and_value = 2 * 2 * square
    from_attention_on = all_layers - key_and_value
    head = 2 * (square + width * vocab)

    def attention(keys: int) -> int:
        """Return the FLOPs of the scores and the weighted sum of one query in one layer."""
        return 2 * 2 * keys * width

    prefill = sum(
        (layers - 1) * length * (all_layers + attention(length)) + length * key_and_value for length in source_lengths
    )
    step_flops, step_bytes = [], []
    for step in range(target_length):
        hypotheses, tokens = (1, 1) if step == 0 else (beam, 2)
        flops = cached = 0
        for length in source_lengths:
            placeholder = attention(length + step + 1)
            lower = tokens * all_layers + placeholder + (attention(length + step) if step else 0)
            last = tokens * key_and_value + from_attention_on + placeholder
            flops += hypotheses * ((layers - 1) * lower + last + head)
            cached += 2 * layers * width * (length + hypotheses * max(step - 1, 0))
        step_flops.append(flops)
        step_bytes.append(FLOAT32_BYTES * (weights + cached))
    return Work(prefill, step_flops, step_bytes)


def least_seconds(work: Work, rates: Rates) -> float:
    """Return the time of a batch at full rates; a step takes the longer of its computation and its reads."""
    steps = zip(work.step_flops, work.step_bytes, strict=True)
    return work.prefill_flops / rates.flops + sum(max(f / rates.flops, b / rates.bytes) for f, b in steps)


def measure_rates(device: torch.device) -> Rates:
    """Measure the rates with the current number of threads: the best of several runs."""
    buffer = torch.ones(BUFFER_NUMBERS, device=device)
    target = torch.empty_like(buffer)
    size = BUFFER_NUMBERS * FLOAT32_BYTES
    return Rates(
        flops=_matrix_rate(torch.float32, device),
        bf16_flops=_matrix_rate(torch.bfloat16, device),
        bytes=max(
            size / _best_seconds(buffer.sum, device), 2 * size / _best_seconds(lambda: target.copy_(buffer), device)
        ),
    )


def _matrix_rate(dtype: torch.dtype, device: torch.device) -> float:
    """Return the rate of the fastest product of square matrices."""
    onednn = device.type == "cpu" and torch.backends.mkldnn.is_available()
    side = MATRIX_SIDE
    if device.type == "cpu" and dtype == torch.bfloat16 and not torch.ops.mkldnn._is_mkldnn_bf16_supported():
        # oneDNN refuses bfloat16 here, and PyTorch multiplies in a plain loop, a hundred times as slow as float32.
        onednn, side = False, MATRIX_SIDE // 16
    factor = torch.randn(side, side, device=device).to(dtype)
    return 2 * side**3 / min(_best_seconds(product, device) for product in _products(factor, onednn))


def _products(factor: Tensor, onednn: bool) -> Iterator[Callable[[], Tensor]]:
    """Yield ways to multiply a square matrix by itself: PyTorch's product, and oneDNN with a reordered weight."""
    product = torch.empty_like(factor)
    yield lambda: torch.mm(factor, factor, out=product)
    if onednn:
        weight = torch.ops.mkldnn._reorder_linear_weight(factor, factor.size(0))
        yield lambda: torch.ops.mkldnn._linear_pointwise(factor, weight, None, "none", [], "")


def synchronize(device: torch.device) -> None:
    """Wait until the device has finished its work."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _best_seconds(call: Callable[[], Tensor], device: torch.device, runs: int = 12) -> float:
    seconds = []
    for _ in range(runs):
        synchronize(device)
        start = time.perf_counter()
        call()
        synchronize(device)
        seconds.append(time.perf_counter() - start)
    return min(seconds)
