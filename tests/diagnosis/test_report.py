"""Findings as text and as JSON."""

import json

import pytest

from s2sft_fairseq.diagnosis.report import Report
from s2sft_fairseq.errors import UserError


def test_text():
    report = Report({"CPU": {"cores": 1234, "fast": True, "names": ["a", "b"], "none": [], "absent": None}}, ["a note"])
    assert report.text().splitlines() == [
        "CPU",
        "  cores   1,234",
        "  fast    yes",
        "  names   a, b",
        "  none    none",
        "  absent  missing",
        "notes",
        "  - a note",
    ]
    assert Report().text() == ""


def test_json():
    report = Report({"CPU": {"name": "ü", "absent": None}}, ["a note"], ["a problem"])
    assert json.loads(report.json()) == {
        "facts": {"CPU": {"name": "ü", "absent": None}},
        "notes": ["a note"],
        "problems": ["a problem"],
    }
    assert "ü" in report.json()


def test_problems_are_collected_once():
    report = Report()
    for problems in (["one", "two"], ["two", "three"]):
        with report.collected():
            raise UserError.of(problems)
    assert report.problems == ["one", "two", "three"]
    with pytest.raises(ValueError), report.collected():
        raise ValueError
