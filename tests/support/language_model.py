"""A tiny language model with words as tokens, as a converted folder."""

from pathlib import Path

from hugging_face import write_tokenizer
from tiny import ENCODERS, tiny_dictionary, tiny_model

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.models.unilm_config import SIZES


def write_start(folder: Path, visibility: str = "causal") -> Path:
    """Write a random model that reads its sources from left to right, or in ``both`` directions as an encoder does."""
    model = tiny_model(1, **ENCODERS["grouped"], source_visibility=visibility)
    write_tokenizer("wordpiece", folder)
    tiny_dictionary().save(str(folder / "dict.txt"))
    sizes = {name: getattr(model.cfg, name) for name in SIZES}
    write_pretrained(folder, Conversion("tiny", model.state_dict(), sizes), ["vocab.txt", "dict.txt"])
    return folder
