"""The software of a machine."""

import configparser
import re
from importlib.metadata import PackageNotFoundError
from pathlib import Path

import pytest

from s2sft_fairseq.diagnosis import machine
from s2sft_fairseq.diagnosis.machine import FAIRSEQ, PACKAGES, VARIABLES, examine_software
from s2sft_fairseq.diagnosis.report import Report
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.evaluation.evaluate import METRICS

SETUP = Path(__file__).resolve().parents[2] / "setup.cfg"


@pytest.fixture
def options():
    parser = configparser.ConfigParser()
    parser.read(SETUP, encoding="utf-8")
    return parser


@pytest.fixture(autouse=True)
def metrics(monkeypatch):
    """Metrics that start no process."""
    for name in machine.PROGRAMS.values():
        monkeypatch.setitem(METRICS, name, lambda *_: None)


def installed(monkeypatch, **versions):
    """Let exactly these packages be installed."""

    def version(name):
        if (found := versions.get(name.replace("-", "_"))) is None:
            raise PackageNotFoundError(name)
        return found

    monkeypatch.setattr(machine, "version", version)


def examined():
    report = Report()
    examine_software(report)
    return report


def test_the_packages_are_those_that_setup_declares(options):
    """All extras but those for the demo, the site and the tests of this package."""
    declared = {
        extra: [re.sub(r"[\[>=].*", "", line) for line in text.split("\n") if line and not line.startswith("#")]
        for extra, text in options["options.extras_require"].items()
        if extra not in ("demo", "docs", "test")
    }
    assert {extra: list(packages) for extra, packages in PACKAGES.items()} == declared


def test_the_version_of_fairseq_is_that_which_setup_declares(options):
    assert f"fairseq-fixed=={FAIRSEQ}" in options["options"]["install_requires"]


def test_missing_packages_are_notes(monkeypatch):
    installed(monkeypatch, torch="2.13.0", fairseq_fixed=FAIRSEQ, matplotlib="3.11")
    report = examined()
    assert report.facts["versions"]["fairseq"] == [f"fairseq-fixed {FAIRSEQ}"]
    assert report.facts["optional packages"]["matplotlib"] == "3.11, for s2sft plot"
    assert report.facts["optional packages"]["ray"] is None
    (note,) = [note for note in report.notes if note.startswith("ray ")]
    assert "s2sft generate --engine ray" in note and "pip install 's2sft_fairseq[ray]'" in note
    assert not report.problems


@pytest.mark.parametrize(
    ("versions", "stated"),
    [
        ({"fairseq": "0.12.2"}, ["the original 0.12.2", "pip uninstall fairseq,"]),
        ({"fairseq_fixed": "0.12.3"}, ["but is 0.12.3:"]),
        ({}, ["is not installed"]),
        ({"fairseq": "0.12.2", "fairseq_fixed": FAIRSEQ}, ["the same files", "pip uninstall fairseq fairseq-fixed"]),
    ],
)
def test_another_fairseq_is_a_problem(monkeypatch, versions, stated):
    installed(monkeypatch, **versions)
    (problem,) = examined().problems
    assert all(words in problem for words in [*stated, f"pip install fairseq-fixed=={FAIRSEQ}"])


def test_a_metric_whose_program_is_missing(monkeypatch):
    def lacks(*_):
        raise UserError("--metrics meteor needs Java")

    monkeypatch.setitem(METRICS, "meteor", lacks)
    report = examined()
    assert report.facts["metrics with programs"]["meteor"] is False
    assert report.facts["metrics with programs"]["perl_rouge"] is True
    assert "--metrics meteor needs Java" in report.notes


def test_the_environment(monkeypatch):
    for name in VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert examined().facts["environment"] == {}
    monkeypatch.setenv("S2SFT_SKIP_CHECKSUMS", "1")
    report = examined()
    assert report.facts["environment"] == {"S2SFT_SKIP_CHECKSUMS": "1 (checksums are not compared)"}
    assert any("unset it" in note for note in report.notes)
