"""The outputs of one pass, without a search: states, logits, log-probabilities of a target, attention weights.

S: positions of a source, T: tokens of a target, both with their special symbols; H: width; h: heads; d: width of a
head.
"""

from typing import Any

import numpy as np
import torch
from fairseq import utils
from torch import Tensor

from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.inference.hypotheses import ReferenceScorer
from s2sft_fairseq.inference.rules import NotANumberError
from s2sft_fairseq.modules.visibility import PackedColumns
from s2sft_fairseq.objectives.packing import PackedBatch, collate
from s2sft_fairseq.objectives.ragged import Ragged


class EncoderPass:
    """Passes of an encoder-only model. Sources (S,) and targets (T,) are laid out already."""

    def __init__(self, model: Any, task: Any, form: Any, device: str) -> None:
        self.model, self.task, self.form, self.device = model, task, form, device
        self.num_layers = len(model.layers)

    def states(self, source: np.ndarray) -> Tensor:
        """Return the states of the last layer (S, H)."""
        tokens = torch.from_numpy(source).to(self.device)
        segments = torch.from_numpy(self.form.source_segments(source[None])[0]).to(self.device)
        positions = torch.arange(len(source), device=self.device)
        states: Tensor = self.model.encode(PackedColumns.given(tokens, positions, segments, [len(source)]))
        return states

    def log_probs(self, source: np.ndarray, target: np.ndarray) -> Tensor:
        """Return the log-probability of each token of the target (T,)."""
        laid_out, wanted = (torch.from_numpy(ids).unsqueeze(0).to(self.device) for ids in (source, target))
        sample = {"net_input": {"src_tokens": laid_out}, "target": wanted}
        scorer = ReferenceScorer([self.model], self.form, self.task.objective)
        ((found,),) = scorer.generate([self.model], sample)
        log_probs: Tensor = found["positional_scores"]
        return log_probs

    def logits(self, source: np.ndarray, target: np.ndarray) -> Tensor:
        """Return the logits that predict each token of the target (T, V). V: symbols."""
        batch = self.packed(source, target)
        labelled = torch.from_numpy(np.flatnonzero(batch.label != self.form.pad)).to(self.device)
        logits: Tensor = self.model(**self.inputs(batch), labelled=labelled)
        return logits

    def attention(self, source: np.ndarray, target: np.ndarray, layer: int) -> Tensor:
        """Return the attention weights from the prediction of each target token to the source tokens (T, S).

        They are the mean over the heads of a layer. A row sums to less than 1: the rest goes to the target.
        """
        batch = self.packed(source, target)
        weights = self.weights(self.columns(batch), layer).mean(0)
        return weights[torch.from_numpy(batch.label != self.form.pad)][:, : len(source)]

    def packed(self, source: np.ndarray, target: np.ndarray) -> PackedBatch:
        """Return the packed sequence that predicts each token of the target as decoding does."""
        return collate([self.task.objective.reference(Ragged.of([source]), Ragged.of([target]), self.form)])

    def inputs(self, batch: PackedBatch) -> dict[str, Any]:
        """Return a packed sequence as arguments of the model, on its device."""
        found: dict[str, Any] = utils.apply_to_sample(lambda column: column.to(self.device), model_input(batch))
        return found

    def columns(self, batch: PackedBatch) -> PackedColumns:
        """Return the columns of a packed sequence on the device of the model."""
        return PackedColumns(**self.inputs(batch))

    def weights(self, columns: PackedColumns, layer: int) -> Tensor:
        """Return the attention weights of all N tokens of one packed example (h, N, N), a row for each query."""
        seen: list[Any] = []
        attention, pattern = self.model.layers[layer].attention, self.model.patterns[layer]
        hook = attention.register_forward_pre_hook(lambda _, arguments: seen.append(arguments))
        try:
            self.model.encode(columns)
        finally:
            hook.remove()
        ((x, plan),) = seen
        # (N, 3, h, d) -> (h, N, d) each
        query, key, _ = attention.project(x, plan.rotation).permute(1, 2, 0, 3).float()
        weights = query.new_zeros(len(query), len(x), len(x))
        of_all = pattern.packed(self.model.as_seen(columns), relative=self.model.relative_position, dtype=x.dtype)
        for block in attention.biased_blocks(attention.project(x, plan.rotation), of_all):
            scores = query[:, block.queries] @ key[:, block.keys].transpose(1, 2) / query.size(-1) ** 0.5
            if block.bias is not None:
                scores = scores + block.bias.float()
            weights[:, block.queries, block.keys] = scores.softmax(-1)
        return weights.cpu()


class EncoderDecoderPass:
    """Passes of an encoder-decoder. Sources (S,) and targets (T,) are laid out already."""

    def __init__(self, model: Any, form: Any, device: str) -> None:
        self.model, self.form, self.device = model, form, device
        self.num_layers = model.decoder.num_layers

    def states(self, source: np.ndarray) -> Tensor:
        """Return the states of the encoder's last layer (S, H)."""
        states: Tensor = self._encoded(source)["encoder_out"][0].squeeze(1)
        return states

    def log_probs(self, source: np.ndarray, target: np.ndarray) -> Tensor:
        """Return the log-probability of each token of the target (T,)."""
        logits = self.logits(source, target)
        log_probs = self.model.get_normalized_probs((logits[None], None), log_probs=True)
        found = log_probs[0].gather(1, torch.from_numpy(target).to(self.device)[:, None]).squeeze(1)
        if found.isnan().any():
            raise NotANumberError(0, logits.dtype)
        return found

    def logits(self, source: np.ndarray, target: np.ndarray) -> Tensor:
        """Return the logits that predict each token of the target (T, V). V: symbols."""
        features, _ = self._decoded(source, target)
        logits: Tensor = self.model.decoder.output_layer(features)[0]
        return logits

    def attention(self, source: np.ndarray, target: np.ndarray, layer: int) -> Tensor:
        """Return the weights of the attention to the source (T, S), the mean over the heads of a layer."""
        number = layer % self.num_layers
        layer_of_decoder = self.model.decoder.layers[number]
        before = layer_of_decoder.need_attn
        layer_of_decoder.need_attn = True  # fairseq switches it off for generation
        try:
            _, extra = self._decoded(source, target, alignment_layer=number)
        finally:
            layer_of_decoder.need_attn = before
        weights: Tensor = extra["attn"][0].squeeze(0).cpu()
        return weights

    def _encoded(self, source: np.ndarray) -> Any:
        tokens = torch.from_numpy(source).unsqueeze(0).to(self.device)
        return self.model.encoder(tokens, torch.tensor([len(source)], device=self.device))

    def _decoded(self, source: np.ndarray, target: np.ndarray, **options: Any) -> Any:
        """Return the decoder's features (1, T, H) and its extra outputs."""
        # The decoder's input is eos followed by the target without its last token, which is eos.
        given = torch.from_numpy(np.roll(target, 1)).unsqueeze(0).to(self.device)
        return self.model.decoder(given, encoder_out=self._encoded(source), features_only=True, **options)
