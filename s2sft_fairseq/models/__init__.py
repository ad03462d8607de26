"""Models, registered with fairseq by being imported."""

from s2sft_fairseq.models import architectures

__all__ = ["architectures"]
