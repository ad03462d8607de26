"""The base of all tasks, which have one dictionary, and the base of those that train the `unilm` model."""

from collections.abc import Sequence
from typing import Any

from fairseq.tasks import FairseqTask

from s2sft_fairseq.data.dictionary import symbols_fingerprint
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.unilm_config import has_causal_source


class OneDictionaryTask(FairseqTask):
    """A task with one dictionary, which keeps the pretrained ids."""

    dictionary: FairseqDictionary
    same_in_a_run: tuple[str, ...] = ("source_lang", "target_lang")
    """Options that say what is learned. A training that resumes must have the same values."""

    @classmethod
    def load_dictionary(cls, filename: str) -> FairseqDictionary:
        """Load a dictionary that keeps the pretrained ids, also for fairseq-preprocess."""
        return FairseqDictionary.load(filename)

    @property
    def source_dictionary(self) -> FairseqDictionary:
        """The dictionary."""
        return self.dictionary

    @property
    def target_dictionary(self) -> FairseqDictionary:
        """The dictionary."""
        return self.dictionary


class PackedTask(OneDictionaryTask):
    """A task whose batches are packed."""

    model_name = "unilm"
    """The model that reads the batches of this task, see `s2sft_fairseq.runtime.parts`."""
    criterion = "mask_attention"
    """The criterion that reads them, itself or as the base of a user's own."""
    both_directions: str | None = None
    """What cannot be done by a model whose sources are read from left to right; None: all can be done."""

    def __init__(self, cfg: Any, dictionary: FairseqDictionary) -> None:
        super().__init__(cfg)
        self.dictionary = dictionary

    def build_model(self, cfg: Any, from_checkpoint: bool = False) -> Any:
        """Build the model.

        Raises:
            UserError: options, checkpoint, dictionary and model do not fit each other.
        """
        model = super().build_model(cfg, from_checkpoint)
        if self.both_directions and has_causal_source(model.cfg):
            raise UserError(
                f"--source-visibility must be both for {self.both_directions}, but this model has "
                f"{model.cfg.source_visibility}, as language models have: start from an encoder"
            )
        return model

    @classmethod
    def build_dictionary(cls, filenames: Sequence[str], **_: Any) -> FairseqDictionary:
        """Refuse to build a dictionary: the pretrained encoder's is needed.

        Raises:
            UserError: always.
        """
        raise UserError("--srcdict and --joined-dictionary are needed: the dict.txt of the pretrained encoder")

    def state_dict(self) -> dict[str, Any]:
        """Return the state of the task for a checkpoint: a fingerprint of the symbols of its embedding."""
        symbols = self.dictionary.symbols
        return {**super().state_dict(), "symbols": symbols_fingerprint(symbols), "num_symbols": len(symbols)}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the state of the task from a checkpoint.

        Raises:
            UserError: the checkpoint has other symbols, or the same ones in another order.
        """
        symbols, count = state_dict.get("symbols"), len(self.dictionary)
        if symbols is not None and symbols != symbols_fingerprint(self.dictionary.symbols):
            needed = state_dict.get("num_symbols", count)  # older checkpoints lack it
            found = f"the dictionary has {count} symbols, but the checkpoint was made with {needed}"
            if needed == count:
                found = f"the dictionary has other symbols than those of the checkpoint ({count}), or another order"
            raise UserError(f"{self.cfg.data}: {found}")
        super().load_state_dict(state_dict)
