"""Signals where fairseq starts a process per GPU; tests/end_to_end/test_resume.py covers a single process."""

import signal
import threading
from types import SimpleNamespace

import pytest
from fairseq_cli import train
from torch.multiprocessing.spawn import ProcessExitedException

from s2sft_fairseq.runtime import preemption
from s2sft_fairseq.signals import handled


def test_signals_reach_the_processes_of_gpus(monkeypatch):
    """Processes that load data get none, and Ctrl-C reaches all processes by itself."""
    sent = []
    children = [SimpleNamespace(pid=7, daemon=False), SimpleNamespace(pid=8, daemon=True)]
    monkeypatch.setattr(preemption.multiprocessing, "active_children", lambda: children)
    monkeypatch.setattr(preemption.os, "kill", lambda *args: sent.append(args))
    preemption._pass_on(signal.SIGTERM, None)
    preemption._pass_on(signal.SIGINT, None)
    assert sent == [(7, signal.SIGTERM)]


def test_ctrl_c_before_the_first_update():
    with pytest.raises(KeyboardInterrupt):
        preemption._pass_on(signal.SIGINT, None)


@pytest.mark.parametrize("status", [75, 130, 1])
def test_their_exit_status_is_that_of_the_training(status):
    def call(cfg, main):
        raise ProcessExitedException("", error_index=0, error_pid=7, exit_code=status)

    with pytest.raises(SystemExit if status != 1 else ProcessExitedException) as error:
        preemption._run(call, None, train.main)
    assert status == 1 or error.value.code == status


def test_other_threads_handle_no_signals():
    found = []

    def ask():
        with handled(preemption._ask):
            found.append(signal.getsignal(signal.SIGTERM))

    thread = threading.Thread(target=ask)
    thread.start()
    thread.join()
    assert found == [signal.getsignal(signal.SIGTERM)]
