"""The dictionary of a pretrained vocabulary, with the interface that fairseq's tasks need."""

from typing import IO, Any

import torch
from fairseq.data import Dictionary
from torch import Tensor

from s2sft_fairseq.data.dictionary import PretrainedDictionary


class FairseqDictionary(PretrainedDictionary, Dictionary):
    """A `PretrainedDictionary` with the methods of fairseq's, which encode lines and convert tensors of ids to text."""

    def string(self, tensor: Tensor, *args: Any, include_eos: bool = False, **options: Any) -> str:
        """Return the symbols of ids as text, as fairseq does, but drop eos and padding only at the end.

        Within a source, eos separates two fields.
        """
        if not include_eos and torch.is_tensor(tensor) and tensor.dim() == 1:
            while len(tensor) and int(tensor[-1]) in (self.eos_index, self.pad_index):
                tensor = tensor[:-1]
            include_eos = True
        return super().string(tensor, *args, include_eos=include_eos, **options)

    def add_from_file(self, f: str | IO[str]) -> None:
        """Not supported: all ids come from one file; use `load`."""
        raise NotImplementedError("ids of a pretrained vocabulary come from one file: use FairseqDictionary.load")
