"""Batches for decoding: as large as memory, options and machine allow, and halved if they do not fit.

The longest sources come first.
"""

import gc
import logging
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.decoder import spare_slots
from s2sft_fairseq.inference.rules import SentenceError
from s2sft_fairseq.inference.step_graphs import largest_batch
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import has_causal_source, width_of_head
from s2sft_fairseq.modules.disentangled_attention import RelativeEmbeddings
from s2sft_fairseq.modules.incremental_state import SLOTS_AT_A_TIME

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

SHARE = 0.6
"""Share of the free memory for decoding by default: other processes need some, too, and the need is an estimate."""

USEFUL_ROWS = 320
"""Rows of a matrix product, two for each hypothesis, beyond which a CPU gains little. A model of 6 layers, 384 wide,
with beam 5 generates 3.9, 5.7, 7.4, 8.6 and 8.9 sentences a second on one core in batches of 4, 8, 16, 32 and 64
sentences of 20 to 64 positions."""

# PyTorch also raises a plain RuntimeError with these messages, from its CPU allocator (Linux and macOS, Windows), the
# driver and cuBLAS.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
GIB = 2**30
UNKNOWN = 4 * GIB  # assumed if the system does not tell, such as macOS
# For each version of Linux's control groups: the folder, the files of the limit and of the memory in use, and the entry
# of memory.stat for cached files in that memory, which the kernel frees first.
_CONTROL_GROUPS = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@dataclass(frozen=True)
class BatchMemory:
    """An estimate of the bytes that decoding a batch takes beyond the models.

    It counts the incremental state, in which the hypotheses of a sentence share the keys and values of the source, and
    the temporary memory to read the sources and to choose each token.
    """

    budget: int
    """Bytes that a batch may take."""
    beam: int
    """Hypotheses of each sentence."""
    max_tokens: int
    """Most tokens of a hypothesis."""
    cached_position: int
    """Bytes of the incremental state for each position of a source or a hypothesis."""
    read_position: int
    """Bytes for each position of a source while it is read ..."""
    read_pair: int
    """... and for each pair of positions."""
    scored_row: int
    """Bytes for each hypothesis while its next token is chosen ..."""
    scored_pair: int
    """... and for each position that it sees then."""
    spare: int = 0
    """Fewest positions that are kept beyond those of the source and of one hypothesis."""
    multiple: int = 1
    """The number of all positions is rounded up to a multiple of this."""
    cuda_graphs: bool = False
    """Whether a batch is filled up to one of the sizes of CUDA graphs."""

    def of_sentence(self, length: int) -> int:
        """Return the bytes for each sentence of a batch whose longest source has ``length`` positions."""
        # An upper bound: tokens that hypotheses share are kept once.
        positions = max(length + self.beam * (self.max_tokens + 1), length + self.max_tokens + self.spare)
        positions += -positions % self.multiple
        reading = length * (self.read_position + length * self.read_pair)
        scoring = self.beam * (self.scored_row + positions * self.scored_pair)
        # Add both, though they are not needed at the same time: allocators cannot reuse all freed memory.
        return positions * self.cached_position + reading + scoring

    def most_sentences(self, length: int) -> int:
        """Return how many sentences of at most ``length`` source positions fit; at least one."""
        most = max(1, self.budget // self.of_sentence(length))
        return largest_batch(most) if self.cuda_graphs else most


def memory_for(
    models: Sequence[UnilmModel], beam: int, max_tokens: int, budget: int | None = None, *, cuda_graphs: bool = False
) -> BatchMemory:
    """Estimate the memory that decoding takes.

    Args:
        models: one model or an ensemble, on the device and in the data type that they decode in.
        beam: hypotheses of each sentence.
        max_tokens: most tokens of a hypothesis.
        budget: bytes that a batch may take; None: `SHARE` of the free memory of the device.
        cuda_graphs: whether CUDA graphs decode the batches.
    """
    device = models[0].embeddings.tokens.weight.device
    if budget is None:
        budget = int(SHARE * free_memory(device))
    # A GPU needs memory for all that is allocated, a CPU only for what is written.
    spare, multiple = (0, 1) if device.type == "cpu" else (spare_slots(beam), SLOTS_AT_A_TIME)
    return BatchMemory(
        budget,
        beam,
        max_tokens,
        # Each model has its own state and scores; the models read and attend one after the other.
        cached_position=sum(map(_cached_position, models)),
        read_position=max(map(_read_position, models)),
        read_pair=max(map(_read_pair, models)),
        # Float32 scores and their copies: three in beam search, up to eight in sampling.
        scored_row=sum(8 * 4 * len(model.embeddings.tokens.weight) for model in models),
        # Two queries: the newest token and the placeholder.
        scored_pair=max(2 * _bias_pair(model) for model in models),
        spare=spare,
        multiple=multiple,
        cuda_graphs=cuda_graphs,
    )


def _element(model: UnilmModel) -> int:
    """Return the bytes of a number in the model's data type."""
    return model.embeddings.tokens.weight.element_size()


def _cached_position(model: UnilmModel) -> int:
    heads = model.cfg.key_value_heads or model.cfg.encoder_attention_heads
    return 2 * heads * width_of_head(model.cfg) * model.cfg.encoder_layers * _element(model)


def _read_position(model: UnilmModel) -> int:
    width, inner, heads = (
        model.cfg.encoder_embed_dim,
        model.cfg.encoder_ffn_embed_dim,
        model.cfg.encoder_attention_heads,
    )
    gated = str(model.cfg.feed_forward) == "gated"
    # Four states, the queries, keys and values; inner states before and after; products with relative positions.
    of_attention = 4 * width + 3 * heads * width_of_head(model.cfg)
    products = 2 * heads * _table_rows(model)
    return (of_attention + (4 if gated else 2) * inner + products) * _element(model)


def _read_pair(model: UnilmModel) -> int:
    # Attention in blocks, as on CPUs, needs masks for windows and causal sources only. The size of a window's does not
    # grow with the source.
    in_blocks = (
        model.embeddings.tokens.weight.device.type == "cpu" and getattr(model.cfg, "attention", "auto") != "padded"
    )
    has_masks = model.relative_position is not None or has_causal_source(model.cfg)
    return 0 if in_blocks and not has_masks else _bias_pair(model)


def _bias_pair(model: UnilmModel) -> int:
    # A bias for each pattern or, with relative positions, for each head of each pattern; before and after masking, and
    # the masks.
    heads = model.cfg.encoder_attention_heads if model.relative_position is not None else 1
    biases = len(set(model.patterns)) * heads * (2 * _element(model) + 2)
    if not _table_rows(model):
        return biases
    # Row numbers of the table, the values looked up for one of a layer's two products, and its factors for each slot
    # of a step.
    return biases + 8 + (2 * heads + model.cfg.encoder_embed_dim) * _element(model)


def _table_rows(model: UnilmModel) -> int:
    """Return the rows of the table of relative positions, 0 without disentangled attention."""
    relative = model.relative_position
    return len(relative.embedding.weight) if isinstance(relative, RelativeEmbeddings) else 0


def useful_sentences(device: torch.device, beam: int) -> int | None:
    """Return the largest useful batch, see `USEFUL_ROWS`; None on a GPU, where only memory limits it."""
    return max(1, USEFUL_ROWS // (2 * beam)) if device.type == "cpu" else None


def plan_batches(
    lengths: np.ndarray,
    *,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    memory: BatchMemory | None = None,
    positions: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Gather sentences into batches, each as large as the limits allow.

    Sentences are sorted by length, the longest first: a batch that does not fit fails at the start, and a batch has
    sentences of similar length. A single sentence is a batch even if it exceeds the limits.

    Args:
        lengths: source positions of each sentence (n,).
        max_tokens: most positions of a batch, with padding.
        max_sentences: most sentences of a batch.
        memory: estimate of how many sentences fit.
        positions: the positions of each sentence that ``max_tokens`` counts (n,); None: ``lengths``.

    Returns:
        The indices of the sentences of each batch.

    Raises:
        UserError: if a limit is below 1.
    """
    limits = {"--max-tokens": max_tokens, "--batch-size": max_sentences}
    wrong = [(option, limit) for option, limit in limits.items() if limit is not None and limit < 1]
    if wrong:
        raise UserError.of(f"{option} must be at least 1, but is {limit}" for option, limit in wrong)
    positions = lengths if positions is None else positions
    order = np.lexsort((-positions, -lengths))
    batches = []
    while len(order):
        first = order[0]
        size = len(order) if max_sentences is None else max_sentences
        if memory is not None:
            size = min(size, memory.most_sentences(int(lengths[first])))
        if max_tokens is not None:
            longest = np.maximum.accumulate(positions[order[: min(size, max_tokens // max(1, positions[first]))]])
            size = int((longest * np.arange(1, len(longest) + 1) <= max_tokens).sum())
        size = max(1, size)
        batches.append(order[:size])
        order = order[size:]
    return batches


def generate_in_halves(
    generate: Callable[..., list[Result]], source: Tensor, *columns: Tensor | None, pad: int
) -> list[Result]:
    """Call ``generate(source, *columns)``; if memory runs out, halve the batch until its parts fit.

    This is a safety net for a wrong estimate, not a way to find the largest batch: Linux promises more memory than it
    has, and may kill a process that takes too much before PyTorch gets an error.

    Args:
        generate: returns a result for each sentence.
        source: laid-out sources, padded on the right (N, S). N: sentences, S: source positions.
        columns: further tensors with a row for each sentence, padded on the right (N, L), or a number (N,), or None.
        pad: the id of padding. Halves lose the columns that are padding only.

    Returns:
        The results of all sentences, in their order.

    Raises:
        UserError: if a single sentence does not fit.
    """
    try:
        return generate(source, *columns)
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        reason = str(error).strip().split("\n")[0]
    # Only after the except clause: the traceback keeps every tensor of the failed attempt alive.
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()
    sentences = len(source)
    if sentences == 1:
        raise UserError(
            f"a sentence of {source.size(1)} source positions does not fit into memory, not even alone: lower --beam "
            f"or --max-len-b, or cut sources with --max-source-positions ({reason})"
        )
    logger.warning(
        f"a batch of {sentences} sentences of up to {source.size(1)} source positions does not fit into memory and is "
        f"generated in halves; lower --max-batch-memory or --batch-size to save the attempt ({reason})"
    )
    half = (sentences + 1) // 2
    results = []
    for part in (slice(half), slice(half, None)):
        rows = [None if column is None else _trimmed(column[part], pad) for column in (source, *columns)]
        try:
            results += generate_in_halves(generate, *rows, pad=pad)
        except SentenceError as error:
            raise error.moved(part.start or 0) from None
    return results


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether the error is a failed allocation, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)
    )


def _trimmed(rows: Tensor, pad: int) -> Tensor:
    """Return rows (N, L) without the last columns that are padding in all rows; numbers (N,) have no padding."""
    if rows.dim() == 1:
        return rows
    used = (rows != pad).any(dim=0).nonzero()
    return rows[:, : int(used[-1]) + 1 if len(used) else 0]


def free_memory(device: torch.device, root: Path = Path("/")) -> int:
    """Return the bytes that a new allocation may take.

    On a GPU this is the free memory of the driver and of PyTorch's cache. On the CPU it is the available memory that
    Linux reports, or less if the control groups of this process (containers, batch systems) have limits. Elsewhere it
    is `UNKNOWN`.

    Args:
        device: the device to allocate on.
        root: root of the file system, for tests.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    available = _fields(root / "proc/meminfo").get("MemAvailable:") if device.type == "cpu" else None
    if available is None:
        return UNKNOWN
    return max(0, min([available * 1024, *_left_by_control_groups(root)]))


def _left_by_control_groups(root: Path) -> Iterator[int]:
    """Yield the bytes that each limit on this process leaves."""
    for folder, version in control_groups(root):
        _, limit_file, used_file, inactive = _CONTROL_GROUPS[version]
        limit, used = _number(folder / limit_file), _number(folder / used_file)
        if limit is not None and used is not None:
            yield limit - used + _fields(folder / "memory.stat").get(inactive, 0)


def control_groups(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folder and version of each control group of this process and of its parents, whose limits hold, too.

    Some folders may not exist: a container may see its own group as the root, while the path is the path on the host.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            version = 1 if controllers else 2
            group = Path(path.lstrip("/"))
            for part in (group, *group.parents) if group.parts else (group,):
                yield root / _CONTROL_GROUPS[version][0] / part, version


def _fields(file: Path) -> dict[str, int]:
    """Read lines of a name, a number and optionally a unit."""
    return {words[0]: int(words[1]) for line in _lines(file) if len(words := line.split()) > 1}


def _number(file: Path) -> int | None:
    """Read a file of one number; None if there is no file or no limit ("max")."""
    text = "".join(_lines(file))
    return int(text) if text.isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
