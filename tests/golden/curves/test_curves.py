"""Twenty updates of every objective and task, with losses and gradient norms compared to recordings.

A recording is a file of this folder. On a processor that rounds like the recording one, curves are equal to the last
bit. On others they may differ by 1e-5, relatively; with the settings of scripts/test_rounding.sh they differed by
2e-7. Dropout is on, so its draws and their order are part of the recording. To write all recordings again, after a
change that is meant to change them::

    OMP_NUM_THREADS=1 python -m pytest tests/golden/curves --record
"""

import json
import random
from pathlib import Path
from typing import Any

import pytest
from command_line import s2sft
from processor import fingerprint

# isort: split
from fairseq.trainer import Trainer

pytestmark = pytest.mark.rounding

FOLDER = Path(__file__).parent
UPDATES = 20
PHRASES = ("a", "b c", "d", "e f ##g", "h ##a b", "g", "c d e")
SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "[ATTN]")
PIECES = (*"abcdefgh", *(f"##{letter}" for letter in "abcdefgh"))
SENTINELS = tuple(f"<extra_id_{number}>" for number in range(12))
LANGUAGE_SYMBOLS = ("<s>", "<pad>", "</s>", "<unk>", *PIECES, "<mask>", "__de__", "__en__", *SENTINELS)

COMMON = (
    *("--random-init", "--encoder-layers", 2, "--encoder-embed-dim", 32, "--encoder-ffn-embed-dim", 64),
    *("--encoder-attention-heads", 4, "--max-positions", 64, "--lr", 0.001, "--max-update", UPDATES, "--seed", 3),
    *("--cpu", "--num-workers", 0, "--disable-validation", "--no-save", "--log-format", "none"),
)
ENCODER = ("--arch", "unilm_tiny", *COMMON, "--initial-std", 0.02)  # the default of earlier recordings
PAIRS = ("pairs", *ENCODER, "--max-source-positions", 24, "--max-target-positions", 12, "--batch-size", 8)
TEXT = ("text", *ENCODER, "--tokens-per-sample", 40, "--max-tokens", 300)
LANGUAGES = ("languages", "--arch", "deltalm_tiny", *COMMON, "--batch-size", 8)
CLASSIFICATION = ("--task", "unilm_classification", "--max-source-positions", 32, "--batch-size", 8)
SPANS = ("--span-vocab", "spans.txt")
RELATIVE = ("--relative-position-bins", 8, "--max-relative-position", 16)
ROTARY = (
    *("--num-segments", 0, "--layer-norm-position", "pre", "--feed-forward", "gated", "--biases", "none"),
    *("--rotary-base", 100, "--local-rotary-base", 10, "--local-attention-window", 6, "--global-attention-every", 2),
)
DIALOGUE = ("--num-roles", 3, "--num-turns", 4, "--source-segments", "dialogue")

CURVES: dict[str, tuple[Any, ...]] = {
    "causal": (*PAIRS, "--finetune-method", "causal", "--report-accuracy"),
    "causal_rotary": (*PAIRS, *ROTARY, "--finetune-method", "causal", "--corruption", "original"),
    "masked": (*PAIRS, "--finetune-method", "masked", "--embedding-dim", 16, "--source-mask-prob", 0.2),
    "pseudo_masked": (*PAIRS, *RELATIVE, "--finetune-method", "pseudo_masked", "--source-segments", "0,1"),
    "pseudo_masked_original": (*PAIRS, "--finetune-method", "pseudo_masked", "--corruption", "original"),
    "pseudo_masked_spans": (*PAIRS, *SPANS, "--finetune-method", "pseudo_masked", "--label-smoothing", 0),
    "infilling": (*PAIRS, "--finetune-method", "infilling", "--noise-prob", 0.5),
    "infilling_dialogue": (*PAIRS, *DIALOGUE, "--finetune-method", "infilling", "--update-freq", 2),
    "infilling_spans": (
        *(*PAIRS, *SPANS, "--finetune-method", "infilling", "--noise-prob", 0.3),
        *("--word-flow-weight", 0.7, "--activation-dropout", 0.1),
    ),
    "unilmv2": (*TEXT, *RELATIVE, "--task", "unilm_pretraining"),
    "unilmv2_ar": (*TEXT, "--task", "unilm_pretraining", "--language-model", "ar"),
    "ernie_gen": (*TEXT, *SPANS, "--task", "ernie_gen_pretraining"),
    "ernie_gen_typical": (*TEXT, "--task", "ernie_gen_pretraining", "--generation", "typical"),
    "classification": ("labelled", *ENCODER, *CLASSIFICATION),
    "regression": ("scored", *ENCODER, *CLASSIFICATION, "--regression"),
    "question_answering": ("questions", *ENCODER, "--task", "unilm_question_answering", "--batch-size", 8),
    "deltalm": (*LANGUAGES, "-s", "en", "-t", "de"),
    "deltalm_mixture": (
        *(*LANGUAGES, "--lang-pairs", "en-de,de-en", "--text-languages", "de", "--language-token", "__{}__"),
        *("--tokens-per-sample", 30, "--attention-dropout", 0.1, "--optimizer", "adam"),
    ),
    "span_corruption": (
        *(*LANGUAGES, "--task", "deltalm_pretraining", "--text-languages", "en,de", "--lang-pairs", "en-de"),
        *("--tokens-per-sample", 30, "--layernorm-embedding", "no"),
    ),
}


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with everything that `CURVES` names, drawn and binarized."""
    folder, draw = tmp_path_factory.mktemp("curves"), random.Random(1)

    def write(name: str, lines: list[str]) -> None:
        (folder / name).write_text("".join(f"{line}\n" for line in lines))

    def phrases(least: int, most: int) -> list[str]:
        return draw.choices(PHRASES, k=draw.randint(least, most))

    def preprocess(destination: str, prefix: str, dictionary: str, *words: str) -> None:
        options = ("--trainpref", prefix, "--srcdict", dictionary, "--destdir", destination, "--workers", 1, *words)
        s2sft(folder, "preprocess", *options)

    write("vocab.txt", [*SPECIAL, *PIECES])
    write("dict.txt", [f"{symbol} 1" for symbol in (*SPECIAL, *PIECES)])
    write("languages.txt", [f"{symbol} 1" for symbol in LANGUAGE_SYMBOLS])
    fields = [[phrases(1, 4) for _ in range(draw.randint(1, 4))] for _ in range(200)]
    write("pairs.src", [" [SEP] ".join(map(" ".join, each)) for each in fields])
    write("pairs.tgt", [" ".join(each[-1][::-1]) for each in fields])
    preprocess("pairs", "pairs", "dict.txt", "-s", "src", "-t", "tgt", "--joined-dictionary")
    write("text.txt", [line for _ in range(60) for line in (*(" ".join(phrases(8, 14)) for _ in range(3)), "")])
    preprocess("text", "text.txt", "dict.txt", "--only-source")
    s2sft(folder, "span-vocab", "--tokenizer-dir", ".", "--input", "text.txt", "--output", "spans.txt", "--workers", 1)
    assert len((folder / "spans.txt").read_text().splitlines()) > 5

    texts = [phrases(3, 6) for _ in range(160)]
    write("texts.txt", [f"{' '.join(each[:2])} [SEP] {' '.join(each[2:])}" for each in texts])
    for name in ("labelled", "scored", "questions"):
        preprocess(name, "texts.txt", "dict.txt", "--only-source")
    write("labelled/labels.txt", ["few", "many", "none"])
    write("labelled/train.label", [("none", "few", "many")[min(2, each.count("a"))] for each in texts])
    write("scored/train.label", [str(len(each) + each.count("a") / 4) for each in texts])
    questions = []
    for number, each in enumerate(texts):
        query, passage = (len(" ".join(part).split()) for part in (each[:2], each[2:]))
        answer = None if "a" in each[2:] else (passage // 3, passage // 2)
        questions.append({"id": str(number), "query": query, "windows": [(0, passage)], "answer": answer})
    write("questions/train.questions.jsonl", list(map(json.dumps, questions)))

    english = [phrases(2, 5) for _ in range(200)]
    write("pairs.en", list(map(" ".join, english)))
    write("pairs.de", [" ".join(each[::-1]) for each in english])
    preprocess("languages", "pairs", "languages.txt", "-s", "en", "-t", "de", "--joined-dictionary")
    for language in ("en", "de"):
        preprocess(f"languages/{language}", "text.txt", "languages.txt", "--only-source")
    return folder


def curve(data: Path, words: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch) -> dict[str, list[float]]:
    """Train; return each update's loss per label or text, and the norm of its gradient before clipping."""
    found: dict[str, list[float]] = {"loss": [], "gradient_norm": []}
    log = Trainer._reduce_and_log_stats

    def keep(trainer: Trainer, outputs: list[dict[str, Any]], sample_size: int, norm: Any = None) -> Any:
        found["loss"].append(sum(float(output["loss"]) for output in outputs) / float(sample_size))
        found["gradient_norm"].append(float(norm))
        return log(trainer, outputs, sample_size, norm)

    monkeypatch.setattr(Trainer, "_reduce_and_log_stats", keep)
    s2sft(data, "train", *words)
    return found


@pytest.mark.parametrize("name", CURVES)
def test_curve(name, data, monkeypatch, recording):
    found = curve(data, CURVES[name], monkeypatch)
    assert [len(values) for values in found.values()] == [UPDATES, UPDATES]
    path = FOLDER / f"{name}.json"
    if recording:
        path.write_text(json.dumps({"processor": fingerprint(), **found}, indent=1) + "\n")
    expected = json.loads(path.read_text())
    if expected.pop("processor") != fingerprint():
        expected = {measure: pytest.approx(values, rel=1e-5) for measure, values in expected.items()}
    assert found == expected


def test_every_recording_has_a_curve():
    assert {path.stem for path in FOLDER.glob("*.json")} == set(CURVES)


@pytest.mark.parametrize("name", ["classification", "deltalm_mixture", "question_answering", "unilmv2"])
def test_bfloat16_products(name, data, monkeypatch):
    """With ``--amp``, the curve is near the one in float32, from the same draws, but not equal."""
    monkeypatch.setattr("s2sft_fairseq.runtime.cpu.multiplies_bf16", lambda: True)
    curves = []
    for precision in ((), ("--amp",)):
        with monkeypatch.context() as patch:
            curves.append(curve(data, (*CURVES[name], *precision), patch))
    exact, found = curves
    assert found["loss"] != exact["loss"]
    assert found["loss"] == pytest.approx(exact["loss"], rel=0.02)
