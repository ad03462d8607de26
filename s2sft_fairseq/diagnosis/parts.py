"""The parts that ``s2sft doctor`` compares: model folders, converted encoders, checkpoints, binarized data.

A path may be one of them or a folder that holds several, such as the output of ``s2sft finetune``.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from s2sft_fairseq import plugin  # noqa: F401  (patches fairseq, and therefore comes first)

# isort: split
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.model_folder import is_model_folder
from s2sft_fairseq.checkpoints.pretrained import MODEL, PretrainedEncoder
from s2sft_fairseq.checkpoints.safe_loading import load_options
from s2sft_fairseq.checkpoints.trusted_config import check_config
from s2sft_fairseq.data.binarized_text import language_pairs, load_dictionary, load_split, load_text_dictionary
from s2sft_fairseq.data.binarized_text import load_texts as load_plain_texts
from s2sft_fairseq.data.dictionary import SpecialSymbols, symbols_fingerprint
from s2sft_fairseq.diagnosis.report import Report
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.models.pretrained_checkpoint import is_model_of_folder, section, without_adapters
from s2sft_fairseq.tokenization.vocabulary import Vocabulary, read_vocabulary

MODEL_FOLDER, ENCODER, CHECKPOINT, DATA = "model folder", "converted encoder", "checkpoint", "binarized data"
EMBEDDINGS = ("embeddings.tokens.weight", "encoder.embeddings.tokens.weight", "encoder.embed_tokens.weight")
"""Names of the token embedding, of an encoder, of one with another head, and of an encoder-decoder."""
LABELS = "label"
"""The folder of classes beside the texts of classification, whose dictionary is no vocabulary."""


@dataclass(frozen=True)
class Part:
    """One of the parts."""

    path: Path
    kind: str
    count: int
    """Symbols of its vocabulary."""
    fingerprint: str
    """Tells vocabularies, and their orders, apart; empty: not known."""
    symbols: Sequence[str] | None = None
    """The vocabulary; None: a checkpoint does not list it."""
    special: SpecialSymbols | None = None
    """Its special symbols; None: their names tell."""
    vocabulary: Vocabulary | None = None
    """The files of the tokenizer."""
    sizes: Mapping[str, Any] = field(default_factory=dict)
    """Options of the model, by name."""
    encoder: PretrainedEncoder | None = None
    state: Mapping[str, Any] | None = None
    """A checkpoint or the content of a model folder."""
    lengths: Mapping[str, tuple[np.ndarray, np.ndarray | None]] = field(default_factory=dict)
    """Of data: tokens of each source and target, without eos, by split."""

    def facts(self) -> list[str]:
        """Return its kind and what is known of it."""
        facts = [self.kind, f"{self.count:,} symbols"]
        if self.vocabulary is not None and self.vocabulary.scheme:
            facts.append(self.vocabulary.scheme)
        if self.sizes:
            facts.append(f"{self.sizes.get('encoder_layers')} layers of width {self.sizes.get('encoder_embed_dim')}")
        return [*facts, *(f"{len(sources):,} of {split}" for split, (sources, _) in self.lengths.items())]


def find_parts(path: Path, report: Report) -> list[Part]:
    """Return the parts of a path that can be read; what is wrong with the others is added to the report."""
    parts, found = [], list(_found(path))
    for kind, each in found:
        with report.collected():
            parts.append(_READERS[kind](each, report))
    if not found:
        report.notes.append(f"{path} has no model, converted encoder, checkpoint or binarized data to compare")
    return parts


def embedding_rows(weights: Mapping[str, Any]) -> int:
    """Return the rows of the token embedding; 0 if there is none."""
    return next((len(weights[name]) for name in EMBEDDINGS if name in weights), 0)


def _found(path: Path, *, is_link: bool = False) -> Iterator[tuple[str, Path]]:
    """Yield the kinds and paths of the parts in a path. A link is not searched: it may lead anywhere, or back."""
    if path.is_file():
        yield CHECKPOINT, path
    elif is_model_folder(path):
        yield MODEL_FOLDER, path
    elif is_model_of_folder(path / MODEL):
        yield ENCODER, path
    elif any(path.glob("*.idx")):
        if path.name != LABELS:
            yield DATA, path
    elif not is_link:
        yield from ((CHECKPOINT, file) for file in sorted(path.glob("*.pt")))
        for folder in sorted(each for each in path.iterdir() if each.is_dir() and not each.name.startswith(".")):
            yield from _found(folder, is_link=folder.is_symlink())


def _read_model(path: Path, report: Report) -> Part:
    """Read a model folder or a checkpoint, with adapters merged."""
    state = load_options(path)
    if "cfg" not in state or "model" not in state:
        raise UserError(f"{path} must be a checkpoint of s2sft train, but has no options and weights: leave it out")
    check_config(str(path), state)
    with report.collected():
        check_finite(path, state["model"])
    state = without_adapters(state, path)
    known = state.get("task_state") or {}
    vocabulary = read_vocabulary(path) if path.is_dir() else None
    symbols, special = (None, None) if vocabulary is None else (vocabulary.symbols, vocabulary.special)
    fingerprint = known.get("symbols") or (symbols_fingerprint(symbols) if symbols else "")
    count = known.get("num_symbols") or embedding_rows(state["model"]) or len(symbols or ())
    kind = MODEL_FOLDER if path.is_dir() else CHECKPOINT
    sizes = section(state, "model")
    return Part(path, kind, count, fingerprint, symbols, special, vocabulary, sizes, state=state)


def _read_encoder(path: Path, report: Report) -> Part:
    encoder, vocabulary = PretrainedEncoder.open(path), read_vocabulary(path)
    symbols, special, sizes = vocabulary.symbols, vocabulary.special, encoder.sizes
    fingerprint = symbols_fingerprint(symbols)
    return Part(path, ENCODER, encoder.vocab_size, fingerprint, symbols, special, vocabulary, sizes, encoder)


def _read_data(path: Path, report: Report) -> Part:
    splits = sorted({file.name.split(".")[0] for file in path.glob("*.idx")})
    lengths: dict[str, tuple[np.ndarray, np.ndarray | None]] = {}
    pairs = sorted(language_pairs(path))
    dictionary = load_dictionary(path, *pairs[0]) if pairs else load_text_dictionary(path)
    for split in splits:
        if not pairs:
            with report.collected():
                lengths[split] = _tokens(load_plain_texts(path, split, dictionary, None)), None
        for source, target in pairs:
            if not any(path.glob(f"{split}.{source}-{target}.*.idx")):
                continue
            with report.collected():
                texts, others = load_split(path, split, source, target, dictionary, None, False)
                name = split if len(pairs) == 1 else f"{split} {source}-{target}"
                lengths[name] = _tokens(texts), None if others is None else _tokens(others)
    symbols = dictionary.symbols
    return Part(path, DATA, len(symbols), symbols_fingerprint(symbols), symbols, dictionary.special, lengths=lengths)


def _tokens(texts: Any) -> np.ndarray:
    return np.asarray(texts.sizes) - 1  # eos


_READERS = {MODEL_FOLDER: _read_model, CHECKPOINT: _read_model, ENCODER: _read_encoder, DATA: _read_data}
