"""The task of fine-tuning an encoder for sequence-to-sequence generation, and of generating with it."""

import logging
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from fairseq.criterions import FairseqCriterion
from fairseq.data import BaseWrapperDataset, ListDataset
from fairseq.data.iterators import EpochBatchIterator
from fairseq.tasks import register_task
from torch import Tensor

from s2sft_fairseq.data.binarized_text import find_languages, load_dictionary, load_split
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.data.packed_dataset import PackedPairDataset
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.hypotheses import ReferenceScorer
from s2sft_fairseq.inference.memory import GIB, BatchMemory, memory_for, plan_batches, useful_sentences
from s2sft_fairseq.inference.options import SearchOptions, uses_cuda_graphs
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, has_causal_source
from s2sft_fairseq.objectives.blocks import parse_block_length
from s2sft_fairseq.objectives.objective import OBJECTIVES
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.tasks.layout import DEFAULTS as LAYOUT_DEFAULTS
from s2sft_fairseq.tasks.layout import DIALOGUE, make_form, resolve_layout
from s2sft_fairseq.tasks.objective_options import make_corruption, make_objective
from s2sft_fairseq.tasks.options import data_folder
from s2sft_fairseq.tasks.packed_task import PackedTask
from s2sft_fairseq.tasks.unilm_config import UnilmSeq2SeqConfig

logger = logging.getLogger(__name__)


@register_task("unilm_seq2seq", dataclass=UnilmSeq2SeqConfig)
class UnilmSeq2SeqTask(PackedTask):
    """Fine-tuning of an encoder-only model on pairs of texts, by one of several methods."""

    same_in_a_run = (
        *PackedTask.same_in_a_run,
        *(name for name in LAYOUT_DEFAULTS if not name.startswith("max_")),
        *("corruption", "loss_tokens", "noise_symbol", "noise_schedule", "block_loss_weight"),
    )
    layout: dict[str, Any]
    form: SequenceForm

    def __init__(self, cfg: UnilmSeq2SeqConfig, dictionary: FairseqDictionary) -> None:
        super().__init__(cfg, dictionary)
        self.decoding_models: list[UnilmModel] = []

    @classmethod
    def setup_task(cls, cfg: UnilmSeq2SeqConfig, **_: Any) -> "UnilmSeq2SeqTask":
        """Load the dictionary. Languages that are not given are taken from the names of the data files.

        Raises:
            UserError: data or dictionary are missing or ambiguous.
        """
        folder = data_folder(cfg)
        if cfg.source_lang is None or cfg.target_lang is None:
            source, target = find_languages(folder)
            cfg.source_lang, cfg.target_lang = cfg.source_lang or source, cfg.target_lang or target
        return cls(cfg, load_dictionary(folder, cfg.source_lang, cfg.target_lang))

    def build_model(self, cfg: UnilmConfig, from_checkpoint: bool = False) -> UnilmModel:
        """Build the model, and determine the layout of its training.

        Raises:
            UserError: options, checkpoint, dictionary and model do not fit each other.
        """
        model = super().build_model(cfg, from_checkpoint)
        # A model with roles is for dialogues.
        suggested = {"source_segments": DIALOGUE} if model.cfg.num_roles else model.pretrained_layout
        saved = self.state.state_dict.get("layout")
        layout = resolve_layout(self.cfg, saved, suggested, from_checkpoint=from_checkpoint)
        form = make_form(layout, self.dictionary, model.cfg)
        if getattr(self, "form", form) != form:
            raise UserError("the models of an ensemble must have been fine-tuned alike, but their layouts differ")
        self.layout, self.form = layout, form
        self.objective = OBJECTIVES[layout["finetune_method"]]
        self.corruption = make_corruption(self.cfg, layout["finetune_method"], self.dictionary)
        if self.cfg.source_loss_weight and not has_causal_source(model.cfg):
            raise UserError(
                "--source-loss-weight needs a language model, with --source-visibility causal: a source token of this "
                "model sees the token that it would predict"
            )
        if from_checkpoint:
            self.decoding_models.append(model)
        return model

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the task for a checkpoint: the current layout, not that of the resumed checkpoint."""
        return {**super().state_dict(), "layout": self.layout}

    def build_criterion(self, cfg: Any, from_checkpoint: bool = False) -> FairseqCriterion:
        """Build the criterion.

        Raises:
            UserError: it cannot read packed batches, or something is wrong with the span vocabulary.
        """
        # Not in `build_model`: decoding needs no span vocabulary.
        self.objective = make_objective(self.cfg, self.layout, self.dictionary)
        self.decoding_models.clear()  # a criterion means training or validation, not decoding
        return super().build_criterion(cfg, from_checkpoint)

    def load_dataset(self, split: str, epoch: int = 1, combine: bool = False, **_: Any) -> None:
        """Load a split from the data folder of this epoch, see `data_folder`.

        Raises:
            UserError: its files are missing, truncated or of different lengths, or the training set has no targets.
        """
        folder = data_folder(self.cfg, split, epoch)
        source, target = load_split(
            folder,
            split,
            self.cfg.source_lang,
            self.cfg.target_lang,
            self.dictionary,
            self.cfg.dataset_impl,
            combine,
        )
        if target is None and split == self.cfg.train_subset:
            raise UserError(f"{folder} has no targets ({self.cfg.target_lang}) to train on for the split {split!r}")
        self.datasets[split] = self._make_dataset(
            source,
            target,
            shuffle=split == self.cfg.train_subset,
            for_decoding=bool(self.decoding_models),
            name=split,
        )

    def build_dataset_for_inference(
        self, src_tokens: Sequence[Tensor], src_lengths: Sequence[int], constraints: Tensor | None = None
    ) -> PackedPairDataset:
        """Return a data set of sources without targets, each with a final eos, for fairseq-interactive."""
        return self._make_dataset(
            ListDataset(src_tokens, src_lengths), None, shuffle=False, for_decoding=True, name="input"
        )

    def get_batch_iterator(self, dataset: PackedPairDataset, *limits: Any, **others: Any) -> EpochBatchIterator:
        """Iterate over batches. For decoding, limit the memory of a batch, too.

        Raises:
            UserError: ``--max-batch-memory`` is not positive.
        """
        if self.decoding_models and not self.cfg.score_reference:
            device = self.decoding_models[0].embeddings.tokens.weight.device
            beam = max(1, self.cfg.beam)  # a smaller beam is refused later, with all other problems
            memory = self.batch_memory(self.decoding_models, beam)
            dataset = DecodingDataset(dataset, memory, useful_sentences(device, beam))
        return super().get_batch_iterator(dataset, *limits, **others)

    def batch_memory(self, models: Sequence[UnilmModel], beam: int) -> BatchMemory:
        """Estimate the memory of decoding a batch with the loaded models.

        Raises:
            UserError: ``--max-batch-memory`` is not positive.
        """
        limit = self.cfg.max_batch_memory
        if limit is not None and not 0 < limit < math.inf:
            raise UserError(f"--max-batch-memory must be positive and finite, but is {limit:g}")
        budget = None if limit is None else int(limit * GIB)
        graphs = uses_cuda_graphs(self.cfg, models[0].embeddings.tokens.weight.device)
        return memory_for(models, beam, self.form.max_target, budget, cuda_graphs=graphs)

    def _make_dataset(
        self, source: Any, target: Any | None, *, shuffle: bool, for_decoding: bool, name: str
    ) -> PackedPairDataset:
        weight = self.cfg.source_loss_weight if shuffle else 0.0  # held-out data has the loss of its targets alone
        return PackedPairDataset(
            source,
            target,
            self.form,
            self.objective.with_source_loss(weight) if weight else self.objective,
            self.corruption if shuffle else self.objective.held_out(self.corruption),
            seed=self.cfg.seed,
            shuffle=shuffle,
            for_decoding=for_decoding,
            name=name,
        )

    def build_generator(
        self, models: Sequence[UnilmModel], args: Any, extra_gen_cls_kwargs: dict[str, Any] | None = None, **_: Any
    ) -> SequenceGenerator | ReferenceScorer:
        """Build the generator, or with ``--score-reference`` the scorer.

        Raises:
            UserError: lists every generation option that is not supported or contradicts another.
        """
        if args.prefix_size > 0 and any(data.target is None for data in self.datasets.values()):
            raise UserError("--prefix-size takes its prefixes from the targets, but the data has sources alone")
        options = SearchOptions.of(args, self.cfg, self.form, self.dictionary)
        if args.score_reference:
            return ReferenceScorer(models, self.form, self.objective)
        length = parse_block_length(self.layout.get("block_length") or "random")
        if not options.decode_blocks and length is not None and length[0] > 1:
            logger.warning(
                f"the model was trained with --block-length {self.layout['block_length']} alone, and is decoded token "
                "by token: give --decode-blocks and --beam 1"
            )
        return SequenceGenerator(models, self.form, options)

    def max_positions(self) -> tuple[int, int]:
        """Return the maximum lengths of a laid-out source and target; longer ones are cut."""
        return self.form.max_source, self.form.max_target


class DecodingDataset(BaseWrapperDataset):
    """Pairs in batches by `plan_batches`, which limits the memory of decoding; fairseq only limits tokens."""

    dataset: PackedPairDataset

    def __init__(self, dataset: PackedPairDataset, memory: BatchMemory, useful_sentences: int | None) -> None:
        """Wrap a data set. A batch has at most ``useful_sentences``, unless ``max_sentences`` is given."""
        super().__init__(dataset)
        self.memory, self.useful_sentences = memory, useful_sentences

    def batch_by_size(
        self,
        indices: np.ndarray,
        max_tokens: int | None = None,
        max_sentences: int | None = None,
        required_batch_size_multiple: int = 1,
    ) -> list[np.ndarray]:
        """Return the indices of each batch; ``max_tokens`` counts packed positions, as in training.

        ``required_batch_size_multiple`` is ignored.
        """
        batches = plan_batches(
            self.dataset.source_sizes[indices],
            max_tokens=max_tokens,
            max_sentences=self.useful_sentences if max_sentences is None else max_sentences,
            memory=self.memory,
            positions=self.dataset.sizes[indices],
        )
        return [indices[batch] for batch in batches]
