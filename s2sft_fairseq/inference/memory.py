"""Batches for decoding: as large as memory, the user and the machine allow, and halved where they do not fit.

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
from s2sft_fairseq.inference.rules import NotANumberError
from s2sft_fairseq.inference.step_graphs import largest_batch
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.modules.disentangled_attention import RelativeEmbeddings
from s2sft_fairseq.modules.incremental_state import SLOTS_AT_A_TIME

logger = logging.getLogger(__name__)

Result = TypeVar("Result")

SHARE = 0.6
"""Of the free memory, what decoding takes by default: other processes need some too, and this is an estimate."""

USEFUL_ROWS = 320
"""Rows of a matrix product, two for each hypothesis, beyond which a CPU gains little: 6 layers, 384 wide, beam 5 gave
3.9, 5.7, 7.4, 8.6 and 8.9 sentences a second of one core with 4, 8, 16, 32 and 64 sentences of 20 to 64 positions."""

# What else PyTorch raises as a plain RuntimeError: its CPU allocator (Linux and macOS, Windows), the driver, cuBLAS.
_OUT_OF_MEMORY = ("can't allocate memory", "not enough memory", "out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
GIB = 2**30
UNKNOWN = 4 * GIB  # where the system does not say, such as on macOS
# For each version of Linux's control groups: where its files are, the limit, what is used, and the statistics that say
# how much of that are files the kernel would drop first.
_CONTROL_GROUPS = {
    2: ("sys/fs/cgroup", "memory.max", "memory.current", "inactive_file"),
    1: ("sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"),
}


@dataclass(frozen=True)
class BatchMemory:
    """An estimate of the bytes that decoding a batch takes beyond the models.

    It follows what the engine does: a cache of keys and values, that of a source shared by its hypotheses; beside it
    what is needed for a moment, first to read the sources, then to choose each token.
    """

    budget: int
    """Bytes that a batch may take."""
    beam: int
    """Hypotheses of each sentence."""
    max_tokens: int
    """Most tokens of a hypothesis."""
    cached_position: int
    """Bytes kept for each position, of a source or of a hypothesis."""
    read_position: int
    """Bytes needed for each position of a source while it is read ..."""
    read_pair: int
    """... and for each pair of positions."""
    scored_row: int
    """Bytes needed for each hypothesis while its next token is chosen ..."""
    scored_pair: int
    """... and for each position that it sees then."""
    spare: int = 0
    """Positions that are kept beyond those of the source and of one hypothesis, at least ..."""
    multiple: int = 1
    """... and what their number is a multiple of."""
    cuda_graphs: bool = False
    """Whether a batch is filled up to one of the sizes of CUDA graphs."""

    def of_sentence(self, length: int) -> int:
        """Return the bytes for each sentence of a batch whose longest source has ``length`` positions."""
        # At most: what hypotheses have in common is kept once.
        positions = max(length + self.beam * (self.max_tokens + 1), length + self.max_tokens + self.spare)
        positions += -positions % self.multiple
        reading = length * (self.read_position + length * self.read_pair)
        scoring = self.beam * (self.scored_row + positions * self.scored_pair)
        # Both, though they are needed one after the other: what allocators take back they give in other pieces.
        return positions * self.cached_position + reading + scoring

    def most_sentences(self, length: int) -> int:
        """Return how many sentences fit, the longest source of which has ``length`` positions; at least one."""
        most = max(1, self.budget // self.of_sentence(length))
        return largest_batch(most) if self.cuda_graphs else most


def memory_for(
    models: Sequence[UnilmModel], beam: int, max_tokens: int, budget: int | None = None, *, cuda_graphs: bool = False
) -> BatchMemory:
    """Estimate the memory that decoding takes.

    Args:
        models: one, or an ensemble, on the device and in the data type that they decode in.
        beam: hypotheses of each sentence.
        max_tokens: most tokens of a hypothesis.
        budget: bytes that a batch may take; `SHARE` of what the device has free if None.
        cuda_graphs: whether batches are decoded by them.
    """
    device = models[0].embeddings.tokens.weight.device
    if budget is None:
        budget = int(SHARE * free_memory(device))
    # A GPU has memory for what is taken, a CPU for what is written.
    spare, multiple = (0, 1) if device.type == "cpu" else (spare_slots(beam), SLOTS_AT_A_TIME)
    return BatchMemory(
        budget,
        beam,
        max_tokens,
        # Each model keeps a cache and scores of its own; reading and attending they take turns.
        cached_position=sum(map(_cached_position, models)),
        read_position=max(map(_read_position, models)),
        read_pair=max(map(_read_pair, models)),
        # Float32 scores and what is made of them: three copies in beam search, up to eight in sampling.
        scored_row=sum(8 * 4 * len(model.embeddings.tokens.weight) for model in models),
        # From the newest token and the placeholder.
        scored_pair=max(2 * _bias_pair(model) for model in models),
        spare=spare,
        multiple=multiple,
        cuda_graphs=cuda_graphs,
    )


def _element(model: UnilmModel) -> int:
    """Return the bytes of a number in the model's data type."""
    return model.embeddings.tokens.weight.element_size()


def _cached_position(model: UnilmModel) -> int:
    width, heads = model.cfg.encoder_embed_dim, model.cfg.encoder_attention_heads
    of_keys = width // heads * (model.cfg.key_value_heads or heads)
    return 2 * of_keys * model.cfg.encoder_layers * _element(model)


def _read_position(model: UnilmModel) -> int:
    width, inner = model.cfg.encoder_embed_dim, model.cfg.encoder_ffn_embed_dim
    gated = str(model.cfg.feed_forward) == "gated"
    # Four states, the queries, keys and values; inner states before and after; products with relative positions.
    products = 2 * model.cfg.encoder_attention_heads * _table_rows(model)
    return (7 * width + (4 if gated else 2) * inner + products) * _element(model)


def _read_pair(model: UnilmModel) -> int:
    # In blocks, as on CPUs, a source needs no mask but for windows, which do not grow with it.
    in_blocks = (
        model.embeddings.tokens.weight.device.type == "cpu" and getattr(model.cfg, "attention", "auto") != "padded"
    )
    return 0 if in_blocks and model.relative_position is None else _bias_pair(model)


def _bias_pair(model: UnilmModel) -> int:
    # A bias for each pattern, or for each of its heads; each of them before and after its mask, and the masks.
    heads = model.cfg.encoder_attention_heads if model.relative_position is not None else 1
    biases = len(set(model.patterns)) * heads * (2 * _element(model) + 2)
    if not _table_rows(model):
        return biases
    # Rows of the table, what is looked up for one of a layer's two products, and its factors for each slot of a step.
    return biases + 8 + (2 * heads + model.cfg.encoder_embed_dim) * _element(model)


def _table_rows(model: UnilmModel) -> int:
    """Return the rows of the table of relative positions, 0 without disentangled attention."""
    relative = model.relative_position
    return len(relative.embedding.weight) if isinstance(relative, RelativeEmbeddings) else 0


def useful_sentences(device: torch.device, beam: int) -> int | None:
    """Return how many sentences of a batch help: see `USEFUL_ROWS`; None on a GPU, where memory alone is the limit."""
    return max(1, USEFUL_ROWS // (2 * beam)) if device.type == "cpu" else None


def plan_batches(
    lengths: np.ndarray,
    *,
    max_tokens: int | None = None,
    max_sentences: int | None = None,
    memory: BatchMemory | None = None,
    positions: np.ndarray | None = None,
) -> list[np.ndarray]:
    """Gather sentences to batches, each as large as the limits allow.

    The longest come first, so that a batch which does not fit shows at once, and sentences of similar length stand
    together. A sentence alone always makes a batch.

    Args:
        lengths: source positions of each sentence (n,).
        max_tokens: most positions of a batch, its padding included.
        max_sentences: most sentences of a batch.
        memory: estimate that tells how many sentences fit.
        positions: what ``max_tokens`` counts (n,); ``lengths`` if None.

    Returns:
        The indices of the sentences of each batch.
    """
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
    """Call ``generate(source, *columns)``; a batch for which memory runs out is halved until its parts fit.

    Linux promises more memory than it has: there a process that takes too much may be killed before PyTorch hears of
    it. So this is the net below an estimate, not a way to find the largest batch.

    Args:
        generate: returns a result for each sentence.
        source: laid-out sources, padded on the right (N, S). N: sentences, S: source positions.
        columns: what else there is of each sentence, padded on the right (N, L), or None.
        pad: what padding consists of. Halves lose the columns that hold nothing else.

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
    # Not before the exception is gone: its traceback keeps every tensor of the failed attempt alive.
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
        except NotANumberError as error:
            raise NotANumberError(error.sentence + (part.start or 0), error.dtype) from None
    return results


def is_out_of_memory(error: BaseException) -> bool:
    """Tell whether an allocation has failed, on a GPU or on the CPU."""
    return isinstance(error, torch.OutOfMemoryError | MemoryError) or (
        isinstance(error, RuntimeError) and any(message in str(error) for message in _OUT_OF_MEMORY)
    )


def _trimmed(rows: Tensor, pad: int) -> Tensor:
    """Return rows (N, L) without the columns on their right that are padding in all of them."""
    used = (rows != pad).any(dim=0).nonzero()
    return rows[:, : int(used[-1]) + 1 if len(used) else 0]


def free_memory(device: torch.device, root: Path = Path("/")) -> int:
    """Return the bytes that a new allocation may take.

    On a GPU: what the driver has left, and what PyTorch keeps cached. On the CPU: what Linux calls available, or what
    the limits of the control groups of this process (containers, batch systems) leave of it. `UNKNOWN` elsewhere.

    Args:
        device: where.
        root: of the file system, for tests.
    """
    if device.type == "cuda":
        free, _ = torch.cuda.mem_get_info(device)
        return free + torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    available = _fields(root / "proc/meminfo").get("MemAvailable:") if device.type == "cpu" else None
    if available is None:
        return UNKNOWN
    return max(0, min([available * 1024, *_left_by_control_groups(root)]))


def _left_by_control_groups(root: Path) -> Iterator[int]:
    """Yield what each limit on this process leaves it."""
    for folder, version in control_groups(root):
        _, limit_file, used_file, inactive = _CONTROL_GROUPS[version]
        limit, used = _number(folder / limit_file), _number(folder / used_file)
        if limit is not None and used is not None:
            yield limit - used + _fields(folder / "memory.stat").get(inactive, 0)


def control_groups(root: Path) -> Iterator[tuple[Path, int]]:
    """Yield the folders of the control groups of this process and of their parents, whose limits hold as well.

    A container may see its own group as the root, while the path names it as the host does: folders that are not there
    have no limits to read.
    """
    for line in _lines(root / "proc/self/cgroup"):
        _, controllers, path = line.split(":", 2)
        if controllers in ("", "memory"):
            version = 1 if controllers else 2
            group = Path(path.lstrip("/"))
            for part in (group, *group.parents) if group.parts else (group,):
                yield root / _CONTROL_GROUPS[version][0] / part, version


def _fields(file: Path) -> dict[str, int]:
    """Read lines of a name, a number and perhaps a unit."""
    return {words[0]: int(words[1]) for line in _lines(file) if len(words := line.split()) > 1}


def _number(file: Path) -> int | None:
    """Read a file of one number; None where there is no file, or no limit ("max")."""
    text = "".join(_lines(file))
    return int(text) if text.isdigit() else None


def _lines(file: Path) -> list[str]:
    try:
        return file.read_text().splitlines()
    except OSError:
        return []
