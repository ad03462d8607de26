"""``s2sft export``: write a model as a self-contained folder, or in the format of another program."""

import argparse
from collections.abc import Iterator, Sequence
from pathlib import Path

from s2sft_fairseq.data.source_names import names_problem
from s2sft_fairseq.errors import UserError, package
from s2sft_fairseq.files import check_replaceable
from s2sft_fairseq.hub import local_path, tokenizer_path

MODEL_FOLDER, HUGGING_FACE, CTRANSLATE2, ONNX = "model", "hugging_face", "ctranslate2", "onnx"
QUANTIZATIONS = {
    CTRANSLATE2: ("float32", "int8", "int8_float32", "int8_float16", "int8_bfloat16", "float16", "bfloat16"),
    ONNX: ("float32", "int8"),
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="s2sft export", description=__doc__)
    parser.add_argument(
        "checkpoint",
        type=local_path,
        help="a checkpoint of s2sft train or a model folder; but for --format model, a folder of s2sft convert too",
    )
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="the folder to write, new or empty")
    parser.add_argument(
        "--format",
        choices=(MODEL_FOLDER, HUGGING_FACE, CTRANSLATE2, ONNX),
        default=MODEL_FOLDER,
        help="model: a model folder, which every command of s2sft takes in place of a checkpoint and of "
        "--tokenizer-dir; hugging_face: what transformers reads; ctranslate2: an encoder-decoder for CTranslate2, "
        "and onnx: a model that generates for onnxruntime, which s2sft generate and Seq2Seq take (default: model)",
    )
    parser.add_argument(
        "--tokenizer-dir",
        type=tokenizer_path,
        metavar="DIR",
        help="the folder of the converted encoder, for its tokenizer",
    )
    parser.add_argument(
        "--pretrained",
        type=local_path,
        metavar="DIR",
        help="the encoder of a checkpoint with adapters (--lora-rank), if it has been moved",
    )
    parser.add_argument(
        "--source",
        nargs="+",
        metavar="FIELD",
        help="for --format model: the names of the fields of a source in their order, such as passage answer; objects "
        "then give their fields by name, in Python, in requests and in JSON lines",
    )
    parser.add_argument(
        "--quantize",
        choices=QUANTIZATIONS[CTRANSLATE2],
        help="for ctranslate2, and int8 for onnx: the format of the weights (default: float32)",
    )
    parser.add_argument(
        "--self-contained",
        action="store_true",
        help="for hugging_face and encoder-only generators: include the code that generates, which transformers runs "
        "with trust_remote_code=True",
    )
    parser.add_argument(
        "--verify",
        type=Path,
        metavar="FILE",
        help="for generators in another program's format: texts, one per line, to compare the export with the "
        "model; the README of the folder has the result (default: a few built-in texts)",
    )
    options = parser.parse_args(arguments)
    # The imports below load PyTorch, which --help does not need.
    if options.format == MODEL_FOLDER:
        from s2sft_fairseq.models.model_folder import export_folder

        _check(options, is_encoder_decoder=False)
        named = {"pretrained": options.pretrained, "source_names": options.source or ()}
        export_folder(options.checkpoint, options.to, options.tokenizer_dir, **named)
        print(f"wrote {options.to}: a model folder; its README.md is a model card to complete")
        return
    from s2sft_fairseq.exports.deltalm import is_deltalm_checkpoint

    is_encoder_decoder = is_deltalm_checkpoint(options.checkpoint)
    _check(options, is_encoder_decoder=is_encoder_decoder)
    if is_encoder_decoder:
        _export_encoder_decoder(options)
    elif options.self_contained or options.format == ONNX:
        _export_encoder(options)
    else:
        from s2sft_fairseq.exports.hugging_face import export_to_hugging_face

        export_to_hugging_face(options.checkpoint, options.to, options.tokenizer_dir, options.pretrained)


def _check(options: argparse.Namespace, *, is_encoder_decoder: bool) -> None:
    """Check that the options apply to this format and model.

    Raises:
        UserError: naming every option that does not.
    """
    if problems := list(_problems(options, is_encoder_decoder)):
        raise UserError.of(problems)


def _problems(options: argparse.Namespace, is_encoder_decoder: bool) -> Iterator[str]:
    if options.format == CTRANSLATE2 and not is_encoder_decoder:
        yield f"--format {CTRANSLATE2} is for encoder-decoders (deltalm), but {options.checkpoint} is none"
    if options.source and options.format != MODEL_FOLDER:
        yield f"--source is for --format {MODEL_FOLDER} (other exports keep the names), but is {options.source}"
    if options.source and (what := names_problem(options.source)):
        yield f"--source {what}"
    if options.self_contained and options.format != HUGGING_FACE:
        yield f"--self-contained is for --format {HUGGING_FACE}, but --format is {options.format}"
    if options.self_contained and is_encoder_decoder:
        yield f"--self-contained is for encoder-only models, but {options.checkpoint} is a deltalm"
    if options.quantize and options.format not in QUANTIZATIONS:
        yield f"--quantize is for --format {' or '.join(QUANTIZATIONS)}, but --format is {options.format}"
    elif options.quantize and options.quantize not in (known := QUANTIZATIONS[options.format]):
        yield f"--quantize must be {' or '.join(known)} with --format {options.format}, but is {options.quantize}"
    if options.verify and not (is_encoder_decoder or options.self_contained or options.format == ONNX):
        yield f"--verify is for generators in another program's format, but --format is {options.format}"
    if options.pretrained and is_encoder_decoder:
        yield f"--pretrained is for checkpoints with adapters (--lora-rank), but {options.checkpoint} is a deltalm"


def _export_encoder(options: argparse.Namespace) -> None:
    """Export an encoder-only generator to transformers or onnxruntime, and compare it with the original."""
    from s2sft_fairseq.exports.comparison import read_texts
    from s2sft_fairseq.exports.onnx import export_to_onnx
    from s2sft_fairseq.exports.original import Original, as_model_folder
    from s2sft_fairseq.exports.self_contained import export_self_contained

    check_replaceable(options.to, "--to")
    texts = read_texts(options.verify)
    with as_model_folder(options.checkpoint, options.tokenizer_dir, options.pretrained) as folder:
        if options.self_contained:
            export_self_contained(Original(folder, "--self-contained"), options.to, texts)
        else:
            original = Original(folder, f"--format {ONNX}")
            export_to_onnx(original, options.to, texts, quantize=options.quantize == "int8")


def _export_encoder_decoder(options: argparse.Namespace) -> None:
    """Export a DeltaLM to another program, and compare it with the original."""
    from s2sft_fairseq.api.loading import load
    from s2sft_fairseq.api.seq2seq import Seq2Seq
    from s2sft_fairseq.exports.checks import check_engine, check_transformers
    from s2sft_fairseq.exports.comparison import read_texts
    from s2sft_fairseq.exports.ctranslate2 import export_to_ctranslate2
    from s2sft_fairseq.exports.deltalm import export_to_transformers, read_model
    from s2sft_fairseq.exports.onnx import export_deltalm_to_onnx

    check_replaceable(options.to, "--to")
    texts = read_texts(options.verify)
    model = read_model(options.checkpoint, options.tokenizer_dir)
    path = model.file if model.file.suffix == ".pt" else model.file.parent
    loaded = load(path, model.tokenizer, "cpu", "float32", None)
    original = Seq2Seq(loaded)
    if options.format == HUGGING_FACE:
        export_to_transformers(model, options.to)
        symbols = list(model.language_symbols.values())
        prefix = symbols[0] if len(symbols) > 1 else ""
        check_transformers(original, options.to, texts, model.file, loaded.tokenizer, prefix)
    elif options.format == CTRANSLATE2:
        precision = options.quantize or "float32"
        export_to_ctranslate2(model, options.to, precision)
        version = package(CTRANSLATE2, f"--format {CTRANSLATE2}").__version__
        some = [text for text in texts if len(loaded.ids(text))]  # an empty source gives an empty text there
        program = f"{CTRANSLATE2} {version}, {precision}"
        check_engine(original, options.to, some, model.file, program, is_exact=precision == "float32")
    else:
        export_deltalm_to_onnx(model, loaded, options.to, texts, quantize=options.quantize == "int8")
