"""scripts/setup.sh: what it reuses, what it makes again, and its errors. A stand-in for Python installs nothing."""

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[1]
SOURCES = ("constraints.txt", "setup.cfg", "pyproject.toml", "scripts/setup.sh")
STAND_IN = """#!/usr/bin/env bash
case "$*" in
    *_base_executable*) echo "${{VERSION:-3.11.7}} {path}" ;;
    "-m venv "*) echo venv >>"{calls}"; mkdir -p "$3/bin"; cp "{path}" "$3/bin/python" ;;
    "-m pip "*) echo "$*" >>"{calls}"; [[ $* != *"${{FAILS:-nothing}}"* ]] || {{ echo "cannot"; exit 1; }} ;;
    *"import s2sft_fairseq"* | *importlib.metadata*) echo ready ;;
    *) exec "{real}" "$@" ;;
esac
"""


@pytest.fixture
def checkout(tmp_path) -> Path:
    """A folder with what the script reads, and a space in its name; calls.txt next to it lists what was installed."""
    folder = tmp_path / "a checkout"
    for name in SOURCES:
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    python = tmp_path / "python"
    python.write_text(STAND_IN.format(path=python, calls=tmp_path / "calls.txt", real=sys.executable))
    python.chmod(0o755)
    return folder


def start(checkout: Path, **environment) -> subprocess.Popen:
    """Start the script, with the stand-in for Python unless PYTHON is given."""
    variables = {**os.environ, "PYTHON": str(checkout.parent / "python"), "VENV": "", **environment}
    variables.pop("COVERAGE_PROCESS_CONFIG", None)  # the script runs no module of the package
    command = ["bash", str(checkout / "scripts" / "setup.sh")]
    return subprocess.Popen(command, env=variables, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)


def set_up(checkout: Path, **environment) -> tuple[int, str]:
    """Run the script; return its exit status and output."""
    process = start(checkout, **environment)
    output, _ = process.communicate()
    return process.returncode, output


def calls(checkout: Path) -> list[str]:
    return (checkout.parent / "calls.txt").read_text().splitlines()


def test_makes_the_environment_and_reuses_it(checkout):
    status, output = set_up(checkout)
    assert status == 0, output
    assert "ready after" in output
    assert not (checkout / ".venv" / "setup-work").exists()
    before = calls(checkout)
    assert set_up(checkout) == (0, f"setup: {checkout / '.venv'} is current\n")
    assert calls(checkout) == before


def test_installs_torch_before_everything_that_could_bring_another(checkout):
    set_up(checkout)
    installs = [line for line in calls(checkout) if line.startswith("-m pip install")]
    torch = next(i for i, line in enumerate(installs) if " torch==" in line)
    assert all("--no-deps" in line for i, line in enumerate(installs) if i != torch)
    assert [re.findall(r"(\S+)==", line) for line in installs[:torch]] == [["numpy", "setuptools", "cython"]]
    builds = [line for line in calls(checkout) if line.startswith("-m pip wheel") or line.endswith(" -e .")]
    assert len(builds) == 2 and all("--no-build-isolation" in line for line in builds)


def test_makes_the_environment_anew_when_a_source_changes(checkout):
    set_up(checkout)
    with open(checkout / SOURCES[0], "a") as file:
        file.write("# changed\n")
    status, output = set_up(checkout)
    assert status == 0, output
    assert calls(checkout).count("venv") == 2


def test_makes_the_environment_anew_when_the_folder_has_moved(checkout):
    set_up(checkout)
    moved = checkout.rename(checkout.parent / "elsewhere")
    assert set_up(moved)[0] == 0
    assert calls(moved).count("venv") == 2


@pytest.mark.parametrize(
    ("fails", "step", "log"),
    [
        ("wheel", "rest of the build", "setup-build.log"),
        (" torch==", "PyTorch", "setup.log"),
        ("others.txt", "other packages", "setup.log"),
    ],
)
def test_failed_step_shows_its_log_and_is_done_again(checkout, fails, step, log):
    status, output = set_up(checkout, FAILS=fails)
    path = checkout / ".venv" / log
    assert status == 1
    assert f"    cannot\nsetup: error: {step} failed; the lines above are the last of {path}\n" in output
    assert path.read_text() == "cannot\n"
    assert "ready after" in set_up(checkout)[1]
    assert calls(checkout).count("venv") == 2


def test_two_at_once_install_once(checkout):
    both = [start(checkout), start(checkout)]
    outputs = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0], outputs
    assert calls(checkout).count("venv") == 1
    assert sum("is current" in output for output in outputs) == 1


@pytest.mark.parametrize("version", ["3.11.0", "3.14.0"])
def test_every_supported_python(checkout, version):
    status, output = set_up(checkout, VERSION=version)
    assert status == 0, output


@pytest.mark.parametrize("version", ["3.10.4", "3.15.0"])
def test_error_of_an_unsuitable_python(checkout, version):
    python = checkout.parent / "python"
    status, output = set_up(checkout, VERSION=version)
    assert status == 1
    assert f"setup: error: Python 3.11 to 3.14 is needed, but {python} is Python {version}; install one" in output


def test_error_of_no_python(checkout):
    status, output = set_up(checkout, PYTHON="/no/such/python")
    assert status == 1
    assert "setup: error: Python 3.11 to 3.14 is needed, but none of /no/such/python runs" in output


def test_finds_the_only_suitable_python_by_its_name(checkout):
    names = checkout.parent / "names"
    names.mkdir()
    for name, version in (("python3", "3.10.4"), ("python3.13", "3.13.2")):
        (names / name).write_text(f'#!/bin/sh\nVERSION={version} exec {checkout.parent / "python"} "$@"\n')
        (names / name).chmod(0o755)
    for name in ("python3.11", "python3.12"):
        (names / name).write_text("#!/bin/sh\nexit 127\n")  # as pyenv's for a version that is not selected
        (names / name).chmod(0o755)
    status, output = set_up(checkout, PYTHON="", PATH=f"{names}:{os.environ['PATH']}")
    assert status == 0, output


def test_another_folder_for_the_environment(checkout, tmp_path):
    folder = f"{tmp_path}/a folder"
    status, output = set_up(checkout, VENV=folder)
    assert status == 0, output
    assert (checkout / folder / "setup-stamp").exists() and not (checkout / ".venv").exists()
    assert set_up(checkout, VENV=folder) == (0, f"setup: {checkout / folder} is current\n")
    assert calls(checkout).count("venv") == 1


def test_a_folder_that_it_did_not_make_is_left_as_it_is(checkout):
    (checkout / "mine").mkdir()
    (checkout / "mine" / "file").write_text("text")
    status, output = set_up(checkout, VENV="mine")
    assert status == 1
    assert f"setup: error: {checkout / 'mine'} was not made by this script" in output and "VENV=" in output
    assert (checkout / "mine" / "file").read_text() == "text"


def test_error_of_no_compiler(checkout):
    status, output = set_up(checkout, CC="/no/such/cc", CXX="/no/such/c++ -pthread")
    assert status == 1
    assert "no C++ compiler: /no/such/cc is not there" in output
    assert "no C++ compiler: /no/such/c++ -pthread is not there" in output
    assert not (checkout / ".venv").exists()
