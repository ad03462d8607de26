"""The presets of ERNIE-GEN and UniLMv2, compared with tables and documentation; they reach the command lines."""

import shlex
from pathlib import Path

import pytest
from called import call

from s2sft_fairseq.recipes.benchmarks import GENERATION
from s2sft_fairseq.recipes.settings import read_presets

ROOT = Path(__file__).resolve().parents[2]
ALL = read_presets()
ROWS = [row for row in ALL if row["method"] == "infilling"]
UNILMV2 = [row for row in ALL if row["method"] == "pseudo_masked"]
NAMES = [row["preset"] for row in ROWS]
# One preset of each recipe, with a noise symbol and without.
EACH = list({(row["recipe"], row["noise_symbol"], row["loss_tokens"]): row for row in ROWS}.values())

CONFIGURATIONS = {
    *(f"{size}/{task}" for size in ("base", "large", "large_430g") for task in ("cnndm", "gigaword", "squad-qg")),
    *("base/gigaword-10k", "large/gigaword-10k", "large_430g/gigaword-10k", "large/coqa", "large/persona-chat"),
}
# From the paper: epochs, learning rate, noise, dropout, batch, label smoothing, beam; Table 11: also warm-up, penalty.
TABLE_1 = {
    "base/squad-qg": (10, 2.5e-5, 0.7, 0.1, 32, 0.1, 1),
    "large/squad-qg": (10, 1.5e-5, 0.7, 0.2, 32, 0.1, 1),
    "base/cnndm": (30, 5e-5, 0.7, 0.1, 64, 0.1, 5),
    "large/cnndm": (20, 4e-5, 0.7, 0.1, 64, 0.1, 5),
    "base/gigaword": (10, 3e-5, 0.5, 0.1, 128, 0.1, 5),
    "large/gigaword": (5, 3e-5, 0.6, 0.2, 128, 0.1, 5),
    "large/persona-chat": (30, 1e-4, 0.0, 0.1, 64, 0.1, 10),
    "large/coqa": (10, 1e-5, 0.5, 0.1, 32, 0.1, 3),
}
TABLE_11 = {
    "large_430g/cnndm": (17, 4e-5, 0.7, 0.1, 32, 0.1, 5, 0.02, 1.2),
    "large_430g/gigaword": (5, 3e-5, 0.6, 0.2, 128, 0.1, 6, 0.1, 0.7),
    "large_430g/squad-qg": (10, 1.25e-5, 0.7, 0.2, 32, 0.1, 5, 0.25, 1.0),
}
# Data of the ablations (Tables 7 and 8), for which the paper has no settings of its own; and masking fine-tuning, with
# a masking probability of 0.7 (section 4.3).
ABLATIONS = {
    "paper/base/cnndm-10k": "base/cnndm",
    "paper/base/gigaword-10k-masking": "base/gigaword-10k",
    "paper/base/cnndm-10k-masking": "paper/base/cnndm-10k",
    "paper/base/squad-qg-masking": "paper/base/squad-qg",
}
IN_TABLE = ("epochs", "lr", "noise_prob", "dropout", "batch", "label_smoothing", "beam")


def values(row, names):
    return tuple(float(row[name]) for name in names)


def test_every_configuration_and_table_has_its_preset():
    assert len(set(NAMES)) == len(NAMES)
    sources = {row["preset"]: row["source"].split(", ") for row in ROWS}
    files = {source.removesuffix("_conf") for found in sources.values() for source in found if "/" in source}
    assert files == CONFIGURATIONS
    # A configuration has the settings of its file; where the paper differs, it has its own preset.
    assert {name for name in NAMES if not name.startswith("paper/")} == CONFIGURATIONS
    assert {name for name in NAMES if sources[name][0].startswith("Table")} - {*ABLATIONS} == {
        f"paper/{name}" for name in ("large/cnndm", "base/squad-qg", "large/squad-qg", "large/persona-chat")
    }
    assert all(f"{name}_conf" in found for name, found in sources.items() if not name.startswith("paper/"))
    of_table = {source: [] for source in ("Table 1", "Table 11")}
    for name, found in sources.items():
        for source in found:
            if source in of_table:
                of_table[source].append(name.removeprefix("paper/"))
    assert sorted(of_table["Table 1"]) == sorted(TABLE_1)
    assert sorted(of_table["Table 11"]) == sorted(TABLE_11)


@pytest.mark.parametrize("row", ROWS, ids=NAMES)
def test_against_the_paper(row):
    name, sources = row["preset"].removeprefix("paper/"), row["source"].split(", ")
    if "Table 1" in sources:
        assert values(row, IN_TABLE) == TABLE_1[name]
    elif name in TABLE_1:  # the configuration of a task for which the paper differs
        assert values(row, IN_TABLE) != TABLE_1[name]
        assert f"paper/{name}" in NAMES
    if "Table 11" in sources:
        assert values(row, (*IN_TABLE, "warmup_proportion", "length_penalty")) == TABLE_11[name]
    if row["preset"].startswith("paper/") and row["preset"] not in ABLATIONS:
        # Settings that are not in the table.
        (configuration,) = (other for other in ROWS if other["preset"] == name)
        rest = set(row) - {"preset", "source", *IN_TABLE}
        assert {key: row[key] for key in rest} == {key: configuration[key] for key in rest}


def test_the_presets_of_ablations():
    by_name = {row["preset"]: row for row in ROWS}
    for name, usual in ABLATIONS.items():
        changed = {key: value for key, value in by_name[name].items() if value != by_name[usual][key]}
        del changed["preset"], changed["source"]
        if name.endswith("-masking"):
            masking = {"noise_prob": "0.7", "noise_symbol": "[MASK]", "loss_tokens": "noised"}
            assert masking.items() <= by_name[name].items() and changed.keys() <= masking.keys()
        else:
            assert changed == {"size": "10k"}


def test_the_optimizer_of_the_program(tmp_path):
    """Presets of ERNIE-GEN have the epsilon of its program; all else has that of s2s-ft's and UniLMv2's papers."""
    for words, epsilon in (
        (("--preset", "base/squad-qg"), "1e-8"),
        (("--preset", "unilmv2/squad-qg"), "1e-6"),
        (("--method", "infilling", "--noise-prob", 0.7), "1e-6"),
        (("--preset", "base/squad-qg", "--adam-eps", "1e-7"), "1e-7"),
    ):
        train, _ = commands(tmp_path, "squad_qg", *words, "--updates", 9)
        found = [train[name] for name in ("--adam-eps", "--adam-betas", "--clip-norm", "--weight-decay")]
        assert found == [epsilon, "(0.9, 0.999)", "1.0", "0.01"]


def test_typical_generation_with_noise(tmp_path):
    """Table 8, rows 4 to 6, has the noise of the infilling presets; rows 1 to 3 have none."""
    words = ("--preset", "base/gigaword-10k", "--method", "causal", "--updates", 9)
    train, _ = commands(tmp_path, "gigaword", *words)
    assert (train["--finetune-method"], train["--noise-prob"]) == ("causal", "0.5")
    train, _ = commands(tmp_path, "gigaword", *words, "--noise-prob", 0)
    assert train["--noise-prob"] == "0"


# UniLMv2, Table 10: learning rate, batch, weight decay, epochs, warm-up, smoothing, lengths; length penalty, beam.
TABLE_10 = {
    "unilmv2/cnndm": ("7e-5", 64, 0.01, 14, 0.02, 0.1, 608, 160, 0.7, 5),
    "unilmv2/xsum": ("7e-5", 64, 0.01, 14, 0.02, 0.1, 720, 48, 0.6, 5),
    "unilmv2/squad-qg": ("2e-5", 48, 0.01, 16, 0.1, 0.1, 464, 48, 1.3, 8),
}


@pytest.mark.parametrize("row", UNILMV2, ids=lambda row: row["preset"])
def test_settings_of_a_preset_of_unilmv2(tmp_path, row):
    assert {row["preset"] for row in UNILMV2} == set(TABLE_10) and len(ALL) == len(ROWS) + len(UNILMV2)
    lr, batch, decay, epochs, warmup, smoothing, source, target, penalty, beam = TABLE_10[row["preset"]]
    corpus = tmp_path / "out" / "corpus"
    corpus.mkdir(parents=True)
    (corpus / "train.src").write_text("a\n" * 1001)
    words = ("--preset", row["preset"], "--output", "out", "--device-batch", 8)
    train, generate = commands(tmp_path, row["recipe"], *words)
    updates = epochs * (1000 // batch + 1)
    expected = {"--finetune-method": "pseudo_masked", "--lr": lr, "--max-update": updates, "--weight-decay": decay}
    expected |= {"--max-source-positions": source, "--max-target-positions": target, "--update-freq": batch // 8}
    expected |= {"--warmup-updates": int(warmup * updates + 0.5), "--label-smoothing": smoothing, "--noise-prob": None}
    assert {name: train.get(name) for name in expected} == {
        name: None if value is None else str(value) for name, value in expected.items()
    }
    assert (generate["--beam"], generate["--lenpen"], generate["--length-penalty"]) == (str(beam), str(penalty), "gnmt")
    assert "--rank-each-step" not in generate
    train, _ = commands(tmp_path, row["recipe"], *words, "--method", "causal")
    assert train["--finetune-method"] == "causal" and "--target-mask-prob" not in train


def test_the_share_of_the_target_that_is_masked(tmp_path):
    """Appendix A of s2s-ft: 40 to 70 %, searched for each task; the program gives that of CNN/DailyMail."""
    for task, share in (("cnn_dailymail", "0.7"), ("xsum", "0.5"), ("squad_qg", "0.5")):
        for method in ("pseudo_masked", "masked"):
            train, _ = commands(tmp_path, task, "--updates", 9, "--method", method)
            assert train["--target-mask-prob"] == share
    train, _ = commands(tmp_path, "cnn_dailymail", "--updates", 9, "--target-mask-prob", 0.4)
    assert train["--target-mask-prob"] == "0.4"
    train, _ = commands(tmp_path, "squad_qg", "--updates", 9, "--method", "infilling")
    assert "--target-mask-prob" not in train


@pytest.mark.parametrize("config", ['{"hidden_size": %d, "x": 1}', '{\n "sizes": {\n  "encoder_embed_dim": %d}\n}'])
def test_the_learning_rate_of_large_encoders(tmp_path, config):
    """Appendix A of s2s-ft: 1e-5 to 3e-5 in place of 5e-5 to 1e-4."""
    (tmp_path / "encoder").mkdir()
    for width, expected in ((768, "7e-5"), (1024, "2e-5")):
        (tmp_path / "encoder" / "config.json").write_text(config % width)
        words = ("--encoder", "encoder", "--updates", 9)
        train, _ = commands(tmp_path, "squad_qg", *words)
        assert train["--lr"] == expected
        assert commands(tmp_path, "squad_qg", *words, "--lr", "5e-5")[0]["--lr"] == "5e-5"
        assert commands(tmp_path, "gigaword", *words)[0]["--lr"] == "3e-5"  # within the range
        assert commands(tmp_path, "xgiga", *words, "--method", "deltalm")[0]["--lr"] == "3e-4"
        assert commands(tmp_path, "squad_qg", *words, "--preset", "unilmv2/squad-qg")[0]["--lr"] == "2e-5"


def commands(folder, task, *words, status=0):
    """Return the options of ``s2sft train`` and ``s2sft generate`` that a recipe shows."""
    done = call(folder, "recipe", task, "--dry-run", *words)
    assert done.returncode == status, done.stderr
    if status:
        return done.stderr
    train, *generate = (shlex.split(line) for line in done.stdout.splitlines())
    assert train[:2] == ["s2sft", "train"] and all(words[:2] == ["s2sft", "generate"] for words in generate)
    return options_of(train[3:]), *(options_of(words[2:]) for words in generate)


def options_of(words):
    """Return options by name; the last one counts."""
    found = {}
    for word, following in zip(words, [*words[1:], "--"], strict=True):
        if word.startswith("--"):
            found[word] = None if following.startswith("--") else following
    return found


@pytest.mark.parametrize("row", EACH, ids=lambda row: row["preset"])
def test_settings_of_a_preset(tmp_path, row):
    corpus = tmp_path / "out" / "corpus"
    corpus.mkdir(parents=True)
    (corpus / "train.src").write_text("a\n" * 1001)
    words = ("--preset", row["preset"], "--output", "out", "--device-batch", 8)
    train, generate = commands(tmp_path, row["recipe"], *words)
    batch = int(row["batch"])
    updates = int(row["epochs"]) * (1000 // batch + 1)
    expected = {
        "--finetune-method": "infilling",
        "--max-source-positions": row["max_src_len"],
        "--max-target-positions": str(int(row["max_tgt_len"]) - 1),
        "--update-freq": str(batch // 8),
        "--batch-size": "8",
        "--lr": row["lr"],
        "--max-update": str(updates),
        "--warmup-updates": str(int(float(row["warmup_proportion"]) * updates + 0.5)),
        "--noise-prob": row["noise_prob"],
        "--noise-symbol": None if row["noise_symbol"] == "-" else row["noise_symbol"],
        "--loss-tokens": None if row["loss_tokens"] == "-" else row["loss_tokens"],
        "--adam-eps": "1e-8",
        "--dropout": row["dropout"],
        "--label-smoothing": row["label_smoothing"],
        "--weight-decay": row["weight_decay"],
    }
    assert {name: train.get(name) for name in expected} == expected
    assert ("--num-roles" in train) == (row["recipe"] in ("coqa", "persona_chat"))
    expected = {
        "--beam": row["beam"],
        "--length-penalty": "gnmt",
        "--lenpen": row["length_penalty"],
        "--max-len-b": str(int(row["max_dec_len"]) - 1),
        "--rank-each-step": None,
        "--keep-unfinished": None,
    }
    assert generate.items() >= expected.items()
    assert not {"--min-len", "--no-repeat-ngram-size"} & generate.keys()


def test_the_command_line_wins(tmp_path):
    words = ("--preset", "large_430g/squad-qg", "--updates", 100)
    train, generate = commands(
        *(tmp_path, "squad_qg", *words, "--lr", 1, "--batch", 64, "--warmup", 7, "--noise-prob", 0.1),
        *("--noise-symbol", "[MASK]", "--max-source", 100, "--max-target", 20, "--decoding", "--beam 2 --lenpen 3"),
        *("--", "--dropout", 0.3),
    )
    expected = {"--lr": "1", "--update-freq": "4", "--warmup-updates": "7", "--noise-prob": "0.1"}
    expected |= {"--max-source-positions": "100", "--max-target-positions": "20", "--noise-symbol": "[MASK]"}
    assert train.items() >= (expected | {"--dropout": "0.3", "--label-smoothing": "0.1"}).items()
    assert (generate["--beam"], generate["--lenpen"]) == ("2", "3")
    assert "--rank-each-step" not in generate
    train, generate = commands(tmp_path, "squad_qg", *words, "--method", "causal")
    assert (train["--finetune-method"], train["--lr"], generate["--beam"]) == ("causal", "1.25e-5", "5")
    train, _ = commands(tmp_path, "squad_qg", *words, "--method", "pseudo_masked")
    assert "--noise-prob" not in train


def test_the_task_of_a_preset(tmp_path):
    """It sets the size of Gigaword; the defaults of the dialogue recipes can be changed."""
    train, _ = commands(tmp_path, "gigaword", "--preset", "large/gigaword-10k", "--updates", 9)
    assert train["--lr"] == "1e-5"
    train, _ = commands(tmp_path, "persona_chat", "--updates", 9)
    assert (train["--label-smoothing"], train["--source-truncation"]) == ("0.0", "right,left")
    train, _ = commands(tmp_path, "persona_chat", "--preset", "paper/large/persona-chat", "--updates", 9)
    assert train["--label-smoothing"] == "0.1"
    message = commands(tmp_path, "gigaword", "--preset", "large/coqa", "--updates", 9, status=2)
    names = [row["preset"] for row in ALL if row["recipe"] == "gigaword"]
    assert len(names) == 7
    assert message == f"error: --preset must be a preset of this recipe ({', '.join(names)}), but is large/coqa\n"


@pytest.mark.parametrize("task", [task for task in GENERATION if task != "wmt10"])
def test_infilling_without_a_preset(tmp_path, task):
    words = ("--method", "infilling", "--noise-prob", 0.6, "--updates", 50)
    train, _ = commands(tmp_path, task, *words)
    assert (train["--finetune-method"], train["--noise-prob"]) == ("infilling", "0.6")


@pytest.mark.parametrize("task", ["wmt10", "wikilingua", "webnlg", "xgiga", "xqg", "multi30k"])
def test_the_settings_of_deltalm(tmp_path, task):
    """Those of section 3.1 of the paper, in each recipe."""
    method = ("--method", "deltalm", *(("--langs", "fr", "--direction", "to-english") if task == "wmt10" else ()))
    train, generate = commands(tmp_path, task, *method, "--updates", 60000)
    assert (train["--task"], train["--arch"], train["--lr-scheduler"]) == ("deltalm_seq2seq", "deltalm", "inverse_sqrt")
    assert (train["--lr"], train["--warmup-updates"], train["--adam-betas"]) == ("3e-4", "4000", "(0.9, 0.98)")
    assert (train["--max-tokens"], train["--update-freq"], train["--label-smoothing"]) == ("4096", "128", "0.1")
    longest = "255" if task == "wmt10" else "80"
    assert (generate["--beam"], generate["--max-len-b"], train["--max-update"]) == ("5", longest, "60000")
    assert "--finetune-method" not in train and "--length-penalty" not in generate
    options = ("--lr", "1e-4", "--warmup", 7, "--device-tokens", 99, "--accumulate", 2, "--updates", 9)
    train, _ = commands(tmp_path, task, *method, *options)
    assert (train["--lr"], train["--warmup-updates"]) == ("1e-4", "7")
    assert (train["--max-tokens"], train["--update-freq"]) == ("99", "2")
    message = commands(tmp_path, task, *method, "--batch", 8, "--updates", 9, status=2)
    assert message == "error: --batch cannot be used with --method deltalm: leave it out\n"


@pytest.mark.parametrize(
    ("task", "limits"),
    [
        ("xqg", ("512", "512")),
        ("xgiga", ("512", "512")),
        ("squad_qg", ("512", "512")),
        ("cnn_dailymail", ("512", "512")),
        ("webnlg", ("256", "80")),
        ("wikilingua", ("512", "80")),
        ("iwslt14", ("256", "256")),
        ("wmt10", ("256", "256")),
    ],
)
def test_the_lengths_of_deltalm(tmp_path, task, limits):
    """The lengths of the paper, or else all positions: other methods' limits are for source and target together."""
    train, *_ = commands(tmp_path, task, "--method", "deltalm", "--updates", 9)
    assert (train["--max-source-positions"], train["--max-target-positions"]) == limits
    train, *_ = commands(tmp_path, task, "--method", "deltalm", "--updates", 9, "--max-target", 48)
    assert (train["--max-source-positions"], train["--max-target-positions"]) == (limits[0], "48")


def test_the_languages_of_zero_shot_transfer(tmp_path):
    """All languages of the paper's training and tests (section 3.3), unless some are named."""
    words = ("--method", "deltalm", "--train-lang", "en", "--updates", 9)
    train, generate = commands(tmp_path, "xgiga", *words, "--lang", "zh")
    assert (train["--lang-pairs"], train["--text-languages"], generate["--target-lang"]) == (
        "src-tgt:en",
        "en,fr,zh",
        "zh",
    )
    assert (train["--tokens-per-sample"], train["--max-source-positions"]) == ("512", "512")
    train, _ = commands(tmp_path, "xgiga", *words, "--text-langs", "en,fr")
    assert train["--text-languages"] == "en,fr"


@pytest.mark.parametrize(
    ("devices", "words", "expected"),
    [
        ("0", (), ("16", "4")),
        ("0,1", (), ("16", "2")),
        ("0,1,2,3,4,5,6,7", (), ("8", "1")),
        ("", ("--batch", 24), ("12", "2")),
        ("0,1", ("--batch", 24, "--device-batch", 8), ("6", "2")),
        ("0,1", ("--batch", 24, "--cpu"), ("12", "2")),
        ("", ("--batch", 8), ("8", "1")),
    ],
)
def test_a_batch_is_that_of_all_gpus(tmp_path, monkeypatch, devices, words, expected):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", devices)
    train, _ = commands(tmp_path, "e2e", "--updates", 50, "--batch", 64, *words)
    assert (train["--batch-size"], train["--update-freq"]) == expected
    train, _ = commands(tmp_path, "multi30k", "--method", "deltalm", "--updates", 50, "--accumulate", 6)
    assert train["--update-freq"] == {"0": "6", "": "6", "0,1": "3"}.get(devices, "1")


def test_deltalm_on_fewer_pairs_than_the_papers(tmp_path):
    """Batches are smaller, so that an epoch has a hundred updates, and a tenth of all updates is the warm-up."""
    corpus = tmp_path / "out" / "corpus"
    corpus.mkdir(parents=True)
    (corpus / "train.src").write_text("a" * 39 + "\n")
    (corpus / "train.tgt").write_text(("b" * 79 + "\n") * 100_000)  # 2,000,000 tokens
    train, _ = commands(tmp_path, "webnlg", "--output", "out")
    assert (train["--max-tokens"], train["--update-freq"], train["--max-epoch"]) == ("4096", "4", "10")
    assert train["--warmup-updates"] == str(10 * (2_000_000 // (4 * 4096) + 1) // 10)
    train, _ = commands(tmp_path, "webnlg", "--output", "out", "--accumulate", 128, "--warmup", 3)
    assert (train["--update-freq"], train["--warmup-updates"]) == ("128", "3")
    for direction, times in (("both", 2), ("to-english", 1)):
        for side in ("src", "tgt"):
            (corpus / "fr-en").mkdir(exist_ok=True)
            (corpus / "fr-en" / f"train.{side}").write_text(("b" * 79 + "\n") * 100_000)
        words = ("--langs", "fr", "--direction", direction, "--output", "out", "--epochs", 3)
        train, *_ = commands(tmp_path, "wmt10", *words)
        assert train["--update-freq"] == str(times * 2_000_000 // 409_600)
        assert train["--keep-last-epochs"] == "3"  # the average of all existing ones


def test_the_table_of_the_documentation():
    lines = (ROOT / "docs" / "ernie-gen.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| preset | follows | lengths |"))
    expected = []
    for row in ROWS:
        assert row["weight_decay"] == "0.01"  # the page says so for all presets
        lengths = "/".join(row[f"max_{part}_len"] for part in ("src", "tgt", "dec"))
        noise = row["noise_prob"] if row["noise_symbol"] == "-" else f"{row['noise_prob']} `{row['noise_symbol']}`"
        noise += ", loss there alone" if row["loss_tokens"] == "noised" else ""
        cells = (
            *(f"`{row['preset']}`", row["source"], lengths, row["batch"], row["epochs"], row["lr"]),
            *(row["warmup_proportion"], noise, row["dropout"], row["label_smoothing"], row["beam"]),
            row["length_penalty"],
        )
        expected.append(f"| {' | '.join(cells)} |")
    assert lines[start + 2 : start + 2 + len(ROWS) + 1] == [*expected, ""]


def test_the_table_of_unilmv2():
    lines = (ROOT / "docs" / "unilmv2.md").read_text(encoding="utf-8").splitlines()
    start = next(number for number, line in enumerate(lines) if line.startswith("| preset | lengths |"))
    names = ("batch", "epochs", "lr", "warmup_proportion", "beam", "length_penalty")
    expected = [
        f"| `{row['preset']}` | {row['max_src_len']}/{row['max_tgt_len']} | {' | '.join(row[name] for name in names)} |"
        for row in UNILMV2
    ]
    assert lines[start + 2 : start + 2 + len(UNILMV2) + 1] == [*expected, ""]
