"""DeltaLM as its authors publish it, at a tiny size: ``deltalm-base.pt``, ``spm.model`` and ``dict.txt``.

The file only holds ``weights``: the tables of the target, those of the source, then the layers. Position tables have
two rows more than there are positions. ``dict.txt`` has the pieces without SentencePiece's own three, and no mask. The
token table has 103 rows more than fairseq makes symbols of ``dict.txt``: the mask of the encoder that it began with,
two unused rows, and 100 sentinels (microsoft/unilm, issues 392 and 881).
"""

from pathlib import Path

import torch
from tokenizer_folders import write_sentencepiece

WIDTH, FFN, POSITIONS = 64, 96, 40
ENCODER_LAYERS, DECODER_LAYERS = 4, 2
FURTHER_ROWS = 103


def pieces_of(folder: Path) -> list[str]:
    from sentencepiece import SentencePieceProcessor

    model = SentencePieceProcessor(model_file=str(folder / "spm.model"))
    return [model.id_to_piece(number) for number in range(3, model.get_piece_size())]


def layer(name: str, kinds: tuple[str, ...], networks: tuple[str, ...], norms: tuple[str, ...]) -> dict:
    """Return the shapes of a layer's weights, in the order of the file."""
    shapes: dict[str, tuple[int, ...]] = {}
    for kind in kinds:
        for part in ("q_proj", "k_proj", "v_proj", "out_proj"):
            shapes |= {f"{name}.{kind}.{part}.weight": (WIDTH, WIDTH), f"{name}.{kind}.{part}.bias": (WIDTH,)}
    for network in networks:
        shapes |= {f"{name}.{network}.fc1.weight": (FFN, WIDTH), f"{name}.{network}.fc1.bias": (FFN,)}
        shapes |= {f"{name}.{network}.fc2.weight": (WIDTH, FFN), f"{name}.{network}.fc2.bias": (WIDTH,)}
    for norm in norms:
        shapes |= {f"{name}.{norm}.weight": (WIDTH,), f"{name}.{norm}.bias": (WIDTH,)}
    return shapes


def official_weights(rows: int, embedding_norm: bool = True) -> dict[str, torch.Tensor]:
    """Return random weights by the names of the official files; the tables of source and target are equal."""
    shapes: dict[str, tuple[int, ...]] = {}
    for side in ("tgt_embedding", "src_embedding"):
        shapes |= {f"{side}.embed_tokens.weight": (rows, WIDTH)}
        shapes |= {f"{side}.embed_positions.weight": (POSITIONS + 2, WIDTH)}
        if embedding_norm:
            shapes |= {f"{side}.emb_layer_norm.{kind}": (WIDTH,) for kind in ("weight", "bias")}
    for number in range(ENCODER_LAYERS):
        shapes |= layer(
            f"encoder.layers.{number}", ("self_attn",), ("ffn",), ("self_attn_layer_norm", "final_layer_norm")
        )
    norms = ("self_attn_layer_norm", "encoder_attn_layer_norm", "final_layer_norm", "ffn_layer_norm")
    for number in range(DECODER_LAYERS):
        shapes |= layer(f"decoder.layers.{number}", ("self_attn", "encoder_attn"), ("ffn_1", "ffn_2"), norms)
    draw = torch.Generator().manual_seed(1)
    weights = {}
    for name, shape in shapes.items():
        noise = torch.randn(shape, generator=draw)
        weights[name] = 1 + 0.2 * noise if "norm.weight" in name else 0.2 * noise
    weights["src_embedding.embed_tokens.weight"] = weights["tgt_embedding.embed_tokens.weight"].clone()
    return weights


def write_official(folder: Path, *, dtype: torch.dtype = torch.float32, embedding_norm: bool = True) -> Path:
    """Write the three files."""
    write_sentencepiece(folder, "spm")
    pieces = pieces_of(folder)
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces), encoding="utf-8")
    weights = official_weights(4 + len(pieces) + FURTHER_ROWS, embedding_norm)
    torch.save({"weights": {name: value.to(dtype) for name, value in weights.items()}}, folder / "deltalm-base.pt")
    return folder
