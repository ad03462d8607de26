"""Draw the loss of training and of held-out data over the updates, from the log of ``s2sft train --log-format json``.

python scripts/recipes/loss_curves.py train.log loss.png
"""

import sys
from pathlib import Path

import matplotlib

from s2sft_fairseq.recipes.training_log import parse

matplotlib.use("Agg")
import matplotlib.pyplot as plt


def plot(log: Path, output: Path) -> None:
    """Write the plot to `output`, whose name tells the format; ends the process if the log has no losses."""
    curves: dict[str, list[tuple[int, float]]] = {"training": [], "held out": []}
    for line in log.read_text(encoding="utf-8").splitlines():
        if parsed := parse(line):
            kind, record = parsed
            curves[kind].append((int(record["num_updates"]), float(record["loss"])))
    if empty := [name for name, points in curves.items() if not points]:
        raise SystemExit(f"error: {log} must hold the losses of training and held-out data, but has none: {empty}")
    figure, axes = plt.subplots(figsize=(7, 4.5))
    for name, points in curves.items():
        axes.plot(*zip(*sorted(points), strict=True), label=name, marker="o" if name == "held out" else None)
    axes.set(xlabel="updates", ylabel="loss (bits a token)")
    axes.grid(alpha=0.3)
    axes.legend()
    figure.tight_layout()
    figure.savefig(output, dpi=120)


if __name__ == "__main__":
    plot(Path(sys.argv[1]), Path(sys.argv[2]))
