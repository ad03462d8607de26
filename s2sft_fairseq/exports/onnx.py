"""Write an encoder that generates for onnxruntime: a model folder whose weights are in an ONNX graph."""

import logging
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import CARD, ENGINES, configuration, read_config, write_config
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.data.dictionary import DICTIONARY
from s2sft_fairseq.errors import package
from s2sft_fairseq.exports.checks import check_engine
from s2sft_fairseq.exports.original import Original
from s2sft_fairseq.files import new_folder
from s2sft_fairseq.inference.decoder import IncrementalDecoder
from s2sft_fairseq.inference.onnx_engine import NAME, OnnxEngine, open_onnx
from s2sft_fairseq.models.model_card import model_card
from s2sft_fairseq.models.onnx_graph import write_graph
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.tokenization.vocabulary import read_vocabulary


def export_to_onnx(original: Original, destination: Path, texts: Sequence[str], *, quantize: bool = False) -> None:
    """Write a folder, and compare what it generates with the original.

    Args:
        original: the model.
        destination: the folder to write.
        texts: to generate from, for the comparison.
        quantize: multiply in 8 bits.

    Raises:
        UserError: if a package is not installed.
    """
    library = package("onnxruntime", f"--format {NAME}")
    precision = "int8" if quantize else "float32"
    weights = original.weights()
    model = UnilmModel(original.cfg, vocab_size=len(weights["embeddings.tokens.weight"]), pad=original.form.pad)
    model.load_state_dict(weights)
    state = load_checkpoint(original.folder, lazily=True)
    with new_folder(destination, "--to") as staging:
        file = staging / ENGINES[NAME]
        if quantize:
            with tempfile.TemporaryDirectory(dir=staging.parent) as temporary:
                whole = Path(temporary) / file.name
                write_graph(model, whole)
                _quantize(whole, file)
        else:
            write_graph(model, file)
        training = read_config(original.folder)["training"]
        config = configuration(state, state.get("search") or {}, training, NAME)
        write_config(config, staging)
        for name in {*read_vocabulary(original.folder).files, DICTIONARY}:
            shutil.copyfile(original.folder / name, staging / name)
        parameters = sum(value.numel() for value in weights.values())
        (staging / CARD).write_text(_card(config, parameters, precision), encoding="utf-8")
    print(f"wrote {destination}: for onnxruntime, {precision}")
    program = f"onnxruntime {library.__version__}, {precision}"
    exported = Exported(open_onnx(destination), original)
    check_engine(original.model, destination, texts, original.weight_file, program, exported.logits)


class Exported:
    """An exported model that predicts given targets, token by token."""

    def __init__(self, engine: OnnxEngine, original: Original) -> None:
        self.engine, self.form, self.original = engine, original.form, original

    @torch.inference_mode()
    def logits(self, text: str, ids: Sequence[int]) -> Tensor:
        """Return the logits (T, V) that predict a target of T - 1 ids, and eos."""
        source = torch.from_numpy(self.form.source(self.original.ids(text)))[None]
        model: Any = self.engine.model
        decoder = IncrementalDecoder(model, self.form, source, max_tokens=len(ids) + 1, beams=1)
        logits = [decoder.next_logits()]
        for number in ids:
            decoder.append(torch.tensor([[number]]), torch.zeros(1, 1, dtype=torch.long))
            logits.append(decoder.next_logits())
        # T times (1, 1, V) -> (T, V)
        return torch.cat(logits, dim=1)[0]


def _quantize(file: Path, destination: Path) -> None:
    """Let the products of a graph with weights be in 8 bits; how their other factors are rounded follows from these."""
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.disable(logging.WARNING)  # it recommends a preparation that only static quantization needs
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


def _card(config: dict[str, Any], parameters: int, precision: str) -> str:
    told = f"Its weights are an ONNX graph, {precision}: it runs on CPUs with `pip install onnxruntime`.\n"
    return f"{model_card(config, parameters)}\n## onnxruntime\n\n{told}"
