"""Load checkpoints without running code from them.

Since PyTorch 2.6 `torch.load` builds plain values and tensors only, and refuses every other type by name. fairseq's own
checkpoints hold a few types beyond these, all of them plain records; they are registered here, and nothing else is.
What a configuration in a checkpoint may ask for is decided in `trusted_config`.
"""

import argparse
import collections
import os
import re
import typing
import warnings
import zipfile

import numpy as np
import torch
from fairseq.distributed import utils as distributed_utils
from fairseq.logging import meters
from omegaconf import DictConfig, ListConfig
from omegaconf.base import ContainerMetadata, Metadata
from omegaconf.nodes import AnyNode
from torch import _weights_only_unpickler
from torch.serialization import add_safe_globals, get_unsafe_globals_in_checkpoint

from s2sft_fairseq.checkpoints.numpy_pickles import RefusedValueError, numpy_types
from s2sft_fairseq.errors import UserError

_METERS = (meters.AverageMeter, meters.TimeMeter, meters.StopwatchMeter)


def safe_types() -> list:
    """The types that fairseq checkpoints hold beyond PyTorch's own list: classes, or (class, its name in the file)."""
    return [
        argparse.Namespace,  # cfg["model"], and the whole configuration before fairseq 0.10
        *numpy_types(),  # meters and scores
        # Meters as objects, before fairseq 0.9; the module has moved since.
        *_METERS,
        *((meter, f"fairseq.meters.{meter.__name__}") for meter in _METERS),
    ]


def types_between_ranks() -> list:
    """The further types in the state that rank 0 sends to the other ranks on resuming; no file holds them."""
    return [
        distributed_utils._TensorPlaceholder,
        DictConfig,
        ListConfig,
        ContainerMetadata,
        Metadata,
        AnyNode,
        collections.defaultdict,
        (typing.Any, "typing.Any"),
        dict,
        list,
        int,
    ]


def register_safe_types() -> None:
    """Let `torch.load` build `safe_types()`, in this process, wherever it is called from."""
    add_safe_globals(safe_types())


def load_checkpoint(path: str | os.PathLike, *, lazily: bool = False) -> dict:
    """Load a checkpoint onto the CPU, as it is in the file.

    Args:
        path: the file.
        lazily: read tensors when they are used, where the format of the file allows it; the file must not change then.

    Raises:
        UserError: the file is missing, is damaged, is no checkpoint, or holds a type that is not safe to load.
    """
    path = os.fspath(path)
    if not os.path.exists(path):
        raise UserError(f"{path}: no such checkpoint file")
    if not os.path.isfile(path):
        raise UserError(f"{path}: a checkpoint file is needed, this is a folder or a device")
    try:
        mmap = lazily and zipfile.is_zipfile(path)  # the format before PyTorch 1.6 is no archive
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)
    except MemoryError:
        raise
    except RefusedValueError as error:
        raise UserError(_refusal(path, [f"a NumPy value that is no number ({error})"])) from error
    except Exception as error:  # a damaged pickle or archive fails in any way whatever, from KeyError to OSError
        refused = _refused_types(path, error)
        raise UserError(_refusal(path, refused) if refused else _unreadable(path, error)) from error
    if not isinstance(state, dict):
        raise UserError(f"{path}: a checkpoint holds a dictionary, this file holds a {type(state).__name__}")
    return state


def load_pickle(path: str | os.PathLike) -> dict:
    """Load a bare pickle of NumPy arrays by name, such as Paddle's ``*.pdparams``, in PyTorch's safe mode; as tensors.

    Raises:
        UserError: the file is damaged, holds a type that is not safe to load, or is of a newer protocol than PyTorch's
            safe mode reads.
    """
    path = os.fspath(path)
    try:
        with open(path, "rb") as file, warnings.catch_warnings():
            warnings.simplefilter("ignore")  # a newer protocol is an error here
            state = _weights_only_unpickler.load(file, encoding="latin1")  # arrays that Python 2 wrote are such text
        # "StructuredToParameterName@@" is a table of names
        return {name: torch.from_numpy(value) for name, value in state.items() if isinstance(value, np.ndarray)}
    except MemoryError:
        raise
    except RefusedValueError as error:
        raise UserError(_refusal(path, [f"a NumPy value that is no number ({error})"])) from error
    except Exception as error:  # as above
        if refused := re.findall(r"GLOBAL (\S+)", str(error)):
            raise UserError(_refusal(path, refused)) from error
        raise UserError(
            f"{_unreadable(path, error)} "
            "A pickle that is no PyTorch checkpoint must be of protocol 2 and hold NumPy arrays."
        ) from error


def _refused_types(path: str, error: Exception) -> list[str]:
    """The full names of the types in the file that safe loading does not allow, as far as they can be found."""
    try:
        names = get_unsafe_globals_in_checkpoint(path)
    except Exception:  # not the zip format of PyTorch >= 1.6, or too damaged to be listed
        names = re.findall(r"GLOBAL (\S+)", str(error))
    return sorted(names)


def _refusal(path: str, types: list[str]) -> str:
    return (
        f"{path}: refused, it holds {', '.join(types)}. Only tensors, plain Python values and fairseq's own records "
        "are loaded, as other types can run code on being read. If the file is your own, write it again without them."
    )


def _unreadable(path: str, error: Exception) -> str:
    return (
        f"{path} ({os.path.getsize(path):,} bytes): not a PyTorch checkpoint, or a truncated or damaged one "
        f"({type(error).__name__}). Copy it again, or give an earlier checkpoint."
    )
