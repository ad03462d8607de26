"""The pages: commands and options in examples exist, Python compiles, links and paths lead to files and headings."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from s2sft_fairseq.cli import COMMANDS

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
EXAMPLES = [path for path in PAGES if path.name != "CHANGELOG.md"]
# Options that options.txt lacks: those of every command, and what comes with --lr-scheduler and --bpe.
FURTHER = {
    "": {"--help", "--list"},
    "train": {"--total-num-update", "--warmup-init-lr"},
    "interactive": {"--tokenizer-dir"},
}
# Options whose value is options of another command.
NESTED = {"--layout": "train", "--decoding": "generate", "--scoring": "evaluate"}


def known_options() -> dict[str, dict[str, str]]:
    """Return the options of each command (``recipe e2e``, ``train``) in ``options.txt``, with their values."""
    known = {name: dict.fromkeys(FURTHER[""], "") for name in COMMANDS}
    for line in (ROOT / "tests" / "golden" / "options.txt").read_text(encoding="utf-8").splitlines():
        where, names, values = f"{line} | ".split(" | ")[:3]
        command = where.partition(" --")[0]
        for name in names.split(", ") if names.startswith("-") else ():
            known.setdefault(command, dict(known[command.split()[0]]))[name] = values
    for command in COMMANDS:
        known[command] |= dict.fromkeys(FURTHER.get(command, ()), "")
    return known


KNOWN = known_options()


def blocks(path: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", path.read_text(encoding="utf-8"), re.M | re.S)


def command_lines(text: str) -> Iterator[list[str]]:
    """Yield the words after ``s2sft`` or ``-m s2sft_fairseq``, up to the end of each command."""
    for line in text.replace("\\\n", " ").splitlines():
        lexer = shlex.shlex(re.sub(r"(^|\s)#.*", "", line), posix=True, punctuation_chars=True)
        lexer.whitespace_split, lexer.commenters = True, ""
        words = list(lexer) if "s2sft" in line else []
        for place, word in enumerate(words):
            if word == "s2sft" or (word == "s2sft_fairseq" and words[place - 1] == "-m"):
                rest = words[place + 1 :]
                ends = [index for index, each in enumerate(rest) if not each.strip("();<>|&")]
                yield rest[: ends[0]] if ends else rest
            elif " s2sft" in word:  # bash -c '...'
                yield from command_lines(word)


def mistakes(command: str, words: list[str]) -> Iterator[str]:
    """Yield each command, option and choice that does not exist."""
    below = f"{command} {words[0]}" if words else ""
    known = KNOWN[below if below in KNOWN else command]
    if not known.keys() - FURTHER[""] and command != "hydra-train" and words[:1] != ["--list"]:
        yield f"s2sft {below}"
        return
    for place, word in enumerate(words):
        name, _, value = word.partition("=")
        if word == "--":
            yield from mistakes("train", words[place + 1 :])
            return
        if place and (nested := NESTED.get(words[place - 1])):
            yield from mistakes(nested, word.split())
        elif re.match(r"--?[a-zA-Z]", word) and name not in known:
            yield f"s2sft {command} {name}"
        elif found := re.search(r"one of (.*?)(?:;|$)", known.get(name, "")):
            value = value or "".join(words[place + 1 : place + 2])
            choices = found[1].split(", ")
            if "fairseq's" not in choices and "$" not in value and value not in choices:
                yield f"s2sft {command} {name} {value}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_commands_and_options_exist(path):
    wrong = []
    for block in blocks(path, "bash"):
        for command, *words in command_lines(block):
            wrong += mistakes(command, words) if command in COMMANDS else [f"s2sft {command}"]
    assert wrong == []


@pytest.mark.parametrize("words", ["train d --pretraned e", "nothing", "recipe e3e --raw d", "finetune -- --lr-rate 1"])
def test_mistakes_are_found(words):
    ((command, *rest),) = command_lines(f"CUDA_VISIBLE_DEVICES=0 s2sft {words} && echo done")
    assert command not in COMMANDS or list(mistakes(command, rest))


def test_python_compiles():
    for path in EXAMPLES:
        for block in blocks(path, "python"):
            is_entry = block.lstrip().startswith('"')  # of a dict
            compile(f"{{{block}}}" if is_entry else block, str(path), "exec")


def prose(path: Path) -> str:
    return re.sub(r"^```.*?^```", "", path.read_text(encoding="utf-8"), flags=re.M | re.S)


def anchors(path: Path) -> set[str]:
    """Return the anchors of the headings, as GitHub makes them."""
    found: set[str] = set()
    for heading in re.findall(r"^#+ +(.*?) *$", prose(path), re.M):
        text = re.sub(r"\[(.*?)\]\(.*?\)", r"\1", heading).lower()
        slug = re.sub(r"[^\w\- ]", "", text).replace(" ", "-")
        number = next(number for number in range(99) if (f"{slug}-{number}" if number else slug) not in found)
        found.add(f"{slug}-{number}" if number else slug)
    return found


@pytest.mark.parametrize("path", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(path):
    broken = []
    for target in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"`[^`\n]*`", "", prose(path))):
        name, _, anchor = target.partition("#")
        file = path.parent / name if name else path
        if ":" not in name and (not file.exists() or (anchor and anchor not in anchors(file))):
            broken.append(target)
    assert broken == []


def test_named_files_exist():
    """In the pages' inline code, and pages that are named in code. Migration pages name files of other projects."""
    missing = []
    for path in EXAMPLES:
        for name in re.findall(r"`([\w-]+/[\w/-]+\.(?:py|sh))`", prose(path)):
            if path.parent.name != "migration" and not {*ROOT.glob(name), *ROOT.glob(f"s2sft_fairseq/**/{name}")}:
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    sources = [path for folder in ("s2sft_fairseq", "scripts", "benchmarks") for path in (ROOT / folder).rglob("*")]
    for path in (path for path in sources if path.suffix in (".py", ".sh")):
        for name in re.findall(r"docs/[\w/-]+\.md", path.read_text(encoding="utf-8")):
            if not (ROOT / name).is_file():
                missing.append(f"{path.relative_to(ROOT)}: {name}")
    assert missing == []
