"""``s2sft generate --engine ray``: generate from the shards of a corpus with several actors that each hold the model.

Ray Data assigns the shards, starts as many actors as there is room for, and restarts an actor that was killed, with the
shard that it had. An actor writes its shard under a temporary name until it is complete. So a shard is whole even if
two actors write it, one of which Ray wrongly took for dead.
"""

import argparse
import contextlib
import hashlib
import json
import logging
import os
import re
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq import utils
from omegaconf import DictConfig

from s2sft_fairseq import plugin  # noqa: F401  an actor imports only this module
from s2sft_fairseq.errors import UserError, package, user_error_text
from s2sft_fairseq.files import locked, remove_temporary, temporary_files, whole_file
from s2sft_fairseq.inference.file_generator import (
    FileGenerator,
    open_text,
    settings_of_lines,
    tokenizer_beside_a_model,
)
from s2sft_fairseq.inference.files import file_state
from s2sft_fairseq.inference.shards import FORMATS, MANIFEST, Manifest, Shard, find_shards
from s2sft_fairseq.signals import end, handled

logger = logging.getLogger(__name__)

INSTALL = "'ray[data]'"
QUIET = {
    "RAY_USAGE_STATS_ENABLED": "0",
    # Ray prints an error for each restartable actor of Ray Data.
    "RAY_BACKEND_LOG_LEVEL": "fatal",
}
"""Environment variables of Ray that are set unless the user has set them."""
TRIALS = 4
"""How often a shard is tried if its actor is killed: a shard that takes all memory would kill actors for ever."""


class ShardWriter:
    """An actor: holds a loaded model and writes shards."""

    def __init__(self, raw: argparse.Namespace, cfg: DictConfig) -> None:
        """Load the model; the arguments are those of `generate_shards`, with absolute paths."""
        self.raw, self.cfg = raw, cfg
        self.tokenizer = tokenizer_beside_a_model(cfg)
        self.generator = FileGenerator(self.tokenizer, cfg)

    def __call__(self, row: dict[str, str]) -> dict[str, str]:
        """Write a shard.

        Args:
            row: the paths ``input`` and ``output``.

        Returns:
            The row with ``result``, a JSON object: the arguments of `_Progress.add` for a shard that is done, or
            ``problems``, the user's mistakes in a shard that is not.

        Raises:
            RuntimeError: for any other error, naming the shard.
        """
        shard = Shard(Path(row["input"]), Path(row["output"]))
        result: dict[str, Any]
        try:
            result = self._write(shard)
        except UserError as error:
            result = {"problems": [p if str(shard.input) in p else f"{shard.input}: {p}" for p in error.problems]}
        except Exception as error:
            raise RuntimeError(f"{shard.input}: {error}") from error
        return {**row, "result": json.dumps(result)}

    def _write(self, shard: Shard) -> dict[str, Any]:
        if len(temporary_files(shard.output)) >= TRIALS:
            raise UserError(f"{TRIALS} processes that wrote {shard.output.name} were killed: is the memory too small?")
        digest = hashlib.sha256()
        with whole_file(shard.output) as temporary, temporary.open("wb") as file:
            text = open_text(shard.input, self.raw, self.cfg, self.tokenizer)

            def append(lines: Sequence[str]) -> None:
                data = "".join(f"{line}\n" for line in lines).encode()
                digest.update(data)
                file.write(data)

            json_lines = self.raw.output_format == "jsonl"
            done = self.generator.write(text, append, window=self.raw.buffer_size, json_lines=json_lines)
        record = {
            "input": file_state(shard.input),
            "lines": len(text.lines),
            "sha256": digest.hexdigest(),
            "seconds": round(done.seconds, 3),
        }
        found = done.sources
        unknown = found.warning(shard.input)
        tokens, cut = done.tokens, done.cut_sources
        return {"record": record, "tokens": tokens, "cut": cut, "divided": found.divided, "unknown": unknown}


def generate_shards(raw: argparse.Namespace, cfg: DictConfig) -> None:
    """Generate from the files of a corpus and write the outputs to a folder.

    Args:
        raw: the options that only ``s2sft generate --input`` has.
        cfg: fairseq's configuration; ``cfg.task.data`` is the folder of the tokenizer.

    Raises:
        UserError: if options and files do not match, or the output was begun with other settings; also with the
            mistakes in all shards, after the shards without mistakes are done.
    """
    package("ray.data", "--engine ray", INSTALL)
    raw.output_format, raw.actors = raw.output_format or FORMATS[0], raw.actors or 1
    shards = find_shards(raw.input, raw.output, raw.output_format)
    cfg.task.data = os.path.abspath(cfg.task.data)
    cfg.common_eval.path = os.pathsep.join(map(os.path.abspath, utils.split_paths(cfg.common_eval.path)))
    with locked(raw.output):
        manifest = Manifest(raw.output, {**settings_of_lines(raw, cfg), "--output-format": raw.output_format})
        names = {MANIFEST, *(shard.output.name for shard in shards)}
        remove_temporary(raw.output, names.__contains__)
        missing = manifest.missing(shards)
        done = _Progress(raw.output, len(shards), len(missing))
        try:
            problems = _write_missing(missing, raw, cfg, manifest, done) if missing else []
        finally:
            remove_temporary(raw.output, names.__contains__)  # of actors that were killed
    if problems:
        heading = f"{done.missing - done.shards} of {len(shards)} shards could not be done, all others are saved:"
        raise UserError.of(problems, heading)
    print(done)


def _write_missing(
    missing: Sequence[Shard], raw: argparse.Namespace, cfg: DictConfig, manifest: Manifest, done: "_Progress"
) -> list[str]:
    """Let actors write shards, record each finished shard, and return the mistakes in the others."""
    problems: list[str] = []
    with _cluster(raw.actors) as ray, handled(end):  # once more: Ray handles SIGTERM itself from its start on
        try:
            for row in _rows(ray, missing, raw, cfg):
                shard, result = Shard(Path(row["input"]), Path(row["output"])), json.loads(row["result"])
                problems += result.get("problems", [])
                if "record" in result:
                    manifest.add(shard, result["record"])
                    done.add(shard, **result)
        except ray.exceptions.RayError as error:
            if text := user_error_text(error) or _missing_module(error):  # of an actor that cannot start
                raise UserError(text) from None
            raise
    return problems


def _missing_module(error: Exception) -> str | None:
    found = re.search(r"No module named '([\w.]+)'", str(error))
    return f"each node of the cluster needs the packages that this one has, but one lacks {found[1]}" if found else None


@contextlib.contextmanager
def _cluster(actors: int) -> Iterator[Any]:
    """Yield Ray, connected to the cluster of ``RAY_ADDRESS``, or else to a cluster of this machine only."""
    for name, value in QUIET.items():
        os.environ.setdefault(name, value)
    ray = package("ray", "--engine ray", INSTALL)
    logging.getLogger("ray").setLevel(logging.ERROR)
    is_ours = not ray.is_initialized()
    if is_ours:
        where: dict[str, Any] = {}
        if not os.environ.get("RAY_ADDRESS"):
            cores = max(actors, len(os.sched_getaffinity(0)))
            where = {"address": "local", "num_cpus": cores, "include_dashboard": False}
        with _no_error_stream():  # where Ray prints that RAY_BACKEND_LOG_LEVEL is set
            ray.init(**where, log_to_driver=False, logging_level=logging.ERROR)
    try:
        yield ray
    finally:
        if is_ours:
            ray.shutdown()


@contextlib.contextmanager
def _no_error_stream() -> Iterator[None]:
    """Discard the error stream of this process, for Python and native code."""
    sys.stderr.flush()
    with open(os.devnull, "w") as nowhere, open(os.dup(2), "w") as kept:
        os.dup2(nowhere.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(kept.fileno(), 2)


def _rows(ray: Any, shards: Sequence[Shard], raw: argparse.Namespace, cfg: DictConfig) -> Iterator[dict[str, str]]:
    """Yield the row of each shard once it is done."""
    data = package("ray.data", "--engine ray", INSTALL)
    logging.getLogger("ray.data").setLevel(logging.CRITICAL)
    context = data.DataContext.get_current()
    context.enable_progress_bars = context.print_on_execution_start = False
    nodes = [node["Resources"] for node in ray.nodes() if node["Alive"]]
    on_gpus = not cfg.common.cpu and any(node.get("GPU") for node in nodes)
    cfg.common.cpu = not on_gpus
    cores = cores_for_each([int(node.get("CPU", 0)) for node in nodes], raw.actors)
    items = [{"input": str(shard.input), "output": str(shard.output)} for shard in shards]
    done = data.from_items(items, override_num_blocks=len(items)).map(
        ShardWriter,
        fn_constructor_args=(raw, cfg),
        # Actors start when there is room for them. One task in flight: no shard waits while another actor is idle.
        compute=data.ActorPoolStrategy(
            min_size=1, max_size=raw.actors, initial_size=raw.actors, max_tasks_in_flight_per_actor=1
        ),
        num_cpus=None if on_gpus else cores,
        num_gpus=1 if on_gpus else None,
    )
    for batch in done.iter_batches(batch_size=None, prefetch_batches=0, batch_format="pyarrow"):
        yield from batch.to_pylist()


def cores_for_each(nodes: Sequence[int], actors: int) -> int:
    """Return the most cores that each of `actors` can have on nodes with these numbers of cores; at least 1."""
    shares = range(max(nodes, default=1), 0, -1)
    return next((share for share in shares if sum(cores // share for cores in nodes) >= actors), 1)


class _Progress:
    """Logs each finished shard, and reports at the end what was done and how fast."""

    def __init__(self, folder: Path, shards: int, missing: int) -> None:
        self.folder, self.all, self.missing = folder, shards, missing
        self.shards = self.sentences = self.tokens = 0
        self.start = time.perf_counter()
        if missing < shards:
            logger.info(f"{folder}: {shards - missing:,} of {shards:,} shards are done already")

    def add(self, shard: Shard, record: dict[str, Any], tokens: int, cut: int, divided: int, unknown: str) -> None:
        """Count and log a finished shard.

        Args:
            shard: the shard.
            record: its entry in the manifest.
            tokens: number of tokens of the hypotheses.
            cut: number of sources that were cut.
            divided: number of sources in which separators begin further fields.
            unknown: a warning of unknown symbols; may be empty.
        """
        self.shards += 1
        self.sentences += record["lines"]
        self.tokens += tokens
        rate = self.sentences / (time.perf_counter() - self.start)
        number = self.all - self.missing + self.shards
        if cut:
            logger.warning(f"{shard.input}: {cut:,} of {record['lines']:,} sources are cut (--max-source-positions)")
        if divided:
            logger.info(f"{shard.input}: {divided:,} lines have separators, which begin further fields")
        if unknown:
            logger.warning(unknown)
        logger.info(
            f"{shard.output.name}: {record['lines']:,} lines in {record['seconds']:.1f} s; {number:,} of {self.all:,} "
            f"shards, {rate:.2f} sentences/s"
        )

    def __str__(self) -> str:
        seconds = time.perf_counter() - self.start
        before = f", {self.all - self.missing:,} of them by an earlier run" if self.missing < self.all else ""
        return (
            f"{self.folder}: {self.all:,} shards{before}; {self.sentences:,} sentences ({self.tokens:,} tokens) in "
            f"{seconds:.1f} s: {self.sentences / seconds:.2f} sentences/s, {self.tokens / seconds:.2f} tokens/s"
        )
