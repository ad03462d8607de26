"""The pre-trainings of the papers, as ``s2sft pretrain`` names them."""

from typing import NamedTuple


class Preset(NamedTuple):
    """Settings of a paper."""

    task: str
    model: tuple[str, ...]
    """Where there is no encoder to begin with."""
    lr: str
    updates: int
    warmup: int
    positions: int
    """Of the packed texts of an update."""
    options: tuple[str, ...]
    """Further ones of ``s2sft train``."""
    spans: bool = False
    """Whether it has a span-by-span flow."""
    texts: int = 0
    """Texts of an update, where the paper counts these in place of positions."""
    criterion: str = "mask_attention"


_BASE, _LARGE = ("--arch", "unilm_base"), ("--arch", "unilm_large")
# UniLMv2, section 4.1: 7680 texts of 512 tokens; 15 % of the tokens appear three times.
_UNILMV2 = ("--adam-betas", "(0.9, 0.98)", "--adam-eps", "1e-6", "--label-smoothing", "0", "--clip-norm", "0")
# DeltaLM, section 2.3. It names no learning rate of the pre-training: this is the one of its fine-tuning.
_DELTALM = ("--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-6", "--clip-norm", "1.0", "--tokens-per-sample", "512")
_RELATIVE = ("--relative-position-bins", "32", "--max-relative-position", "128")
_ERNIE_GEN = ("--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-9", "--label-smoothing", "0", "--clip-norm", "1.0")
# The rows of UniLMv2's Table 6: trained as BERT was, with 256 texts an update (footnote 2, which says nothing of decay,
# dropout and clipping: those are BERT's too).
_LIKE_BERT = ("--adam-betas", "(0.9, 0.999)", "--adam-eps", "1e-6", "--label-smoothing", "0", "--clip-norm", "1.0")
_TABLE_6 = {"ae+par-rel": 666, "ae+par": 666, "ae+ar": 666, "ae": 512, "par": 666, "ar": 666}
# ERNIE-GEN, section 4.1; what it says nothing of (decay, smoothing, dropout, clipping) is BERT's.
PRESETS = {
    "unilmv2-base": Preset("unilm_pretraining", (*_BASE, *_RELATIVE), "6e-4", 500_000, 24_000, 7680 * 666, _UNILMV2),
    "deltalm-base": Preset(
        *("deltalm_pretraining", (), "3e-4", 600_000, 10_000, 2048 * 512, _DELTALM),
        texts=2048,
        criterion="cross_entropy",
    ),
    "ernie-gen-base": Preset("ernie_gen_pretraining", _BASE, "5e-5", 400_000, 4000, 196_608, _ERNIE_GEN, spans=True),
    "ernie-gen-large": Preset("ernie_gen_pretraining", _LARGE, "5e-5", 450_000, 4000, 196_608, _ERNIE_GEN, spans=True),
    # Table 8: word by word and without noise, whose infilling model is row 4 of Table 7.
    **{
        f"ernie-gen-table8-{name}": Preset(
            *("ernie_gen_pretraining", _BASE, "5e-5", 400_000, 4000, 196_608),
            options=(*_ERNIE_GEN, "--generation", name, "--noise-prob", "0"),
            spans=False,
        )
        for name in ("typical", "infilling")
    },
    **{
        f"unilmv2-table6-{name}": Preset(
            *("unilm_pretraining", (*_BASE, *(_RELATIVE if name.endswith("-rel") else ()))),
            *("1e-4", 1_000_000, 10_000, 256 * positions),
            options=(*_LIKE_BERT, "--language-model", name.removesuffix("-rel")),
            spans=False,
        )
        for name, positions in _TABLE_6.items()
    },
}
