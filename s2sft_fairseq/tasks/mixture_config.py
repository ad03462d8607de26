"""Options of the tasks over several languages.

The types are spelled ``Optional[...]`` because fairseq makes its command line from them and knows no other spelling.
"""

from dataclasses import dataclass, field
from typing import Optional

from s2sft_fairseq.data.temperature import TemperatureSchedule
from s2sft_fairseq.objectives.span_corruption import SpanCorruption
from s2sft_fairseq.tasks.options import DataOptions, TextBlockOptions, text_block_problems


@dataclass
class MixtureConfig(DataOptions, TextBlockOptions):
    """What is sampled how often, and how texts are corrupted."""

    lang_pairs: Optional[str] = field(
        default=None,
        metadata={
            "help": "pairs of suffixes in the data folder, such as en-de,de-en; src-tgt:en where the suffix of the "
            "targets does not name their language"
        },
    )
    text_languages: Optional[str] = field(
        default=None,
        metadata={
            "help": "languages of plain text, such as en,de: each has a subfolder of the data folder, which s2sft "
            "preprocess --only-source wrote"
        },
    )
    first_temperature: float = field(
        default=1.0, metadata={"help": "temperature of the first epoch; 1: languages come as often as in the data"}
    )
    temperature: float = field(
        default=5.0,
        metadata={
            "help": "temperature that is reached after --temperature-epochs; the same as --first-temperature for one "
            "that does not change"
        },
    )
    temperature_epochs: int = field(default=5, metadata={"help": "epochs in which the temperature rises"})
    epoch_examples: Optional[int] = field(
        default=None,
        metadata={"help": "examples of an epoch (default: as many as the data has of all languages together)"},
    )
    span_density: float = field(
        default=0.15, metadata={"help": "share of the tokens of a text that are taken out of it (default: 0.15)"}
    )
    mean_span_length: float = field(default=3.0, metadata={"help": "mean length of spans in tokens (default: 3)"})


def temperature_schedule(cfg: MixtureConfig) -> TemperatureSchedule:
    """Return the schedule that the options describe."""
    return TemperatureSchedule(cfg.first_temperature, cfg.temperature, cfg.temperature_epochs)


def mixture_problems(cfg: MixtureConfig) -> list[str]:
    """Return what is wrong with the options, a sentence each."""
    problems = temperature_schedule(cfg).problems()
    problems += SpanCorruption(cfg.span_density, cfg.mean_span_length).problems("--span-density")
    if cfg.epoch_examples is not None and cfg.epoch_examples < 1:
        problems.append(f"--epoch-examples must be at least 1, but is {cfg.epoch_examples}")
    return [*problems, *text_block_problems(cfg)]
