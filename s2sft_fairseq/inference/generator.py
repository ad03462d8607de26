"""Generators: from a batch of sources to hypotheses, as fairseq's commands call it, and from a window of sources."""

import ast
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.data.data_utils import collate_tokens
from fairseq.models import BaseFairseqModel
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.block_search import BlockSearch
from s2sft_fairseq.inference.draft_planner import DraftPlanner
from s2sft_fairseq.inference.drafted_search import DraftedSearch
from s2sft_fairseq.inference.draws import source_numbers
from s2sft_fairseq.inference.engines import open_engine, runs_pytorch
from s2sft_fairseq.inference.files import (
    Window,
)
from s2sft_fairseq.inference.memory import generate_in_halves, plan_batches, useful_sentences
from s2sft_fairseq.inference.options import SearchOptions, uses_cuda_graphs
from s2sft_fairseq.inference.rules import SentenceError
from s2sft_fairseq.inference.search import BeamSearch, Search
from s2sft_fairseq.inference.step_graphs import CudaRecorder, StepGraphs
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm, SequenceForm
from s2sft_fairseq.progress import step

Hypotheses = list[list[dict[str, Any]]]
"""The best hypotheses of each sentence, in fairseq's form; see :func:`hypotheses.hypotheses`."""


class SequenceGenerator:
    """Generates hypotheses for a batch, with one model or with an ensemble whose probabilities are averaged.

    N: sentences, S: source positions, P: tokens of a prefix.
    """

    def __init__(self, models: Sequence[UnilmModel], form: SequenceForm, options: SearchOptions) -> None:
        """Take models that are ready to decode, on their device.

        Raises:
            UserError: if the options ask for CUDA graphs, but the models are on the CPU.
        """
        self.models, self.form, self.options = list(models), form, options
        self.graphs = _step_graphs(models, options)
        self.search: Callable[..., Search] = BeamSearch
        if options.decode_blocks:
            self.search = BlockSearch
        elif options.draft_placeholders or options.draft_source or options.draft_blocks:
            planner = DraftPlanner() if options.draft_blocks < 0 else None
            self.search = partial(DraftedSearch, planner=planner)
        self.symbols_to_strip_from_output = {form.sep, form.cls, form.pad}

    def generate(
        self,
        models: Sequence[UnilmModel],
        sample: dict[str, Any],
        prefix_tokens: Tensor | None = None,
        constraints: Tensor | None = None,
    ) -> Hypotheses:
        """Generate, as fairseq's generators do.

        Args:
            models: not used; the models given at construction are.
            sample: a batch with ``src_tokens`` (N, S) in its ``net_input``: laid-out sources, padded on the right; and
                ``id``, the number of each source, on which its random numbers depend.
            prefix_tokens: the tokens that every hypothesis begins with (N, P), padded on the right.
            constraints: not supported.

        Returns:
            The hypotheses of each sentence, the best first: ``tokens`` with eos, normalized ``score`` and
            ``positional_scores``, both natural logarithms.

        Raises:
            UserError: if the models give NaN, naming the sentence, or a single sentence does not fit into memory.
        """
        for model in self.models:
            model.eval()
        try:
            source, numbers = sample["net_input"]["src_tokens"], torch.from_numpy(source_numbers(sample))
            return generate_in_halves(self._search, source, numbers, prefix_tokens, pad=self.form.pad)
        except SentenceError as error:
            raise error.named(sample) from None

    @torch.inference_mode()
    def _search(self, source: Tensor, numbers: Tensor, prefix: Tensor | None) -> Hypotheses:
        try:
            search = self.search(self.models, self.form, self.options, source, prefix, self.graphs, numbers)
            while search.step():
                pass
        except BaseException:
            for graphs in self.graphs or ():
                graphs.clear()  # frees memory: a batch that does not fit is generated again in halves
            raise
        return search.results


def _step_graphs(models: Sequence[UnilmModel], options: SearchOptions) -> list[StepGraphs] | None:
    # A model that an engine runs has no parameters, and is on the CPU.
    device = next((parameter.device for parameter in models[0].parameters()), torch.device("cpu"))
    if not uses_cuda_graphs(options, device):
        return None
    if device.type == "cpu":
        raise UserError(f"--cuda-graphs on needs a GPU, but the model is on {device.type}: leave it out")
    return [StepGraphs(model, CudaRecorder(device)) for model in models]


@dataclass
class TextGenerator:
    """Generates for one window of sources after another, and counts sentences, tokens and cut sources.

    The number of a source, on which its random numbers depend, is that of its line, unless the window names another.
    """

    generate: Callable[[dict[str, Any]], Hypotheses]
    """Maps a batch, as fairseq's generators take it, to the hypotheses of each sentence."""
    form: SequenceForm | EncoderDecoderForm
    plan_batches: Callable[[np.ndarray], list[np.ndarray]]
    """Maps the lengths of laid-out sources to the indices of each batch."""
    nbest: int | None = 1
    """Number of hypotheses of each sentence to keep; None: all."""
    device: torch.device | str = "cpu"
    """The device of the batches."""
    sentences: int = 0
    tokens: int = 0
    """Tokens of the best hypotheses."""
    cut_sources: int = 0

    def __call__(self, window: Window, report: Callable[[int], object] = lambda done: None) -> Hypotheses:
        """Return the best hypotheses of each source of a window, in the order of the sources, on the CPU.

        Args:
            window: the sources.
            report: called after each batch with its number of sentences.

        Raises:
            UserError: if the model gives NaN for a source, naming its line.
        """
        room = self.form.max_source - self.form.source_specials
        self.cut_sources += sum(len(source) > room for source in window.sources)
        rows = [torch.from_numpy(self.form.source(source)) for source in window.sources]
        numbers = (
            np.arange(window.first, window.first + len(rows)) if window.numbers is None else np.array(window.numbers)
        )
        results: Hypotheses = [[] for _ in rows]
        for indices in self.plan_batches(np.array([len(row) for row in rows])):
            try:
                batch = self.generate(self._sample([rows[index] for index in indices], numbers[indices]))
            except SentenceError as error:
                raise error.at(f"line {window.first + int(indices[error.sentence]) + 1} of the input") from None
            for index, found in zip(indices, batch, strict=True):
                results[index] = [
                    {name: each[name].cpu() for name in ("tokens", "score", "positional_scores")}
                    for each in found[: self.nbest]
                ]
                self.tokens += len(found[0]["tokens"]) if found else 0
            self.sentences += len(indices)
            report(len(indices))
        return results

    def _sample(self, rows: list[Tensor], numbers: np.ndarray) -> dict[str, Any]:
        """Return a batch: ``src_tokens`` (N, S), padded on the right, ``src_lengths`` and ``id`` (N,)."""
        source = collate_tokens(rows, self.form.pad).to(self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        net_input = {"src_tokens": source, "src_lengths": lengths}
        return {"id": torch.from_numpy(numbers), "net_input": net_input, "target": None}


def load_models(cfg: DictConfig, task: FairseqTask, device: str) -> Sequence[BaseFairseqModel]:
    """Load one model or an ensemble, as fairseq-generate does, or an engine that runs an exported model."""
    models: Sequence[BaseFairseqModel]
    with step(f"load {cfg.common_eval.path}"):
        if engine := open_engine(cfg, task, device):
            return [engine]
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
        model.eval()  # fairseq loads models in training mode, with dropout
    return models


def batch_planner(
    cfg: DictConfig, models: Sequence[BaseFairseqModel], task: FairseqTask
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Return a function that maps the lengths of sources to the indices of each batch."""
    beam, max_tokens = cfg.generation.beam, cfg.dataset.max_tokens
    device = next(models[0].parameters()).device if runs_pytorch(models) else torch.device("cpu")
    max_sentences = cfg.dataset.batch_size
    if max_sentences is None:
        max_sentences = useful_sentences(device, beam)
    memory = None
    # There is no estimate for the memory of encoder-decoders.
    if hasattr(task, "batch_memory") and runs_pytorch(models):
        memory = task.batch_memory(models, beam)
    elif max_tokens is None and max_sentences is None:
        max_tokens = 12000  # as in fairseq-generate
    return partial(plan_batches, max_tokens=max_tokens, max_sentences=max_sentences, memory=memory)
