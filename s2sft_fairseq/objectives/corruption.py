"""How tokens are corrupted before the model sees them."""

from dataclasses import dataclass

import numpy as np

from s2sft_fairseq.errors import as_option
from s2sft_fairseq.objectives.draws import Draws
from s2sft_fairseq.objectives.ragged import Ragged
from s2sft_fairseq.objectives.sequence_form import SequenceForm


@dataclass(frozen=True)
class Corruption:
    """Probabilities of the corruption, each in [0, 1]."""

    target_mask_prob: float
    """Probability that a target token is corrupted."""
    random_prob: float
    """Probability that a corrupted token becomes a random one, drawn uniformly from the whole vocabulary."""
    keep_prob: float
    """Probability that a corrupted token stays as it is; what is left of 1 becomes the placeholder."""
    source_mask_prob: float = 0.0
    """Probability that a source token, special symbols apart, is corrupted."""
    exact_count: bool = False
    """Masked fine-tuning: corrupt exactly ``target_mask_prob`` of the target, in place of each token by chance."""
    max_masked_tokens: int = 0
    """Masked fine-tuning: at most so many masked tokens in one target; 0 = no limit."""
    noise_prob: float = 0.0
    """Infilling: probability that a target token, as content, is replaced by noise (ERNIE-GEN, section 3.2)."""
    noise_symbol: int | None = None
    """What it is replaced by; None: a random token, drawn uniformly from the whole vocabulary."""

    def problems(self) -> list[str]:
        """What is wrong with these values, a sentence each."""
        found = [
            f"{as_option(name)} must be between 0 and 1, but is {value:g}"
            for name in ("target_mask_prob", "random_prob", "keep_prob", "source_mask_prob", "noise_prob")
            if not 0 <= (value := getattr(self, name)) <= 1
        ]
        if not found and self.random_prob + self.keep_prob > 1:
            found.append(
                f"--random-prob and --keep-prob must add up to 1 at most, but add up to "
                f"{self.random_prob + self.keep_prob:g}"
            )
        if self.max_masked_tokens < 0:
            found.append(f"--max-masked-tokens must not be negative, but is {self.max_masked_tokens}")
        return found

    def draw(self, tokens: Ragged, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt every one of the tokens (N,): keep it, or replace it by a random token or by the placeholder."""
        chance = draws.random(tokens)
        random_tokens = draws.integers(form.vocab_size, tokens)
        replaced = np.where(chance < self.keep_prob + self.random_prob, random_tokens, form.placeholder)
        return np.where(chance < self.keep_prob, tokens.values, replaced)

    def corrupt(self, tokens: Ragged, probability: float, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt each of the tokens (N,) with the given probability."""
        if probability <= 0:
            return tokens.values
        return np.where(draws.random(tokens) < probability, self.draw(tokens, form, draws), tokens.values)

    def add_noise(self, tokens: Ragged, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Replace each of the tokens (N,) by noise with probability ``noise_prob``.

        A random token may be a special symbol, or the very token that it replaces, as in the program of ERNIE-GEN.
        """
        if self.noise_prob <= 0:
            return tokens.values
        noise = draws.integers(form.vocab_size, tokens) if self.noise_symbol is None else self.noise_symbol
        return np.where(draws.random(tokens) < self.noise_prob, noise, tokens.values)

    def corrupt_source(self, source: Ragged, form: SequenceForm, draws: Draws) -> np.ndarray:
        """Corrupt laid-out sources (N,), never their special symbols."""
        special = (source.values == form.cls) | (source.values == form.sep)
        return np.where(special, source.values, self.corrupt(source, self.source_mask_prob, form, draws))


NO_CORRUPTION = Corruption(target_mask_prob=0.0, random_prob=0.0, keep_prob=0.0)
