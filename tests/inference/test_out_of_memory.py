"""A batch that does not fit is halved; no result is lost."""

import logging
import re
import subprocess
import sys
import weakref

import pytest
import torch
from processes import environment
from tiny import CLS, PAD, SEP

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.inference.memory import generate_in_halves, is_out_of_memory

CPU_ALLOCATOR = RuntimeError(
    "[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
)
ERRORS = [CPU_ALLOCATOR, torch.OutOfMemoryError("CUDA out of memory."), MemoryError()]


def sources(*lengths):
    rows = [torch.tensor([CLS, *range(10, 8 + length), SEP]) for length in lengths]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=PAD)


class Generator:
    """Fails for more than ``most`` sentences; a result is its source and prefix."""

    def __init__(self, most, error=CPU_ALLOCATOR):
        self.most, self.error, self.shapes = most, error, []

    def __call__(self, source, prefix=None):
        self.shapes.append(tuple(source.shape))
        if len(source) > self.most:
            raise self.error
        prefixes = [None] * len(source) if prefix is None else prefix.tolist()
        return [
            ([i for i in row if i != PAD], given and [i for i in given if i != PAD])
            for row, given in zip(source.tolist(), prefixes, strict=True)
        ]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("most", [1, 2, 3, 7])
@pytest.mark.parametrize("prefixed", [False, True])
def test_results_of_all_sentences_in_their_order(error, most, prefixed):
    source = sources(9, 4, 4, 3, 7, 2, 5)
    prefix = sources(2, 3, 2, 2, 4, 2, 2) if prefixed else None
    expected = Generator(100)(source, prefix)
    assert generate_in_halves(Generator(most, error), source, prefix, pad=PAD) == expected


def test_halves_lose_the_padding_that_they_do_not_need():
    generator = Generator(2)
    generate_in_halves(generator, sources(9, 5, 4, 3), pad=PAD)
    assert generator.shapes == [(4, 9), (2, 9), (2, 4)]


def test_a_batch_that_fits_is_left_alone():
    generator, source = Generator(4), sources(9, 5)
    generate_in_halves(generator, source, pad=PAD)
    assert generator.shapes == [tuple(source.shape)]


def test_it_warns_of_each_batch_that_did_not_fit(caplog):
    with caplog.at_level(logging.WARNING):
        generate_in_halves(Generator(2), sources(9, 5, 4, 3), pad=PAD)
    assert [record.getMessage() for record in caplog.records] == [
        "a batch of 4 sentences of up to 9 source positions does not fit into memory and is generated in halves; lower "
        f"--max-batch-memory or --batch-size to save the attempt ({CPU_ALLOCATOR})"
    ]


def test_a_sentence_that_does_not_fit_alone():
    with pytest.raises(UserError) as raised:
        generate_in_halves(Generator(0), sources(4, 9), pad=PAD)
    assert str(raised.value) == (
        "a sentence of 4 source positions does not fit into memory, not even alone: lower --beam or --max-len-b, or "
        f"cut sources with --max-source-positions ({CPU_ALLOCATOR})"
    )


def test_other_errors_pass():
    with pytest.raises(RuntimeError, match=r"^the shapes do not fit$"):
        generate_in_halves(Generator(1, RuntimeError("the shapes do not fit")), sources(3, 3), pad=PAD)
    assert not is_out_of_memory(ValueError("out of memory"))


def test_the_failed_attempt_holds_no_memory_any_more():
    """The exception's traceback keeps the frames with its tensors."""
    alive = []

    def generate(source):
        assert not any(tensor() is not None for tensor in alive)
        tensor = torch.zeros(3)
        alive.append(weakref.ref(tensor))
        if len(source) > 1:
            raise MemoryError
        return source.tolist()

    assert len(generate_in_halves(generate, sources(3, 3, 3, 3), pad=PAD)) == 4


LIMITED = """
import resource, torch
from s2sft_fairseq.inference.memory import generate_in_halves
size = int(next(line for line in open("/proc/self/status") if line.startswith("VmSize")).split()[1]) * 1024
resource.setrlimit(resource.RLIMIT_AS, (size + 2**30, size + 2**30))
def generate(source):
    print(len(source))
    torch.empty(len(source), 100 * 2**20, dtype=torch.uint8)
    return source[:, 0].tolist()
assert generate_in_halves(generate, torch.arange(1, 17).unsqueeze(1), pad=0) == list(range(1, 17))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="limits the address space as Linux does")
@pytest.mark.process
def test_memory_that_truly_runs_out():
    """16 sentences would take 1.6 GiB of 1 GiB."""
    done = subprocess.run(
        [sys.executable, "-c", LIMITED], capture_output=True, text=True, env=environment(), timeout=300
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["16", "8", "8"]
    assert re.search(r"a batch of 16 sentences .* you tried to allocate 1677721600 bytes", done.stderr)
