"""Common parts of the systems that `generate.py` compares, and the first system: this package.

A system is a function from a batch of sources to its best hypotheses, which have exactly T tokens each and never eos.
It calls ``tick`` when a decoding step begins. Letters: N sentences, S source positions, T target tokens.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.inference.generator import SequenceGenerator
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.architectures import ARCHITECTURES
from s2sft_fairseq.models.inference import prepare_for_inference
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import UnilmConfig, complete_sizes
from s2sft_fairseq.objectives.sequence_form import SequenceForm

PAD, CLS, SEP, MASK = 0, 2, 3, 4
FIRST_WORD = 5
MIN_POSITIONS = 512

Decode = Callable[[Tensor, Callable[[], None]], Tensor]
"""Maps sources (N, S), padded on the right, and ``tick`` to the tokens (N, T) of the best hypotheses."""

# Architectures that differ from BERT only in their sizes: the baselines support no others.
CONFIGURATIONS = {
    name: sizes
    for name, sizes in ARCHITECTURES.items()
    if sizes.keys() <= {"encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads"}
}


@dataclass(frozen=True)
class Setting:
    """The settings of all systems."""

    config: str
    """A name in `CONFIGURATIONS`."""
    vocab: int
    max_source: int
    steps: int
    """T."""
    beam: int
    device: torch.device
    seed: int
    """Seed of the random weights."""

    @property
    def form(self) -> SequenceForm:
        """The layout: pseudo-masked, without source fields."""
        return SequenceForm(
            cls=CLS,
            sep=SEP,
            pad=PAD,
            placeholder=MASK,
            vocab_size=self.vocab,
            max_source=self.max_source,
            max_target=self.steps,
        )

    @property
    def positions(self) -> int:
        """The number of positions that a model needs."""
        return max(MIN_POSITIONS, self.max_source + self.steps)


def unilm_model(setting: Setting) -> UnilmModel:
    """Make our model with random weights."""
    torch.manual_seed(setting.seed)
    cfg = UnilmConfig(**CONFIGURATIONS[setting.config], max_positions=setting.positions)
    complete_sizes(cfg)
    return UnilmModel(cfg, vocab_size=setting.vocab, pad=PAD).to(setting.device).eval()


def prepare(model: UnilmModel, precision: str) -> None:
    """Prepare a model for decoding in float32, bfloat16 or int8, as the command line does."""
    prepare_for_inference(model, bf16=precision == "bfloat16", quantize="int8" if precision == "int8" else "none")


def ours(setting: Setting, model: UnilmModel, **changes: Any) -> Decode:
    """Return decoding with this package; ``changes`` are further search options."""
    options = SearchOptions(
        beam=setting.beam,
        max_len_b=setting.steps - 1,
        # More than max_len_b: eos is never generated, and keep_unfinished ranks hypotheses without it.
        min_len=setting.steps,
        keep_unfinished=True,
        **changes,
    )
    generator = SequenceGenerator([model], setting.form, options)
    step = model.step

    def decode(source: Tensor, tick: Callable[[], None]) -> Tensor:
        def ticking_step(*args: Any, **options: Any) -> Tensor:
            tick()
            return step(*args, **options)

        model.step = ticking_step
        results = generator.generate([model], {"net_input": {"src_tokens": source}})
        return torch.stack([hypotheses[0]["tokens"] for hypotheses in results])

    return decode
