"""The text of a UserError reaches the user, wherever it is raised and whatever wraps it."""

import os
import pickle
import sys
import traceback

import pytest
import torch

from s2sft_fairseq import errors
from s2sft_fairseq.errors import UserError, about, install_excepthook, user_error_text


def test_several_problems_are_a_line_each():
    error = UserError.of(["one", "two"])
    assert str(error) == "2 problems:\n  - one\n  - two"
    assert error.problems == ["one", "two"]
    assert str(UserError.of(["one"])) == "one"
    assert str(UserError.of(["one"], heading="nothing was written:")) == "nothing was written:\n  - one"
    assert UserError("alone").problems == ["alone"]


def test_a_place_is_named_once():
    for text in ("too large", "model.pt: too large"):
        with pytest.raises(UserError, match=r"^model\.pt: too large$"), about("model.pt"):
            raise UserError(text)
    with pytest.raises(UserError, match=r"^too large$") as raised, about(None):
        raise UserError("too large", ["large"])
    assert raised.value.problems == ["large"]


def test_survives_pickling():
    error = pickle.loads(pickle.dumps(UserError.of(["one", "two"])))
    assert str(error) == "2 problems:\n  - one\n  - two"
    assert error.problems == ["one", "two"]


def raised(raise_it):
    with pytest.raises(Exception) as caught:
        raise_it()
    return caught.value


def test_found_as_the_context_of_an_exception_of_fairseq():
    def as_in_fairseq_trainer():
        try:
            raise UserError("the dictionary has 5 symbols\nthe checkpoint 7")
        except Exception:
            raise Exception("Cannot load model parameters")  # noqa: B904

    assert user_error_text(raised(as_in_fairseq_trainer)) == "the dictionary has 5 symbols\nthe checkpoint 7"


def test_no_text_for_other_exceptions():
    def hidden():
        try:
            raise UserError("dealt with")
        except UserError:
            raise ValueError("the real one") from None

    assert user_error_text(raised(hidden)) is None
    assert user_error_text(ValueError("UserError was not raised")) is None


def test_found_in_the_traceback_of_a_worker():
    def wrapped():
        try:
            raise UserError("line one\nline two")
        except UserError:
            raise Exception("Cannot load model parameters")  # noqa: B904

    try:
        wrapped()
    except Exception:
        text = traceback.format_exc()
    assert text.count("Traceback") == 2
    remote = torch.multiprocessing.ProcessRaisedException(f"\n\n-- Process 0 terminated:\n{text}", 0, 1)
    assert user_error_text(remote) == "line one\nline two"


class Rejecting(torch.utils.data.Dataset):
    def __len__(self):
        return 1

    def __getitem__(self, index):
        raise UserError("example 0 is bad\nsay why")


@pytest.mark.process
def test_found_in_the_exception_of_a_data_loading_worker():
    loader = torch.utils.data.DataLoader(Rejecting(), num_workers=1, multiprocessing_context="fork")
    error = raised(lambda: list(loader))
    assert "Traceback" in str(error)
    assert user_error_text(error) == "example 0 is bad\nsay why"


SPAWNING = """
import torch
from errors import UserError, install_excepthook

def work(rank):
    raise UserError('first line\\nsecond line')

if __name__ == '__main__':
    install_excepthook()
    torch.multiprocessing.spawn(work, nprocs=1)
"""


def test_spawned_process_reports_without_a_traceback(run_process, tmp_path):
    (tmp_path / "spawning.py").write_text(SPAWNING)
    # The module alone: importing the whole package takes seconds, in each of the two processes.
    done = run_process(sys.executable, "spawning.py", status=1, PYTHONPATH=os.path.dirname(errors.__file__))
    assert done.stderr == "error: first line\nsecond line\n"


def test_excepthook_prints_the_text_alone(monkeypatch, capsys):
    others = []
    monkeypatch.setattr(sys, "excepthook", lambda *error: others.append(error[1]))
    install_excepthook()
    hook = sys.excepthook
    install_excepthook()
    assert sys.excepthook is hook
    hook(UserError, UserError("only this"), None)
    assert capsys.readouterr().err == "error: only this\n"
    other = ValueError("not ours")
    hook(ValueError, other, None)
    assert others == [other]
    assert capsys.readouterr().err == ""
