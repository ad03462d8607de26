"""`s2sft serve`: a model over HTTP, with batching of concurrent requests, limits, and a page to try it.

Only this machine can reach it, unless --host names another address; that needs a key, or --open-to-all.
"""

import argparse
import importlib.util
import logging
import signal
import socket
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.hub import is_hub_name, path_or_name
from s2sft_fairseq.serve.settings import HIGHEST_PORT, LOCAL_NAMES, Access, Limits, limit_problems, read_key

logger = logging.getLogger(__name__)

LIMITS = {
    "max_batch": "sources that go through the model together, and most of one request",
    "max_wait_ms": "milliseconds that a request waits for others to join its batch",
    "max_queue": "sources that wait for the model; further requests get 429",
    "max_concurrency": "requests that are open at once; further ones get 503",
    "max_body": "bytes of a request; larger ones get 413",
    "max_length": "characters of a source or target; longer ones get 413",
    "max_tokens": "tokens that a request may ask for as max_len",
    "max_beam": "the largest beam that a request may ask for",
    "timeout": "seconds for a request; then it gets 504",
}


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line until SIGTERM, SIGHUP, SIGUSR1 or Ctrl-C; then finish the running requests.

    Raises:
        UserError: naming everything that is wrong with the options, or the model.
    """
    options = _parser().parse_args(arguments)
    if problems := _problems(options):
        raise UserError.of(problems)
    key = read_key(options.api_key_file) if options.api_key_file else None
    address = bind(options.host, options.port)  # before the model, which takes longer to load
    from s2sft_fairseq import Seq2Seq  # imports PyTorch, which --help does not need

    model = Seq2Seq.from_pretrained(
        options.model, options.tokenizer_dir, device=options.device, dtype=options.dtype, quantize=options.quantize
    )
    run(model, options, key, address)


def bind(host: str, port: int) -> socket.socket:
    """Return a socket that is bound to an address and does not listen yet.

    Raises:
        UserError: if the address is in use, or does not belong to this machine.
    """
    from s2sft_fairseq.serve.connections import prompt_socket  # imports uvicorn, an extra

    address = prompt_socket(socket.AF_INET6 if ":" in host else socket.AF_INET)
    try:
        address.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        address.bind((host, port))
    except (OSError, UnicodeError, TypeError) as error:  # the last two for names that DNS cannot have
        address.close()
        reason = getattr(error, "strerror", None) or error
        raise UserError(f"--host {host} and --port {port} are no free address: {reason}") from None
    return address


def run(model: Any, options: argparse.Namespace, key: str | None, address: socket.socket) -> None:
    """Serve a loaded model at a bound socket."""
    import uvicorn

    from s2sft_fairseq.serve.app import create_app
    from s2sft_fairseq.serve.connections import configuration, seldom_logged

    limits = Limits(**{name: getattr(options, name) for name in LIMITS})
    app = create_app(model, limits, Access.of(options.host, key), name=options.model.resolve().stem)
    server = uvicorn.Server(configuration(app, limits))
    for number in (signal.SIGTERM, signal.SIGINT):  # uvicorn raises the signal again at its end: ignore it then
        signal.signal(number, lambda *_: None)
    for number in (signal.SIGHUP, signal.SIGUSR1):
        if signal.getsignal(number) != signal.SIG_IGN:  # nohup ignores SIGHUP
            signal.signal(number, server.handle_exit)
    shown = f"[{options.host}]" if ":" in options.host else options.host
    address.listen()  # before the log names the page, so that connections are accepted by then
    logger.info(f"the page is at http://{shown}:{address.getsockname()[1]}/")
    with seldom_logged("asyncio", "uvicorn.error"):
        server.run([address])


def _problems(options: argparse.Namespace) -> list[str]:
    found = []
    if missing := [name for name in ("fastapi", "uvicorn") if not importlib.util.find_spec(name)]:
        found.append(f"s2sft serve needs {' and '.join(missing)}: pip install 's2sft_fairseq[serve]'")
    found += limit_problems({name: getattr(options, name) for name in LIMITS})
    if options.max_queue < options.max_batch:
        found.append(f"--max-queue must be at least --max-batch ({options.max_batch}), but is {options.max_queue}")
    if not 0 <= options.port <= HIGHEST_PORT:
        found.append(f"--port must be from 0 to {HIGHEST_PORT}, but is {options.port}")
    if options.api_key_file and options.open_to_all:
        found.append("--api-key-file and --open-to-all exclude each other: give one of them")
    if options.host not in LOCAL_NAMES and not (options.api_key_file or options.open_to_all):
        found.append(
            f"--host {options.host} is reached from other machines: give --api-key-file FILE, or --open-to-all to "
            "answer everybody"
        )
    if not (options.model.exists() or is_hub_name(options.model)):
        found.append(f"the model must be a folder, a checkpoint or a name on the hub, but {options.model} is not there")
    return found


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="s2sft serve", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("model", type=path_or_name, metavar="MODEL", help="a model folder, or a checkpoint")
    parser.add_argument(
        "--tokenizer-dir",
        type=path_or_name,
        metavar="DIR",
        help="of a checkpoint: the encoder that it was trained from",
    )
    parser.add_argument("--device", default="auto", help="auto (default), cpu or cuda")
    parser.add_argument("--dtype", default="auto", help="auto (default), float32, bfloat16 or float16")
    parser.add_argument("--quantize", choices=["int8"], help="multiply in 8 bits on a CPU")
    parser.add_argument("--host", default="127.0.0.1", metavar="ADDRESS", help="to listen at (default: 127.0.0.1)")
    parser.add_argument(
        "--port", type=int, default=8000, metavar="N", help="to listen at; 0: a free one (default: 8000)"
    )
    parser.add_argument(
        "--api-key-file", type=Path, metavar="FILE", help="requests need Authorization: Bearer and the key in this file"
    )
    parser.add_argument("--open-to-all", action="store_true", help="answer everybody who reaches --host, without a key")
    limits = parser.add_argument_group("limits")
    for field in fields(Limits):
        default: Any = field.default
        limits.add_argument(
            as_option(field.name),
            type=type(default),
            default=default,
            metavar="N" if isinstance(default, int) else "X",
            help=f"{LIMITS[field.name]} (default: {default:g})"
            if isinstance(default, float)
            else f"{LIMITS[field.name]} (default: {default})",
        )
    return parser
