"""Silence warnings about fairseq's use of Hydra and PyTorch, which the user of a command cannot act on."""

import sys
import warnings

# Each is the beginning of a message, as a regular expression.
MESSAGES = (
    # fairseq/dataclass/utils.py and fairseq_cli/hydra_train.py, which are older than Hydra 1.2
    r"hydra\.experimental\.(initialize|compose)\(\) is no longer experimental",
    r"\s*The version_base parameter is not specified",
    r"\s*In 'config': Usage of deprecated keyword in package header",
    r"\s*'config' is validated against ConfigStore schema with the same name",
    r"\s*The strict flag in the compose API is deprecated",
    r"\s*Future Hydra versions will no longer change working directory at job runtime",
    # fairseq/data/iterators.py, on the CPU
    r"'pin_memory' argument is set as true but no accelerator is found",
    # fairseq/trainer.py and fairseq/optim/amp_optimizer.py; the module `cpu` warns of --amp on the CPU
    r"`torch\.cuda\.amp\.(autocast|GradScaler)\(args\.\.\.\)` is deprecated",
    r"torch\.cuda\.amp\.GradScaler is enabled, but CUDA is not available",
    r"CUDA is not available or torch_xla is imported\. Disabling autocast",
    # fairseq/modules, which compile small functions when they are imported
    r"`torch\.jit\.script` is not supported in Python 3\.14\+",
    # fairseq/models/distributed_fairseq_model.py
    r"`broadcast_buffers` is deprecated",
    # fairseq/modules/multihead_attention.py
    r"Support for mismatched key_padding_mask and attn_mask is deprecated",
    # torch.distributed.fsdp, about the scores of fairseq's decoder, which nothing changes in place
    r"FSDP2-wrapped module \(\w+\) returned a view tensor",
)


def install() -> None:
    """Silence `MESSAGES`, unless the user asked for warnings with `python -W` or `PYTHONWARNINGS`."""
    if all("semaphore_tracker" in option for option in sys.warnoptions):  # fairseq sets this one for its workers
        for message in MESSAGES:
            warnings.filterwarnings("ignore", message=message)
