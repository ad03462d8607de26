"""The model that is exported: what an export needs to know of it, and what the exported one is compared with."""

import copy
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from s2sft_fairseq.api.loading import Loaded, load
from s2sft_fairseq.api.search_arguments import apply
from s2sft_fairseq.checkpoints.model_folder import WEIGHTS, is_model_folder
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.data.packed_dataset import model_input
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.files import Window
from s2sft_fairseq.inference.generator import TextGenerator, batch_planner
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.model_folder import export_folder
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.packing import collate
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.tokenization.tokenize_files import TextTokenizer

ENCODER_ONLY = "unilm_seq2seq"


@contextmanager
def as_model_folder(checkpoint: Path, tokenizer_dir: Path | None, pretrained: Path | None) -> Iterator[Path]:
    """Yield the model folder of a checkpoint, adapters merged, or the one that it is.

    Raises:
        UserError: naming what is missing or does not fit.
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
            what: names the export, for messages.

        Raises:
            UserError: if it is another kind of model, or something is wrong with it.
        """
        self.folder = folder
        task = str((load_checkpoint(folder, lazily=True)["cfg"].get("task") or {}).get("_name"))
        if task != ENCODER_ONLY:
            raise UserError(f"{what} is for models of the task {ENCODER_ONLY}, but {folder} is one of {task}")
        self.loaded: Loaded = load(folder, None, "cpu", "float32", None, tasks=(ENCODER_ONLY,))
        self.settings = copy.deepcopy(self.loaded.cfg)
        apply(self.settings, self.loaded.search, {})
        self.task: Any = copy.copy(self.loaded.task)
        self.task.cfg = self.settings.task

    @property
    def form(self) -> SequenceForm:
        """The layout that the model was trained with."""
        form: SequenceForm = self.task.form
        return form

    @property
    def cfg(self) -> UnilmConfig:
        """The options of the model."""
        cfg: UnilmConfig = self.loaded.models[0].cfg
        return cfg

    @property
    def options(self) -> SearchOptions:
        """The search that the folder was made with."""
        options: SearchOptions = self._generator(self.loaded.models).options
        return options

    def weights(self) -> dict[str, Tensor]:
        """Return the weights as they are on the disk."""
        weights: dict[str, Tensor] = load_checkpoint(self.folder)["model"]
        return weights

    def weight_bytes(self) -> int:
        """Return the size of the file of the weights."""
        return (self.folder / WEIGHTS).stat().st_size

    def search(self, texts: Sequence[str]) -> list[list[int]]:
        """Return the ids of the best hypothesis of each text, without eos."""
        return self.search_with(self.loaded.models, texts)

    def search_with(self, models: Sequence[Any], texts: Sequence[str]) -> list[list[int]]:
        """Search likewise with other models of this form."""
        generator = self._generator(models)
        text_generator = TextGenerator(
            lambda sample: generator.generate(models, sample),
            self.form,
            batch_planner(self.settings, self.loaded.models, self.task),
            seed=1,
        )
        found = text_generator(Window(0, [self.ids(text) for text in texts]))
        best = [each[0]["tokens"].tolist() if each else [] for each in found]
        return [ids[:-1] if ids[-1:] == [self.form.sep] else ids for ids in best]

    def logits(self, text: str, ids: Sequence[int]) -> Tensor:
        """Return the logits (T, V) that predict a target of T - 1 ids, and eos, in one pass."""
        target = np.array([*ids, self.form.sep], dtype=np.int64)
        packed = self.task.objective.reference(Ragged.of([self.source(text)]), Ragged.of([target]), self.form)
        batch = collate([packed])
        labelled = torch.from_numpy(np.flatnonzero(batch.label != self.form.pad))
        with torch.inference_mode():
            logits: Tensor = self.loaded.models[0](**model_input(batch), labelled=labelled)
        return logits

    def source(self, text: str) -> np.ndarray:
        """Return the laid-out source of a text (S,)."""
        return self.form.source(self.ids(text))

    def ids(self, text: str) -> np.ndarray:
        """Return the ids of a text without special symbols."""
        (line,) = TextTokenizer(self.loaded.tokenizer).encode([text])
        index = self.loaded.tokenizer.dictionary.index
        return np.array([index(symbol) for symbol in line.split()], dtype=np.int64)

    def _generator(self, models: Sequence[Any]) -> Any:
        return self.task.build_generator(models, self.settings.generation)
