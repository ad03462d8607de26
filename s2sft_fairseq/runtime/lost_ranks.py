"""Training with several ranks: when one is killed or hangs, the others end soon and name it.

Left alone, PyTorch waits for half an hour, and says which address does not answer, but not whose it is.
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
"""Seconds that a rank waits for another one in one exchange, unless ``--heartbeat-timeout`` says otherwise."""
_ANSWER = 5.0
"""Seconds that survivors have to report, once the exchange has failed for one of them."""
_KEY = "s2sft"


class _Ranks:
    """The other processes of this training."""

    seconds = TIMEOUT
    processes: tuple[tuple[str, int], ...] = ()
    """Host name and process id of each rank."""


def install() -> None:
    """Limit how long ranks wait for each other, and explain what follows when one is lost."""
    module = types.ModuleType(distributed.__name__)
    module.__dict__.update(vars(distributed))
    module.init_process_group = _init_process_group  # type: ignore[attr-defined]
    module.new_group = new_group  # type: ignore[attr-defined]
    distributed_utils.dist = module
    wrap(distributed_utils, "distributed_init", _init)
    wrap(distributed_utils, "call_main", _run)


def _init_process_group(*args: Any, **options: Any) -> None:
    """Stand in for ``init_process_group`` in fairseq/distributed/utils.py, with a time limit.

    Ranks that torchrun has started again find the addresses of those before them in its store (PyTorch 2.13), and wait
    for them: what they write there themselves gets a prefix.
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
    """Make a group of ranks with the same time limit; PyTorch's own is half an hour on CPUs."""
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
    """Patch ``call_main`` of fairseq/distributed/utils.py, which runs a command, in several processes if need be."""
    call(cfg, _Rank(main), **options)


class _Rank:
    """What a rank does, and who is lost where that fails."""

    def __init__(self, main: Function) -> None:
        self.main = main

    def __reduce__(self) -> Any:
        """Let a process that fairseq starts for a GPU install the patches before it meets the other ranks."""
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
    """Return which ranks do not take part any more."""
    found: dict[int, str] = {}
    # A store whose process stands still never answers.
    asking = threading.Thread(target=_ask_survivors, args=(found,), daemon=True)
    asking.start()
    asking.join(2 * _ANSWER)
    if asking.is_alive():
        found = {0: _state(0)}  # it has the store, unless torchrun has it
    named = {rank: state for rank, state in found.items() if state} or dict.fromkeys(found, "does not answer")
    if not named:
        return "an exchange with the other ranks has failed"
    return " and ".join(
        f"rank {rank} (process {_Ranks.processes[rank][1]} on {_Ranks.processes[rank][0]}) {state}"
        for rank, state in named.items()
    )


def _ask_survivors(found: dict[int, str]) -> None:
    """Report that this rank has failed in an exchange, and find those that do not report it: they, or some, are lost.

    Args:
        found: is filled with the state of each of these ranks, "" where it cannot be told.
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
    """Return what is wrong with the process of a rank, if it is on this machine and can be told."""
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
