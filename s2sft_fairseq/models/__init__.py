"""Models. Importing this package registers them with fairseq."""

from s2sft_fairseq import runtime

runtime.install()  # fairseq must be patched before it is used

from s2sft_fairseq.models import architectures  # noqa: E402

__all__ = ["architectures"]
