"""scripts/test_rounding.sh, test_newest.sh and test_lowest.sh, with stand-ins for the set-up, the tests and Python."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

pytestmark = pytest.mark.process
ROOT = Path(__file__).resolve().parents[2]
SET_UP = """echo "setup ${PYTHON:-} ${VENV:-.venv}" >>calls.txt
[ -z "${PYTHON:-}" ] || [ -z "${BROKEN:-}" ] || { echo "no wheel of PyTorch"; exit 1; }
"""
TEST = """echo "test ${VENV:-.venv} ${PYTHON:-} ${ATEN_CPU_CAPABILITY:-} ${MKL_CBWR:-} $*" >>calls.txt
exit ${STATUS:-0}
"""
# The checksum of its roundings is that of ATEN_CPU_CAPABILITY.
PYTHON = """#!/bin/sh
case "$*" in *version_info*) echo {version} ;; *) echo "${{ATEN_CPU_CAPABILITY:-none}}" ;; esac
"""


def write_python(path: Path, version: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(PYTHON.format(version=version))
    path.chmod(0o755)
    return path


@pytest.fixture
def run(tmp_path):
    """Run a script with the Pythons in `versions` on PATH or pyenv's; return exit status, output and its calls."""
    checkout = tmp_path / "checkout"
    (checkout / "scripts").mkdir(parents=True)
    write_python(checkout / ".venv/bin/python", "3.11.7")
    (checkout / "scripts/setup.sh").write_text(SET_UP)
    (checkout / "scripts/test.sh").write_text(TEST)
    pyenv = tmp_path / "pyenv"
    for minor in (12, 13, 14):  # as pyenv's for a version that is not selected
        path = write_python(tmp_path / f"path/python3.{minor}", "")
        path.write_text("#!/bin/sh\nexit 127\n")

    def run(name, path=(), versions=(), **environment):
        shutil.copy(ROOT / "scripts" / name, checkout / "scripts")
        for version in path:
            write_python(tmp_path / "path" / f"python{version.rpartition('.')[0]}", version)
        for version in versions:
            write_python(pyenv / f"versions/{version}/bin/python", version)
        variables = {**os.environ, "PATH": f"{tmp_path}/path:{os.environ['PATH']}", "PYENV_ROOT": str(pyenv)}
        for variable in ("VENV", "PYTHON", "PYTHON_NEWEST", "ATEN_CPU_CAPABILITY", "MKL_CBWR"):
            variables.pop(variable, None)
        command = ["bash", str(checkout / "scripts" / name)]
        done = subprocess.run(command, env=variables | environment, capture_output=True, text=True)
        calls = (checkout / "calls.txt").read_text().splitlines()
        return done.returncode, done.stdout + done.stderr, calls

    return run


def test_settings_with_another_rounding_run(run):
    status, output, calls = run("test_rounding.sh")
    assert status == 0, output
    tested = [line for line in calls if line.startswith("test ")]
    assert [line.split()[2] for line in tested] == ["default", "avx2"] and all("-m rounding" in line for line in tested)
    told = dict(line.split(" ", 3)[1:3] for line in output.splitlines() if line.startswith("rounding: "))
    assert told["ATEN_CPU_CAPABILITY=default"] == "changes"
    assert told["MKL_CBWR=COMPATIBLE"] == "skipped:"


def test_a_failure_under_one_setting_fails_the_script(run):
    status, output, calls = run("test_rounding.sh", STATUS="1")
    assert status == 1 and "passed" not in output and len(calls) == 2


@pytest.mark.parametrize(
    ("found", "chosen"),
    [
        ({"path": ["3.12.4"], "versions": ["3.13.0"]}, "3.13.0"),
        ({"path": ["3.13.5"], "versions": ["3.12.1"]}, "3.13.5"),
        ({"path": ["3.12.4"]}, "3.12.4"),
        ({"path": ["3.13.5"], "versions": ["3.14.1"]}, "3.14.1"),
    ],
)
def test_the_newest_python_is_found(run, found, chosen):
    status, output, calls = run("test_newest.sh", **found)
    assert status == 0, output
    assert calls[0] == "setup  .venv"
    assert calls[1].startswith("setup ") and calls[1].endswith(" .venv-newest")
    (tested,) = calls[2:]
    assert tested.startswith("test .venv-newest ") and "tests/runtime" in tested
    assert output.splitlines()[-1] == f"newest: passed on Python {chosen}"


@pytest.mark.parametrize("version", [None, "3.11.9"])
def test_no_newer_python(run, tmp_path, version):
    named = {"PYTHON_NEWEST": str(write_python(tmp_path / "named", version))} if version else {}
    status, output, calls = run("test_newest.sh", **named)
    assert status == 0 and calls == ["setup  .venv"]
    assert "3.11.7" in output and "passed" not in output


def test_a_missing_environment_is_a_failure(run):
    status, output, calls = run("test_newest.sh", versions=["3.13.1"], BROKEN="1")
    assert status == 0 and not [line for line in calls if line.startswith("test ")]
    assert "no wheel of PyTorch" in output
    assert output.splitlines()[-1].startswith("newest: NOT TESTED on Python 3.13.1")


def test_a_failure_on_the_newest_python(run):
    status, output, _ = run("test_newest.sh", versions=["3.13.0"], STATUS="1")
    assert status == 1 and "passed" not in output


def test_a_named_python_that_does_not_run(run):
    status, output, calls = run("test_newest.sh", PYTHON_NEWEST="/no/such/python")
    assert status == 1 and calls == ["setup  .venv"]
    assert "PYTHON_NEWEST=/no/such/python" in output


def lowest_environment(checkout, status):
    """Write constraints, and a Python whose environments run tests with a status; installing fails if it is 3."""
    for name in ("constraints.txt", "constraints-lowest.txt"):
        (checkout / name).write_text(f"{name}==1\n")
    stand_in = f"""#!/bin/sh
case "$*" in
*purelib*) mkdir -p site; echo site ;;
*"-m venv"*) mkdir -p .venv-lowest/bin; cp "$0" .venv-lowest/bin/python ;;
*install*) echo "install $*" >>calls.txt; [ {status} != 3 ] || exit 1 ;;
*pytest*) echo "pytest $*" >>calls.txt; exit {status} ;;
esac
"""
    (checkout / ".venv/bin/python").write_text(stand_in)
    (checkout / "tests/tokenization").mkdir(parents=True)


@pytest.mark.parametrize(
    ("status", "code", "last"),
    [
        (0, 0, "lowest: passed with the lowest versions"),
        (1, 1, None),
        (3, 0, "lowest: NOT TESTED with the lowest versions: no environment could be made, for the reason above"),
    ],
)
def test_the_lowest_versions(run, tmp_path, status, code, last):
    lowest_environment(tmp_path / "checkout", status)
    found, output, calls = run("test_lowest.sh")
    assert found == code, output
    assert "install " in calls[1] and "packages.txt" in calls[1]
    assert (tmp_path / "checkout/.venv-lowest/packages.txt").read_text() == "constraints-lowest.txt==1\n"
    runs = [line.split() for line in calls[2:]]
    assert len(runs) == (0 if status == 3 else 1)
    for words in runs:
        # Only the folder that exists is run; the two cases that are left out follow it.
        paths = [word for word in words if word.startswith("tests/")]
        assert paths[0] == "tests/tokenization"
        assert all("::" in path for path in paths[1:])
    assert last is None or output.splitlines()[-1] == last
