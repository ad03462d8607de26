"""The metrics of GLUE: accuracy, F1 of the class 1, and the correlations of Matthews, Pearson and Spearman."""

from collections.abc import Callable, Sequence

import numpy as np

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Measured, Statistics, optional_module, tool

POSITIVE = "1"
Score = Callable[[np.ndarray, np.ndarray], dict[str, float]]
"""A function from labels and predictions (N,) to scores by name, as fractions of 1."""


class Labels(Statistics):
    """The labels and predictions of the examples."""

    def __init__(self, labels: np.ndarray, predictions: np.ndarray, score: Score) -> None:
        self.labels, self.predictions, self.score = labels, predictions, score

    def over(self, chosen: np.ndarray) -> dict[str, float]:
        """Return the scores over the chosen examples, see `Statistics.over`."""
        shares = self.score(self.labels[chosen], self.predictions[chosen])
        return {name: 100 * float(share) for name, share in shares.items()}


def accuracy(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute the share of right predictions.

    Raises:
        UserError: scikit-learn is not installed.
    """
    sklearn = optional_module("sklearn.metrics", "scikit-learn", "accuracy")
    labels, predictions = _texts(examples)
    return Measured(
        Labels(labels, predictions, lambda y, x: {"accuracy": sklearn.accuracy_score(y, x)}), tool("scikit-learn")
    )


def f1(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute F1 of the class 1.

    Raises:
        UserError: scikit-learn is not installed, or there are classes other than 0 and 1.
    """
    sklearn = optional_module("sklearn.metrics", "scikit-learn", "f1")
    texts = _texts(examples)
    if others := sorted(set(np.concatenate(texts).tolist()) - {"0", POSITIVE}):
        raise UserError(f"--metrics f1 needs the classes 0 and {POSITIVE}, but there is {', '.join(others[:5])}")
    labels, predictions = (side == POSITIVE for side in texts)

    def score(y: np.ndarray, x: np.ndarray) -> dict[str, float]:
        return {"F1": sklearn.f1_score(y, x, zero_division=0)}

    return Measured(Labels(labels, predictions, score), f"{tool('scikit-learn')}|positive:{POSITIVE}")


def matthews(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute Matthews' correlation coefficient.

    Raises:
        UserError: scikit-learn is not installed.
    """
    sklearn = optional_module("sklearn.metrics", "scikit-learn", "matthews")
    labels, predictions = _texts(examples)
    return Measured(
        Labels(labels, predictions, lambda y, x: {"MCC": sklearn.matthews_corrcoef(y, x)}), tool("scikit-learn")
    )


def correlation(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute Pearson's and Spearman's correlation coefficients; 0 if labels or predictions are constant.

    Raises:
        UserError: scipy is not installed, or a label or prediction is not a number.
    """
    stats = optional_module("scipy.stats", "scipy", "correlation")
    labels, predictions = (_numbers(texts) for texts in _texts(examples))

    def score(y: np.ndarray, x: np.ndarray) -> dict[str, float]:
        if np.ptp(y) == 0 or np.ptp(x) == 0:
            return {"Pearson": 0.0, "Spearman": 0.0}
        return {"Pearson": stats.pearsonr(y, x).statistic, "Spearman": stats.spearmanr(y, x).statistic}

    return Measured(Labels(labels, predictions, score), tool("scipy"))


def _texts(examples: Sequence[Example]) -> tuple[np.ndarray, np.ndarray]:
    labels = np.array([example.references[0].strip() for example in examples])
    return labels, np.array([example.hypothesis.strip() for example in examples])


def _numbers(texts: np.ndarray) -> np.ndarray:
    try:
        return texts.astype(float)
    except ValueError as error:
        raise UserError(f"--metrics correlation needs numbers: {error}") from None
