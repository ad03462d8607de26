"""Read inputs that libFuzzer generates, guided by the lines of this package that they reach: ``fuzz.py READER --runs
N``.

It needs the package atheris (pip install atheris), which has wheels for few platforms. An input that raises anything
but `UserError`, or takes more than 4 GiB or 20 seconds, ends the program and is written to the current folder as
``crash-...``. Readers are those of tests/support/file_readers.py.
"""

import argparse
import logging
import os
import sys
import tempfile
import warnings
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parents[1] / "support")]


def main() -> int:
    """Fuzz the reader named on the command line; return libFuzzer's exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("reader", help="a name of tests/support/file_readers.py, or list")
    parser.add_argument("--file", help="the file of its folder to make (default: each in turn)")
    parser.add_argument("--runs", type=int, default=100_000, help="inputs (default: 100,000)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        child = os.fork()
        if not child:  # libFuzzer ends its process without raising
            fuzz(options, Path(folder))
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


def fuzz(options: argparse.Namespace, folder: Path) -> None:
    """Read until all runs are done; does not return."""
    import atheris

    with atheris.instrument_imports(include=["s2sft_fairseq"]):
        from file_readers import READERS

        from s2sft_fairseq.errors import UserError
    if options.reader not in READERS:
        sys.exit("\n".join(["readers:", *READERS]))
    logging.disable()
    warnings.simplefilter("ignore")
    reader, inputs, seeds = READERS[options.reader], folder / "inputs", folder / "seeds"
    for made in (inputs, seeds):
        made.mkdir()
    reader.write(inputs)
    files = sorted(path for path in inputs.rglob("*") if path.is_file() and options.file in (None, path.name))
    valid = [path.read_bytes() for path in files]
    for number, content in enumerate(valid):
        (seeds / str(number)).write_bytes(bytes([number % 256]) + content)

    def read(data: bytes) -> None:
        """Read the folder with one file replaced; the first byte selects the file."""
        number = (data[0] if data else 0) % len(files)
        files[number].write_bytes(data[1:])
        try:
            reader.read(inputs)
        except UserError:
            pass
        finally:
            files[number].write_bytes(valid[number])

    longest = max(map(len, valid)) * 2 + 1000
    limits = [f"-runs={options.runs}", f"-seed={options.seed}", f"-max_len={longest}"]
    atheris.Setup([sys.argv[0], *limits, "-rss_limit_mb=4096", "-timeout=20", "-verbosity=1", str(seeds)], read)
    atheris.Fuzz()


if __name__ == "__main__":
    sys.exit(main())
