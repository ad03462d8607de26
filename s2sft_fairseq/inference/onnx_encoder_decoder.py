"""Encoder-decoders in onnxruntime: onnxruntime runs the model in fairseq's search.

N: sentences, K: hypotheses of each, S: source positions, T: tokens of a hypothesis, V: vocabulary, L: layers of the
decoder; h: heads, d: width of a head.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from fairseq.models import FairseqIncrementalDecoder
from torch import Tensor, nn

from s2sft_fairseq.inference.onnx_folder import run_graph
from s2sft_fairseq.models.onnx_graph import slot_names

KEPT = "kept"
"""Key of the tensors that `OnnxDecoder` keeps in the incremental state."""


class OnnxEncoderDecoder(nn.Module):
    """Takes the place of a `TransformerModelBase` in fairseq's search."""

    def __init__(self, encoder: Any, step: Any, sizes: Any) -> None:
        """Take two sessions of onnxruntime, and the options of the model."""
        super().__init__()
        self.encoder = OnnxEncoder(encoder, sizes)
        self.decoder = OnnxDecoder(step, sizes)

    def max_decoder_positions(self) -> int:
        """Return the most tokens of a target."""
        return self.decoder.max_positions()

    def share_source_keys(self, beam_size: int) -> None:
        """Set the number of hypotheses of a sentence, which are consecutive rows of the batch."""
        self.encoder.beam_size = beam_size

    def get_normalized_probs(self, decoder_out: Any, log_probs: bool, sample: Any = None) -> Tensor:
        """Return the log-probabilities of logits, both (N K, T, V)."""
        return torch.log_softmax(decoder_out[0], dim=-1)


class OnnxEncoder(nn.Module):
    """The encoder: reads the sources."""

    def __init__(self, session: Any, sizes: Any) -> None:
        super().__init__()
        self.session = session
        self.outputs = ["padding", *slot_names(sizes["decoder_layers"], "source_")]
        self.beam_size = 1

    def forward_torchscript(self, net_input: dict[str, Tensor]) -> dict[str, Any]:
        """Read the sources of a batch.

        Args:
            net_input: a dict with ``src_tokens`` (N, S), padded on the right.

        Returns:
            ``padding`` (N, S); ``states``, the keys and values of the sources, 2 L tensors (N, h, S, d); and ``rows``,
            the number of rows that a sentence has in the batch.
        """
        padding, *states = run(self.session, self.outputs, {"tokens": net_input["src_tokens"]})
        return {"padding": padding, "states": states, "rows": 1}

    def reorder_encoder_out(self, encoder_out: dict[str, Any], new_order: Tensor) -> dict[str, Any]:
        """Select the sentences of the rows ``new_order`` (N K,). The hypotheses of a sentence share its tensors."""
        sentences = new_order[:: self.beam_size].div(encoder_out["rows"], rounding_mode="floor")
        padding, states = encoder_out["padding"], encoder_out["states"]
        if not torch.equal(sentences, torch.arange(len(padding))):  # some sentences are done
            padding, states = padding[sentences], [each[sentences] for each in states]
        return {"padding": padding, "states": states, "rows": self.beam_size}


class OnnxDecoder(FairseqIncrementalDecoder):
    """The decoder: does the steps."""

    def __init__(self, session: Any, sizes: Any) -> None:
        super().__init__(None)
        self.session = session
        self.heads = sizes["encoder_attention_heads"]
        self.head_dim = sizes["encoder_embed_dim"] // self.heads
        self.most = sizes["max_positions"]
        layers = sizes["decoder_layers"]
        self.source_names, self.names = slot_names(layers, "source_"), slot_names(layers)
        self.outputs = ["logits", *slot_names(layers, "new_")]

    def max_positions(self) -> int:
        """Return the most tokens of a target."""
        return int(self.most)

    def forward(
        self,
        prev_output_tokens: Tensor,
        encoder_out: Any = None,
        incremental_state: Any = None,
        **_: Any,
    ) -> tuple[Tensor, None]:
        """Score the vocabulary after the last tokens.

        Args:
            prev_output_tokens: the hypotheses (N K, T).
            encoder_out: the output of `OnnxEncoder`.
            incremental_state: the keys and values of the earlier steps.

        Returns:
            Logits (N K, 1, V), and None.
        """
        padding, rows = encoder_out["padding"], encoder_out["rows"]
        count = len(padding)
        kept = incremental_state.get(KEPT) or [torch.zeros(count, rows, self.heads, 0, self.head_dim)] * len(self.names)
        logits, *incremental_state[KEPT] = run(
            self.session,
            self.outputs,
            {
                "tokens": prev_output_tokens[:, -1].view(count, rows),
                "position": torch.tensor([prev_output_tokens.size(1) - 1]),
                "padding": padding,
                **dict(zip(self.source_names, encoder_out["states"], strict=True)),
                **dict(zip(self.names, kept, strict=True)),
            },
        )
        # (N, K, V) -> (N K, 1, V)
        return logits.flatten(0, 1).unsqueeze(1), None

    def reorder_incremental_state(self, incremental_state: Any, new_order: Tensor) -> None:
        """Select the rows ``new_order`` (N K,) of the batch."""
        rows = incremental_state[KEPT][0].size(1)
        incremental_state[KEPT] = [
            each.flatten(0, 1)[new_order].unflatten(0, (-1, rows)) for each in incremental_state[KEPT]
        ]


def run(session: Any, outputs: Sequence[str], inputs: dict[str, Tensor]) -> list[Tensor]:
    """Run a graph and return the named outputs.

    Raises:
        UserError: onnxruntime fails.
    """
    arrays = {name: np.ascontiguousarray(each.numpy()) for name, each in inputs.items()}
    return [torch.from_numpy(each) for each in run_graph("the graph", session, outputs, arrays)]
