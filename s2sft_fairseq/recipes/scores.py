"""Read the scores in files of ``s2sft evaluate --json``."""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from s2sft_fairseq.data.bounded_files import read_json_object


def read_systems(path: Path) -> list[list[dict[str, Any]]]:
    """Return the scores of each system. A baseline, or the beginnings of the sources, may follow on the first one."""
    return [system["scores"] for system in read_json_object(path)["systems"].values()]


def by_name(scores: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Return the values of the scores of a system by their names."""
    return {score["name"]: score["value"] for score in scores}


def read_scores(path: Path) -> dict[str, float]:
    """Return the scores of the first system by name."""
    return by_name(read_systems(path)[0])
