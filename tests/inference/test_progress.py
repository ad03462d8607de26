"""Without a terminal, progress goes to the log, at time intervals."""

import logging

from s2sft_fairseq.inference import files
from s2sft_fairseq.inference.files import sentence_progress


def test_lines_of_the_log(monkeypatch, caplog, capsys):
    monkeypatch.setattr(files, "_SECONDS_BETWEEN_LINES", 0)
    caplog.set_level(logging.INFO)
    # Without those left by a command in another test.
    monkeypatch.setattr(logging.getLogger(), "handlers", [caplog.handler])
    with sentence_progress(100, 20) as shown:
        for _ in range(4):
            shown.update(20)
    lines = [record.getMessage() for record in caplog.records]
    # The end has a line of its own.
    assert [line.partition(", ")[0] for line in lines] == [f"{number} of 100 sentences" for number in (40, 60, 80)]
    assert all(" sentences/s, " in line and line.endswith(" left") for line in lines)
    assert capsys.readouterr() == ("", "")


def test_a_bar_on_a_terminal(monkeypatch, capsys):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True, raising=False)
    with sentence_progress(100, 20) as shown:
        shown.update(80)
    assert "100/100" in capsys.readouterr().err
    with sentence_progress(100, 20, bar=False) as shown:
        shown.update(80)
    assert capsys.readouterr().err == ""
