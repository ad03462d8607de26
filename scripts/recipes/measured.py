"""Run a command and add a line to a file: the command, its exit status, its seconds, its peak memory, the commit.

python scripts/recipes/measured.py commands.jsonl COMMAND ...
"""

import json
import resource
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def main() -> int:
    """Returns the exit status of the command."""
    log, command = Path(sys.argv[1]), sys.argv[2:]
    git = ["git", "-C", str(ROOT), "describe", "--always", "--dirty"]
    commit = ""
    if (ROOT / ".git").exists() and shutil.which("git"):  # neither of an installed package
        commit = subprocess.run(git, capture_output=True, text=True).stdout.strip()
    start = time.perf_counter()
    process = subprocess.Popen(command)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C goes to the command as well, which ends in its own way
    status = process.wait()
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    record = {
        "command": command,
        "status": status,
        "seconds": round(time.perf_counter() - start, 1),
        "peak_memory_gb": round(usage.ru_maxrss * 1024 / 1e9, 2),  # of its largest process
        "commit": commit,
    }
    log.parent.mkdir(parents=True, exist_ok=True)
    with log.open("a", encoding="utf-8") as file:
        file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return status


if __name__ == "__main__":
    sys.exit(main())
