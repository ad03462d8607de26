"""BLEU of each direction of a model for many languages, and the means to English and from it, as a table."""

import argparse
import json
from pathlib import Path
from statistics import mean


def read_bleu(path: Path) -> float:
    """The score of what ``s2sft evaluate --task bleu --json`` wrote."""
    (system,) = json.loads(path.read_text(encoding="utf-8"))["systems"].values()
    return next(score["value"] for score in system["scores"] if score["name"] == "BLEU")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="folder of the training, with a folder for each direction")
    parser.add_argument("--set", required=True, help="name of the set that was scored")
    parser.add_argument("--directions", nargs="+", required=True, metavar="X-Y")
    options = parser.parse_args()

    found = {name: read_bleu(options.work / name / f"{options.set}.json") for name in options.directions}
    rows = list(found.items())
    for name, is_part in (
        ("mean to English", lambda direction: direction.endswith("-en")),
        ("mean from English", lambda direction: direction.startswith("en-")),
    ):
        if values := [value for direction, value in found.items() if is_part(direction)]:
            rows.append((name, mean(values)))
    lines = ["| direction | BLEU |", "| --- | --- |", *(f"| {name} | {value:.2f} |" for name, value in rows)]
    table = "".join(f"{line}\n" for line in lines)
    path = options.work / f"{options.set}.md"
    path.write_text(table, encoding="utf-8")
    print(f"\n{table}\nwrote {path}")


if __name__ == "__main__":
    main()
