"""Generating from a file of raw text to a file, as configured by ``s2sft generate --input``."""

import argparse
import ast
import logging
import os
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.models import BaseFairseqModel
from fairseq.tasks import TASK_REGISTRY
from omegaconf import DictConfig, OmegaConf

from s2sft_fairseq.data.text_files import is_json_lines
from s2sft_fairseq.generation.batching import plan_batches, useful_sentences
from s2sft_fairseq.tasks.deltalm_seq2seq import DeltaLMSeq2SeqTask
from s2sft_fairseq.tasks.unilm_seq2seq import UnilmSeq2SeqTask
from s2sft_fairseq.text_generation.hypothesis_lines import HypothesisLines
from s2sft_fairseq.text_generation.progress import sentence_progress
from s2sft_fairseq.text_generation.raw_text import RawText, read_ahead
from s2sft_fairseq.text_generation.resumable_output import ResumableOutput, file_state, tokenizer_state
from s2sft_fairseq.text_generation.text_generator import TextGenerator
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.tokenize_files import Job, TextTokenizer

logger = logging.getLogger(__name__)

Seq2SeqTask = UnilmSeq2SeqTask | DeltaLMSeq2SeqTask


def generate_text(raw: argparse.Namespace, cfg: DictConfig) -> None:
    """Generate from a file of raw text to a file.

    Args:
        raw: the options of this command alone.
        cfg: fairseq's configuration, of which ``task.data`` is the folder of the tokenizer.

    Raises:
        UserError: if input, tokenizer, checkpoint and options do not fit each other, or the output was begun otherwise.
    """
    # The tokenizer runs in a thread beside the model: its own threads would take the model's cores.
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    tokenizer = open_tokenizer(Path(cfg.task.data))
    keys = tuple(raw.source or ["src"]) if is_json_lines(raw.input) else ()
    job = Job((raw.input,), keys, {raw.output: tuple(range(len(keys) or 1))})
    text = RawText.open(job, TextTokenizer(tokenizer, raw.separator), cfg.dataset.num_shards, cfg.dataset.shard_id)
    task = TASK_REGISTRY[cfg.task._name](cfg.task, tokenizer.dictionary)
    device = "cuda" if torch.cuda.is_available() and not cfg.common.cpu else "cpu"
    models = _load_models(cfg, task, device)
    generator = task.build_generator(models, cfg.generation)
    text_generator = TextGenerator(
        lambda sample: task.inference_step(generator, models, sample),
        task.form,
        _batch_planner(cfg, models, task),
        nbest=cfg.generation.nbest,
        seed=cfg.common.seed,
        device=device,
    )
    lines = HypothesisLines(tokenizer, generator.symbols_to_strip_from_output, json_lines=raw.output.suffix == ".jsonl")
    with ResumableOutput(raw.output, _settings(raw, cfg), raw.buffer_size) as output:
        seconds = _run(text, text_generator, lines, output, bar=not cfg.common.no_progress_bar)
        output.finish()
    for sentence in text_generator.summary():
        logger.warning(f"{raw.input}: {sentence}")
    done, tokens = text_generator.sentences, text_generator.tokens
    before = f", {output.done:,} of them by an earlier run" if output.done else ""
    print(
        f"{raw.output}: {len(text.lines):,} lines{before}; {done:,} sentences ({tokens:,} tokens) in {seconds:.1f} s: "
        f"{done / seconds:.2f} sentences/s, {tokens / seconds:.2f} tokens/s"
    )


def _run(
    text: RawText, generator: TextGenerator, lines: HypothesisLines, output: ResumableOutput, *, bar: bool
) -> float:
    """Generate what is missing of the output and return the seconds that took.

    One thread reads the next window while a window is generated from, another one writes the last.
    """
    start = time.perf_counter()
    progress = sentence_progress(len(text.lines), output.done, bar=bar)
    with progress, ThreadPoolExecutor(1) as writer:
        written: Future[None] | None = None
        for window in read_ahead(text.windows(output.window, output.done)):
            hypotheses = generator(window, progress.update)
            if written is not None:
                written.result()
            written = writer.submit(lambda first, found: output.append(lines(first, found)), window.first, hypotheses)
        if written is not None:
            written.result()
    return time.perf_counter() - start


def _load_models(cfg: DictConfig, task: Seq2SeqTask, device: str) -> Sequence[BaseFairseqModel]:
    """Load one model or an ensemble, as fairseq-generate does."""
    models, _ = checkpoint_utils.load_model_ensemble(
        utils.split_paths(cfg.common_eval.path),
        arg_overrides=ast.literal_eval(cfg.common_eval.model_overrides),
        task=task,
        suffix=cfg.checkpoint.checkpoint_suffix,
        strict=cfg.checkpoint.checkpoint_shard_count == 1,
        num_shards=cfg.checkpoint.checkpoint_shard_count,
    )
    for model in models:
        if cfg.common.fp16:
            model.half()
        model.to(device)
        model.prepare_for_inference_(cfg)
    return models


def _batch_planner(
    cfg: DictConfig, models: Sequence[BaseFairseqModel], task: Seq2SeqTask
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Return the function from the lengths of sources to the indices of each batch."""
    max_tokens, beam = cfg.dataset.max_tokens, cfg.generation.beam
    max_sentences = cfg.dataset.batch_size or useful_sentences(next(models[0].parameters()).device, beam)
    if not cfg.generation.sampling and isinstance(task, UnilmSeq2SeqTask):
        memory = task.batch_memory(models, beam)
        return partial(plan_batches, max_tokens=max_tokens, max_sentences=max_sentences, memory=memory)
    # What is drawn depends on what else is in the batch: that must not hang on the memory that happens to be free. Of
    # encoder-decoders there is no estimate of the memory.
    if max_tokens is None and max_sentences is None:
        max_tokens = 12000  # as in fairseq-generate
    return partial(plan_batches, max_tokens=max_tokens, max_sentences=max_sentences)


def _settings(raw: argparse.Namespace, cfg: DictConfig) -> dict[str, Any]:
    """Return everything that the output depends on, by the names of the options."""
    groups = {
        **OmegaConf.to_container(cfg.task),
        **OmegaConf.to_container(cfg.generation),
        **{name: cfg.common[name] for name in ("seed", "fp16", "bf16")},
        **{name: cfg.dataset[name] for name in ("num_shards", "shard_id")},
        "model_overrides": cfg.common_eval.model_overrides,
        **{name: getattr(raw, name) for name in ("source", "separator", "buffer_size")},
    }
    if cfg.generation.sampling:  # what is drawn depends on what else is in the batch
        groups |= {name: cfg.dataset[name] for name in ("max_tokens", "batch_size")}
    left_out = {"_name", "data", "max_batch_memory"}
    return {
        "--input": file_state(raw.input),
        "--path": [file_state(Path(path)) for path in utils.split_paths(cfg.common_eval.path)],
        "--tokenizer-dir": tokenizer_state(Path(cfg.task.data)),
        **{f"--{name.replace('_', '-')}": value for name, value in groups.items() if name not in left_out},
    }
