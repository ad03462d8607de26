"""The settings that ``s2sft finetune`` chooses by default: lengths, batches, updates, learning rate, precision."""

import math
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from s2sft_fairseq.checkpoints.sizes import is_language_model
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes.settings import Settings
from s2sft_fairseq.recipes.training import devices

QUANTILE = 0.99
"""Share of the texts that are not cut."""
SHORTEST = 0.1
"""Share of the targets that may be shorter than the minimum length that is tried in the search."""
SOURCE_SPECIALS, TARGET_SPECIALS = 2, 1
"""``[CLS] source [SEP] target [SEP]``."""
START = 1
"""The position of a target's start symbol with --method infilling, which is reserved for all methods."""

CPU, GPU = "on a CPU", "on a GPU"
# Pairs of an update, passes over the training set, minimum and maximum number of updates.
USUAL = {CPU: (16, 4, 100, 5000), GPU: (64, 10, 500, 100_000)}
# A language model writes well after few updates, and takes longer for each.
USUAL_OF_LANGUAGE_MODELS = {CPU: (16, 1, 48, 500), GPU: (64, 3, 100, 20_000)}
# Learning rates by the minimum width of the encoder: those of s2s-ft's appendix A, and for small encoders the demo's.
LEARNING_RATES = {1024: "2e-5", 512: "1e-4", 0: "3e-4"}
# A language model that gets few updates needs larger steps. For SmolLM2-135M they are three times the usual ones: its
# texts were better after 10 updates with them than after 12 without, but not after 40 (docs/which-start.md).
FEW_UPDATES = 16
RATES_OF_FEW_UPDATES = {1024: "6e-5", 0: "3e-4"}
# Positions at a time on a GPU, by the minimum width: many, since the host launches small kernels more slowly than the
# GPU runs them, but at most 15 GB ("A whole fine-tuning" in docs/performance-gpu.md).
GPU_POSITIONS = {1024: 8192, 512: 16384, 0: 32768}


class Lengths(NamedTuple):
    """Maximum positions, special symbols included, and the shares of the texts that are longer."""

    source: int
    target: int
    source_cut: float
    target_cut: float


def choose_lengths(
    source: Mapping[int, int],
    target: Mapping[int, int],
    positions: int,
    max_source: int | None = None,
    max_target: int | None = None,
) -> Lengths:
    """Return lengths that do not cut 99 % of the texts, if the encoder has enough positions.

    Otherwise, targets get half of the positions, or all that sources do not need if that is more.

    Args:
        source: number of sources by their number of tokens, special symbols not included.
        target: number of targets by their number of tokens, special symbols not included.
        positions: positions of the encoder, for source and target together.
        max_source: the given length of sources; None: choose it.
        max_target: the given length of targets; None: choose it.

    Raises:
        UserError: the encoder has too few positions for the given lengths.
    """
    room = positions - START
    given = (max_source or SOURCE_SPECIALS + 1) + (max_target or TARGET_SPECIALS + 1)
    if given > room:
        raise UserError(
            f"--max-source and --max-target must leave room for each other in the {room} positions of the encoder, "
            f"but are {max_source} and {max_target}"
        )
    wanted = max_source or quantile(source) + SOURCE_SPECIALS
    chosen = max_target or min(
        quantile(target) + TARGET_SPECIALS, room - max_source if max_source else max(room // 2, room - wanted)
    )
    kept = min(wanted, room - chosen)
    return Lengths(kept, chosen, _longer(source, kept - SOURCE_SPECIALS), _longer(target, chosen - TARGET_SPECIALS))


def quantile(lengths: Mapping[int, int], share: float = QUANTILE) -> int:
    """Return the smallest length that is not exceeded by a share of the texts."""
    left = math.ceil(share * sum(lengths.values()))
    for length in sorted(lengths):
        left -= lengths[length]
        if left <= 0:
            return length
    raise ValueError("there must be at least one text")


def _longer(lengths: Mapping[int, int], kept: int) -> float:
    return sum(number for length, number in lengths.items() if length > kept) / sum(lengths.values())


def count_tokens(path: Path) -> Counter[int]:
    """Return the number of lines of tokenized text by their number of tokens."""
    with path.open(encoding="utf-8") as lines:
        return Counter(len(line.split()) for line in lines)


def choose(settings: Settings, tokens: Path, sizes: Mapping[str, Any]) -> dict[str, Any]:
    """Return the settings that depend on data, encoder and machine, with the reasons for them.

    Args:
        settings: the settings; those that are given do not change.
        tokens: folder of the tokenized pairs.
        sizes: the sizes of the encoder, by the names of the model's options.

    Returns:
        ``settings``, the values by reason and name, for `Settings.take`; ``device``; ``cut``, the shares of sources and
        targets that are cut; and ``least``, the number of tokens of short targets.

    Raises:
        UserError: the encoder has too few positions.
    """
    s, given = settings, settings.given
    source, target = (count_tokens(tokens / f"train.{side}") for side in ("src", "tgt"))
    fixed = {name: getattr(s, name) if name in given else None for name in ("max_source", "max_target")}
    lengths = choose_lengths(source, target, sizes["max_positions"], **fixed)
    device = CPU if s.cpu or not _has_gpu() else GPU
    usual = USUAL_OF_LANGUAGE_MODELS if is_language_model(sizes) else USUAL
    batch, epochs, least, most = usual[device]
    batch = s.batch or batch
    pairs = source.total()
    an_epoch = -(-pairs // batch)
    updates = s.updates or (s.epochs or epochs) * an_epoch
    if s.updates:
        reason = f"{updates * batch / pairs:.1f} passes over {pairs:,} pairs, {batch} an update"
    else:
        reason = f"{s.epochs or epochs} passes over {pairs:,} pairs, {batch} an update"
        if not s.epochs and not least <= updates <= most:
            updates = min(max(updates, least), most)
            reason += f"; at least {least:,}, at most {most:,} {device}"
    width = sizes["encoder_embed_dim"]
    chosen: dict[str, dict[str, Any]] = {
        "99 % of the texts, as far as the encoder has positions": {
            "max_source": lengths.source,
            "max_target": lengths.target,
        },
        device: {"batch": batch, "amp": _multiplies_in_16_bits(device)},
        reason: {"updates": updates},
        "a tenth of the updates": {"warmup": updates // 10},
        **_learning_rate(updates, sizes),
    }
    if device == GPU:
        positions = by_width(GPU_POSITIONS, width)
        longest = lengths.source + 2 * lengths.target  # with the placeholders
        chosen[f"at most {positions:,} positions"] = {"device_batch": min(max(positions // longest, 1), batch)}
    own = {why: {name: value for name, value in named.items() if name not in given} for why, named in chosen.items()}
    cut = {"source": round(lengths.source_cut, 4), "target": round(lengths.target_cut, 4)}
    settled = {why: named for why, named in own.items() if named}
    return {"settings": settled, "device": device, "cut": cut, "least": quantile(target, SHORTEST)}


def _learning_rate(updates: int, sizes: Mapping[str, Any]) -> dict[str, dict[str, Any]]:
    """Return the learning rate by its reason."""
    width = sizes["encoder_embed_dim"]
    if is_language_model(sizes) and updates <= FEW_UPDATES:
        reason = f"for a language model of width {width} and at most {FEW_UPDATES} updates"
        return {reason: {"lr": by_width(RATES_OF_FEW_UPDATES, width)}}
    return {f"for encoders of width {width}": {"lr": by_width(LEARNING_RATES, width)}}


def by_width(values: Mapping[int, Any], width: int) -> Any:
    """Return the value for the width of an encoder; `values` has values by their minimum width, the widest first."""
    return next(value for least, value in values.items() if width >= least)


def _has_gpu() -> bool:
    import torch

    return torch.cuda.is_available() and devices() > 0


def _multiplies_in_16_bits(device: str) -> str:
    from s2sft_fairseq.modules.cpu_linear import multiplies_bf16

    return "on" if device == GPU or multiplies_bf16() else "off"
