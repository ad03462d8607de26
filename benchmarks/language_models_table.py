"""The tables of `language_models.py`, as Markdown: figures of each system, and differences to a baseline."""

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from e2e_slots import rates
from language_models_task import Cell, load
from records import Record, read_records

from s2sft_fairseq.evaluation.evaluate import METRICS
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Statistics, differences

SCORES = ("ROUGE-L", "BLEU", "without fault", "other food")
HEADINGS = (
    *("set", "pairs", "minutes", "system", "seeds", "updates", *SCORES),
    *("s alone", "s in batches", "peak GB training", "peak GB generation", "MB on disk"),
)
COMPARED = ("set", "pairs", "minutes", "system", "ROUGE-L", "BLEU", "without fault", "time of a text")
RESAMPLES = 1000
_SETTINGS = Settings(metrics=("rouge", "sacrebleu"), lowercase=True)

Group = tuple[Any, ...]


def tables(file: Path, data: Path, baseline: str) -> str:
    """Return both tables of the records in a file."""
    groups: dict[Group, list[Record]] = {}
    for record in read_records(file):
        groups.setdefault(group_of(record), []).append(record)
    texts = {group: Texts.read(records, data) for group, records in sorted(groups.items())}
    first = [HEADINGS, *(_row(group, groups[group], texts[group]) for group in texts)]
    second = [COMPARED, *_differences(groups, texts, baseline)]
    return f"{markdown(first)}\n\nMinus {baseline}:\n\n{markdown(second)}\n"


def group_of(record: Record) -> Group:
    """Return what the records of all seeds share."""
    return record["set"], record["pairs"], record["minutes"], system_of(record)


def system_of(record: Record) -> str:
    """Return the name of a record's system, with the options that it was given."""
    name = record["start"] if record["system"] == "ours" else f"{record['start']}-{record['system']}"
    return " ".join([name, *record["options"]])


class Texts:
    """The texts of a system, of all seeds, in the order of seeds and sources."""

    def __init__(self, examples: Sequence[Example], keys: Sequence[tuple[int, str]], is_e2e: bool) -> None:
        self.examples, self.keys, self.is_e2e = list(examples), list(keys), is_e2e

    @classmethod
    def read(cls, records: Sequence[Record], data: Path) -> "Texts":
        """Read the texts of records."""
        examples, keys = [], []
        for record in sorted(records, key=lambda each: each["seed"]):
            fields = {name: record[name] for name in Cell.__dataclass_fields__}
            cell = Cell(**fields | {"data": str(data), "options": tuple(record["options"])})
            file = Path(cell.output) / "texts" / f"{cell.name}.txt"
            task = load(cell)
            made = file.read_text(encoding="utf-8").split("\n")[:-1]
            for source, references, text in zip(task.sources, task.references, made, strict=True):
                examples.append(Example(text.lower(), tuple(each.lower() for each in references), source))
                keys.append((cell.seed, source))
        return cls(examples, keys, records[0]["set"] == "e2e")

    def measured(self, further: Sequence[Example] = ()) -> list[Statistics]:
        """Return the statistics of these texts, followed by those of further ones."""
        examples = [*self.examples, *further]
        found = [METRICS[name](examples, _SETTINGS).statistics for name in _SETTINGS.metrics]
        if self.is_e2e:
            found.append(Means(rates([each.source for each in examples], [each.hypothesis for each in examples])))
        return found

    def scores(self) -> dict[str, float]:
        """Return the scores of all texts."""
        chosen = np.arange(len(self.examples))
        return {name: value for each in self.measured() for name, value in each.over(chosen).items()}


def _row(group: Group, records: Sequence[Record], texts: Texts) -> tuple[str, ...]:
    scores = texts.scores()

    def mean(name: str, unit: float = 1) -> float:
        return statistics.mean(record[name] for record in records) / unit

    return (
        *_named(group),
        str(len(records)),
        f"{mean('updates'):.0f}",
        *(f"{scores[name]:.1f}" if name in scores else "" for name in SCORES),
        f"{mean('text_seconds'):.3f}",
        f"{mean('batch_text_seconds'):.3f}",
        f"{mean('training_peak_bytes', 1e9):.2f}",
        f"{mean('peak_bytes', 1e9):.2f}",
        f"{mean('disk_bytes', 1e6):.0f}",
    )


def _named(group: Group) -> tuple[str, ...]:
    name, pairs, minutes, system = group
    return name, str(pairs or "all"), f"{minutes:g}", system


def _differences(
    groups: dict[Group, list[Record]], texts: dict[Group, Texts], baseline: str
) -> Iterator[tuple[str, ...]]:
    """Yield a row for each system that can be compared: with the same seeds and sources as the baseline."""
    for group, ours in texts.items():
        other = (*group[:-1], baseline)
        if other == group or other not in texts or texts[other].keys != ours.keys:
            continue
        found = {}
        for both in ours.measured(texts[other].examples):
            found |= differences(both, len(ours.examples), RESAMPLES, seed=1)
        yield (
            *_named(group),
            *(_difference(found[name]) if name in found else "" for name in COMPARED[4:-1]),
            _ratio(groups[group], groups[other]),
        )


def _difference(found: Any) -> str:
    low, high = found.interval
    return f"{found.value:+.1f} ({low:+.1f} to {high:+.1f})"


def _ratio(ours: Sequence[Record], theirs: Sequence[Record]) -> str:
    seconds = [statistics.mean(each["text_seconds"] for each in records) for records in (ours, theirs)]
    is_one_run = len({record["run"] for record in (*ours, *theirs)}) == 1
    return f"{seconds[0] / seconds[1]:.2f}x{'' if is_one_run else '*'}"


def markdown(rows: Sequence[Sequence[str]]) -> str:
    """Return rows as a table; the first has the headings."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|" + "---|" * len(rows[0]), *lines[1:]])
