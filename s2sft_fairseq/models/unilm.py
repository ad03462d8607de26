"""The encoder-only model: one Transformer that reads the source and writes the target (UniLM, s2s-ft, UniLMv2)."""

import logging
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch
from fairseq.models import BaseFairseqModel, register_model
from fairseq.tasks import FairseqTask
from torch import Tensor, nn

from s2sft_fairseq.checkpoints.pretrained import PretrainedEncoder
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.modules.embeddings import PackedEmbeddings
from s2sft_fairseq.modules.encoder_layer import EncoderLayer
from s2sft_fairseq.modules.incremental_state import IncrementalState, LayerCache
from s2sft_fairseq.modules.lm_head import LMHead
from s2sft_fairseq.modules.relative_position import RelativePositionBias
from s2sft_fairseq.modules.visibility import AttentionBlock, attention_blocks
from s2sft_fairseq.optim.fused_adamw import exempt_from_decay

logger = logging.getLogger(__name__)

ACTIVATIONS = {
    "gelu": nn.functional.gelu,
    "gelu_tanh": partial(nn.functional.gelu, approximate="tanh"),
    "relu": nn.functional.relu,
}


@register_model("unilm", dataclass=UnilmConfig)
class UnilmModel(BaseFairseqModel):
    """A post-norm BERT encoder over the packed format, with a tied language model head.

    The model knows no objective: what a token may see is in the columns of the batch, what it must predict in the
    criterion. B: examples, L: packed positions, H: width, V: vocabulary.
    """

    def __init__(self, cfg: UnilmConfig, *, vocab_size: int, pad: int) -> None:
        super().__init__()
        self.cfg = cfg
        activation = ACTIVATIONS[str(cfg.activation_fn)]
        self.embeddings = PackedEmbeddings(
            vocab_size=vocab_size,
            embed_dim=cfg.encoder_embed_dim,
            max_positions=cfg.max_positions,
            num_segments=cfg.num_segments,
            pad=pad,
            layer_norm_eps=cfg.layer_norm_eps,
            dropout=cfg.dropout,
        )
        self.relative_position = (
            RelativePositionBias(cfg.encoder_attention_heads, cfg.relative_position_bins, cfg.max_relative_position)
            if cfg.relative_position_bins
            else None
        )
        self.layers = nn.ModuleList(
            EncoderLayer(
                embed_dim=cfg.encoder_embed_dim,
                ffn_embed_dim=cfg.encoder_ffn_embed_dim,
                num_heads=cfg.encoder_attention_heads,
                activation=activation,
                layer_norm_eps=cfg.layer_norm_eps,
                dropout=cfg.dropout,
                attention_dropout=cfg.attention_dropout,
                activation_dropout=cfg.activation_dropout,
            )
            for _ in range(cfg.encoder_layers)
        )
        self.lm_head = LMHead(
            vocab_size=vocab_size,
            embed_dim=cfg.encoder_embed_dim,
            activation=activation,
            layer_norm_eps=cfg.layer_norm_eps,
        )
        self.apply(_initialize)
        # As in BERT's own training, and in s2s-ft's: biases, the relative ones too, and layer norms.
        exempt_from_decay(parameter for parameter in self.parameters() if parameter.ndim == 1)
        if self.relative_position is not None:
            exempt_from_decay(self.relative_position.parameters())

    @classmethod
    def build_model(cls, cfg: UnilmConfig, task: FairseqTask) -> "UnilmModel":
        """Build the model, from ``--pretrained`` if that is given.

        The sizes are written into ``cfg`` and ``--pretrained`` is taken out of it, so that the checkpoints of this run
        need the folder no more.

        Raises:
            UserError: if sizes, dictionary and pretrained encoder do not fit each other.
        """
        pretrained = PretrainedEncoder.open(cfg.pretrained) if cfg.pretrained else None
        complete_sizes(cfg, pretrained.sizes if pretrained else None)
        model = cls(cfg, vocab_size=len(task.source_dictionary), pad=task.source_dictionary.pad())
        if pretrained is not None:
            pretrained.load_into(model)
            cfg.pretrained = None
        return model

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        steps: Tensor,
        groups: Tensor,
        block_lengths: Sequence[int],
        labelled: Tensor | None = None,
        **_generation: Any,
    ) -> Tensor:
        """Encode a packed batch and score the vocabulary at the positions that carry a label.

        Args:
            tokens: and ``positions``, ``segments``, ``steps``, ``groups``: columns of the packed batch (B, L).
            block_lengths: positions of each block.
            labelled: where to predict (B, L), N of them; everywhere if None.

        Returns:
            Logits (N, V) in the order of the batch, or (B, L, V) if ``labelled`` is None.
        """
        x = self.encode(tokens, positions, segments, steps, groups, block_lengths)
        return self.lm_head(x if labelled is None else x[labelled], self.embeddings.tokens.weight)

    def encode(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        steps: Tensor,
        groups: Tensor,
        block_lengths: Sequence[int],
    ) -> Tensor:
        """Return the last layer's states (B, L, H); arguments as for :meth:`forward`."""
        x = self.embeddings(tokens, positions, segments)
        blocks = self._attention_blocks(positions, steps, groups, block_lengths, x.dtype)
        for layer in self.layers:
            x = layer(x, blocks)
        return x

    def _attention_blocks(
        self, positions: Tensor, steps: Tensor, groups: Tensor, block_lengths: Sequence[int], dtype: torch.dtype
    ) -> list[AttentionBlock]:
        relative = self.relative_position

        def relative_bias(start: int, end: int) -> Tensor:
            return relative(positions[:, start:end], positions[:, :end])

        return attention_blocks(
            steps, groups, block_lengths, relative_bias=None if relative is None else relative_bias, dtype=dtype
        )

    def prefill(self, tokens: Tensor, positions: Tensor, segments: Tensor, groups: Tensor) -> IncrementalState:
        """Encode the sources once and keep their keys and values.

        Shape:
            each (N, S). N: sentences, S: source positions.
        """
        x = self.embeddings(tokens, positions, segments)
        blocks = self._attention_blocks(positions, torch.zeros_like(tokens), groups, (tokens.size(1),), x.dtype)
        caches = [LayerCache() for _ in self.layers]
        for layer, cache in zip(self.layers, caches, strict=True):
            x = layer.prefill(x, blocks, cache)
        padding = groups < 0
        # (N, S) -> (N, 1, 1, S)
        source_bias = torch.zeros_like(padding, dtype=x.dtype).masked_fill(padding, float("-inf"))[:, None, None]
        return IncrementalState(caches, source_bias, source_lengths=(~padding).sum(dim=1))

    def step(self, state: IncrementalState, tokens: Tensor, segment: int, num_kept: int) -> Tensor:
        """Score the vocabulary behind the newest tokens.

        Args:
            state: the incremental state; the keys and values of the first ``num_kept`` tokens stay in it.
            tokens: the new tokens of each hypothesis (N * K, Q). N: sentences, K: beams, Q: new tokens.
            segment: their segment id.
            num_kept: Q, or Q - 1 where the last of them is a placeholder.

        Returns:
            Logits (N * K, V) at the last of the tokens.
        """
        rows, new = tokens.shape
        total = state.num_cached + new
        # Position ids count on from the real length of the own source: (N, Q), then (N * K, Q).
        offsets = torch.arange(state.num_cached, total, device=tokens.device)
        by_sentence = state.source_lengths.unsqueeze(1) + offsets
        positions = by_sentence.repeat_interleave(rows // len(by_sentence), dim=0)
        source_bias, generated_bias = self._step_biases(state, by_sentence, total, new)
        x = self.embeddings(tokens, positions, torch.full_like(tokens, segment))
        for layer, cache in zip(self.layers, state.layers, strict=True):
            x = layer.step(x, cache, state.num_cached, source_bias, generated_bias)
        state.num_cached += num_kept
        return self.lm_head(x[:, -1], self.embeddings.tokens.weight)

    def _step_biases(
        self, state: IncrementalState, positions: Tensor, total: int, new: int
    ) -> tuple[Tensor, Tensor | None]:
        """Return what is added to the scores against the source and against the ``total`` generated tokens."""
        source_bias, generated_bias = state.source_bias, None
        if self.relative_position is not None:
            source_positions = torch.arange(source_bias.size(-1), device=positions.device).unsqueeze(0)
            # (N, h, Q, S) -> (N, h, K * Q, S)
            towards_source = self.relative_position(positions, source_positions).repeat(1, 1, state.beams, 1)
            source_bias = source_bias + towards_source
            generated = torch.arange(total, device=positions.device).unsqueeze(0)
            generated_bias = self.relative_position(generated[:, -new:], generated)
        if new > 1:
            # In decoding order the visibility rule is plain causality: the placeholder comes last and is its own group.
            later = torch.ones(new, total, dtype=torch.bool, device=positions.device).triu(total - new + 1)
            if generated_bias is None:
                generated_bias = source_bias.new_zeros(1, 1, new, total)
            generated_bias = generated_bias.masked_fill(later, float("-inf"))
        return source_bias, generated_bias

    def get_normalized_probs(self, net_output: Tensor, log_probs: bool, sample: Any = None) -> Tensor:
        """Return (log-)probabilities in float32 of the logits (..., V)."""
        normalize = torch.log_softmax if log_probs else torch.softmax
        return normalize(net_output.float(), dim=-1)

    def max_positions(self) -> int:
        """Return the number of positions that source and target may take together."""
        return self.cfg.max_positions

    def load_state_dict(
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> Any:
        """Load weights.

        Raises:
            UserError: naming the dictionary and the checkpoint's vocabulary where they differ, and otherwise every
                parameter that is missing, unknown or of another shape.
        """
        if strict:
            _check_fit({name: value.shape for name, value in self.state_dict().items()}, state_dict)
        return super().load_state_dict(state_dict, strict=strict, model_cfg=model_cfg, args=args)


def _check_fit(own: dict[str, torch.Size], given: dict[str, Tensor]) -> None:
    name = "embeddings.tokens.weight"
    if name in given and len(given[name]) != own[name][0]:
        raise UserError(
            f"the dictionary has {own[name][0]} symbols, but the checkpoint was made with {len(given[name])}: "
            "use the dict.txt that belongs to the checkpoint"
        )
    problems = [f"{key} is missing" for key in own.keys() - given.keys()]
    problems += [f"{key} is unknown" for key in given.keys() - own.keys()]
    problems += [
        f"{key} must have the shape {tuple(own[key])}, but has {tuple(given[key].shape)}"
        for key in own.keys() & given.keys()
        if own[key] != given[key].shape
    ]
    if problems:
        raise UserError.of(sorted(problems), "the checkpoint does not fit the model:")


def _initialize(module: nn.Module) -> None:
    """Initialise as BERT does: weights from N(0, 0.02), biases 0, layer norms the identity."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=0.02)
    if isinstance(module, nn.Linear):
        nn.init.zeros_(module.bias)
    if isinstance(module, nn.Embedding) and module.padding_idx is not None:
        nn.init.zeros_(module.weight[module.padding_idx])
