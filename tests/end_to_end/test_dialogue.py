"""A dialogue by the command lines: roles and turns from an encoder with segments, training and generation."""

import random
import shutil

import pytest
import torch
from command_output import generated, scores

from s2sft_fairseq.checkpoints.conversion import Conversion
from s2sft_fairseq.checkpoints.pretrained import write_pretrained
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.models.unilm_config import SIZES, UnilmConfig, complete_sizes

DIALOGUE = ("--num-roles", "3", "--num-turns", "4", "--source-segments", "dialogue", "--max-source-positions", "12")
TESTED = ["a b [SEP] c d [SEP] e", "a b c [SEP] a b c [SEP] d e [SEP] f g h", "[SEP] a b", "a b c d e f g h i j a b c"]
# The remainder in 12 positions, two of which are [CLS] and the last [SEP].
KEPT = ["a b [SEP] c d [SEP] e", "a b c [SEP] d e [SEP] f g h", "[SEP] a b", "a b c d e f g h i j"]


@pytest.fixture
def encoder(tiny_corpus, tmp_path):
    """The folder of a random encoder with four segments."""
    cfg = UnilmConfig(
        encoder_layers=1,
        encoder_embed_dim=16,
        encoder_ffn_embed_dim=32,
        encoder_attention_heads=2,
        max_positions=64,
        num_segments=4,
    )
    complete_sizes(cfg)
    torch.manual_seed(1)
    symbols = (tiny_corpus / "dict.txt").read_text().splitlines()
    model = UnilmModel(cfg, vocab_size=len(symbols), pad=0)
    sizes = {name: getattr(cfg, name) for name in SIZES}
    write_pretrained(tmp_path / "encoder", Conversion("BERT", model.state_dict(), sizes, {"target_segment": 3}))
    shutil.copy(tiny_corpus / "dict.txt", tmp_path / "encoder")
    return tmp_path / "encoder"


@pytest.fixture
def train(call_command, tmp_path, tiny_corpus, tiny_options, encoder):
    """Train on dialogues of letters; the response is the last turn."""
    draw = random.Random(2)
    raw = tmp_path / "raw"
    raw.mkdir()
    shutil.copy(tiny_corpus / "dict.txt", raw)
    for split in ("train", "valid", "test"):
        fields = [[draw.choices("abcde", k=draw.randint(1, 3)) for _ in range(draw.randint(2, 6))] for _ in range(16)]
        sources = TESTED if split == "test" else [" [SEP] ".join(map(" ".join, each)) for each in fields]
        (raw / f"{split}.src").write_text("".join(f"{line}\n" for line in sources))
        targets = [" ".join(each[-1]) for each in fields]
        (raw / f"{split}.tgt").write_text("".join(f"{line}\n" for line in targets[: len(sources)]))
    call_command("preprocess", *tiny_options.preprocess(raw, tmp_path / "data"))

    def run(*words, status=0):
        saving = ("--max-update", "20", "--save-dir", "saved", "--no-epoch-checkpoints", "--cpu", "--num-workers", "0")
        limits = ("--max-target-positions", "12", "--lr", "0.01", "--pretrained", encoder)
        return call_command("train", "data", *limits, *saving, *words, status=status)

    return run


def test_from_training_to_generation(train, call_command, tmp_path):
    done = train("--finetune-method", "infilling", *DIALOGUE)
    log = done.stdout + done.stderr
    assert "lacks them: embeddings.roles.weight, embeddings.turns.weight" in log
    assert "left out, for the model has no such part: embeddings.segments.weight" in log
    state = load_checkpoint(tmp_path / "saved" / "checkpoint_last.pt")
    assert state["model"]["embeddings.turns.weight"].shape == (4, 16)
    assert "embeddings.segments.weight" not in state["model"]
    layout = state["task_state"]["layout"]
    assert (layout["source_segments"], layout["source_truncation"]) == ("dialogue", "right,left")
    assert layout["target_segment"] == 0

    shutil.rmtree(tmp_path / "encoder")
    options = ("--path", "saved/checkpoint_last.pt", "--cpu")
    printed = call_command("generate", "data", *options, "--beam", "2", "--rank-each-step").stdout
    assert {number: texts[0] for number, texts in generated(printed, "S").items()} == dict(enumerate(KEPT))
    # With the whole reference as the prefix, its score is computed step by step.
    reference = scores(call_command("generate", "data", *options, "--score-reference").stdout)
    stepwise = scores(call_command("generate", "data", *options, "--beam", "1", "--prefix-size", "9").stdout)
    for number, of_example in reference.items():
        assert stepwise[number] == pytest.approx(of_example, abs=2e-4)
    # Roles and turns matter: read as one turn of one role, the same sources get other scores.
    other = ("--source-segments", "0", "--source-truncation", "right,left")
    other = scores(call_command("generate", "data", *options, "--score-reference", *other).stdout)
    assert any(other[number] != pytest.approx(reference[number], abs=1e-3) for number in reference)


def test_mistakes(train, tmp_path):
    words = ("--source-segments", "dialogue", "--source-truncation", "right")
    errors = train(*words, status=2).stderr
    assert "--source-segments dialogue needs a model with --num-roles of at least 3" in errors
    assert "--source-truncation must be left, or with a side of the knowledge" in errors
    errors = train(*DIALOGUE, "--num-segments", "4", status=2).stderr
    assert "--num-segments must be 0 with --num-roles" in errors
    assert not (tmp_path / "saved" / "checkpoint_last.pt").exists()
