"""Side effects that importing the plugin must not have."""

import subprocess
import sys

import pytest

PROGRAM = """
import logging
{before}
import s2sft_fairseq.plugin
root = logging.getLogger()
print(root.level, len(root.handlers))
logging.getLogger("matplotlib").debug("noise")
"""


def printed(before=""):
    command = [sys.executable, "-c", PROGRAM.format(before=before)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return done.stdout


@pytest.mark.process
def test_the_log_is_not_changed():
    assert printed() == "30 0\n"
    assert printed("logging.basicConfig(level=logging.ERROR)") == "40 1\n"
