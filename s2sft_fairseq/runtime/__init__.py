"""What fairseq needs to run on today's Python, PyTorch and NumPy, applied when the plugin is imported.

One small mend a module, which names what breaks and has an `apply()`. Spawned workers import the plugin again, and so
apply them too.
"""

import functools
import logging

# Speech tasks of fairseq's announce on import that an optional package is missing, and turn the whole log on.
logging.getLogger("fairseq.tasks.text_to_speech").setLevel(logging.WARNING)
_root = logging.getLogger()
_level, _handlers = _root.level, _root.handlers[:]

from s2sft_fairseq.runtime import (  # noqa: E402
    arch_option,
    best_metric,
    bf16_option,
    checkpoint_errors,
    damaged_datasets,
    data_workers,
    distributed_cpu,
    finished_training,
    fp16_cpu,
    help_option,
    interactive_input,
    linear_schedule,
    memory_reuse,
    nan_scores,
    numpy_names,
    random_start,
    repeated_ngrams,
    resumed_task,
    settled_options,
    shared_source_keys,
    trusted_checkpoints,
    warning_filters,
    whole_checkpoints,
)

_root.setLevel(_level)
_root.handlers[:] = _handlers

MENDS = (
    memory_reuse,
    warning_filters,
    numpy_names,
    trusted_checkpoints,
    checkpoint_errors,
    whole_checkpoints,
    resumed_task,
    random_start,
    damaged_datasets,
    interactive_input,
    arch_option,
    best_metric,
    finished_training,
    bf16_option,
    linear_schedule,
    repeated_ngrams,
    help_option,
    fp16_cpu,
    distributed_cpu,
    data_workers,
    settled_options,
    shared_source_keys,
    nan_scores,
)


@functools.cache
def apply() -> None:
    """Apply every mend, once in a process however often it is called."""
    for mend in MENDS:
        mend.apply()
