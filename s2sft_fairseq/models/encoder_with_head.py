"""An encoder with a classification or span head in place of its language model head, and these heads.

Texts are packed, one after the other without padding. A head chooses the tokens whose states (N, H) it reads; the last
layer computes no other states. T: tokens of all texts, N: tokens that are read, H: width of the layers, B: texts.
"""

import functools
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

import torch
from fairseq.models import BaseFairseqModel
from torch import Tensor, nn

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.pretrained_checkpoint import check_fit
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_parts import initial_std, initialize
from s2sft_fairseq.modules.dropout import Dropout
from s2sft_fairseq.modules.matmul import Linear
from s2sft_fairseq.modules.upload import upload
from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.optim.fused_adamw import exempt_from_decay


class ClassificationHead(nn.Module):
    """BERT's pooler and classifier on ``[CLS]``: dropout, dense layer, tanh, dropout, linear layer."""

    def __init__(self, width: int, outputs: int, *, dropout: float) -> None:
        """Build the head; a regression has one output."""
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = Linear(width, width)
        self.output = Linear(width, outputs)

    def read_tokens(self, lengths: Sequence[int]) -> list[int]:
        """Return the first token of each text, from the lengths of the texts."""
        return [0, *accumulate(lengths[:-1])]

    def forward(self, states: Tensor) -> Tensor:
        """Score the classes, (B, H) -> (B, C). C: outputs."""
        pooled = torch.tanh(self.dense(self.dropout(states)))
        logits: Tensor = self.output(self.dropout(pooled))
        return logits


class SpanHead(nn.Module):
    """A linear layer that scores each token as the first and as the last one of an answer, as in BERT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = Linear(width, 2)

    def read_tokens(self, lengths: Sequence[int]) -> None:
        """Return None: all tokens are read."""

    def forward(self, states: Tensor) -> Tensor:
        """Score the tokens, (T, H) -> (T, 2)."""
        logits: Tensor = self.output(states)
        return logits


class EncoderWithHead(BaseFairseqModel):
    """A `unilm` model that predicts labels of texts, not tokens.

    In checkpoints the names of the encoder's parameters begin with ``encoder.``, those of the head with ``head.``. The
    language model head is neither trained nor kept.
    """

    def __init__(self, encoder: UnilmModel, head: ClassificationHead | SpanHead) -> None:
        """Put a head on an encoder, and initialize the head.

        Args:
            encoder: the encoder; its language model head is removed.
            head: computes logits from states (N, H); see `s2sft_fairseq.models.encoder_with_head`.
        """
        super().__init__()
        encoder.lm_head = None
        self.has_random_weights = encoder.has_random_weights
        self.encoder, self.head = encoder, head.apply(functools.partial(initialize, std=initial_std(encoder.cfg)))
        exempt_from_decay(parameter for parameter in head.parameters() if parameter.ndim == 1)

    def forward(
        self,
        tokens: Tensor,
        positions: Tensor,
        segments: Tensor,
        steps: Tensor,
        groups: Tensor,
        lengths: Sequence[Sequence[int]],
        first_step: int | None = None,
    ) -> Tensor:
        """Return the logits of a packed batch; arguments as for `UnilmModel.forward`."""
        read = self.head.read_tokens([sum(sections) for sections in lengths])
        at = None if read is None else upload(read, tokens.device)
        columns = PackedColumns(tokens, positions, segments, steps, groups, lengths, first_step)
        logits: Tensor = self.head(self.encoder.encode(columns, at=at))
        return logits

    def max_positions(self) -> int:
        """Return the number of positions that a text may take."""
        return self.encoder.max_positions()

    def load_state_dict(
        self, state_dict: dict[str, Tensor], strict: bool = True, model_cfg: Any = None, args: Any = None
    ) -> None:
        """Load the weights of a checkpoint.

        Raises:
            UserError: if they belong to a generator or another task, or do not fit the model.
        """
        parts: dict[str, dict[str, Tensor]] = {"encoder": {}, "head": {}}
        for name, value in state_dict.items():
            part, _, rest = name.partition(".")
            parts.get(part, {})[rest] = value
        if not all(parts.values()):
            raise UserError(
                "the checkpoint has no head for this task: to start from a generator, give its checkpoint as "
                "--pretrained"
            )
        self.encoder.load_state_dict(parts["encoder"], strict=strict, model_cfg=model_cfg)
        check_fit({name: value.shape for name, value in self.head.state_dict().items()}, parts["head"])
        self.head.load_state_dict(parts["head"])
