"""The original of an export: the source of weights and options, and the model to compare the exported one with."""

import copy
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from torch import Tensor

from s2sft_fairseq.api.loading import Loaded, load
from s2sft_fairseq.api.search_arguments import apply
from s2sft_fairseq.api.seq2seq import Seq2Seq
from s2sft_fairseq.checkpoints.model_folder import WEIGHTS, is_model_folder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.model_folder import export_folder
from s2sft_fairseq.models.unilm_config import UnilmConfig, is_disentangled
from s2sft_fairseq.objectives.sequence_form import SequenceForm

ENCODER_ONLY = "unilm_seq2seq"


@contextmanager
def as_model_folder(checkpoint: Path, tokenizer_dir: Path | None, pretrained: Path | None) -> Iterator[Path]:
    """Yield `checkpoint` if it is a model folder, else a temporary model folder with adapters merged.

    Raises:
        UserError: something is missing or does not fit.
    """
    if is_model_folder(checkpoint) and tokenizer_dir is None:
        yield checkpoint
        return
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "model"
        export_folder(checkpoint, folder, tokenizer_dir, pretrained=pretrained)
        yield folder


class Original:
    """An encoder-only generator, as ``s2sft generate`` runs it on CPUs in float32."""

    def __init__(self, folder: Path, what: str) -> None:
        """Load a model folder.

        Args:
            folder: the model folder.
            what: the name of the export, for messages.

        Raises:
            UserError: the folder holds another kind of model, or something is wrong with it.
        """
        self.folder = folder
        task = str((load_checkpoint(folder, lazily=True)["cfg"].get("task") or {}).get("_name"))
        if task != ENCODER_ONLY:
            raise UserError(f"{what} is for models of the task {ENCODER_ONLY}, but {folder} is one of {task}")
        self.loaded: Loaded = load(folder, None, "cpu", "float32", None, tasks=(ENCODER_ONLY,))
        if is_disentangled(self.cfg):
            raise UserError(
                f"{what} is for models without disentangled attention, but {folder} was trained with "
                f"--disentangled-attention {self.cfg.disentangled_attention}"
            )
        self.model = Seq2Seq(self.loaded)

    @property
    def form(self) -> SequenceForm:
        """The layout that the model was trained with."""
        form: SequenceForm = self.loaded.task.form
        return form

    @property
    def cfg(self) -> UnilmConfig:
        """The options of the model."""
        cfg: UnilmConfig = self.loaded.models[0].cfg
        return cfg

    @property
    def options(self) -> SearchOptions:
        """The default search options of the folder."""
        settings = copy.deepcopy(self.loaded.cfg)
        apply(settings, self.loaded.search, {})
        dictionary = self.loaded.task.dictionary
        return SearchOptions.of(settings.generation, settings.task, self.form, dictionary)

    def weights(self) -> dict[str, Tensor]:
        """Return the weights, read from the file."""
        weights: dict[str, Tensor] = load_checkpoint(self.folder)["model"]
        return weights

    @property
    def weight_file(self) -> Path:
        """The path of the file of weights."""
        return self.folder / WEIGHTS
