"""What tasks of understanding put on an encoder, in place of the language model head.

All heads read the states of packed texts, (T, H), one text after the other without padding, and the lengths of the
texts. T: tokens of all texts, H: width of the layers, B: texts.
"""

from collections.abc import Sequence
from itertools import accumulate

import torch
from torch import Tensor, nn

from s2sft_fairseq.modules.dropout import Dropout


class ClassificationHead(nn.Module):
    """BERT's pooler and classifier on ``[CLS]``: dropout, dense layer, tanh, dropout, linear layer."""

    def __init__(self, width: int, outputs: int, *, dropout: float) -> None:
        """Make the head; a regression has one output."""
        super().__init__()
        self.dropout = Dropout(dropout)
        self.dense = nn.Linear(width, width)
        self.output = nn.Linear(width, outputs)

    def forward(self, states: Tensor, lengths: Sequence[int]) -> Tensor:
        """Score the classes, (T, H) -> (B, C). C: outputs."""
        firsts = torch.tensor([0, *accumulate(lengths[:-1])], device=states.device)
        pooled = torch.tanh(self.dense(self.dropout(states[firsts])))
        return self.output(self.dropout(pooled))


class SpanHead(nn.Module):
    """A linear layer that scores each token as the first and as the last one of an answer, as in BERT."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.output = nn.Linear(width, 2)

    def forward(self, states: Tensor, lengths: Sequence[int]) -> Tensor:
        """Score the tokens, (T, H) -> (T, 2)."""
        return self.output(states)
