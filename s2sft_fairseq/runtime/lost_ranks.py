"""Training with several ranks: if one is killed or hangs, the others end soon and name it.

Without this module, PyTorch waits for half an hour, and its error names an address, but not the rank.
"""

import os
import socket
import threading
import time
import types
from datetime import timedelta
from typing import Any

from fairseq.distributed import utils as distributed_utils
from torch import distributed
from torch.distributed.rendezvous import rendezvous

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import Function, wrap

TIMEOUT = 600
"""Default of ``--heartbeat-timeout``: the seconds that a rank waits for the others in one collective operation."""
_ANSWER = 5.0
"""Seconds for the survivors to report, after the operation failed on one of them."""
_KEY = "s2sft"


class _Ranks:
    """The processes of this training."""

    seconds = TIMEOUT
    processes: tuple[tuple[str, int], ...] = ()
    """Host name and process id of each rank."""


def install() -> None:
    """Limit how long ranks wait for each other, and explain the error when one is lost."""
    module = types.ModuleType(distributed.__name__)
    module.__dict__.update(vars(distributed))
    module.init_process_group = _init_process_group  # type: ignore[attr-defined]
    module.new_group = new_group  # type: ignore[attr-defined]
    distributed_utils.dist = module
    wrap(distributed_utils, "distributed_init", _init)
    wrap(distributed_utils, "call_main", _run)


def _init_process_group(*args: Any, **options: Any) -> None:
    """Replace ``init_process_group`` in fairseq/distributed/utils.py, with a time limit.

    Ranks that torchrun restarted find the addresses of the earlier ranks in its store (PyTorch 2.13), and wait for
    these. So after a restart, the keys get a prefix.
    """
    options["timeout"] = timedelta(seconds=_Ranks.seconds)
    attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    if attempt != "0" and options.get("init_method") == "env://":
        meeting = rendezvous(options.pop("init_method"), options["rank"], options["world_size"])
        store, _, _ = next(meeting)
        store.set_timeout(options["timeout"])
        options["store"] = distributed.PrefixStore(f"attempt_{attempt}", store)
    distributed.init_process_group(*args, **options)


def new_group(*args: Any, **options: Any) -> Any:
    """Return a group of ranks with the same time limit; PyTorch's default is half an hour on CPUs."""
    return distributed.new_group(*args, **{**options, "timeout": timedelta(seconds=_Ranks.seconds)})


def _init(init: Function, cfg: Any) -> int:
    """Patch ``distributed_init`` of fairseq/distributed/utils.py: remember the process of each rank."""
    given = cfg.distributed_training.heartbeat_timeout
    _Ranks.seconds = given if given > 0 else TIMEOUT
    rank: int = init(cfg)
    store = _store()
    store.set(f"{_KEY}/process/{rank}", f"{os.getpid()} {socket.gethostname()}")
    answers = [store.get(f"{_KEY}/process/{other}").decode() for other in range(distributed.get_world_size())]
    _Ranks.processes = tuple((host, int(pid)) for pid, host in (answer.split(" ", 1) for answer in answers))
    return rank


def _run(call: Function, cfg: Any, main: Function, **options: Any) -> None:
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command in one or several processes."""
    call(cfg, _Rank(main), **options)


class _Rank:
    """The main function of a rank; if a collective operation fails, its error names the lost ranks."""

    def __init__(self, main: Function) -> None:
        self.main = main

    def __reduce__(self) -> Any:
        """Make a process that fairseq starts for a GPU install the patches before it joins the other ranks."""
        return _in_a_new_process, (self.main,)

    def __call__(self, *args: Any, **options: Any) -> Any:
        try:
            return self.main(*args, **options)
        except RuntimeError as error:
            if not (distributed.is_available() and distributed.is_initialized() and _is_of_an_exchange(error)):
                raise
            raise UserError(
                f"rank {distributed.get_rank()} ends, for {_lost()}. Ranks wait {_Ranks.seconds} s for each other "
                "(--heartbeat-timeout); the last checkpoint is whole"
            ) from error


def _in_a_new_process(main: Function) -> _Rank:
    from s2sft_fairseq import runtime

    runtime.install()
    return _Rank(main)


def _is_of_an_exchange(error: RuntimeError) -> bool:
    return isinstance(error, distributed.DistError) or "gloo" in str(error).lower()


def _lost() -> str:
    """Return a text that names the lost ranks."""
    found: dict[int, str] = {}
    # A store whose process is stopped never answers.
    asking = threading.Thread(target=_ask_survivors, args=(found,), daemon=True)
    asking.start()
    asking.join(2 * _ANSWER)
    if asking.is_alive():
        found = {0: _state(0)}  # rank 0 has the store, unless torchrun has it
    named = {rank: state for rank, state in found.items() if state} or dict.fromkeys(found, "does not answer")
    if not named:
        return "an exchange with the other ranks has failed"
    return " and ".join(
        f"rank {rank} (process {_Ranks.processes[rank][1]} on {_Ranks.processes[rank][0]}) {state}"
        for rank, state in named.items()
    )


def _ask_survivors(found: dict[int, str]) -> None:
    """Report that this rank survives, and find the ranks that do not report: some or all of them are lost.

    Args:
        found: receives the state of each of these ranks, "" if it is unknown.
    """
    own = distributed.get_rank()
    others = [rank for rank in range(len(_Ranks.processes)) if rank != own]
    try:
        store = _store()
        store.set(f"{_KEY}/survives/{own}", "")
        until = time.monotonic() + _ANSWER
        while time.monotonic() < until and not any(found.values()):
            missing = [rank for rank in others if not store.check([f"{_KEY}/survives/{rank}"])]
            found.clear()
            found.update({rank: _state(rank) for rank in missing})
            time.sleep(0.1)
    except RuntimeError:  # the store was at rank 0
        found.clear()
        found[0] = _state(0)


def _state(rank: int) -> str:
    """Return whether the process of a rank has ended or is stopped; "" if neither, or if it is on another machine."""
    host, pid = _Ranks.processes[rank]
    if host != socket.gethostname():
        return ""
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii", errors="replace") as file:
            letter = file.read().rpartition(")")[2].split()[0]
    except OSError:
        return "has ended" if os.path.isdir("/proc/self") else ""
    return {"T": "is stopped", "t": "is stopped", "Z": "has ended", "X": "has ended"}.get(letter, "")


def _store() -> Any:
    return distributed.distributed_c10d._get_default_store()
