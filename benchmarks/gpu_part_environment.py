"""Part ``environment`` of `gpu.py`: facts about the machine, and the rates that it reaches.

The rates are upper limits for all other parts: matrix products of a large size and of the sizes of the models' layers,
copies, and launches. It also finds which kernel attention takes.
"""

import platform
import shutil
import subprocess
import warnings
from collections.abc import Callable, Iterator, Mapping
from importlib.util import find_spec
from statistics import median

import torch
from gpu_report import data_sheet_rate
from gpu_timing import Record, Settings, profiled, seconds_of
from process_facts import facts
from roofline import measure_rates
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention

SHAPES = {  # rows, inner width and outer width of a product
    "large": (8192, 8192, 8192),
    "base, projections": (8192, 768, 2304),
    "base, feed-forward": (8192, 768, 3072),
    "large, feed-forward": (8192, 1024, 4096),
    "minilm, feed-forward": (8192, 384, 1536),
    "base, head": (720, 768, 30522),
    "base, a step of 64 sentences and 5 beams": (320, 768, 3072),
}
TINY_SHAPES = {"large": (64, 64, 64), "a layer": (16, 8, 24)}
BACKENDS = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
ATTENTION = {"no mask": (False, 0.1), "mask": (True, 0.1), "mask, no dropout": (True, 0.0)}
TYPES = {"bfloat16": torch.bfloat16, "float32": torch.float32}


def cells(settings: Settings) -> Iterator[Record]:
    """Yield the cells."""
    yield {"name": "machine"}
    for name, shape in (TINY_SHAPES if settings.tiny else SHAPES).items():
        yield {"name": f"matrices: {name}", "shape": shape}
    yield {"name": "copies and launches"}
    for name, (masked, dropout) in ATTENTION.items():
        yield {"name": f"attention: {name}", "masked": masked, "dropout": dropout}


def measure(cell: Record, settings: Settings) -> Record:
    """Measure one cell."""
    kind = cell["name"].split(":")[0]
    kinds: dict[str, Callable[[Record, Settings], Record]] = {
        "machine": machine,
        "matrices": matrices,
        "copies and launches": copies_and_launches,
        "attention": attention,
    }
    return kinds[kind](cell, settings)


def machine(cell: Record, settings: Settings) -> Record:
    """Return facts about the machine."""
    found = {
        **facts(),
        "python": platform.python_version(),
        "cuda": torch.version.cuda,
        "compiler": shutil.which("cc") or shutil.which("gcc"),
        "triton": find_spec("triton") is not None,
        "fairseq_compiled": find_spec("fairseq.data.data_utils_fast") is not None,
    }
    if settings.device != "cuda":
        return found
    properties = torch.cuda.get_device_properties(0)
    return {
        **found,
        "capability": list(torch.cuda.get_device_capability(0)),
        "memory_bytes": properties.total_memory,
        "multiprocessors": properties.multi_processor_count,
        "data_sheet_flops": data_sheet_rate(properties.name),
        "cudnn": torch.backends.cudnn.version(),
        "nvidia_smi": nvidia_smi("driver_version,clocks.max.sm,power.limit,temperature.gpu,utilization.gpu"),
    }


def nvidia_smi(fields: str) -> str | None:
    """Return what ``nvidia-smi`` says about these fields; None if it does not run."""
    try:
        done = subprocess.run(
            ["nvidia-smi", f"--query-gpu={fields}", "--format=csv"], capture_output=True, text=True, timeout=30
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.strip() if done.returncode == 0 else None


def matrices(cell: Record, settings: Settings) -> Record:
    """Measure one product in bfloat16, in float32, and in float32 with factors rounded to TF32."""
    rows, inner, outer = cell["shape"]
    found = {}
    before = torch.get_float32_matmul_precision()
    for name, dtype, precision in (
        ("bfloat16", torch.bfloat16, before),
        ("float32", torch.float32, "highest"),
        ("tf32", torch.float32, "high"),
    ):
        left, right = (
            torch.randn(shape, device=settings.device).to(dtype) for shape in ((rows, inner), (inner, outer))
        )
        product = torch.empty(rows, outer, device=settings.device, dtype=dtype)
        torch.set_float32_matmul_precision(precision)
        try:
            seconds = seconds_of(lambda a=left, b=right, c=product: torch.mm(a, b, out=c), settings)
        finally:
            torch.set_float32_matmul_precision(before)
        found[f"{name}_flops_per_second"] = 2 * rows * inner * outer / median(seconds)
    return found


def copies_and_launches(cell: Record, settings: Settings) -> Record:
    """Measure copies on the device and to it, and the time of a launch with and without waiting for it."""
    small = torch.zeros(1, device=settings.device)
    host = torch.zeros(1 << (10 if settings.tiny else 26))
    if settings.device == "cuda":
        host = host.pin_memory()
    target = torch.empty_like(host, device=settings.device)
    upload = median(seconds_of(lambda: target.copy_(host, non_blocking=True), settings))
    return {
        "bytes_per_second": None if settings.tiny else measure_rates(torch.device(settings.device)).bytes,
        "upload_bytes_per_second": host.nbytes / upload,
        "launch_seconds": median(seconds_of(lambda: small.add_(1), settings)),
        "waited_launch_seconds": median(seconds_of(lambda: small.add_(1).item(), settings)),
    }


def attention(cell: Record, settings: Settings) -> Record:
    """Find which operator PyTorch chooses, and time every backend, forward and backward, in both data types."""
    examples, heads, length = (2, 2, 16) if settings.tiny else (15, 12, 560)
    found: Record = {"shape": [examples, heads, length, 64]}
    warnings.simplefilter("ignore")  # PyTorch warns why a backend does not support an input
    for name, dtype in TYPES.items():
        query = torch.randn(examples, heads, length, 64, device=settings.device).to(dtype).requires_grad_()
        mask = torch.zeros(examples, 1, length, length, device=settings.device, dtype=dtype)
        options = {"attn_mask": mask if cell["masked"] else None, "dropout_p": cell["dropout"]}

        def attend(query: Tensor = query, options: Record = options) -> None:
            scaled_dot_product_attention(query, query, query, **options).sum().backward()

        found[name] = {"taken": taken(profiled(attend, settings.device).counts), "seconds": {}}
        for backend in BACKENDS:
            try:
                with sdpa_kernel(getattr(SDPBackend, backend)):
                    found[name]["seconds"][backend] = median(seconds_of(attend, settings))
            except RuntimeError as error:  # no support for a mask, or for this data type
                found[name]["seconds"][backend] = str(error).splitlines()[0]
    return found


def taken(counts: Mapping[str, int]) -> list[str]:
    """Return the operators that `scaled_dot_product_attention` called, without those of the backward pass."""
    names = (name.removeprefix("aten::") for name in counts)
    return sorted(name for name in names if name.startswith("_scaled_dot_product") and "backward" not in name)
