"""fairseq's own loading of checkpoints reports every bad file by name."""

import functools
import os
from collections.abc import Callable

from fairseq import checkpoint_utils
from fairseq.file_io import PathManager

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError

_LAST = "checkpoint_last.pt"
"""What `--restore-file` is by default; it is then looked for in `--save-dir`."""


def _explain_bad_file(load_to_cpu: Callable) -> Callable:
    @functools.wraps(load_to_cpu)
    def load_checkpoint_to_cpu(path: str, *args: object, **kwargs: object) -> dict:
        try:
            return load_to_cpu(path, *args, **kwargs)
        except UserError:  # of `trusted_checkpoints`
            raise
        except Exception:
            state = load_checkpoint(PathManager.get_local_path(path))
            if "model" not in state or not (state.get("cfg") or state.get("args")):
                entries = ", ".join(list(map(str, state))[:5]) or "nothing"
                raise UserError(
                    f"{path}: not a fairseq checkpoint, which has a 'model' and a 'cfg'; this file holds {entries}"
                    + (", ..." if len(state) > 5 else "")
                ) from None
            raise

    return load_checkpoint_to_cpu


def _explain_missing_model(load_ensemble: Callable) -> Callable:
    @functools.wraps(load_ensemble)
    def load_model_ensemble_and_task(*args: object, **kwargs: object) -> tuple:
        try:
            return load_ensemble(*args, **kwargs)
        except OSError as error:
            if str(error).startswith("Model file not found"):
                raise UserError(f"{error} (--path)") from None
            raise

    return load_model_ensemble_and_task


def _require_restore_file(load_for_training: Callable) -> Callable:
    """fairseq starts from scratch, with one line in the log, where a checkpoint that was asked for is missing or is a
    folder."""

    @functools.wraps(load_for_training)
    def load_checkpoint(cfg: object, trainer: object, **kwargs: object) -> tuple:
        suffix = f"{trainer.checkpoint_suffix or ''}.pt"  # of a shard
        last = os.path.join(cfg.save_dir, _LAST).replace(".pt", suffix)
        asked_for = {"--finetune-from-model": cfg.finetune_from_model}
        if cfg.restore_file != _LAST:
            asked_for["--restore-file"] = cfg.restore_file.replace(".pt", suffix)
        elif not PathManager.exists(last):
            asked_for["--continue-once"] = cfg.continue_once
        else:
            asked_for["--save-dir"] = last
        for option, path in asked_for.items():
            if path is None or PathManager.isfile(path):
                continue
            if PathManager.exists(path):
                raise UserError(f"{option} {path}: a checkpoint file is needed, but this is a folder")
            raise UserError(f"{option} {path}: no such checkpoint file (from {os.getcwd()})")
        return load_for_training(cfg, trainer, **kwargs)

    return load_checkpoint


def apply() -> None:
    """Put the explanations around fairseq's three loading functions."""
    checkpoint_utils.load_checkpoint_to_cpu = _explain_bad_file(checkpoint_utils.load_checkpoint_to_cpu)
    checkpoint_utils.load_model_ensemble_and_task = _explain_missing_model(
        checkpoint_utils.load_model_ensemble_and_task
    )
    checkpoint_utils.load_checkpoint = _require_restore_file(checkpoint_utils.load_checkpoint)
