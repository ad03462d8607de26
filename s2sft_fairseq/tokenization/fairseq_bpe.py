"""``--bpe pretrained`` of fairseq's commands: the tokenizer of a folder."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import Tokenizer, open_tokenizer


@dataclass
class PretrainedBpeConfig(FairseqDataclass):
    """Options of ``--bpe pretrained``."""

    tokenizer_dir: Optional[str] = field(
        default=None, metadata={"help": "folder with the tokenizer's files: that of the converted encoder"}
    )


@register_bpe("pretrained", dataclass=PretrainedBpeConfig)
class PretrainedBpe:
    """The entry in fairseq's registry, which opens a tokenizer of any scheme."""

    @classmethod
    def build_bpe(cls, config: PretrainedBpeConfig) -> Tokenizer:
        """Return the tokenizer of ``--tokenizer-dir``.

        Raises:
            UserError: the option is missing, or the folder holds no tokenizer.
        """
        if not config.tokenizer_dir:
            raise UserError("--bpe pretrained needs --tokenizer-dir, the folder of the tokenizer's files, found none")
        return open_tokenizer(Path(config.tokenizer_dir))
