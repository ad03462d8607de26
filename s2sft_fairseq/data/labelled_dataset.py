"""The data set of texts with labels: everything is given, and nothing but the label is predicted."""

import logging
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from s2sft_fairseq.data.packed_dataset import PackedDataset, model_input
from s2sft_fairseq.objectives.finetuning import context_block
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm

logger = logging.getLogger(__name__)


class LabelledDataset(PackedDataset):
    """Texts of one or more fields, laid out as sources are: ``[CLS] a [SEP] b [SEP]``."""

    def __init__(
        self,
        texts: Any,
        labels: np.ndarray | None,
        form: SequenceForm,
        *,
        seed: int = 1,
        shuffle: bool = False,
        name: str = "data",
    ) -> None:
        """Wrap an indexed data set.

        Args:
            texts: ids, each text with a final eos; indexable, with ``sizes``.
            labels: of each text (N, ...), or None where they are to be predicted.
            form: the layout.
            seed: first part of the seed of every random choice.
            shuffle: whether texts of similar length come in random order.
            name: what messages call the data.
        """
        tokens = np.asarray(texts.sizes) - 1
        super().__init__(form, (), form.source_length(tokens), seed=seed, shuffle=shuffle, name=name)
        self.texts, self.labels = texts, labels
        if cut := int((tokens + form.source_specials > form.max_source).sum()):
            logger.warning(
                f"{name}: {cut:,} of {len(self):,} texts are cut to {form.max_source} positions "
                "(--max-source-positions)"
            )

    def __getitem__(self, index: int) -> dict[str, Any]:
        """Return a laid-out text, without any randomness."""
        return {"id": index, "text": self.form.source(self.texts[index].numpy()[:-1])}

    def collater(self, samples: Sequence[dict[str, Any]]) -> dict[str, Any]:
        """Make a batch.

        Returns:
            ``net_input``: columns (T,) and the lengths of the texts. ``labels`` (B, ...), or None. ``ntokens``: T.
            T: tokens of all texts, B: texts.

        Raises:
            UserError: if the data was binarized with a larger dictionary.
        """
        if not samples:
            return {}
        text = Ragged.of([sample["text"] for sample in samples])
        self.check_ids(text)
        ids = np.array([sample["id"] for sample in samples])
        return {
            "id": torch.from_numpy(ids),
            "nsentences": len(ids),
            "ntokens": len(text.values),
            "net_input": model_input(collate([(context_block(text, self.form),)])),
            "labels": None if self.labels is None else torch.from_numpy(self.labels[ids]),
        }

    def size(self, index: int) -> int:
        """Return the positions of a laid-out text."""
        return self.num_tokens(index)
