"""The yardstick of language models at tiny size: its slots, its plain training, whole cells, and its tables."""

import json
import sys
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace

import language_models
import language_models_cell
import language_models_plain
import language_models_table
import pytest
import torch
from e2e_slots import Faults, faults, rates
from fairseq.registry import REGISTRIES
from hugging_face import write_tokenizer
from language_model import write_start
from language_models_task import Cell, key_of, load
from records import read_records, write_records

SOURCE = "name[Raja Indian Cuisine], food[French], area[city centre], near[Café Rouge], familyFriendly[yes]"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Raja Indian Cuisine near cafe rouge is French, in the city center.", Faults((), False)),
        ("In the centre of the city, near Café  Rouge: raja indian cuisine (french)", Faults((), False)),
        ("Raja Indian Cuisine serves Italian food near Café Rouge in the city centre", Faults(("food",), True)),
        ("A French place", Faults(("name", "near", "area"), False)),
        ("", Faults(("name", "near", "food", "area"), False)),
    ],
)
def test_faults(text, expected):
    assert faults(SOURCE, text) == expected
    assert expected.none == (not expected.missing and not expected.other_food)


def test_rates_of_texts():
    texts = ["The Mill serves Chinese food", "The Mill", "at the mill"]
    assert rates(["name[The Mill]"] * 3, texts) == {"without fault": [0, 1, 1], "other food": [1, 0, 0]}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Data sets of a few pairs, and a language model as a converted folder and as a folder of transformers."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    folder = tmp_path_factory.mktemp("yardstick")
    pairs = [(f"name[w{5 + number}], near[w{6 + number}]", f"w{5 + number} w{6 + number}") for number in range(30)]
    for name in ("e2e", "gigaword"):
        (folder / "data" / name).mkdir(parents=True)
        for split in ("train", "valid", "test"):
            for place, side in enumerate(("src", "tgt")):
                lines = "".join(f"{pair[place]}\n" for pair in pairs)
                (folder / "data" / name / f"{split}.{side}").write_text(lines)
    rows = [json.dumps({"src": source, "refs": [target, "w5"]}) for source, target in pairs]
    (folder / "data" / "e2e" / "test.multi.jsonl").write_text("\n".join(rows) + "\n")
    write_start(folder / "ours")
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    torch.manual_seed(0)
    config = transformers.LlamaConfig(vocab_size=50, bos_token_id=0, eos_token_id=1, pad_token_id=1, **sizes)
    transformers.LlamaForCausalLM(config).save_pretrained(folder / "plain")
    write_tokenizer("llama", folder / "plain")
    names = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|end_of_text|>"}
    (folder / "plain" / "tokenizer_config.json").write_text(json.dumps(names))
    return folder


def a_cell(folder, output, **changes):
    fields = {
        **{"system": "transformers", "start": "plain", "set": "e2e", "pairs": 20, "minutes": 0.01, "seed": 1},
        **{"sources": 5, "alone": 2, "batch": 4, "threads": 1, "options": ()},
        **{"data": str(folder / "data"), "output": str(output)},
        **changes,
    }
    return Cell(path=str(folder / fields["start"]), **fields)


def test_data(folder, tmp_path):
    """The pairs of a smaller training set are among those of a larger one; other seeds have others."""
    few, many = load(a_cell(folder, tmp_path)), load(a_cell(folder, tmp_path, pairs=0))
    assert len(few.train.source) == len(few.train.target) == 20 and len(many.train.source) == 30
    assert many.train.source[:20] == few.train.source
    assert load(a_cell(folder, tmp_path, seed=2)).train != few.train
    assert few.references[0] == ["w5 w6", "w5"] and len(few.sources) == 5 and len(few.valid.source) == 30
    assert load(a_cell(folder, tmp_path, set="gigaword")).references[0] == ["w5 w6"]


def test_the_plain_loss(folder, tmp_path):
    """It is that of transformers on unpadded pairs, averaged over all target tokens."""
    start = language_models_plain.open_start(folder / "plain")
    pairs = language_models_plain.examples(start, load(a_cell(folder, tmp_path)))[:3]
    pairs = [(source, target[-size:]) for (source, target), size in zip(pairs, (2, 3, 5), strict=True)]
    total = 0.0
    for source, target in pairs:
        labels = torch.tensor([[-100] * len(source) + target])
        total += start.model(input_ids=torch.tensor([source + target]), labels=labels).loss.item() * len(target)
    found = language_models_plain.loss_of(start.model, pairs, start.end)
    assert found.item() == pytest.approx(total / sum(len(target) for _, target in pairs), rel=1e-5)
    rates_of = [language_models_plain.rate_at(share, 2.0) for share in (0.0, 0.05, 0.1, 0.55, 1.0, 1.1)]
    assert rates_of == pytest.approx([0, 1, 2, 1, 0, 0])


def test_padding_changes_no_plain_text(folder, tmp_path, monkeypatch):
    monkeypatch.setattr(language_models_plain, "LONGEST", 6)
    texts_of = language_models_plain.load(a_cell(folder, tmp_path), folder / "plain")
    sources = ["w5", "w6 w7 w8", "w9 w10"]
    assert texts_of(sources, 3) == texts_of(sources, 1)


@pytest.fixture(scope="module")
def in_this_process():
    """Run phases here, and forget the schedule that this registers."""
    pytest.importorskip("language_models_ours")

    def run(cell, phase):
        work = {"train": language_models_cell.train, "generate": language_models_cell.generate}[phase]
        return work(cell, Path(cell.output) / "models" / cell.name)

    yield run
    registered = REGISTRIES["lr_scheduler"]
    for kind in ("registry", "dataclass_registry"):
        registered[kind].pop("by_time", None)


@pytest.fixture(scope="module")
def measured(folder, tmp_path_factory, in_this_process):
    """The records of a cell of this package and of one of transformers, with the same pairs."""
    output = tmp_path_factory.mktemp("measured")
    records = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(language_models_plain, "LONGEST", 6)
        for system, start in (("ours", "ours"), ("transformers", "plain")):
            cell = a_cell(folder, output, system=system, start=start, minutes=0.05)
            records.append({**asdict(cell), "run": "now", **language_models_cell.measure(cell, in_this_process)})
            assert len((output / "texts" / f"{cell.name}.txt").read_text().splitlines()) == 5
            assert not (output / "models" / cell.name).exists()
    write_records(output / "cells.json", records)
    return output


def test_cells(measured):
    for record in read_records(measured / "cells.json"):
        assert record["updates"] >= 1 and 0.5 < record["training_seconds"] < record["whole_seconds"]
        names = ("training_peak_bytes", "peak_bytes", "disk_bytes", "text_seconds", "batch_text_seconds")
        assert all(record[name] > 0 for name in names)


def test_tables(folder, measured, monkeypatch, capsys):
    """What is done is not measured again. Scores are of the texts; differences have intervals."""
    words = ["--data", folder / "data", "--output", measured, "--sets", "e2e", "squad_qg", "--pairs", 20, "--seeds", 1]
    words += ["--minutes", 0.05, "--sources", 5, "--alone", 2, "--batch", 4, "--threads", 1]
    words += ["--start", f"ours={folder / 'ours'}", f"plain={folder / 'plain'}", "gone=nowhere", "--systems"]
    words += ["ours", "plain-transformers", "gone", "other", "plain-llama.cpp", "--baseline", "plain-transformers"]
    monkeypatch.setattr(sys, "argv", ["language_models.py", *map(str, words)])
    monkeypatch.setitem(language_models.PACKAGES, "llama.cpp", ("no_such_package",))
    for name in ("measure", "commit"):  # both would start a process
        monkeypatch.setattr(f"records.{name}", lambda *_: None)
    language_models.main()
    printed = capsys.readouterr()
    assert "left out: squad_qg: " in printed.err and "squad_qg/train.src is missing" in printed.err
    assert "left out: gone: --start gone: there is no nowhere\n" in printed.err
    assert "left out: other: give --start other=PATH\n" in printed.err
    assert "left out: plain-llama.cpp: the package no_such_package is not installed\n" in printed.err
    assert (measured / "tables.md").read_text() == printed.out.removesuffix("\n")
    rows = [line.strip("| ").split(" | ") for line in printed.out.splitlines() if line.startswith("| e2e")]
    assert [row[:5] for row in rows[:2]] == [
        ["e2e", "20", "0.05", "ours", "1"],
        ["e2e", "20", "0.05", "plain-transformers", "1"],
    ]
    texts = (measured / "texts" / "e2e-20-0.05min-ours-ours-seed1.txt").read_text().split("\n")[:-1]
    sources = load(a_cell(folder, measured)).sources
    assert rows[0][8] == f"{20 * sum(rates(sources, texts)['without fault']):.1f}"
    assert len(rows) == 3 and rows[2][3] == "ours" and " to " in rows[2][4] and rows[2][-1].endswith("x")


def test_names_of_systems_and_keys(folder, tmp_path):
    assert language_models.split_name("smollm2-peft") == ("smollm2", "peft")
    assert language_models.split_name("smollm2-llama.cpp") == ("smollm2", "llama.cpp")
    assert language_models.split_name("all-mpnet") == ("all-mpnet", "ours")
    named = a_cell(folder, tmp_path, system="ours", options=("--lr", "3e-4"))
    assert named.name == "e2e-20-0.01min-plain-ours-lr-3e4-seed1"
    assert language_models_table.system_of(asdict(named)) == "plain --lr 3e-4"
    one, other = (asdict(a_cell(folder, tmp_path / name)) for name in ("one", "other"))
    assert key_of(one) == key_of(other) == key_of(json.loads(json.dumps(one)))
    assert key_of(one) != key_of(asdict(a_cell(folder, tmp_path, seed=2)))


def test_llama_cpp(folder, tmp_path, monkeypatch):
    """It generates with the file as it is."""
    problems = list(language_models.system_problems("tiny", "llama.cpp", {"tiny": str(folder)}))
    assert problems[-1] == "--start tiny must be a .gguf file"
    (folder / "tiny.gguf").write_bytes(b"GGUF")
    calls = []

    class Llama:
        def __init__(self, model_path, **_):
            self.path = model_path

        def create_completion(self, prompt, **how):
            calls.append((self.path, prompt, how["temperature"]))
            return {"choices": [{"text": " two \n words"}]}

    monkeypatch.setitem(sys.modules, "llama_cpp", SimpleNamespace(Llama=Llama))
    cell = a_cell(folder, tmp_path, system="llama.cpp", start="tiny.gguf")
    assert language_models_cell.train(cell, tmp_path)["updates"] == 0
    found = language_models_cell.generate(cell, tmp_path)
    assert calls[0] == (str(folder / "tiny.gguf"), "name[w5], near[w6]\n=> ", 0.0)
    assert found["words"] == 2 and found["disk_bytes"] == 4


def test_adapters_of_peft(folder, tmp_path):
    """They are merged: the saved model is one of transformers, in which only the adapted weights differ."""
    pytest.importorskip("peft", reason="peft is not installed")
    cell = a_cell(folder, tmp_path, system="peft")
    found = language_models_plain.train(cell, load(cell), tmp_path / "model")
    assert found["updates"] >= 1
    before, after = (
        language_models_plain.open_start(path).model.state_dict() for path in (folder / "plain", tmp_path / "model")
    )
    changed = {name for name, value in after.items() if not torch.equal(value, before[name])}
    adapted = {name for name in before if name.split(".")[-2] in language_models_plain.ADAPTED}
    assert before.keys() == after.keys() and changed and changed <= adapted
