"""``--bpe pretrained`` of fairseq's commands: the tokenizer of a folder."""

import logging
from dataclasses import dataclass, field
from pathlib import Path
from typing import Optional

from fairseq.data.encoders import register_bpe
from fairseq.dataclass import FairseqDataclass

from s2sft_fairseq.data.text_files import FIELD_SEPARATOR, split_fields
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import Tokenizer, open_tokenizer
from s2sft_fairseq.tokenization.tokenize_files import TextTokenizer

logger = logging.getLogger(__name__)


@dataclass
class PretrainedBpeConfig(FairseqDataclass):
    """Options of ``--bpe pretrained``."""

    tokenizer_dir: Optional[str] = field(
        default=None, metadata={"help": "folder with the tokenizer's files: that of the converted encoder"}
    )


@register_bpe("pretrained", dataclass=PretrainedBpeConfig)
class PretrainedBpe:
    """A tokenizer of any scheme; fairseq's commands encode sources with it, and decode hypotheses."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        """Use `build_bpe`."""
        self._sources = TextTokenizer(tokenizer)

    def encode(self, line: str) -> str:
        """Return the symbols of a source, a line whose fields are separated by `FIELD_SEPARATOR`."""
        if (fields := len(split_fields(line))) > 1:
            logger.info(f"the source has {FIELD_SEPARATOR}, which begins another field: {fields} fields")
        return self._sources.encode([line], divided=True)[0]

    def decode(self, tokens: str) -> str:
        """Return the text of symbols."""
        return self._sources.tokenizer.decode(tokens)

    @classmethod
    def build_bpe(cls, config: PretrainedBpeConfig) -> "PretrainedBpe":
        """Return the tokenizer of ``--tokenizer-dir``.

        Raises:
            UserError: the option is missing, or the folder holds no tokenizer.
        """
        if not config.tokenizer_dir:
            raise UserError("--bpe pretrained needs --tokenizer-dir, the folder of the tokenizer's files, found none")
        return cls(open_tokenizer(Path(config.tokenizer_dir)))
