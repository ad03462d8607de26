"""F1 and exact match of answers, as the official evaluation of CoQA computes them (Reddy et al. 2019).

Texts are lower-cased; punctuation and then the articles a, an, the are taken out. With several references, each in turn
is left out, the best score against the others is taken, and the mean of these: human answers are scored against one
reference fewer as well.
"""

import re
import string
from collections import Counter
from collections.abc import Callable, Sequence

from s2sft_fairseq.evaluation.examples import Example
from s2sft_fairseq.evaluation.settings import Settings
from s2sft_fairseq.evaluation.statistics import Means, Measured

_ARTICLES = re.compile(r"\b(a|an|the)\b")
_NO_PUNCTUATION = str.maketrans("", "", string.punctuation)


def coqa(examples: Sequence[Example], settings: Settings) -> Measured:
    """Compute the mean F1 and exact match over the questions."""
    values: dict[str, list[float]] = {"F1": [], "EM": []}
    for example in examples:
        answer, *references = [answer_words(text) for text in (example.hypothesis, *example.references)]
        for name, score in (("F1", word_f1), ("EM", _exact_match)):
            values[name].append(_leaving_one_out(score, answer, references))
    return Measured(Means(values), "tool:s2sft|norm:coqa|multi:jackknife")


def answer_words(text: str) -> list[str]:
    """Return the words that count."""
    return _ARTICLES.sub(" ", text.lower().translate(_NO_PUNCTUATION)).split()


def word_f1(answer: Sequence[str], reference: Sequence[str]) -> float:
    """Return the harmonic mean of precision and recall of words; with no words on one side, whether both have none."""
    if not answer or not reference:
        return float(answer == reference)
    common = (Counter(answer) & Counter(reference)).total()
    return 2 * common / (len(answer) + len(reference))


def _exact_match(answer: Sequence[str], reference: Sequence[str]) -> float:
    return float(answer == reference)


def _leaving_one_out(
    score: Callable[[Sequence[str], Sequence[str]], float], answer: Sequence[str], references: Sequence[Sequence[str]]
) -> float:
    scores = [score(answer, reference) for reference in references]
    if len(scores) == 1:
        return scores[0]
    return sum(max(scores[:out] + scores[out + 1 :]) for out in range(len(scores))) / len(scores)
