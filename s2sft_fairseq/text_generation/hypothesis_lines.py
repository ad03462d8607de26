"""From hypotheses to lines of an output: the best text, or a JSON object with all of them."""

import json
import re
from collections.abc import Collection, Sequence
from typing import Any

import torch

from s2sft_fairseq.text_generation.text_generator import Hypothesis
from s2sft_fairseq.tokenization.folder import Tokenizer

# Byte-level vocabularies hold line ends, which would break the line of the output.
_LINE_END = re.compile(r"\r\n|[\r\n]")


class HypothesisLines:
    """Writes hypotheses as text or as JSON."""

    def __init__(self, tokenizer: Tokenizer, stripped: Collection[int], *, json_lines: bool) -> None:
        """Take the tokenizer.

        Args:
            tokenizer: of the model's dictionary.
            stripped: ids that are no part of the text.
            json_lines: objects with all hypotheses in place of the best text.
        """
        self.tokenizer, self.stripped, self.json_lines = tokenizer, stripped, json_lines

    def __call__(self, first: int, hypotheses: Sequence[Sequence[Hypothesis]]) -> list[str]:
        """Return the line of each sentence, without its end.

        Args:
            first: number of the first sentence in the input.
            hypotheses: of each sentence, the best first.
        """
        if self.json_lines:
            return [self._json_line(first + i, of_sentence) for i, of_sentence in enumerate(hypotheses)]
        return [_LINE_END.sub(" ", self._text(of_sentence[0])) if of_sentence else "" for of_sentence in hypotheses]

    def _text(self, hypothesis: Hypothesis) -> str:
        dictionary = self.tokenizer.dictionary
        tokens = torch.tensor(hypothesis.tokens, dtype=torch.int64)
        return self.tokenizer.decode(dictionary.string(tokens, extra_symbols_to_ignore=self.stripped))

    def _json_line(self, index: int, hypotheses: Sequence[Hypothesis]) -> str:
        line = {"index": index, "hypotheses": list(map(self._json_object, hypotheses))}
        return json.dumps(line, ensure_ascii=False)

    def _json_object(self, hypothesis: Hypothesis) -> dict[str, Any]:
        symbols = self.tokenizer.dictionary.symbols
        return {
            "text": self._text(hypothesis),
            "score": round(hypothesis.score, 6),
            "tokens": [symbols[token] for token in hypothesis.tokens],
            "positional_scores": [round(score, 4) for score in hypothesis.positional_scores],
        }
