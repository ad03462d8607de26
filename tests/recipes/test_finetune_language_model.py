"""``s2sft finetune`` with a tiny language model: its defaults, the loss of its sources, all methods, and adapters."""

import json
import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from language_model import write_start

from s2sft_fairseq import cli
from s2sft_fairseq.corpora.pairs import USUAL
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.recipes import engine
from s2sft_fairseq.recipes.finetune import Finetuning, read_given
from s2sft_fairseq.recipes.finetune_settings import LANGUAGE_MODEL

SHORT = {"updates": 2, "candidates": 1, "batch": 8, "lr": "1e-3", "cpu": True, "workers": 1}
DEFAULTS = {name: value for named in LANGUAGE_MODEL.values() for name, value in named.items()}


@pytest.fixture(scope="module", autouse=True)
def quick() -> Iterator[None]:
    """Do not free memory after each command."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(engine, "_free_memory", lambda: None)
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A converted language model, the same one as an encoder, and 60 pairs of words and the same words reversed."""
    folder = tmp_path_factory.mktemp("language-model")
    write_start(folder / "start")
    write_start(folder / "encoder", "both")
    draw = random.Random(0)
    sources = [[f"w{draw.randrange(5, 50)}" for _ in range(draw.randint(2, 6))] for _ in range(60)]
    (folder / "pairs.tsv").write_text("".join(f"{' '.join(words)}\t{' '.join(words[::-1])}\n" for words in sources))
    return folder


def started(folder: Path, output: Path, encoder: str = "start", **settings: object) -> Finetuning:
    given = {"encoder": folder / encoder, "output": output, **SHORT, **settings}
    return Finetuning({"train": [folder / "pairs.tsv"]}, USUAL, read_given(given), ["--log-interval", "1"], cli.call)


def test_defaults(folder, tmp_path, capsys):
    """They are shown with their reason; what is given wins. The loss of sources is trained and logged."""
    stages = started(folder, tmp_path, source_loss_weight="0.5", dropout="0.1", scored_on=3)
    stages.run()
    told = json.loads((tmp_path / "finetune.json").read_text())["settings"]
    for why, named in LANGUAGE_MODEL.items():
        for name, value in named.items():
            if name not in ("dropout", "scored_on", "candidates"):
                assert told[name] == {"value": value, "why": why}
    assert told["dropout"] == {"value": "0.1", "why": "given"} and told["scored_on"]["value"] == 3
    assert "target_mask_prob" not in told
    assert "label_smoothing    0               for a language model" in capsys.readouterr().out
    logged = [json.loads(line.partition("| INFO | ")[2].partition(" | ")[2]) for line in train_lines(tmp_path)]
    assert all({"word_loss", "source_loss"} <= line.keys() for line in logged)
    assert len((tmp_path / "corpus" / "scored.src").read_text().splitlines()) == 3
    assert json.loads((tmp_path / "model" / "config.json").read_text())["training"]["updates"] == 2


def train_lines(output: Path) -> list[str]:
    """Return the lines of the log with the losses of an update."""
    return [line for line in (output / "train.log").read_text().splitlines() if "train_inner" in line]


@pytest.mark.parametrize(
    "settings",
    [{"method": "blocks", "lora_rank": 2}, {"method": "pseudo_masked"}, {"method": "masked", "beam": 2}],
    ids=lambda settings: settings["method"],
)
def test_other_methods(folder, tmp_path, settings):
    """They are possible, with the other defaults of a language model."""
    stages = started(folder, tmp_path, metric="loss", **settings)
    stages.run()
    s = stages.settings
    masked = {"masked": "0.5", "pseudo_masked": "0", "blocks": ""}
    assert (s.method, s.dropout, s.target_mask_prob) == (settings["method"], "0", masked[s.method])
    assert s.beam == settings.get("beam", 1)
    assert (tmp_path / "scored.txt").read_text().count("\n") == 12


def test_an_encoder_keeps_its_defaults(folder, tmp_path):
    stages = started(folder, tmp_path, "encoder")
    stages.make_encoder(stages.encoder)
    before = dict(vars(stages.settings))
    stages.settle_start()
    assert vars(stages.settings) == before
    assert all(before[name] != value for name, value in DEFAULTS.items() if name not in SHORT)


def test_a_loss_of_sources_that_is_impossible(folder, tmp_path):
    with pytest.raises(UserError, match=r"^--source-loss-weight is for --method causal, but that is blocks$"):
        started(folder, tmp_path, method="blocks", source_loss_weight="1")
    stages = started(folder, tmp_path, "encoder", method="causal", source_loss_weight="1")
    stages.make_encoder(stages.encoder)
    with pytest.raises(UserError, match=r"^--source-loss-weight needs a language model, but --encoder .*encoder sees"):
        stages.settle_start()
