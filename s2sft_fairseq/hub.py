"""Models named as on the Hugging Face hub: ``bert-base-uncased``, ``OWNER/NAME``, ``OWNER/NAME@REVISION``.

Wherever a command or a function takes the path of an encoder, a tokenizer or a model, it takes such a name, too.
`local_path` downloads the files to the cache of the package ``huggingface_hub``, which other programs share, and
returns the folder there. That package reads the environment: ``HF_HOME`` is the place of the cache,
``HF_HUB_OFFLINE=1`` uses the cache alone, ``HF_TOKEN`` opens private models, ``HF_ENDPOINT`` names another server.
"""

import logging
import os
import re
from collections.abc import Sequence
from pathlib import Path

from s2sft_fairseq.errors import UserError, package

logger = logging.getLogger(__name__)

_NAME = re.compile(r"(?P<model>[A-Za-z0-9][\w.-]*(/[A-Za-z0-9][\w.-]*)?)(@(?P<revision>\w[\w./-]*))?")
_SUFFIXES_OF_FILES = (".pt", ".bin", ".safetensors", ".pdparams", ".gguf", ".txt", ".json", ".gz")
# Configurations, tokenizers, model cards and checksums, but no code, and no weights of other frameworks.
_DESCRIPTIONS = ["*.json", "*.txt", "*.md", "*.model", "*.codes", "bpecodes", "codes", "SHA256SUMS", "vocab.bpe"]
_IN_SUBFOLDERS = ["*/*"]
# The same weights in several formats, the preferred one first. An engine folder of ours has model.onnx or model.bin.
_WEIGHTS = (
    ["model.safetensors", "model.safetensors.index.json", "model-*.safetensors"],
    ["pytorch_model.bin", "pytorch_model.bin.index.json", "pytorch_model-*.bin"],
    ["*.pdparams", "model.pt", "deltalm-*.pt", "model*.onnx*", "encoder*.onnx*", "decoder*.onnx*", "model.bin"],
)


def local_path(name: str | os.PathLike[str], *, weights: bool = True) -> Path:
    """Return the path of a model or a tokenizer; download it first if `name` is a name on the hub.

    Args:
        name: a path, or a name on the hub. What exists as a path is a path. What neither exists nor looks like a name
            is returned as it is, and its reader says what is missing.
        weights: whether the weights are needed, too.

    Raises:
        UserError: if the hub has no such model, or cannot be reached and the cache lacks it.
    """
    path = Path(name)
    found = None if path.exists() else _as_name(str(name))
    if found is None:
        return path
    package("huggingface_hub", f"{name}, which is no file or folder here but may be a name on the hub,")
    return _download(str(name), found["model"], found["revision"], _WEIGHTS if weights else ([],))


def tokenizer_path(name: str | os.PathLike[str]) -> Path:
    """Return `local_path` of a tokenizer, without weights."""
    return local_path(name, weights=False)


def path_or_name(argument: str) -> Path:
    """Return the argument of a command, which may be a path or a name on the hub.

    What begins with ``./`` can only be a path, which a `Path` would not tell.
    """
    return Path(os.path.abspath(argument)) if argument.startswith("./") else Path(argument)


def name_of(folder: Path) -> str:
    """Return the name of a model: that on the hub for a folder of the cache, otherwise the name of the folder.

    The folder of a model in the cache is ``models--OWNER--NAME/snapshots/COMMIT``.
    """
    folder = folder.resolve()
    model = folder.parent.parent.name
    if folder.parent.name == "snapshots" and model.startswith("models--"):
        return model.removeprefix("models--").replace("--", "/")
    return folder.name


def is_hub_name(name: str | os.PathLike[str]) -> bool:
    """Return whether `name` is no path of this machine, but may be a name on the hub."""
    return not Path(name).exists() and _as_name(str(name)) is not None


def _as_name(text: str) -> re.Match[str] | None:
    """Return the parts of a name on the hub, or None for a text that can only be a path."""
    if text.endswith(_SUFFIXES_OF_FILES):
        return None
    owner, separator, _ = text.partition("/")
    if separator and Path(owner).exists():  # such as out/model, which a training has yet to write
        return None
    return _NAME.fullmatch(text)


def _download(name: str, model: str, revision: str | None, formats: Sequence[list[str]]) -> Path:
    """Return the folder in the cache that holds the files of a model, with weights in the first format that is there.

    Raises:
        UserError: see `local_path`.
    """
    from huggingface_hub import constants, errors, snapshot_download  # optional, and slow to import

    for library in ("httpx", "httpx2"):  # each would log all addresses, among them those that are secrets for an hour
        logging.getLogger(library).setLevel(logging.WARNING)
    logger.info(f"{name} is no file or folder here: looking for it on {_without_login(constants.ENDPOINT)}")
    silent = _is_silent(model, revision)
    try:
        for weights in formats:
            folder = Path(
                snapshot_download(
                    model,
                    revision=revision,
                    local_files_only=silent,
                    allow_patterns=[*_DESCRIPTIONS, *weights],
                    ignore_patterns=_IN_SUBFOLDERS,
                )
            )
            if _has_weights(folder, weights):
                break
    except (OSError, ValueError, errors.HTTPError) as error:
        raise UserError(_without_login(_problem(name, revision, error, silent))) from None
    logger.info(f"{name} is in {folder}")
    return folder


def _is_silent(model: str, revision: str | None) -> bool:
    """Return whether the hub does not answer in time, as behind a firewall: `snapshot_download` would wait for ever."""
    from huggingface_hub import HfApi, constants

    try:
        HfApi(endpoint=constants.ENDPOINT).model_info(model, revision=revision, timeout=constants.HF_HUB_ETAG_TIMEOUT)
    except Exception as error:  # `snapshot_download` meets the others, too
        return "Timeout" in type(error).__name__  # of requests, httpx or httpx2, whichever the version has
    return False


def _without_login(text: str) -> str:
    """Return a text without the names and passwords in its addresses."""
    return re.sub(r"(?<=://)[^/@\s]*@", "", text)


def _has_weights(folder: Path, patterns: list[str]) -> bool:
    return any(next(folder.glob(pattern), None) for pattern in patterns)


def _problem(name: str, revision: str | None, error: Exception, silent: bool) -> str:
    """Return the message for an error of ``huggingface_hub``: what was tried, and what to do."""
    from huggingface_hub import constants, errors

    endpoint, cache = constants.ENDPOINT, constants.HF_HUB_CACHE
    tried = f"{name} is no file or folder here (in {os.getcwd()})"
    if isinstance(error, errors.GatedRepoError):
        return f"{tried}; {endpoint} gives it only to those who accepted its terms: accept them there, and set HF_TOKEN"
    if isinstance(error, errors.RepositoryNotFoundError):
        return f"{tried}, and {endpoint} has no public model of this name: check its spelling, or set HF_TOKEN"
    if isinstance(error, errors.HFValidationError):
        return f"{tried}, and no name of a model on {endpoint}: {error}"
    if isinstance(error, errors.RevisionNotFoundError):
        return f"{tried}; {endpoint} has the model, but no revision {revision}"
    reason = str(error).partition("\n")[0]
    if isinstance(error, errors.LocalEntryNotFoundError) and constants.HF_HUB_OFFLINE:
        reason = "HF_HUB_OFFLINE is set"
    elif silent:
        reason = f"no answer within {constants.HF_HUB_ETAG_TIMEOUT} s"
    return (
        f"{tried}; {endpoint} was not reached ({reason}), and the cache {cache} does not hold it: download the model "
        "elsewhere, and give its folder in place of the name"
    )
