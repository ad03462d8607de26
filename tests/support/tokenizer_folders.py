"""Folders with small tokenizers of every scheme, made from a few sentences."""

import io
import json
import random
from pathlib import Path

import pytest

SENTENCES = [
    "The quick brown fox jumps over the lazy dog, and the dog doesn't mind at all.",
    "Naïve café owners — 3,141 of them — met in Zürich on 12 May 2021; it rained!",
    "def encode(line: str) -> list[int]: return [ids[piece] for piece in split(line)]",
    "Sphinx of black quartz, judge my vow. How vexingly quick daft zebras jump?",
] * 10
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
ROBERTA_SPECIAL = ["<s>", "<pad>", "</s>", "<unk>", "<mask>"]


def random_texts(number: int) -> list[str]:
    """Return lines of any characters but line ends, and of more usual ones: accents, emoji, runs of spaces."""
    draw = random.Random(1)
    frequent = [
        *"abc  e\u0301\t\u00a0\u2028\u3000\ufeff\u200d",
        "😀",
        "👩‍👩‍👧",
        "  ",
        "</s>",
        "<mask>",
        "[SEP]",
        "\x00",
        "\x1c",
        "\x85",
    ]
    texts = []
    for _ in range(number):
        anything = [chr(code) for _ in range(20) if not 0xD800 <= (code := draw.randrange(0x110000)) < 0xE000]
        texts.append(
            "".join(draw.choices([*frequent, *anything], k=draw.randint(0, 30))).replace("\n", "").replace("\r", "")
        )
    return texts


def write_wordpiece(folder: Path) -> Path:
    """Write a ``vocab.txt`` of letters and a few words, without capitals."""
    folder.mkdir(parents=True, exist_ok=True)
    letters = "abcdefghijklmnopqrstuvwxyz0123456789"
    tokens = [*SPECIAL, "the", "quick", "token", "##ization", *letters, *(f"##{letter}" for letter in letters), *".,'-"]
    (folder / "vocab.txt").write_text("".join(f"{token}\n" for token in tokens))
    return folder


def write_byte_level(folder: Path) -> Path:
    """Write ``vocab.json`` and ``merges.txt`` of RoBERTa's kind."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    trained = tokenizers.ByteLevelBPETokenizer()
    trained.train_from_iterator(SENTENCES, vocab_size=500, special_tokens=ROBERTA_SPECIAL, show_progress=False)
    trained.save_model(str(folder))
    return folder


def write_gpt2(folder: Path) -> Path:
    """Write ``encoder.json``, ``vocab.bpe`` and fairseq's ``dict.txt`` of numbers, most frequent first."""
    write_byte_level(folder)
    ids = json.loads((folder / "vocab.json").read_text())
    pieces = [piece for piece in ids if piece not in ROBERTA_SPECIAL]
    (folder / "encoder.json").write_text(json.dumps({piece: number for number, piece in enumerate(pieces)}))
    (folder / "merges.txt").rename(folder / "vocab.bpe")
    (folder / "vocab.json").unlink()
    numbers = random.Random(1).sample(range(len(pieces)), len(pieces))
    (folder / "dict.txt").write_text("".join(f"{number} 1\n" for number in numbers))
    return folder


def write_sentencepiece(folder: Path, name: str = "sentencepiece.bpe", **options: object) -> Path:
    """Write a Unigram model."""
    sentencepiece = pytest.importorskip("sentencepiece", reason="sentencepiece is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(SENTENCES),
        model_prefix=str(folder / name),
        **{"vocab_size": 80, "minloglevel": 2, **options},
    )
    (folder / f"{name}.vocab").unlink()
    return folder


def write_fastbpe(folder: Path) -> Path:
    """Write ``codes``, in the format of fastBPE, and a ``dict.txt`` of the pieces of the sentences."""
    learn_bpe = pytest.importorskip("subword_nmt.learn_bpe", reason="subword-nmt is not installed")
    apply_bpe = pytest.importorskip("subword_nmt.apply_bpe")
    folder.mkdir(parents=True, exist_ok=True)
    codes = io.StringIO()
    learn_bpe.learn_bpe(io.StringIO("\n".join(SENTENCES)), codes, 60)
    pairs = codes.getvalue().splitlines()[1:]
    (folder / "codes").write_text("".join(f"{pair} {90 - number}\n" for number, pair in enumerate(pairs)))
    lines = map(apply_bpe.BPE(codes).process_line, SENTENCES)
    pieces = dict.fromkeys(piece for line in lines for piece in line.split())
    letters = sorted(set("".join(SENTENCES)) - {" "})
    pieces |= dict.fromkeys(piece for letter in letters for piece in (letter, f"{letter}@@"))
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in pieces))
    return folder


def write_modernbert(folder: Path) -> Path:
    """Write a ``tokenizer.json`` of byte-level BPE, with runs of spaces as added tokens, as ModernBERT has."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    made = tokenizers.Tokenizer(tokenizers.models.BPE())
    made.normalizer = tokenizers.normalizers.NFC()
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    alphabet = tokenizers.pre_tokenizers.ByteLevel.alphabet()
    made.train_from_iterator(
        SENTENCES,
        tokenizers.trainers.BpeTrainer(vocab_size=500, initial_alphabet=alphabet, show_progress=False),
    )
    made.add_tokens([tokenizers.AddedToken(" " * length, normalized=False) for length in (4, 3, 2)])
    made.add_special_tokens([tokenizers.AddedToken(token, lstrip=token == "[MASK]") for token in SPECIAL])
    made.enable_truncation(8)  # as in the files of some sentence encoders
    made.save(str(folder / "tokenizer.json"))
    return folder


def write_gemma(folder: Path) -> Path:
    """Write a ``tokenizer.json`` of mmBERT's kind: BPE that falls back to bytes, with line ends among its tokens."""
    tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    special = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "\n", "\n\n", "\t"]
    tokens = [*special, *(f"<0x{byte:02X}>" for byte in range(256)), "▁", *"abcdefghij", "▁a", "ab", "▁ab"]
    model = tokenizers.models.BPE(
        vocab={token: number for number, token in enumerate(tokens)},
        merges=[("▁", "a"), ("a", "b"), ("▁a", "b")],
        unk_token="<unk>",
        byte_fallback=True,
        fuse_unk=True,
    )
    made = tokenizers.Tokenizer(model)
    made.normalizer = tokenizers.normalizers.Replace(" ", "▁")
    decoders = tokenizers.decoders
    made.decoder = decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()])
    made.add_special_tokens(special[:5])
    made.add_tokens([tokenizers.AddedToken(token, normalized=False) for token in special[5:]])
    made.save(str(folder / "tokenizer.json"))
    return folder


WRITERS = {
    "wordpiece": write_wordpiece,
    "byte_level": write_byte_level,
    "gpt2": write_gpt2,
    "sentencepiece": write_sentencepiece,
    "fastbpe": write_fastbpe,
    "modernbert": write_modernbert,
    "gemma": write_gemma,
}
