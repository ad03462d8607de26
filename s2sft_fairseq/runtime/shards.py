"""Patches of fairseq's commands: ``--num-shards`` and ``--shard-id``, which they declare and ignore."""

import logging
from collections.abc import Iterator
from typing import Any

import torch
from fairseq_cli import generate, interactive, validate

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import Function, wrap

logger = logging.getLogger(__name__)


def install() -> None:
    """Wrap the commands that have these options."""
    wrap(generate, "_main", _generate)
    for command in (validate, interactive):
        wrap(command, "main", _whole)


def _generate(main: Function, cfg: Any, output_file: Any) -> Any:
    """Patch ``_main`` of fairseq_cli/generate.py: generate from every ``num_shards``-th batch.

    fairseq shards by the number of ranks, although this command has only one process. By default that is the number of
    GPUs, so that a machine with several would generate from a part of the data. A shard without a batch writes nothing.
    """
    data, ranks = cfg.dataset, cfg.distributed_training
    if not 0 <= data.shard_id < data.num_shards:
        raise UserError(
            f"--shard-id must be at least 0 and below --num-shards ({data.num_shards}), but is {data.shard_id}"
        )
    usual = (max(1, torch.cuda.device_count()), 0)
    if data.num_shards > 1 or (ranks.distributed_world_size, ranks.distributed_rank) == usual:
        ranks.distributed_world_size, ranks.distributed_rank = data.num_shards, data.shard_id
    try:
        return main(cfg, output_file)
    except ZeroDivisionError:  # fairseq's speed of no sentence
        if data.num_shards == 1:
            raise
        logger.warning(f"shard {data.shard_id} of {data.num_shards} has no batch: there are fewer than --num-shards")


def _whole(main: Function, cfg: Any, *args: Any, **options: Any) -> Any:
    """Patch ``main`` of fairseq_cli/validate.py and interactive.py: refuse shards."""
    if problems := list(shard_problems(getattr(cfg, "dataset", cfg))):
        raise UserError.of(problems)
    return main(cfg, *args, **options)


def shard_problems(options: Any) -> Iterator[str]:
    """Yield an error if a command that reads all of its data has ``--num-shards``; it may lack the option."""
    shards = getattr(options, "num_shards", 1)
    if shards != 1:
        yield f"--num-shards is for s2sft generate and must be left out here, but is {shards}"
