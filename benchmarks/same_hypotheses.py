"""Compare two runs of `s2sft generate`: are the hypotheses and their scores the same?

    s2sft generate data --path model.pt --beam 5 --results-path before     # with one commit
    s2sft generate data --path model.pt --beam 5 --results-path after      # with another, or with other options
    python benchmarks/same_hypotheses.py before/generate-test.txt after/generate-test.txt

Prints how many hypotheses are the same to the last token, and the largest difference of their scores, both of the
hypothesis (its normalized log-probability) and of each token, in natural logarithms. Exits with 1 if any hypothesis
differs, or any score differs by more than --tolerance.
"""

import argparse
import math
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple


class Hypothesis(NamedTuple):
    """A hypothesis as fairseq prints it: `H-` and `P-` lines, in base 2."""

    score: float
    tokens: str
    token_scores: list[float]


def main() -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("before", type=Path)
    parser.add_argument("after", type=Path)
    parser.add_argument("--tolerance", type=float, default=1e-4, help="largest difference of scores (default: 1e-4)")
    options = parser.parse_args()
    before, after = (dict(_read(path)) for path in (options.before, options.after))
    if before.keys() != after.keys():
        sys.exit(f"{len(before)} and {len(after)} hypotheses, not of the same sentences")
    same = [key for key in before if before[key].tokens == after[key].tokens]
    scores = [abs(before[key].score - after[key].score) for key in same]
    # fairseq prints them with four decimals.
    of_tokens = [
        abs(one - other)
        for key in same
        for one, other in zip(before[key].token_scores, after[key].token_scores, strict=True)
    ]
    worst, worst_token = (max(values, default=0.0) * math.log(2) for values in (scores, of_tokens))
    print(f"{len(same):,} of {len(before):,} hypotheses are the same to the last token")
    print(f"their scores differ by at most {worst:.1e}, those of their tokens by {worst_token:.1e} (printed to 7e-5)")
    rounding = 1e-4 * math.log(2)
    sys.exit(len(same) < len(before) or worst > options.tolerance or worst_token > options.tolerance + rounding)


def _read(path: Path) -> Iterator[tuple[tuple[str, int], Hypothesis]]:
    """Yield sentence and rank of each hypothesis of a results file, and the hypothesis."""
    scored: dict[str, list[tuple[float, str]]] = {}
    ranks: dict[str, int] = {}
    for line in path.read_text(encoding="utf-8").splitlines():
        name, _, rest = line.partition("\t")
        kind, _, sentence = name.partition("-")
        if kind == "H":
            score, _, tokens = rest.partition("\t")
            scored.setdefault(sentence, []).append((float(score), tokens))
        elif kind == "P":
            rank = ranks[sentence] = ranks.get(sentence, -1) + 1
            yield (sentence, rank), Hypothesis(*scored[sentence][rank], [float(value) for value in rest.split()])


if __name__ == "__main__":
    main()
