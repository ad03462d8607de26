"""From a DeltaLM checkpoint and the symbols beside it to what ``s2sft convert`` writes."""

from collections.abc import Sequence
from types import SimpleNamespace

import torch
from fairseq.data import Dictionary

from s2sft_fairseq.checkpoints.conversion import Conversion, Sizes
from s2sft_fairseq.checkpoints.deltalm import fit_problems, read_deltalm
from s2sft_fairseq.checkpoints.source_files import SourceCheckpoint
from s2sft_fairseq.data.dictionary import BERT_SYMBOLS, DICTIONARY, FAIRSEQ_SYMBOLS, PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.deltalm import DeltaLMModel
from s2sft_fairseq.models.deltalm_config import DeltaLMConfig


def convert_deltalm(checkpoint: SourceCheckpoint, symbols: Sequence[str]) -> Conversion:
    """Convert an official checkpoint, or one of a training by the official program or this plugin.

    Args:
        checkpoint: the checkpoint.
        symbols: of its dictionary, as fairseq reads it, in the order of their ids.

    Raises:
        UserError: if the dictionary is not DeltaLM's, or naming every parameter that is missing, unknown or of another
            shape.
    """
    # A model of this plugin may have begun with BERT; official files, which have no options, have fairseq's ids.
    is_official = checkpoint.config.keys() <= {"_name"}
    if symbols[:4] != FAIRSEQ_SYMBOLS and (is_official or BERT_SYMBOLS.pad not in symbols):
        raise UserError(
            f"{checkpoint.file} needs its own {DICTIONARY} beside it: the first symbols of DeltaLM are "
            f"{', '.join(FAIRSEQ_SYMBOLS)}, but those of the tokenizer {', '.join(symbols[:4])}"
        )
    try:
        conversion = read_deltalm(checkpoint.weights, checkpoint.config, PretrainedDictionary.of(symbols).pad())
    except UserError as error:
        raise UserError(f"{checkpoint.file}: {error}") from None
    if problems := fit_problems(_shapes(conversion.sizes), conversion.weights):
        raise UserError.of(problems, f"{checkpoint.file} is not the DeltaLM that its layers and tables tell:")
    return conversion


def _shapes(sizes: Sizes) -> dict[str, tuple[int, ...]]:
    """Return the shape of every parameter of a model of these sizes, its dictionary being empty."""
    symbols = Dictionary()
    with torch.device("meta"):
        task = SimpleNamespace(source_dictionary=symbols, target_dictionary=symbols)
        model = DeltaLMModel.build_model(DeltaLMConfig(**sizes), task)
    return {name: tuple(value.shape) for name, value in model.state_dict().items()}
