"""Speed of `s2sft tokenize`, file to file, compared with bulk calls of the underlying library in one thread.

    python benchmarks/tokenize_speed.py --text books.txt --tokenizer-dir bert gpt2

Both run in turn, several times. The ratio is that of the median speeds, divided by the number of workers: 1 means as
fast as the library on as many cores as there are workers. A SentencePiece model and codes for fastBPE are made from the
text itself.
"""

import argparse
import contextlib
import gc
import io
import logging
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from functools import partial
from itertools import islice
from pathlib import Path

from s2sft_fairseq.data.bounded_files import open_bytes
from s2sft_fairseq.data.dictionary import BERT_SYMBOLS
from s2sft_fairseq.data.text_files import read_lines
from s2sft_fairseq.tokenization.fast_bpe import FastBpe, load_codes, read_pairs
from s2sft_fairseq.tokenization.folder import Tokenizer, open_tokenizer
from s2sft_fairseq.tokenization.library_tokenizer import LibraryTokenizer
from s2sft_fairseq.tokenization.sentence_piece import SentencePiece
from s2sft_fairseq.tokenization.tokenize_files import Job, TextTokenizer, tokenize_files

VOCABULARY = 8000
SAMPLE = 15000  # lines that models are made from

Call = Callable[[], object]
BulkCall = Callable[[Sequence[str]], object]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--text", type=Path, required=True, metavar="FILE", help="raw text, may end in .gz")
    parser.add_argument("--tokenizer-dir", type=Path, nargs="*", default=[], metavar="DIR", help="further tokenizers")
    parser.add_argument("--lines", type=int, default=40000, metavar="N", help="of the text; empty ones are left out")
    parser.add_argument("--workers", type=int, default=2, metavar="N")
    parser.add_argument("--repeats", type=int, default=5, metavar="N")
    options = parser.parse_args()
    logging.disable()
    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # the library: one thread
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        raw = folder / "raw.txt"
        with open_bytes(options.text) as file:
            raw.write_bytes(b"".join(line for line in islice(file, options.lines) if line.strip()))
        size = raw.stat().st_size / 1e6
        print(f"{size:.1f} MB of text, {options.workers} workers, load {os.getloadavg()[0]:.1f}")
        made = [folder / "sentencepiece", folder / "fastbpe"]
        for make, new in zip((make_sentencepiece, make_codes), made, strict=True):
            in_a_fresh_process(partial(partial, make, new, raw))
        for tokenizer_dir in [*options.tokenizer_dir, *made]:
            ours, library = measure(tokenizer_dir, raw, options.workers, options.repeats)
            ratio = library / (ours * options.workers)
            print(
                f"{tokenizer_dir.name}: s2sft tokenize {size / ours:.2f} MB/s, the library in one thread "
                f"{size / library:.2f} MB/s, ratio {ratio:.2f}"
            )


def measure(folder: Path, raw: Path, workers: int, repeats: int) -> tuple[float, float]:
    """Return the median seconds of `s2sft tokenize` and of the library."""

    def ours() -> Call:
        text_tokenizer = TextTokenizer(open_tokenizer(folder))
        job = Job((raw,), (), {raw.with_suffix(".out"): (0,)})
        return lambda: list(tokenize_files(text_tokenizer, [job], workers))

    def library() -> Call:
        return partial(bulk_call(open_tokenizer(folder), folder), list(read_lines(raw)))

    preparations = {"ours": ours, "library": library}
    seconds: dict[str, list[float]] = {name: [] for name in preparations}
    for number in range(repeats):
        for name in sorted(preparations, reverse=number % 2 == 1):
            seconds[name].append(in_a_fresh_process(preparations[name]))
    return statistics.median(seconds["ours"]), statistics.median(seconds["library"])


def in_a_fresh_process(prepare: Callable[[], Call]) -> float:
    """Return the seconds of the call that `prepare` returns, in a new process."""
    context = multiprocessing.get_context("fork")
    receiver, sender = context.Pipe(duplex=False)

    def run() -> None:
        gc.freeze()
        with open(os.devnull, "w") as nowhere, contextlib.redirect_stderr(nowhere):
            call = prepare()
            start = time.perf_counter()
            call()
            sender.send(time.perf_counter() - start)

    process = context.Process(target=run)
    process.start()
    sender.close()
    seconds = receiver.recv()
    process.join()
    return seconds


def bulk_call(tokenizer: Tokenizer, folder: Path) -> BulkCall:
    """Return the bulk call of the library that a tokenizer uses, in one thread."""
    if isinstance(tokenizer, LibraryTokenizer):
        # The library's fastest call, without the offsets that encode_batch also computes.
        return lambda lines: tokenizer.library.encode_batch_fast(lines, add_special_tokens=False)
    if isinstance(tokenizer, SentencePiece):
        return lambda lines: tokenizer.model.encode(lines, out_type=str, num_threads=1)
    assert isinstance(tokenizer, FastBpe)
    from subword_nmt.apply_bpe import BPE

    codes = BPE(io.StringIO("\n".join(["#version: 0.2", *read_pairs(folder / "codes")])))
    return lambda lines: [codes.process_line(line) for line in lines]


def make_sentencepiece(folder: Path, raw: Path) -> None:
    """Train a model on the text."""
    from sentencepiece import SentencePieceTrainer

    folder.mkdir()
    SentencePieceTrainer.train(
        sentence_iterator=islice(read_lines(raw), SAMPLE),
        model_prefix=str(folder / "sentencepiece.bpe"),
        vocab_size=VOCABULARY,
        minloglevel=2,
    )


def make_codes(folder: Path, raw: Path) -> None:
    """Learn codes from the text, and make a dictionary of its pieces."""
    from subword_nmt.learn_bpe import learn_bpe

    folder.mkdir()
    learned = io.StringIO()
    learn_bpe(io.StringIO("\n".join(islice(read_lines(raw), SAMPLE))), learned, VOCABULARY)
    pairs = learned.getvalue().splitlines()[1:]
    (folder / "codes").write_text("".join(f"{pair} 1\n" for pair in pairs), encoding="utf-8")
    pieces_of = load_codes(folder / "codes")
    words = {word for line in read_lines(raw) for word in line.split()}
    # If the text contains [SEP], the dictionary must not: it would count as one of BERT's.
    pieces = {piece for word in words for piece in pieces_of(word)} - set(vars(BERT_SYMBOLS).values())
    (folder / "dict.txt").write_text("".join(f"{piece} 1\n" for piece in sorted(pieces)), encoding="utf-8")


if __name__ == "__main__":
    main()
