"""Generate lines of hypotheses from files of raw text, with a model that is loaded once."""

import argparse
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from fairseq import utils
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf

from s2sft_fairseq.checkpoints.model_folder import checkpoint_file, source_names_of
from s2sft_fairseq.data.text_files import has_fields, is_json_lines, line_problems, read_lines, split_fields
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.inference.engines import build_generator
from s2sft_fairseq.inference.files import (
    HypothesisLines,
    RawText,
    ResumableOutput,
    file_state,
    read_ahead,
    tokenizer_state,
)
from s2sft_fairseq.inference.generator import TextGenerator, batch_planner, load_models
from s2sft_fairseq.progress import sentence_progress
from s2sft_fairseq.tokenization.folder import Tokenizer, open_tokenizer
from s2sft_fairseq.tokenization.statistics import PieceStats
from s2sft_fairseq.tokenization.tokenize_files import Job, TextTokenizer

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Done:
    """Counts of a generation from a file."""

    sentences: int
    tokens: int
    """Tokens of the best hypotheses."""
    cut_sources: int
    seconds: float
    sources: PieceStats
    """Statistics of the sources."""


class FileGenerator:
    """Generates from one opened file after another with the same model."""

    def __init__(self, tokenizer: Tokenizer, cfg: DictConfig) -> None:
        """Load the model.

        Args:
            tokenizer: the tokenizer of ``cfg.task.data``.
            cfg: fairseq's configuration.

        Raises:
            UserError: if tokenizer, checkpoint and options do not match.
        """
        self.tokenizer, self.cfg = tokenizer, cfg
        self.task = TASK_REGISTRY[cfg.task._name](cfg.task, tokenizer.dictionary)
        self.device = "cuda" if torch.cuda.is_available() and not cfg.common.cpu else "cpu"
        self.models = load_models(cfg, self.task, self.device)
        self.generator = build_generator(self.task, self.models, cfg.generation)

    def write(
        self,
        text: RawText,
        append: Callable[[Sequence[str]], None],
        *,
        window: int,
        json_lines: bool,
        done: int = 0,
        bar: bool = False,
    ) -> Done:
        """Generate from the lines of a file after the first `done` lines.

        While the model works on a window, one thread reads the next window and another one writes the last.

        Args:
            text: the file.
            append: takes the lines of each window.
            window: number of lines in a window.
            json_lines: write objects with all hypotheses in place of the best text.
            done: number of lines that an earlier run has done.
            bar: draw a progress bar if the error stream is a terminal.
        """
        generator = TextGenerator(
            partial(self.task.inference_step, self.generator, self.models),
            self.task.form,
            batch_planner(self.cfg, self.models, self.task),
            nbest=None if getattr(self.cfg.task, "all_ended", False) else self.cfg.generation.nbest,
            device=self.device,
        )
        lines = HypothesisLines(self.tokenizer, self.generator.symbols_to_strip_from_output, json_lines)
        start = time.perf_counter()
        with sentence_progress(len(text.lines), done, bar=bar) as progress, ThreadPoolExecutor(1) as writer:
            written: Future[None] | None = None
            for read in read_ahead(text.windows(window, done)):
                hypotheses = generator(read, progress.update)
                if written is not None:
                    written.result()
                written = writer.submit(lambda first, found: append(lines(first, found)), read.first, hypotheses)
            if written is not None:
                written.result()
        seconds = time.perf_counter() - start
        return Done(generator.sentences, generator.tokens, generator.cut_sources, seconds, text.stats)


def tokenizer_beside_a_model(cfg: DictConfig) -> Tokenizer:
    """Open the tokenizer of ``cfg.task.data``.

    It runs in a thread beside the model, without threads of its own: these would take the model's cores.

    Raises:
        UserError: if the folder holds no tokenizer.
    """
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    return open_tokenizer(Path(cfg.task.data))


def open_text(path: Path, raw: argparse.Namespace, cfg: DictConfig, tokenizer: Tokenizer) -> RawText:
    """Check a whole file and return it, ready to read.

    Args:
        path: the file.
        raw: the options that only ``s2sft generate --input`` has.
        cfg: fairseq's configuration.
        tokenizer: splits the text into symbols.

    Raises:
        UserError: naming all mistakes of the file.
    """
    names = source_names_of(cfg.common_eval.path)
    keys = tuple(raw.source or names or ["src"]) if has_fields(path) else ()
    numbers = tuple(range(len(keys) or 1))
    job = Job((path,), keys, {raw.output: numbers}, numbers if raw.separator is not None else None)
    text = RawText.open(job, TextTokenizer(tokenizer, raw.separator), cfg.dataset.num_shards, cfg.dataset.shard_id)
    if len(names) > 1 and not keys:
        _check_number_of_fields(path, names, raw.separator)
    return text


def _check_number_of_fields(path: Path, names: Sequence[str], separator: str | None) -> None:
    """Check that each line of a text that is not empty has as many fields as the model.

    Raises:
        UserError: naming the lines that have not.
    """
    lines = enumerate(read_lines(path), 1)
    wrong = [number for number, line in lines if line.strip() and len(split_fields(line, separator)) != len(names)]
    if wrong:
        what = f"have not the {len(names)} fields of the model ({', '.join(names)}), divided by {separator or '[SEP]'}"
        raise UserError.of(line_problems(path, {what: wrong}))


def generate_file(raw: argparse.Namespace, cfg: DictConfig) -> None:
    """Generate from a file of raw text to a file.

    Args:
        raw: the options that only ``s2sft generate --input`` has.
        cfg: fairseq's configuration; ``cfg.task.data`` is the folder of the tokenizer.

    Raises:
        UserError: if input, tokenizer, checkpoint and options do not match, or the output was begun with other
            settings.
    """
    tokenizer = tokenizer_beside_a_model(cfg)
    text = open_text(raw.input, raw, cfg, tokenizer)
    generator = FileGenerator(tokenizer, cfg)
    settings = {"--input": file_state(raw.input), **settings_of_lines(raw, cfg)}
    with ResumableOutput(raw.output, settings, raw.buffer_size) as output:
        done = generator.write(
            text,
            output.append,
            window=output.window,
            json_lines=is_json_lines(raw.output),
            done=output.done,
            bar=not cfg.common.no_progress_bar,
        )
        output.finish()
    if done.sources.divided:
        logger.info(f"{raw.input}: {done.sources.divided:,} lines have separators, which begin further fields")
    if warning := done.sources.warning(raw.input):
        logger.warning(warning)
    if done.cut_sources:
        limit = f"{generator.task.form.max_source} positions (--max-source-positions)"
        logger.warning(f"{raw.input}: {done.cut_sources:,} of {done.sentences:,} sources are cut to {limit}")
    before = f", {output.done:,} of them by an earlier run" if output.done else ""
    print(
        f"{raw.output}: {len(text.lines):,} lines{before}; {done.sentences:,} sentences ({done.tokens:,} tokens) in "
        f"{done.seconds:.1f} s: {done.sentences / done.seconds:.2f} sentences/s, "
        f"{done.tokens / done.seconds:.2f} tokens/s"
    )


def settings_of_lines(raw: argparse.Namespace, cfg: DictConfig) -> dict[str, Any]:
    """Return everything besides the input that the output depends on, by option name."""
    task: Any = OmegaConf.to_container(cfg.task)
    generation: Any = OmegaConf.to_container(cfg.generation)
    groups = {
        **task,
        **generation,
        **{name: cfg.common[name] for name in ("seed", "fp16", "bf16")},
        **{name: cfg.dataset[name] for name in ("num_shards", "shard_id")},
        "model_overrides": cfg.common_eval.model_overrides,
        "source": raw.source or list(source_names_of(cfg.common_eval.path)) or None,
        **{name: getattr(raw, name) for name in ("separator", "buffer_size")},
    }
    # No line depends on these; float32 is bf16 = False.
    left_out = {"_name", "data", "max_batch_memory", "float32", "skip_nonfinite_updates"}
    return {
        "--path": [file_state(checkpoint_file(path)) for path in utils.split_paths(cfg.common_eval.path)],
        "--tokenizer-dir": tokenizer_state(Path(cfg.task.data)),
        **{as_option(name): value for name, value in groups.items() if name not in left_out},
    }
