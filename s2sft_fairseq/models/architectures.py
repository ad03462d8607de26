"""Named sizes of the encoder-only model, for ``--arch``."""

from argparse import Namespace
from functools import partial

from fairseq.models import register_model_architecture

from s2sft_fairseq.models.unilm import UnilmModel

# layers, width, feed-forward width, heads
ARCHITECTURES = {
    "unilm_tiny": (2, 128, 512, 2),
    "unilm_small": (4, 512, 2048, 8),
    "unilm_base": (12, 768, 3072, 12),
    "unilm_large": (24, 1024, 4096, 16),
    "minilm_l6_h384": (6, 384, 1536, 12),
    "minilm_l12_h384": (12, 384, 1536, 12),
}


def _set_sizes(args: Namespace, sizes: tuple[int, int, int, int]) -> None:
    names = ("encoder_layers", "encoder_embed_dim", "encoder_ffn_embed_dim", "encoder_attention_heads")
    for name, size in zip(names, sizes, strict=True):
        if getattr(args, name, None) is None:
            setattr(args, name, size)


for _name, _sizes in ARCHITECTURES.items():
    register_model_architecture("unilm", _name)(partial(_set_sizes, sizes=_sizes))

__all__ = ["ARCHITECTURES", "UnilmModel"]
