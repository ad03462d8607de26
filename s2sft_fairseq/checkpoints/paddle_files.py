"""Recognize models of PaddlePaddle that are not read, by the names of their files.

Baidu published ERNIE and ERNIE-GEN for two kinds of programs: with a static graph, as a folder ``params`` that has a
file for each parameter, and with a dynamic graph, as one ``*.pdparams``. Only the latter can be converted.
"""

import re
from collections.abc import Iterable
from pathlib import Path

_PARAMETER = re.compile(r"(.+\.[wb]_\d+|(word|pos|sent|task)_embedding|.+_layer_norm_(scale|bias))(_moment\d_\d+)?")
_PROGRAMS = ("__model__", "__params__")
_PROGRAM_SUFFIXES = (".pdmodel", ".pdiparams")
# Names of layers in PaddleNLP, which has its own names and layout in a *.pdparams.
_PADDLE_NLP = re.compile(r".*encoder\.layers\.\d+\.(self_attn\.[qkv]_proj|linear[12]|norm[12])\.")
_READ = "only Baidu's *.pdparams with encoder_stack in its names, and Hugging Face's format, are read"


def paddle_model(path: Path) -> str | None:
    """Return what a folder or a file is, if it is a model of PaddlePaddle that is not read; else None."""
    if path.is_file():
        return _program(path.name) if _is_program(path) else None
    for folder in (path / "params", path):
        names = [each.name for each in folder.iterdir()] if folder.is_dir() else []
        if sum(_PARAMETER.fullmatch(name) is not None for name in names) > 1:
            return (
                f"the parameters of a static graph of PaddlePaddle, a file for each ({folder}): take the release for "
                f"dynamic graphs, as {_READ}"
            )
    programs = [each.name for each in sorted(path.iterdir()) if _is_program(each)] if path.is_dir() else []
    return _program(programs[0]) if programs else None


def paddle_nlp_problem(names: Iterable[str]) -> str | None:
    """Return the problem of a ``*.pdparams`` that has the names of PaddleNLP; None for others."""
    found = next(filter(_PADDLE_NLP.match, names), None)
    if found is None:
        return None
    return f"this is a model of PaddleNLP, which has its own names ({found:.80}) and layout: {_READ}"


def _is_program(path: Path) -> bool:
    return path.name in _PROGRAMS or path.suffix in _PROGRAM_SUFFIXES


def _program(name: str) -> str:
    return f"a program of PaddlePaddle for inference ({name}): take its release for training, as {_READ}"
