"""Names of options of ``transformers`` and its scripts; messages answer them with the names of this package."""

from collections.abc import Iterable, Mapping

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.search_bounds import PYTHON

SEARCH: Mapping[str, str] = {
    **dict.fromkeys(("num_beams", "beam_size"), "beam"),
    "num_return_sequences": "num_return",
    **dict.fromkeys(("max_new_tokens", "max_length", "max_target_length", "val_max_target_length"), "max_len"),
    **dict.fromkeys(("min_new_tokens", "min_length"), "min_len"),
    "do_sample": "sampling",
    "no_repeat_ngram_size": "no_repeat_ngram",
    "early_stopping": "early_stop",
}
"""Arguments of a search in Python."""
GENERATE: Mapping[str, str] = {name: PYTHON[ours] for name, ours in SEARCH.items() if name not in PYTHON.values()}
"""Options of ``s2sft generate``."""
FINETUNE: Mapping[str, str] = {
    **dict.fromkeys(("model_name_or_path", "model_name", "model"), "encoder"),
    "tokenizer_name": "tokenizer_dir",
    **dict.fromkeys(("train_file", "train_dataset", "train_data"), "train"),
    **dict.fromkeys(("validation_file", "eval_dataset", "validation", "dev"), "valid"),
    **dict.fromkeys(("test_file", "test_dataset"), "test"),
    **dict.fromkeys(("text_column", "source_column", "source_prefix"), "source"),
    **dict.fromkeys(("summary_column", "target_column"), "target"),
    "output_dir": "output",
    "learning_rate": "lr",
    **dict.fromkeys(("num_train_epochs", "num_epochs", "max_epoch"), "epochs"),
    **dict.fromkeys(("max_steps", "max_update", "num_train_steps"), "updates"),
    **dict.fromkeys(("train_batch_size", "batch_size", "per_gpu_train_batch_size"), "batch"),
    "per_device_train_batch_size": "device_batch",
    "warmup_steps": "warmup",
    "label_smoothing_factor": "label_smoothing",
    **dict.fromkeys(("max_source_length", "max_input_length"), "max_source"),
    **dict.fromkeys(("max_target_length", "max_output_length", "val_max_target_length"), "max_target"),
    **dict.fromkeys(("num_beams", "generation_num_beams"), "beam"),
    "metric_for_best_model": "metric",
    **dict.fromkeys(("no_cuda", "use_cpu"), "cpu"),
    **dict.fromkeys(("fp16", "bf16"), "amp"),
    "max_train_samples": "limit",
    **dict.fromkeys(("preprocessing_num_workers", "dataloader_num_workers"), "workers"),
    "lora_r": "lora_rank",
}
"""Options of ``s2sft finetune``, and arguments of `finetune`."""
TRAIN: Mapping[str, str] = {
    "model_name_or_path": "pretrained",
    "output_dir": "save_dir",
    "num_train_epochs": "max_epoch",
    "max_steps": "max_update",
    **dict.fromkeys(("per_device_train_batch_size", "train_batch_size"), "batch_size"),
    "gradient_accumulation_steps": "update_freq",
    "warmup_steps": "warmup_updates",
    "label_smoothing_factor": "label_smoothing",
    "max_source_length": "max_source_positions",
    "max_target_length": "max_target_positions",
    "max_grad_norm": "clip_norm",
    "lr_scheduler_type": "lr_scheduler",
    "resume_from_checkpoint": "restore_file",
    "dataloader_num_workers": "num_workers",
}
"""Options of ``s2sft train``."""


def hint(name: str, names: Mapping[str, str], *, as_options: bool = False) -> str:
    """Return the end of a message about an unknown name: what it is called here; "" if that is unknown.

    Args:
        name: the name, with ``_`` or ``-`` between words.
        names: names of this package by those of others.
        as_options: whether the names are options of a command line.
    """
    ours = names.get(name.lower().replace("-", "_"))
    return "" if ours is None else f" ({as_option(ours) if as_options else ours} is its name here)"


def refuse(words: Iterable[str], names: Mapping[str, str]) -> None:
    """Refuse options of a command line that have another name here.

    Args:
        words: the command line.
        names: names of this package by those of others, which the command does not have itself.

    Raises:
        UserError: naming them all.
    """
    options = dict.fromkeys(word.partition("=")[0] for word in words if word.startswith("--"))
    ours = {option: hint(option.removeprefix("--"), names, as_options=True) for option in options}
    if problems := [f"there is no option {option}{text}" for option, text in ours.items() if text]:
        raise UserError.of(problems)
