"""Peak memory of `s2sft convert`, as a multiple of the checkpoint's size, for an encoder of XLM-R base's size.

    python benchmarks/convert_memory.py [--layers 12] [--width 768] [--vocab 250002]

Random weights are written in each file format of such encoders. Each file is converted in its own process.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from multiprocessing import get_context
from pathlib import Path

import torch
from safetensors.torch import save_file

FORMATS = ("model.safetensors", "pytorch_model.bin", "model.pt", "float16 model.safetensors")


def hugging_face_weights(layers: int, width: int, vocab: int, dtype: torch.dtype) -> dict[str, torch.Tensor]:
    """Return random weights of an XLM-RoBERTa with a language model head."""

    def random(*shape: int) -> torch.Tensor:
        return torch.empty(shape, dtype=dtype).normal_(std=0.02)

    base = "roberta.embeddings."
    weights = {
        f"{base}word_embeddings.weight": random(vocab, width),
        f"{base}position_embeddings.weight": random(514, width),
    }
    weights[f"{base}token_type_embeddings.weight"] = random(1, width)
    linear = {"lm_head.dense": (width, width)}
    norms = [f"{base}LayerNorm", "lm_head.layer_norm"]
    for layer in range(layers):
        prefix = f"roberta.encoder.layer.{layer}."
        linear |= {f"{prefix}attention.self.{part}": (width, width) for part in ("query", "key", "value")}
        linear |= {f"{prefix}attention.output.dense": (width, width), f"{prefix}intermediate.dense": (4 * width, width)}
        linear[f"{prefix}output.dense"] = (width, 4 * width)
        norms += [f"{prefix}attention.output.LayerNorm", f"{prefix}output.LayerNorm"]
    for name, shape in linear.items():
        weights |= {f"{name}.weight": random(*shape), f"{name}.bias": random(shape[0])}
    for name in norms:
        weights |= {f"{name}.weight": random(width), f"{name}.bias": random(width)}
    return {**weights, "lm_head.bias": random(vocab)}


def fairseq_weights(weights: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return the same weights under fairseq's names, without the segment embeddings, which fairseq lacks."""
    renames = [
        ("roberta.embeddings.word_embeddings", "encoder.sentence_encoder.embed_tokens"),
        ("roberta.embeddings.position_embeddings", "encoder.sentence_encoder.embed_positions"),
        ("roberta.embeddings.LayerNorm", "encoder.sentence_encoder.layernorm_embedding"),
        ("roberta.encoder.layer.", "encoder.sentence_encoder.layers."),
        ("attention.self.query", "self_attn.q_proj"),
        ("attention.self.key", "self_attn.k_proj"),
        ("attention.self.value", "self_attn.v_proj"),
        ("attention.output.dense", "self_attn.out_proj"),
        ("attention.output.LayerNorm", "self_attn_layer_norm"),
        ("intermediate.dense", "fc1"),
        ("output.dense", "fc2"),
        ("output.LayerNorm", "final_layer_norm"),
        ("lm_head.", "encoder.lm_head."),
    ]
    renamed = {}
    for name, value in weights.items():
        for old, new in renames:
            name = name.replace(old, new)
        renamed[name] = value
    del renamed["roberta.embeddings.token_type_embeddings.weight"]
    return renamed


def write_source(folder: Path, kind: str, layers: int, width: int, vocab: int) -> None:
    """Write a checkpoint and its vocabulary."""
    *half, name = kind.split()
    weights = hugging_face_weights(layers, width, vocab, torch.float16 if half else torch.float32)
    heads = width // 64
    sizes = {
        "num_hidden_layers": layers,
        "hidden_size": width,
        "intermediate_size": 4 * width,
        "num_attention_heads": heads,
    }
    config = {
        **sizes,
        "model_type": "xlm-roberta",
        "max_position_embeddings": 514,
        "type_vocab_size": 1,
        "vocab_size": vocab,
    }
    (folder / "config.json").write_text(json.dumps(config))
    # fairseq puts four symbols before these, and the mask after them.
    (folder / "dict.txt").write_text("".join(f"▁{number} 1\n" for number in range(vocab - 5)))
    if name == "model.safetensors":
        save_file(weights, folder / name)
    elif name == "pytorch_model.bin":
        torch.save(weights, folder / name)
    else:
        options = argparse.Namespace(
            arch="roberta_base", encoder_layers=layers, encoder_embed_dim=width, encoder_ffn_embed_dim=4 * width,
            encoder_attention_heads=heads, max_positions=512, activation_fn="gelu",
        )  # fmt: skip
        torch.save({"args": options, "model": fairseq_weights(weights)}, folder / name)


def peak_memory(*words: object) -> int:
    """Run `s2sft WORDS` and return the peak resident memory of the process in bytes."""
    process = subprocess.Popen([sys.executable, "-m", "s2sft_fairseq", *map(str, words)], stdout=subprocess.DEVNULL)
    _, status, usage = os.wait4(process.pid, 0)
    if status != 0:
        raise SystemExit(f"s2sft {words[0]} failed")
    return usage.ru_maxrss * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768)
    parser.add_argument("--vocab", type=int, default=250002)
    args = parser.parse_args()
    idle = peak_memory("convert", "--help")
    print(f"s2sft convert --help alone: {idle / 1e9:.2f} GB")
    for kind in FORMATS:
        with tempfile.TemporaryDirectory() as folder:
            # In its own process: the peak of a process includes what its parent held when it was started.
            writer = get_context("spawn").Process(
                target=write_source, args=(Path(folder), kind, args.layers, args.width, args.vocab)
            )
            writer.start()
            writer.join()
            source = Path(folder) / kind.split()[-1]
            size = source.stat().st_size
            peak = peak_memory("convert", source, "--to", Path(folder) / "out")
        print(f"{kind}: checkpoint {size / 1e9:.2f} GB, peak {peak / 1e9:.2f} GB, ratio {peak / size:.2f}")


if __name__ == "__main__":
    main()
