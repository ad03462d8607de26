"""The encoder-only model: one Transformer that reads the source and writes the target (UniLM, s2s-ft, UniLMv2)."""

import functools
import logging
from collections.abc import Sequence
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, register_model
from fairseq.tasks import FairseqTask
from omegaconf import DictConfig
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from s2sft_fairseq.errors import about
from s2sft_fairseq.models.inference import prepare_for_inference
from s2sft_fairseq.models.pretrained_checkpoint import check_fit, open_encoder
from s2sft_fairseq.models.trained_parameters import (
    add_adapters,
    check_adapters,
    freeze,
    has_adapters,
    trained_share,
)
from s2sft_fairseq.models.unilm_config import (
    SIZES,
    UnilmConfig,
    complete_sizes,
    has_causal_source,
    is_disentangled,
    width_of_head,
)
from s2sft_fairseq.models.unilm_parts import (
    initial_std,
    initialize,
    make_embeddings,
    make_final_layer_norm,
    make_layer,
    make_lm_head,
    make_pattern,
    make_relative_position,
)
from s2sft_fairseq.modules.embeddings import TiedGradient
from s2sft_fairseq.modules.encoder_layer import EncoderLayer
from s2sft_fairseq.modules.flash_attention import flash_obstacle
from s2sft_fairseq.modules.flash_trial import flash_failure
from s2sft_fairseq.modules.incremental_state import Allocate, IncrementalState, consecutive, source_places
from s2sft_fairseq.modules.lm_head import Losses, Targets, linear_cross_entropy
from s2sft_fairseq.modules.matmul import autocast_type, use_matmul
from s2sft_fairseq.modules.multi_flow_attention import AttentionPattern, PackedPlan
from s2sft_fairseq.modules.positions import RelativePositionBias
from s2sft_fairseq.modules.step_layout import StepLayout
from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.optim.fused_adamw import exempt_from_decay
from s2sft_fairseq.runtime.gpu import choose_precision

logger = logging.getLogger(__name__)

PREFILL_POSITIONS = {"cpu": 2048, "cuda": 32768}
"""Most source positions that are read at a time: enough for the matrix kernels, and few enough to reuse memory."""


@functools.cache
def log_attention(asked: str, chosen: str, device: str, lacking: str | None) -> None:
    """Log once which attention packed batches use, and what flash attention lacks."""
    logger.info(f"--attention {asked}: {chosen} on {device}" + (f", for flash needs {lacking}" if lacking else ""))


@register_model("unilm", dataclass=UnilmConfig)
class UnilmModel(BaseFairseqModel):
    """A BERT-like encoder over the packed format, with a tied language model head.

    The model does not depend on the objective: the columns of the batch tell what a token sees, and the criterion what
    it predicts. BERT, ELECTRA and ModernBERT differ only in the options. T: tokens of a packed batch, H: width,
    V: vocabulary.
    """

    def __init__(self, cfg: UnilmConfig, *, vocab_size: int, pad: int) -> None:
        super().__init__()
        self.cfg = cfg
        self.has_random_weights = False
        self.pretrained_layout: dict[str, Any] = {}
        self.embeddings = make_embeddings(cfg, vocab_size, pad)
        self.relative_position = make_relative_position(cfg)
        self.layers: Sequence[EncoderLayer] = nn.ModuleList(  # type: ignore[assignment]  # it says Module of its items
            make_layer(cfg, index) for index in range(cfg.encoder_layers)
        )
        self.patterns = [make_pattern(cfg, index) for index in range(cfg.encoder_layers)]
        self.layer_norm = make_final_layer_norm(cfg)
        self.lm_head = make_lm_head(cfg, vocab_size)
        self.apply(functools.partial(initialize, std=initial_std(cfg)))
        # No decay of biases, including relative position biases, and layer norms, as in BERT's training and s2s-ft.
        exempt_from_decay(parameter for parameter in self.parameters() if parameter.ndim == 1)
        if isinstance(self.relative_position, RelativePositionBias):
            exempt_from_decay(self.relative_position.parameters())

    @classmethod
    def build_model(cls, cfg: UnilmConfig, task: FairseqTask) -> "UnilmModel":
        """Build the model, from ``--pretrained`` if that is given.

        The sizes are written into ``cfg`` and ``--pretrained`` is removed from it, so that the checkpoints of this run
        do not need the folder. Checkpoints with adapters need it, and keep its absolute path. The encoder's settings of
        the layout become ``pretrained_layout``.

        Raises:
            UserError: if sizes, dictionary and pretrained encoder do not match.
        """
        pretrained = open_encoder(cfg)
        if pretrained is not None:
            pretrained.check_symbols(task.source_dictionary.symbols)
        # A checkpoint may be older than these options.
        roles_and_turns = [getattr(cfg, name, None) or 0 for name in ("num_roles", "num_turns")]
        if pretrained is not None and any(roles_and_turns):
            pretrained = pretrained.with_roles(*roles_and_turns)
        where = f"--pretrained {cfg.pretrained}" if cfg.pretrained else None
        with about(where):
            complete_sizes(cfg, pretrained.sizes if pretrained else None)
        cfg.initial_std = initial_std(cfg)
        use_matmul(str(getattr(cfg, "matmul", "auto")))
        model = cls(cfg, vocab_size=len(task.source_dictionary), pad=task.source_dictionary.pad())
        model.has_random_weights = pretrained is None  # until a checkpoint is loaded
        if pretrained is not None:
            with about(where):
                pretrained.load_into(model)
            model.pretrained_layout = pretrained.layout
            if cfg.lora_rank:
                add_adapters(model, cfg, pretrained.newly_initialized)
            cfg.pretrained = str(pretrained.path.resolve()) if cfg.lora_rank else None
        model.settled_options = {
            name: getattr(cfg, name) for name in ("pretrained", "attention_dropout", "initial_std", *SIZES)
        }
        freeze(model, cfg)
        if not all(parameter.requires_grad for parameter in model.parameters()):
            logger.info(trained_share(model))
        return model

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        steps: Tensor,
        groups: Tensor,
        lengths: Sequence[Sequence[int]],
        first_step: int | None = None,
        labelled: Tensor | None = None,
        *,
        targets: Targets | None = None,
    ) -> Tensor | Losses:
        """Encode a packed batch and score the vocabulary at the tokens that have a label.

        Args:
            tokens: ids of the tokens of the packed batch (T,).
            positions: their position ids (T,).
            segments: their segment ids (T,).
            steps: their factorization steps (T,).
            groups: their groups (T,).
            lengths: lengths of the sections of each example.
            first_step: first factorization step of the placeholders, if the batch is in order; see
                `packing.first_step`.
            labelled: indices of the tokens to predict at, ascending (N,); None: all T.
            targets: the labels there. The model computes the loss, and not the criterion, so that no parameter leaves
                the model: sharding and replication rely on that.

        Returns:
            Logits (N, V), or (T, V) if ``labelled`` is None; with ``targets``, their losses.
        """
        tied = None if targets is None else TiedGradient()
        columns = PackedColumns(tokens, positions, segments, steps, groups, lengths, first_step)
        x = self.encode(columns, tied, labelled)
        weight = self.embeddings.tokens.weight
        if targets is None:
            logits: Tensor = self.lm_head(x, weight)
            return logits
        head = self.lm_head
        # A separate output matrix has its own gradient; the embedding then gets a gradient from the look-up only.
        left = tied if head.weight is None else None
        return linear_cross_entropy(head.features(x), head.matrix(weight), head.bias, targets, left)

    def encode(self, columns: PackedColumns, tied: TiedGradient | None = None, at: Tensor | None = None) -> Tensor:
        """Return the last layer's states (N, H) of a packed batch.

        Args:
            columns: the columns of the batch.
            tied: receives the gradient of the output matrix, if that is handled separately.
            at: indices of the tokens whose states are wanted, ascending (N,); None: all T. The last layer computes only
                keys and values of the others.
        """
        x: Tensor = self.embeddings(columns.tokens, columns.positions, columns.segments, tied)
        plans = self._packed_plans(self.as_seen(columns), x.dtype)
        if at is not None:
            plans[-1] = plans[-1].restricted(at)
        for layer, plan in zip(self.layers, plans, strict=True):
            if self.cfg.checkpoint_activations and self.training and torch.is_grad_enabled():
                x = checkpoint(layer, x, plan, use_reentrant=False)
            else:
                x = layer(x, plan)
        x = self.layer_norm(x)
        return x

    def as_seen(self, columns: PackedColumns) -> PackedColumns:
        """Return the columns of a packed batch as this model's layers see them, by ``--source-visibility``."""
        return columns.with_causal_context() if has_causal_source(self.cfg) else columns

    def _attention(self, columns: PackedColumns, pattern: AttentionPattern, dtype: torch.dtype) -> str:
        """Return how layers attend to a batch: ``loop``, ``padded``, ``flash`` or ``flex``. Each is logged once."""
        asked = str(getattr(self.cfg, "attention", "auto"))  # a checkpoint may be older than the option
        device, chosen, lacking = columns.positions.device, asked, None
        if is_disentangled(self.cfg):
            chosen = "loop"
        elif device.type == "cpu":
            chosen = "padded" if asked == "padded" else "loop"  # a CPU has no flash, and flex no gradient there
        elif asked in ("auto", "flash"):
            kind: dict[str, Any] = {"head_dim": pattern.head_dim, "window": pattern.window}
            lacking = flash_obstacle(columns, has_bias=self.relative_position is not None, dtype=dtype, **kind)
            if lacking is None:
                lacking = flash_failure(device, dtype=autocast_type(dtype, device), **kind)
            chosen = "padded" if lacking else "flash"
        log_attention(asked, chosen, device.type, lacking)
        return chosen

    def _packed_plans(self, columns: PackedColumns, dtype: torch.dtype) -> list[PackedPlan]:
        """Return the plan of each layer; layers with the same pattern share one plan."""
        plans = {
            pattern: pattern.packed(
                columns,
                relative=self.relative_position,
                dtype=dtype,
                kind=self._attention(columns, pattern, dtype),
            )
            for pattern in set(self.patterns)
        }
        return [plans[pattern] for pattern in self.patterns]

    def prefill(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        lengths: Sequence[int],
        *,
        num_tokens: int,
        hypotheses: int = 1,
        allocate: Allocate | None = None,
    ) -> IncrementalState:
        """Encode the sources once and keep their keys and values.

        Args:
            tokens: ids of the sources, one after the other (T,).
            positions: their position ids (T,).
            segments: their segment ids (T,).
            lengths: number of positions of each of the N sources, which sum to T.
            num_tokens: number of slots to allocate besides those of the source; more are added when needed.
            hypotheses: most hypotheses that a sentence will have.
            allocate: allocates memory for the state; None: new memory.
        """
        state = IncrementalState.begin(
            positions,
            lengths,
            layers=len(self.layers),
            heads=self.cfg.key_value_heads or self.cfg.encoder_attention_heads,
            head_dim=width_of_head(self.cfg),
            num_tokens=num_tokens,
            hypotheses=hypotheses,
            dtype=self.embeddings.tokens.weight.dtype,
            allocate=allocate,
        )
        slots, caches = state.source_slots, state.layers
        most = PREFILL_POSITIONS["cpu" if tokens.device.type == "cpu" else "cuda"]
        for sentences, some in consecutive(lengths, most):
            part = lengths[sentences]
            places = source_places(part, slots, tokens.device)
            columns = PackedColumns.given(tokens[some], positions[some], segments[some], part)
            x = self.embeddings(columns.tokens, columns.positions, columns.segments)
            plans = self._packed_plans(self.as_seen(columns), x.dtype)
            for layer, plan, cache in zip(self.layers[:-1], plans, caches, strict=False):
                x, keys_values = layer.prefill(x, plan)
                cache.store(keys_values, places, sentences, slots)
                del keys_values  # frees memory before the next layer computes its own
            # The last layer's states are not needed: no source position is predicted.
            caches[-1].store(self.layers[-1].keys_values(x, plans[-1]), places, sentences, slots)
        return state

    def step(self, state: IncrementalState, tokens: Tensor, segments: Tensor, layout: StepLayout) -> Tensor:
        """Score the vocabulary at the newest tokens, and keep the keys and values of the content among them.

        Args:
            state: the incremental state.
            tokens: the new tokens of each sentence (N, A). N: sentences, A: new tokens.
            segments: their segment ids (A,).
            layout: their layout: which tokens they follow and see, and which are predicted.

        Returns:
            Logits (N, P, V) at the last P = ``layout.num_predicted`` tokens, or (M, V) at the M that are
            ``layout.wanted``.
        """
        state.make_room(layout)
        logits = self.score(state, tokens, segments, layout, state.slots_of(layout), state.read_by(layout))
        state.keep(layout)
        return logits

    def score(
        self,
        state: IncrementalState,
        tokens: Tensor,
        segments: Tensor,
        layout: StepLayout,
        slots: slice | Tensor,
        end: int,
    ) -> Tensor:
        """Score the vocabulary at the newest tokens, and write their keys and values to free slots.

        This is the part of a step that a CUDA graph records: it never waits for the GPU, and everything that changes
        from step to step is in tensors.

        Args:
            state: the incremental state, with room for the new tokens.
            tokens: as for :meth:`step`.
            segments: as for :meth:`step`.
            layout: as for :meth:`step`.
            slots: the slots of the new tokens (A,).
            end: number of slots that are read, including the new tokens' slots.

        Returns:
            Logits, as :meth:`step` returns them.
        """
        # Position ids continue from the length of the sentence's own source, without padding.
        positions = layout.positions(state.lengths, self.cfg.max_positions)
        state.positions[:, slots] = positions
        x = self.embeddings(tokens, positions, segments.expand_as(tokens))
        seen = state.seen_by(layout, slots, end)
        plans = {
            pattern: pattern.step(state, seen, positions, slots, relative=self.relative_position, dtype=x.dtype)
            for pattern in set(self.patterns)
        }
        last = len(self.layers) - 1
        for index, (layer, pattern, cache) in enumerate(zip(self.layers, self.patterns, state.layers, strict=True)):
            queries = layout.num_predicted if index == last else x.size(1)
            x = layer.step(x, plans[pattern], cache, queries)
        if layout.wanted is not None:
            x = x[layout.wanted]  # (N, P, H) -> (M, H)
        logits: Tensor = self.lm_head(self.layer_norm(x), self.embeddings.tokens.weight)
        return logits

    def get_normalized_probs(self, net_output: Tensor, log_probs: bool, sample: Any = None) -> Tensor:
        """Return the (log-)probabilities (..., V) of logits, in float32."""
        normalize = torch.log_softmax if log_probs else torch.softmax
        return normalize(net_output.float(), dim=-1)

    def prepare_for_inference_(self, cfg: DictConfig) -> None:
        """Prepare the model for decoding; fairseq calls this after loading. The model can no longer be trained.

        Raises:
            UserError: if options contradict each other or the machine.
        """
        choose_precision(cfg)
        prepare_for_inference(self, bf16=cfg.common.bf16, quantize=str(getattr(cfg.task, "quantize", "none")))

    def max_positions(self) -> int:
        """Return the number of positions that source and target may take together."""
        return self.cfg.max_positions

    def load_state_dict(
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Load weights. A model with adapters loads only the weights that its ``state_dict`` has.

        Raises:
            UserError: if dictionary and checkpoint have different numbers of symbols, naming both; otherwise naming
                every parameter that is missing, unknown or of another shape.
        """
        if strict:
            check_adapters(self, state_dict, self.cfg.pretrained)
            check_fit({name: value.shape for name, value in self.state_dict().items()}, state_dict)
        # With adapters, the weights of the encoder are loaded already.
        strict = strict and not has_adapters(self)
        return super().load_state_dict(state_dict, strict=strict, model_cfg=model_cfg, args=args)
