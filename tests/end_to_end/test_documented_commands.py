"""The commands and the Python of the README and the pages, run as they are printed, with tiny encoders and texts.

Bash reads a block and passes the words of each command on. They then run in order, in this process. What takes long is
made short by options that are added at the end; see `SHORT`. `NOT_RUN` lists what cannot run here, with the reason.
"""

import gzip
import json
import os
import re
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import raw_corpora
import torch
from called import call
from hugging_face import save, their_model
from official_deltalm import write_official
from processes import ROOT

pytest.importorskip("transformers", reason="makes the tiny encoders")
pytestmark = [pytest.mark.slow, pytest.mark.process]

PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
TRAINED = ("--cpu", "--max-update", "2", "--warmup-updates", "1", "--update-freq", "1", "--max-tokens", "2000")
IN_PROCESS = ("--num-workers", "0", "--cpu")
SHORT = {
    "train": TRAINED,
    "finetune": ("--updates", "2", "--batch", "4", "--cpu"),
    "generate": ("--cpu", "--overwrite"),
    "predict": ("--cpu",),
    "recipe": ("--smoke", "--cpu"),
    "pretrain": ("--updates", "2", "--device-tokens", "2000", "--", "--update-freq", "1", *IN_PROCESS),
    "interactive": ("--cpu", "--input", "raw.txt"),
}
NOT_RUN = {
    "pip": "would change the environment",
    "curl": "needs the server, which tests/serve run",
    "s2sft serve": "does not end; tests/serve run it",
    "torchrun": "needs several GPUs or machines; tests/runtime/test_several_ranks.py starts ranks",
    "srun": "needs SLURM",
    "scontrol": "needs SLURM",
    "ray": "needs a cluster",
    "bash": "the scripts of the README run in CI",
    "python": "experiments of hours",
    "s2sft generate --engine ray": "starts Ray, as tests/end_to_end/test_generate_ray.py does",
}
PYTHON_NOT_RUN = {
    "Classifier": "needs two more trainings; tests/end_to_end/test_classification.py calls one",
    "trust_remote_code": "would write code to the user's cache; tests/exports/test_self_contained.py runs these lines",
    '"bart"': "needs an export of DeltaLM; tests/commands/test_export_deltalm.py loads one",
    '"graph"': "needs an export; tests/exports/test_onnx.py loads one",
    "urlopen": "needs the server, which tests/serve run",
    "Benchmark(": "an excerpt of the package",
    "load_spans": "names objects that the text describes",
}
"""Part of a block of Python, and the reason."""
DELTALM = """
    s2sft convert deltalm --to pretrained
    s2sft tokenize --tokenizer-dir pretrained --output-dir tokens --input raw/train.en raw/train.de
    s2sft preprocess -s en -t de --srcdict pretrained/dict.txt --joined-dictionary --destdir en-de \\
        --trainpref tokens/train
    s2sft train en-de --arch deltalm --pretrained pretrained --disable-validation
    """
LANGUAGES = """
    s2sft convert path/to/infoxlm-base --to encoder --add-language-tokens en,de,fr,zh --sentinels 100
    s2sft tokenize --tokenizer-dir encoder --output-dir tokens --input raw/{train,valid,test}.{src,tgt,en,de,fr,zh}
    for l in en de fr zh; do cp tokens/train.$l tokens/$l.txt; cp tokens/valid.$l tokens/$l.valid.txt; done
    """
DIRECTIONS = """
    for pair in src-tgt en-fr; do
        s2sft preprocess -s ${pair%-*} -t ${pair#*-} --srcdict encoder/dict.txt --joined-dictionary --destdir data \\
            --trainpref tokens/train --validpref tokens/valid --testpref tokens/test
    done
    for l in fr zh; do
        s2sft preprocess --only-source --srcdict encoder/dict.txt --destdir data/$l \\
            --trainpref tokens/$l.txt --validpref tokens/$l.valid.txt
    done
    """
CHECKPOINTS = """
    for n in 1 2 3 4 5; do
        cp checkpoints/checkpoint_last.pt checkpoints/checkpoint_1_${n}000.pt
        cp checkpoints/checkpoint_last.pt checkpoints/checkpoint.best_loss_$n.0000.pt
    done
    """
ENGLISH = """
    s2sft tokenize --tokenizer-dir pretrained --output-dir tokens --input raw/{train,valid}.{src,tgt}
    s2sft preprocess -s src -t tgt --srcdict pretrained/dict.txt --joined-dictionary --destdir data \\
        --trainpref tokens/train --validpref tokens/valid
    for l in en fr; do for part in $l.txt $l.valid.txt; do cp tokens/train.en-fr.$l tokens/$part; done; done
    """
RUNS = """
    mkdir runs
    for run in e2e e2e-blocks; do cp -r out runs/$run; done
    cp -r out/binarized data-bin
    cp -r encoder ENCODER
    """
PREPARED = [
    ("docs/doctor.md", "s2sft doctor", RUNS),
    ("docs/plots.md", "plot training", RUNS),
    ("docs/howto/exports.md", "--format ctranslate2", DELTALM),
    ("docs/exports.md", "--to bart", DELTALM),
    ("docs/deltalm.md", "path/to/infoxlm-base", LANGUAGES),
    ("docs/deltalm.md", "en-de,de-en", DIRECTIONS),
    ("docs/deltalm.md", "average", CHECKPOINTS),
    ("docs/howto/multilingual.md", "--text-languages", ENGLISH),
    ("docs/howto/lora.md", "moved/encoder", "mkdir moved; cp -r encoder moved/encoder"),
    ("docs/ernie-gen.md", "--rank-each-step", "s2sft train data --pretrained encoder --finetune-method infilling"),
    ("docs/evaluation.md", "other.out", "cp test.out other.out"),
]
"""Page, part of a block, and commands that run before this block."""
BERTS = ("bert-base-uncased", "vocab", "path/to/bert-base-uncased", "path/to/unilm1.2-base-uncased", "ernie-gen-large")
ENCODERS = {
    **dict.fromkeys((*BERTS, "path/to/ernie-gen-base", "path/to/ernie-gen-large"), "bert"),
    **dict.fromkeys(("xlm-roberta-base", "infoxlm-base", "path/to/infoxlm-base"), "xlm-roberta"),
    "path/to/roberta-base": "roberta",
    "MINILM": "bert-no-head",
    "ModernBERT-base": "modernbert",
}
CORPORA = {
    **{name: getattr(raw_corpora, name) for name in ("squad", "coqa", "xsum", "iwslt14", "gigaword", "multi30k")},
    **{"cnndm": raw_corpora.cnn_dailymail, "personachat": raw_corpora.persona_chat, "GLUE": raw_corpora.glue},
    "SQuAD": raw_corpora.squad_reading,
    "sumdata": raw_corpora.gigaword,
}


def blocks(page: Path, language: str = "bash") -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", page.read_text(encoding="utf-8"), re.M | re.S)


def commands(block: str, folder: Path) -> list[list[str]]:
    """Return the words of each command of a block, as bash passes them on."""
    names = ["s2sft", "cp", "ls", "cat", "chmod", "export", *(name for name in NOT_RUN if " " not in name)]
    # In one write, which a line end would break: commands in the background record at the same time.
    record = r"""{ printf '%%s\0' %s "$@" $'\1' >> "$CALLS"; }"""
    functions = "".join(f"{name}() {record % name}\n" for name in names if name != "cat")
    # With words it joins files that do not exist yet; without any it writes an example, which stays.
    functions += f"cat() {{ if [ $# = 0 ]; then command cat; else {record % 'cat'}; fi; }}\n"
    calls = folder / "calls"
    calls.write_bytes(b"")
    done = subprocess.run(
        ["bash", "-c", functions + block],
        cwd=folder,
        env={**os.environ, "CALLS": str(calls), "SLURM_ARRAY_TASK_ID": "0", "SLURM_JOB_ID": "1"},
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stderr
    return [words.split("\0")[:-1] for words in calls.read_text(encoding="utf-8").split("\1\0")[:-1]]


def is_run(words: list[str]) -> bool:
    """Return whether no entry of `NOT_RUN` names this command."""
    return not any(
        words[: len(name.split())] == name.split() or (" --" in name and name in " ".join(words)) for name in NOT_RUN
    )


def run(words: list[str], folder: Path) -> None:
    """Run a command; it must succeed."""
    if words[0] != "s2sft":
        if words[0] == "cp":
            subprocess.run(["bash", "-c", " ".join(words)], cwd=folder, check=True)  # which knows the new files
        return
    command, *options = (word for word in words[1:] if word != "...")
    if command == "train" and "..." in words and "--pretrained" not in options:
        options += ["--pretrained", "encoder"]  # the dots stand for it
    short = list(SHORT.get(command, ()))
    if command == "pretrain" and "--encoder" not in options:
        short += ["--arch", "unilm_tiny"]
    if "--text-languages" in options:
        short += ["--tokens-per-sample", "20"]
    if "unilm_base" in options:
        short += ["--arch", "unilm_tiny"]
    if options[:1] == ["attention"]:
        short += ["--target", "w5"]  # targets of the tiny model have at most two tokens
    if command == "generate" and "--input" not in options:
        short = ["--cpu", "--num-workers", "0"]
    remove_written(command, options, folder)
    if command == "finetune" and "--" in options:
        place = options.index("--")
        options[place:place] = short
    elif not (command == "recipe" and "--dump-config" in options):
        options += short  # the last one of an option counts
    done = call(folder, command, *options)
    if "--dump-config" in options:
        (folder / "mine.toml").write_text(done.stdout)
    assert done.returncode == 0, f"s2sft {command} {' '.join(options)}\n{done.stdout[-1500:]}\n{done.stderr[-3000:]}"


def remove_written(command: str, options: list[str], folder: Path) -> None:
    """Remove what another page has written under the name that a command writes to."""
    option = {"train": "--save-dir", "convert": "--to", "export": "--to"}.get(command, "--output")
    if command in ("train", "convert", "export", "finetune", "recipe", "pretrain", "prepare"):
        default = "recipes-out" if command == "recipe" else "checkpoints"
        written = options[options.index(option) + 1] if option in options else default
        shutil.rmtree(folder / written, ignore_errors=True)


@pytest.fixture(scope="session")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the encoders, texts and corpora that the pages name."""
    folder = tmp_path_factory.mktemp("world")
    for name, family in ENCODERS.items():
        save(family, their_model(family, max_position_embeddings=600), folder / name)
        if family.startswith("bert"):  # whose tokenizer has no full stop
            vocabulary = (folder / name / "vocab.txt").read_text(encoding="utf-8").splitlines()
            raw_corpora.write_lines(folder / name / "vocab.txt", [*vocabulary[:-1], "."])
    letters = folder / "path/to/roberta-base" / "vocab.json"
    letters.write_text(letters.read_text(encoding="utf-8").replace('"Q"', '"."'), encoding="utf-8")
    for name in ("path/to/ckpt-30000", "path/to/ckpt-32000"):  # as the program of s2s-ft saves a model
        (folder / name).mkdir(parents=True)
        bert = their_model("bert", max_position_embeddings=600)
        weights = bert.state_dict()
        weights["cls.predictions.decoder_weight"] = weights["bert.embeddings.word_embeddings.weight"].clone()
        weights["crit_mask_lm_smoothed.one_hot"] = torch.zeros(1, bert.config.vocab_size)
        torch.save(weights, folder / name / "pytorch_model.bin")
        bert.config.save_pretrained(folder / name)
    for name in ("deltalm", "path/to/deltalm", "mine"):
        (folder / name).mkdir(parents=True)
        write_official(folder / name)
    shutil.copy(folder / "deltalm/deltalm-base.pt", folder / "deltalm.pt")
    (folder / "mine/deltalm-base.pt").rename(folder / "mine/checkpoint_best.pt")
    for name, writer in CORPORA.items():
        writer(folder / name)
    texts = [f"w{number % 40 + 5} w{number % 7 + 5} w{number % 11 + 5} ." for number in range(40)]
    targets = [f"w{number % 7 + 5} ." for number in range(40)]
    rows = [{"src": a, "tgt": b, "passage": a, "answer": b, "question": b} for a, b in zip(texts, targets, strict=True)]
    lines = "".join(f"{json.dumps(row)}\n" for row in rows)
    for split in ("train", "valid", "test", "new", "pairs"):
        for place in (folder, folder / "raw"):
            raw_corpora.write(place / f"{split}.jsonl", lines)
    for split in ("train", "valid", "test"):
        for side, text in (("src", texts), ("tgt", targets), *((side, texts) for side in ("en", "de", "fr", "zh"))):
            for place in (folder, folder / "raw"):
                raw_corpora.write_lines(place / f"{split}.{side}", text)
        for side in ("txt", "passage", "answer", "question"):
            raw_corpora.write_lines(folder / "raw" / f"{split}.{side}", texts)
        for pair in ("en-de", "en-fr"):
            for side in pair.split("-"):
                for place in ("raw", "pairs"):
                    raw_corpora.write_lines(folder / place / f"{split}.{pair}.{side}", texts)
        for place in ("books", "texts/en", "texts/de", "texts/fr"):
            raw_corpora.write_lines(folder / place / f"{split}.txt", texts)
        raw_corpora.write_lines(folder / f"{split}.target", targets)
        raw_corpora.write_lines(folder / f"src-{split}.txt", texts)
        raw_corpora.write_lines(folder / f"tgt-{split}.txt", targets)
    for name in ("train", "test"):
        (folder / "raw" / f"{name}.jsonl.gz").write_bytes(gzip.compress(lines.encode()))
    for name in ("sources", "histories", "all", "raw", "texts/a", "books/a"):
        raw_corpora.write_lines(folder / f"{name}.txt", texts)
    raw_corpora.write(folder / "test.multi.jsonl", "".join(f"{json.dumps({'refs': [a]})}\n" for a in targets))
    raw_corpora.write_lines(
        folder / "dialogues.tsv", [f"{a} [SEP] {a}\t{b}" for a, b in zip(texts, targets, strict=True)]
    )
    for block in blocks(ROOT / "README.md"):
        for words in commands(block, folder):
            if is_run(words):
                run(words, folder)
    shutil.copy(folder / "checkpoints/checkpoint_best.pt", folder / "checkpoint.pt")
    return folder


@pytest.fixture
def folder(world: Path, tmp_path: Path) -> Iterator[Path]:
    """Return a copy of the world."""
    shutil.copytree(world, tmp_path / "world", symlinks=True)
    return tmp_path / "world"


def name_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=name_of)
def test_the_commands_of_a_page(page, folder, world):
    for name in re.findall(r"--destdir (\S+)", "".join(blocks(page))):
        shutil.rmtree(folder / name, ignore_errors=True)  # of the README
    run_here = 0
    for block in blocks(page):
        before = [lines for name, part, lines in PREPARED if name == name_of(page) and part in block]
        found = commands("\n".join([*before, block]), folder)
        shutil.copy(world / "pairs.jsonl", folder)  # an example in a page has fewer pairs than are needed
        for words in found:
            if is_run(words):
                run(words, folder)
                run_here += words[0] == "s2sft"
    if not run_here:
        pytest.skip("no command of this page can run here")


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "python")], ids=name_of)
def test_the_python_of_a_page(page, folder, monkeypatch, capsys):
    monkeypatch.chdir(folder)
    pairs = [(f"w{number} w{number + 1} .", f"w{number} .") for number in range(5, 45)]
    found = [block for block in blocks(page, "python") if not any(part in block for part in PYTHON_NOT_RUN)]
    for block in found:
        if "finetune(" in block:
            shutil.rmtree("out")  # of the README
        capsys.readouterr()
        exec(block.replace('("a source", "its target"), ...', "*pairs"), {"pairs": pairs})
        assert capsys.readouterr().out.strip()
    if not found:
        pytest.skip("no Python of this page can run here")
