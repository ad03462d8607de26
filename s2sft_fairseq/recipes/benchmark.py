"""What a benchmark is: a reader of its raw files, and the settings with which its papers train on it."""

from argparse import Namespace
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from s2sft_fairseq.corpora.reading import Malformed
from s2sft_fairseq.corpora.writing import write_corpus
from s2sft_fairseq.recipes.settings import BySource, Setting, Settings

if TYPE_CHECKING:
    from s2sft_fairseq.recipes.recipe import Recipe

Splits = Mapping[str, Iterable[Any]]
Read = Callable[[Namespace, Malformed], Splits]
Writer = Callable[..., dict[str, Any]]
Options = Mapping[str, Setting]


@dataclass(frozen=True)
class Benchmark:
    """A record; docs/recipes.md tells how to add one."""

    about: str
    """A sentence: what it is called, and from what to what."""
    raw: str
    """The raw files in their folder DIR, and where they are published."""
    read: Read
    """From the options of ``s2sft prepare`` to the examples of each split."""
    settings: BySource
    """Settings that are not those of the `recipe`."""
    recipe: "type[Recipe]"
    """The stages."""
    notes: str = ""
    """What else there is to know about settings and scores."""
    options: Options = field(default_factory=dict)
    """Own options of ``s2sft prepare`` and of the recipe."""
    reader_options: Options = field(default_factory=dict)
    """Own options of ``s2sft prepare`` alone."""
    recipe_options: Options = field(default_factory=dict)
    """Own options of the recipe alone."""
    depends: Callable[[Settings], None] = lambda settings: None
    """Takes settings that follow from others, and raises a `UserError` where some do not fit each other."""
    deltalm: BySource = field(
        default_factory=lambda: {"all positions, for the paper names no limit": {"max_source": 512, "max_target": 512}}
    )
    """Settings with --method deltalm that are not those of DeltaLM's paper."""
    writer: Callable[[Namespace], Writer] = lambda options: write_corpus
    """From the options of ``s2sft prepare`` to a function that takes what `write_corpus` takes."""


def of_folder(read: Callable[[Path, Malformed], Splits]) -> Read:
    """Return the reader of a benchmark that has no options."""
    return lambda options, malformed: read(options.raw, malformed)
