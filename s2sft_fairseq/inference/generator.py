"""From sources to hypotheses: of a batch, as fairseq's commands and ours call it, and of a window."""

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
from s2sft_fairseq.inference.engines import open_engine, runs_pytorch
from s2sft_fairseq.inference.files import (
    Window,
)
from s2sft_fairseq.inference.memory import generate_in_halves, plan_batches, useful_sentences
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.inference.rules import NotANumberError
from s2sft_fairseq.inference.search import BeamSearch, Search
from s2sft_fairseq.inference.step_graphs import CudaRecorder, StepGraphs
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.sequence_form import EncoderDecoderForm, SequenceForm

Hypotheses = list[list[dict[str, Any]]]
"""Of each sentence the best ones, in fairseq's form; see :func:`hypotheses.hypotheses`."""


class SequenceGenerator:
    """Generates for a batch, with one model or with an ensemble whose probabilities are averaged.

    N: sentences, S: source positions, P: tokens of a prefix.
    """

    def __init__(self, models: Sequence[UnilmModel], form: SequenceForm, options: SearchOptions) -> None:
        """Take models that are ready to decode, on their device.

        Raises:
            UserError: if CUDA graphs are asked for, but the models are on the CPU.
        """
        self.models, self.form, self.options = list(models), form, options
        self.graphs = _step_graphs(models) if options.cuda_graphs else None
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
            models: not used, those given at construction are.
            sample: a batch with ``src_tokens`` (N, S) in its ``net_input``: laid-out sources, padded on the right.
            prefix_tokens: what every hypothesis begins with (N, P), padded on the right.
            constraints: not supported.

        Returns:
            For each sentence its hypotheses, the best first: ``tokens`` with eos, normalised ``score`` and
            ``positional_scores``, both natural logarithms.

        Raises:
            UserError: if the models give NaN, naming the sentence, or a single sentence does not fit into memory.
        """
        for model in self.models:
            model.eval()
        try:
            return generate_in_halves(self._search, sample["net_input"]["src_tokens"], prefix_tokens, pad=self.form.pad)
        except NotANumberError as error:
            raise error.named(sample) from None

    @torch.inference_mode()
    def _search(self, source: Tensor, prefix: Tensor | None) -> Hypotheses:
        try:
            search = self.search(self.models, self.form, self.options, source, prefix, self.graphs)
            while search.step():
                pass
        except BaseException:
            for graphs in self.graphs or ():
                graphs.clear()  # a batch for which memory ran out is generated in halves, which need less
            raise
        return search.results


def _step_graphs(models: Sequence[UnilmModel]) -> list[StepGraphs]:
    # A model that another program runs has no parameters, and is on the CPU.
    device = next((parameter.device for parameter in models[0].parameters()), torch.device("cpu"))
    if device.type == "cpu":
        raise UserError(f"--cuda-graphs needs a GPU, but the model is on {device.type}: leave it out")
    return [StepGraphs(model, CudaRecorder(device)) for model in models]


@dataclass
class TextGenerator:
    """Generates for one window of sources after another and counts what it did."""

    generate: Callable[[dict[str, Any]], Hypotheses]
    """From a batch, as fairseq's generators take it, to the hypotheses of each sentence."""
    form: SequenceForm | EncoderDecoderForm
    plan_batches: Callable[[np.ndarray], list[np.ndarray]]
    """From the lengths of laid-out sources to the indices of each batch."""
    nbest: int = 1
    """Hypotheses to keep of each sentence."""
    seed: int | None = 1
    """Samples of a window depend on this and on the number of its first line only: a resumed run draws the same. None:
    random numbers are left as they are, where none are drawn."""
    device: torch.device | str = "cpu"
    """Where the batches are needed."""
    sentences: int = 0
    tokens: int = 0
    """Of the best hypotheses."""
    cut_sources: int = 0

    def __call__(self, window: Window, report: Callable[[int], object] = lambda done: None) -> Hypotheses:
        """Return the best hypotheses of each source of a window, in its order, on the CPU.

        Args:
            window: the sources.
            report: called with the number of sentences of each batch that is done.

        Raises:
            UserError: if the model gives NaN for a source, naming its line.
        """
        if self.seed is not None:
            torch.manual_seed(window_seed(self.seed, window.first))
        room = self.form.max_source - self.form.source_specials
        self.cut_sources += sum(len(source) > room for source in window.sources)
        rows = [torch.from_numpy(self.form.source(source)) for source in window.sources]
        results: Hypotheses = [[] for _ in rows]
        for indices in self.plan_batches(np.array([len(row) for row in rows])):
            try:
                batch = self.generate(self._sample([rows[index] for index in indices]))
            except NotANumberError as error:
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

    def _sample(self, rows: list[Tensor]) -> dict[str, Any]:
        """Return a batch: ``src_tokens`` (N, S), padded on the right, and ``src_lengths`` (N,)."""
        source = collate_tokens(rows, self.form.pad).to(self.device)
        lengths = torch.tensor([len(row) for row in rows], device=self.device)
        return {"net_input": {"src_tokens": source, "src_lengths": lengths}, "target": None}


def window_seed(seed: int, first: int) -> int:
    """Return the seed of the samples of a window, from that of all and the number of its first line."""
    return int(np.random.SeedSequence((seed, first)).generate_state(1)[0])


def load_models(cfg: DictConfig, task: FairseqTask, device: str) -> Sequence[BaseFairseqModel]:
    """Load one model or an ensemble, as fairseq-generate does, or a single engine that runs an exported model."""
    if engine := open_engine(cfg, task, device):
        return [engine]
    models: Sequence[BaseFairseqModel]
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
        model.eval()  # fairseq loads models as if to train them, with dropout
    return models


def batch_planner(
    cfg: DictConfig, models: Sequence[BaseFairseqModel], task: FairseqTask
) -> Callable[[np.ndarray], list[np.ndarray]]:
    """Return the function from the lengths of sources to the indices of each batch."""
    beam, max_tokens = cfg.generation.beam, cfg.dataset.max_tokens
    device = next(models[0].parameters()).device if runs_pytorch(models) else torch.device("cpu")
    max_sentences = cfg.dataset.batch_size or useful_sentences(device, beam)
    memory = None
    # Samples depend on what else is in the batch, so its size must not depend on the memory that happens to be free.
    # The memory of encoder-decoders is not estimated.
    if not cfg.generation.sampling and hasattr(task, "batch_memory") and runs_pytorch(models):
        memory = task.batch_memory(models, beam)
    elif max_tokens is None and max_sentences is None:
        max_tokens = 12000  # as in fairseq-generate
    return partial(plan_batches, max_tokens=max_tokens, max_sentences=max_sentences, memory=memory)
