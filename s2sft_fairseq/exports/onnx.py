"""Export a model for onnxruntime: a model folder with the weights in ONNX graphs."""

import logging
import shutil
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.api.loading import Loaded
from s2sft_fairseq.api.seq2seq import Seq2Seq
from s2sft_fairseq.checkpoints.model_folder import CARD, ENGINES, configuration, read_config, write_config
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.data.dictionary import DICTIONARY
from s2sft_fairseq.errors import package
from s2sft_fairseq.exports.checks import check_engine
from s2sft_fairseq.exports.deltalm import DeltaLM, copy_tokenizer
from s2sft_fairseq.exports.original import Original
from s2sft_fairseq.files import new_folder
from s2sft_fairseq.inference.decoder import IncrementalDecoder
from s2sft_fairseq.inference.onnx_engine import NAME, OnnxEngine, open_onnx
from s2sft_fairseq.models.model_card import model_card
from s2sft_fairseq.models.onnx_encoder_decoder import ENCODER, write_graphs
from s2sft_fairseq.models.onnx_graph import write_graph
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.progress import step
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary


def export_to_onnx(original: Original, destination: Path, texts: Sequence[str], *, quantize: bool = False) -> None:
    """Export an encoder-only generator, and compare its hypotheses with the original's.

    Args:
        original: the model to export.
        destination: the folder to write.
        texts: the texts to generate from, for the comparison.
        quantize: multiply in 8 bits.

    Raises:
        UserError: a package is not installed.
    """
    package("onnxruntime", f"--format {NAME}")
    weights = original.weights()
    model = UnilmModel(original.cfg, vocab_size=len(weights["embeddings.tokens.weight"]), pad=original.form.pad)
    model.load_state_dict(weights)
    state = load_checkpoint(original.folder, lazily=True)
    with new_folder(destination, "--to") as staging:
        with _graphs(staging, quantize) as folder, step("trace the graph"):
            write_graph(model, folder / ENGINES[NAME])
        training = read_config(original.folder)["training"]
        _write_config(state, training, sum(value.numel() for value in weights.values()), staging, quantize)
        for name in {*read_vocabulary(original.folder, to_copy=True).files, DICTIONARY}:
            shutil.copyfile(original.folder / name, staging / name)
    exported = Exported(open_onnx(destination), original)
    _compare(original.model, destination, texts, original.weight_file, exported, quantize)


def export_deltalm_to_onnx(
    model: DeltaLM, loaded: Loaded, destination: Path, texts: Sequence[str], *, quantize: bool = False
) -> None:
    """Export an encoder-decoder, and compare its hypotheses with the original's.

    Args:
        model: the model to export.
        loaded: the same model, as ``s2sft generate`` runs it.
        destination: the folder to write.
        texts: the texts to generate from, for the comparison.
        quantize: multiply in 8 bits.

    Raises:
        UserError: a package is not installed.
    """
    package("onnxruntime", f"--format {NAME}")
    with new_folder(destination, "--to") as staging:
        with _graphs(staging, quantize) as folder, step("trace the graphs"):
            write_graphs(loaded.models[0], folder / ENCODER, folder / ENGINES[NAME])
        _write_config(model.state, {}, sum(value.numel() for value in model.weights.values()), staging, quantize)
        copy_tokenizer(model, staging)
    exported = ExportedDeltaLM(open_onnx(destination), loaded)
    _compare(Seq2Seq(loaded), destination, texts, model.file, exported, quantize)


class Exported:
    """An exported encoder-only generator that predicts given targets, token by token."""

    def __init__(self, engine: OnnxEngine, original: Original) -> None:
        self.engine, self.form, self.original = engine, original.form, original

    @torch.inference_mode()
    def logits(self, text: str, ids: Sequence[int]) -> Tensor:
        """Return the logits (T, V) that predict a target of T - 1 ids, and eos."""
        source = torch.from_numpy(self.form.source(self.original.model.source_ids(text)))[None]
        model: Any = self.engine.model
        decoder = IncrementalDecoder(model, self.form, source, max_tokens=len(ids) + 1, beams=1)
        logits = [decoder.next_logits()]
        for number in ids:
            decoder.append(torch.tensor([[number]]), torch.zeros(1, 1, dtype=torch.long))
            logits.append(decoder.next_logits())
        # T times (1, 1, V) -> (T, V)
        return torch.cat(logits, dim=1)[0]


class ExportedDeltaLM:
    """An exported encoder-decoder that predicts given targets, token by token."""

    def __init__(self, engine: OnnxEngine, loaded: Loaded) -> None:
        self.engine, self.loaded, self.original = engine, loaded, Seq2Seq(loaded)

    @torch.inference_mode()
    def logits(self, text: str, ids: Sequence[int]) -> Tensor:
        """Return the logits (T, V) that predict a target of T - 1 ids, and eos."""
        model: Any = self.engine.model
        source = torch.from_numpy(self.loaded.task.form.source(self.original.source_ids(text)))[None]
        states = model.encoder.forward_torchscript({"src_tokens": source})
        kept: dict[str, Any] = {}
        given = torch.tensor([[self.loaded.task.form.eos, *ids]])
        steps = [model.decoder(given[:, : length + 1], states, kept)[0] for length in range(given.size(1))]
        # T times (1, 1, V) -> (T, V)
        return torch.cat(steps, dim=1)[0]


@contextmanager
def _graphs(staging: Path, quantize: bool) -> Iterator[Path]:
    """Yield a folder to write graphs into. Afterwards the graphs, optionally quantized, are in `staging`."""
    if not quantize:
        yield staging
        return
    with tempfile.TemporaryDirectory(dir=staging.parent) as temporary:
        yield Path(temporary)
        for file in sorted(Path(temporary).glob("*.onnx")):
            with step(f"quantize {file.name}"):
                _quantize(file, staging / file.name)


def _write_config(
    state: Mapping[str, Any], training: Mapping[str, Any], parameters: int, staging: Path, quantize: bool
) -> None:
    config = configuration(state, state.get("search") or {}, training, NAME)
    write_config(config, staging)
    precision = "int8" if quantize else "float32"
    told = f"Its weights are in ONNX graphs, {precision}: it runs on CPUs with `pip install onnxruntime`.\n"
    (staging / CARD).write_text(f"{model_card(config, parameters)}\n## onnxruntime\n\n{told}", encoding="utf-8")


def _compare(model: Seq2Seq, folder: Path, texts: Sequence[str], source: Path, exported: Any, quantize: bool) -> None:
    precision = "int8" if quantize else "float32"
    print(f"wrote {folder}: for onnxruntime, {precision}")
    version = package("onnxruntime", f"--format {NAME}").__version__
    program = f"onnxruntime {version}, {precision}"
    check_engine(model, folder, texts, source, program, exported.logits, is_exact=not quantize)


def _quantize(file: Path, destination: Path) -> None:
    """Quantize the products with weights of a graph to 8 bits; activations are quantized dynamically."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # onnxruntime recommends a preparation that only static quantization needs
    try:
        quantize_dynamic(
            str(file),
            str(destination),
            op_types_to_quantize=["MatMul", "Gemm"],
            per_channel=True,
            weight_type=QuantType.QInt8,
            extra_options={"MatMulConstBOnly": True},
        )
    finally:
        logging.disable(logging.NOTSET)
