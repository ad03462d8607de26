"""The curves of one or several trainings: loss, learning rate, speed, gradient norm, validation scores."""

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from s2sft_fairseq.data.bounded_files import parse_json, read_json_object, read_text, whole_number
from s2sft_fairseq.errors import UserError, shown
from s2sft_fairseq.plots.drawing import LINES, MARKERS, TONES, save, write_table

LOG, RESULTS = "train.log", "finetune.json"
TRAINING = {"loss": "loss", "lr": "learning rate", "wps": "tokens/s", "gnorm": "gradient norm"}
"""Names in the log, each with the name of its curve."""
HELD_OUT = "held-out loss"
UNITS = {"loss": "loss (bits a token)"}
_NO_SCORES = {"epoch", "update", "num_updates", "ppl", "wps", "ups", "wpb", "bsz"}
MOST_RUNS = len(LINES) * len(TONES)

Curve = dict[int, float]
"""A value for each update that the log has one of, in order."""


class Run(NamedTuple):
    """A training."""

    name: str
    curves: Mapping[str, Curve]
    """By the names of `TRAINING`, and `HELD_OUT`."""
    scores: Mapping[str, Curve]
    """Of the validation set, by the names of the metrics."""


def parse(line: str) -> tuple[str, dict[str, Any]] | None:
    """Return ``training`` or ``held out`` and the numbers of a line; None for a line without numbers.

    On standard output the numbers follow the time and the logger's name; a ``--log-file`` only has the numbers.
    """
    start = line.find('{"')
    try:
        record = parse_json(line[start:]) if start >= 0 else {}
    except ValueError:
        return None
    if "valid_loss" in record:
        return "held out", {name.removeprefix("valid_"): value for name, value in record.items()}
    return ("training", record) if "num_updates" in record else None


def read_run(path: Path) -> Run:
    """Read the log of a training, and the scores of its checkpoints where ``s2sft finetune`` wrote them.

    The log of a training that was resumed has some updates twice: the later value counts.

    Args:
        path: a folder with ``train.log``, or the log itself; lines of JSON, as ``--log-format json`` writes them.

    Raises:
        UserError: if there is no log, or one without updates, or a value is no number.
    """
    log = path / LOG if path.is_dir() else path
    if not log.is_file():
        raise UserError(f"RUN must be a folder with {LOG}, or a log file, but {log} does not exist")
    curves: dict[str, Curve] = {name: {} for name in (*TRAINING.values(), HELD_OUT)}
    scores: dict[str, Curve] = {}
    for number, line in enumerate(read_text(log).split("\n"), start=1):
        if (parsed := parse(line)) is None:
            continue
        kind, record = parsed
        where = f"{log}, line {number}"
        updates = _number(record, "num_updates", where)
        if not math.isfinite(updates):
            raise UserError(f"{where}: num_updates must be a number, but is {updates}")
        update = int(updates)
        for name in record:
            if kind == "training" and name in TRAINING:
                curves[TRAINING[name]][update] = _number(record, name, where)
            elif kind != "training" and name == "loss":
                curves[HELD_OUT][update] = _number(record, name, where)
            elif kind != "training" and _is_score(name):
                scores.setdefault(name, {})[update] = _number(record, name, where)
    if not curves["loss"]:
        raise UserError(f"{log} has no updates: give the log of a training with --log-format json")
    if path.is_dir():
        _add_results(path / RESULTS, scores)
    ordered = {name: dict(sorted(curve.items())) for name, curve in curves.items()}
    return Run(str(path), ordered, {name: dict(sorted(curve.items())) for name, curve in scores.items()})


def _number(record: Mapping[str, Any], name: str, where: str) -> float:
    try:
        return float(record[name])
    except (KeyError, TypeError, ValueError):
        raise UserError(f"{where}: {name} must be a number, but is {shown(record.get(name))}") from None


def _is_score(name: str) -> bool:
    return name not in _NO_SCORES and not name.endswith("loss") and not name.startswith("best_")


def _add_results(file: Path, scores: dict[str, Curve]) -> None:
    """Add the scores of the checkpoints that ``s2sft finetune`` has tried."""
    candidates = read_json_object(file).get("candidates") if file.is_file() else None
    for name, values in candidates.items() if isinstance(candidates, dict) else ():
        update = whole_number(name.removeprefix("update-"))
        if update is None or not isinstance(values, dict):
            continue  # an average of several
        for metric, value in values.items():
            if _is_score(metric) and isinstance(value, int | float):
                scores.setdefault(metric, {})[update] = float(value)


def write_csv(runs: Sequence[Run], file: Path) -> None:
    """Write a row for each run, curve and update."""
    curves = ((run.name, {**run.curves, **run.scores}) for run in runs)
    rows = (
        (run, name, update, value)
        for run, of_run in curves
        for name, curve in of_run.items()
        for update, value in curve.items()
    )
    write_table(file, ("run", "curve", "update", "value"), rows)


def draw(runs: Sequence[Run], file: Path) -> None:
    """Draw a panel for each curve that a run has, and one for the scores.

    Runs differ by the style of their line, scores by their marker.

    Args:
        runs: at most `MOST_RUNS`.
        file: of the picture; its ending is the format, such as .png or .svg.
    """
    from matplotlib.figure import Figure
    from matplotlib.lines import Line2D
    from matplotlib.ticker import LogFormatter

    names = [name for name in TRAINING.values() if any(run.curves[name] for run in runs)]
    metrics = list(dict.fromkeys(name for run in runs for name in run.scores))
    panels = [*names, *(["validation scores"] if metrics else [])]
    figure = Figure(figsize=(11, 3.4 * ((len(panels) + 1) // 2) + 0.3 * len(runs)), layout="constrained")
    grid = figure.subplots((len(panels) + 1) // 2, 2, squeeze=False).flatten()
    styles = [{"linestyle": LINES[i % len(LINES)], "color": TONES[i // len(LINES)]} for i in range(len(runs))]
    for axes, name in zip(grid, panels, strict=False):
        axes.set(xlabel="updates", ylabel=UNITS.get(name, name))
        axes.grid(color="0.9")
        if name == TRAINING["gnorm"]:
            axes.set_yscale("log")  # the first values are far above the others
            axes.yaxis.set_major_formatter(LogFormatter())
            axes.yaxis.set_minor_formatter(LogFormatter(minor_thresholds=(2, 0.4)))
        for run, style in zip(runs, styles, strict=True):
            if name in names:
                _line(axes, run.curves[name], style)
            for metric, marker in zip(metrics if name not in names else (), _markers(metrics), strict=False):
                _line(axes, run.scores.get(metric, {}), style, marker)
            if name == "loss":
                _line(axes, run.curves[HELD_OUT], style, "o")
        if name == "loss" and any(run.curves[HELD_OUT] for run in runs):
            axes.legend(handles=[_key("training"), _key("held out", "o")])
        if name not in names:
            axes.legend(handles=[_key(*pair) for pair in zip(metrics, _markers(metrics), strict=True)], fontsize=8)
    for axes in grid[len(panels) :]:
        axes.remove()
    keys = [Line2D([], [], label=run.name, **style) for run, style in zip(runs, styles, strict=True)]
    figure.legend(handles=keys, loc="outside lower center", fontsize=8, handlelength=4)
    save(figure, file)


def _line(axes: Any, curve: Curve, style: Mapping[str, Any], marker: str | None = None) -> None:
    if curve:
        axes.plot(list(curve), list(curve.values()), marker=marker, markersize=5, linewidth=1.2, **style)


def _markers(metrics: Sequence[str]) -> list[str]:
    return [MARKERS[index % len(MARKERS)] for index in range(len(metrics))]


def _key(label: str, marker: str | None = None) -> Any:
    """Return an entry of a legend."""
    from matplotlib.lines import Line2D

    return Line2D([], [], color="black", linewidth=1.2, marker=marker, label=label)
