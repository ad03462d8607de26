"""``s2sft generate --input``: raw text to raw text, in the order of the input; each interrupted run can be resumed."""

import gzip
import json
import math
import os
import random
import shutil
import signal
import subprocess
import time

import pytest
from command_output import generated, scores

from s2sft_fairseq.inference import file_generator
from s2sft_fairseq.inference.files import ResumableOutput

DRAW = random.Random(2)
SOURCES = [
    *("a b c d", "D E F G", "", "h h", "zebra . d", "b " * 40, "   ", "e, f"),
    *(" ".join(DRAW.choices("abcdefgh", k=DRAW.randint(1, 8))) for _ in range(32)),
]


@pytest.fixture
def options(toy, trained):
    """Options of every generation; `toy.folder` is a tokenizer."""
    return ("--path", trained("pseudo_masked").best, "--tokenizer-dir", toy.folder, "--cpu")


@pytest.fixture
def generate(call_command, options, tmp_path):
    """Generate from `SOURCES` or other lines to a file, and return the lines of the file."""

    def run(*words, lines=SOURCES, output="out.txt"):
        (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in lines))
        call_command("generate", *options, "--input", "in.txt", "--output", output, *words)
        return read(tmp_path / output)

    return run


def read(path):
    """Return the lines of a text, or the objects of JSON lines."""
    lines = path.read_text().removesuffix("\n").split("\n")
    return [json.loads(line) for line in lines] if path.suffix == ".jsonl" else lines


def texts(objects):
    """Return the texts of all hypotheses of each sentence."""
    return [[hypothesis["text"] for hypothesis in line["hypotheses"]] for line in objects]


def test_equals_generation_from_binarized_data(generate, call_command, options, toy, tmp_path):
    search = ("--beam", "4", "--nbest", "4", "--length-penalty", "gnmt", "--lenpen", "0.9", "--no-repeat-ngram-size", 2)
    found = generate(*search, "--batch-size", 3, "--buffer-size", 16, output="out.jsonl")
    call_command("tokenize", "--tokenizer-dir", toy.folder, "--input", "in.txt", "--output-dir", "tokens")
    (tmp_path / "tokens" / "in.txt").rename(tmp_path / "tokens" / "test.src")
    binarize = ("--source-lang", "src", "--target-lang", "tgt", "--only-source", "--srcdict", toy.dictionary)
    call_command("preprocess", *binarize, "--testpref", "tokens/test", "--destdir", "data")
    expected = call_command("generate", "data", *options, "--bpe", "pretrained", *search).stdout

    assert [line["index"] for line in found] == list(range(len(SOURCES)))
    for number, line in enumerate(found):
        of_line = [hypothesis["score"] / math.log(2) for hypothesis in line["hypotheses"]]
        assert of_line == pytest.approx(scores(expected)[number], abs=1e-4)
        tokens = [[token for token in h["tokens"] if token != "[SEP]"] for h in line["hypotheses"]]
        assert [" ".join(symbols) for symbols in tokens] == generated(expected, "H")[number]
        for hypothesis, positional in zip(line["hypotheses"], generated(expected, "P")[number], strict=True):
            assert [score / math.log(2) for score in hypothesis["positional_scores"]] == pytest.approx(
                list(map(float, positional.split())), abs=2e-4
            )
            assert len(hypothesis["tokens"]) == len(hypothesis["positional_scores"])
    assert texts(found) == [of_line for _, of_line in sorted(generated(expected).items())]
    assert generate(*search[:2], *search[4:]) == [of_line[0] for of_line in texts(found)]
    assert generate("--overwrite")[:3] == ["d c b a", "g f e d", ""]


def test_a_recorded_search_is_ranked_again(generate, call_command, tmp_path):
    """One search with all that ended has the texts of searches with other penalties."""
    beam = ("--beam", "4")
    recorded = generate(*beam, "--all-ended", output="search.jsonl")
    assert max(len(line["hypotheses"]) for line in recorded) > 4
    chosen = []
    for penalty in (("--length-penalty", "gnmt", "--lenpen", "0"), ("--length-penalty", "length", "--lenpen", "3")):
        call_command("rerank", "--input", "search.jsonl", "--output", "again.txt", "--overwrite", *penalty)
        chosen.append(read(tmp_path / "again.txt"))
        assert chosen[-1] == generate(*beam, *penalty, "--overwrite")
    assert chosen[0] != chosen[1]


def test_reports_its_work(generate, call_command, options, tmp_path):
    generate()
    words = ("generate", *options, "--input", "in.txt", "--output", "again/out.txt")
    done = call_command(*words)
    assert done.stdout.startswith("again/out.txt: 40 lines; 40 sentences (")
    assert done.stdout.rstrip().endswith(" tokens/s")
    assert "in.txt: 1 of 40 sources are cut to 24 positions (--max-source-positions)" in done.stderr
    assert [path.name for path in (tmp_path / "again").iterdir()] == ["out.txt"]


def test_ensembles_and_16_bits(generate, trained):
    best = trained("pseudo_masked").best
    plain = generate(lines=SOURCES[:9], output="plain.jsonl")
    for words in (("--path", f"{best}:{best}"), ("--bf16",), ("--fp16",)):
        found = generate(*words, lines=SOURCES[:9], output=f"{words[0][2:]}.jsonl")
        assert texts(found)[:3] == texts(plain)[:3] == [["d c b a"], ["g f e d"], [""]]
        rounded = words[0] != "--path"
        for number in (0, 1):
            (expected,), (hypothesis,) = plain[number]["hypotheses"], found[number]["hypotheses"]
            assert hypothesis["score"] == pytest.approx(expected["score"], abs=0.05 if rounded else 1e-5)
            assert (hypothesis["score"] != expected["score"]) >= rounded


@pytest.mark.parametrize("method", ["causal", "masked"])
def test_other_methods(generate, trained, method):
    assert generate("--path", trained(method).best, lines=["a b c d", ""]) == ["d c b a", ""]


def test_json_lines_fields_and_compressed_files(generate, call_command, options, tmp_path):
    expected = generate(lines=["ab[SEP]cd", "[SEP]e", "x"])
    examples = [{"one": "a\nb", "two": ["c", "d"], "id": 7}, {"one": "", "two": "e"}]
    with gzip.open(tmp_path / "in.jsonl.gz", "wt") as file:
        file.writelines(f"{json.dumps(example)}\n" for example in examples)
    words = ("generate", *options, "--output")
    call_command(*words, "json.txt", "--input", "in.jsonl.gz", "--source", "one", "two")
    assert read(tmp_path / "json.txt")[0] == generate("--separator", "|", lines=["a b|c d"], output="split.txt")[0]
    assert read(tmp_path / "json.txt")[1] == expected[1]
    (tmp_path / "plain.jsonl").write_text('{"src": "x"}\n')
    call_command(*words, "plain.txt", "--input", "plain.jsonl")
    assert read(tmp_path / "plain.txt") == expected[2:]


def test_shards_are_parts_of_the_whole(generate):
    whole = generate("--nbest", "2", output="whole.jsonl")
    shards = [
        generate("--nbest", "2", "--num-shards", 3, "--shard-id", i, "--buffer-size", 4, output=f"{i}.jsonl")
        for i in range(3)
    ]
    assert [len(shard) for shard in shards] == [13, 13, 14]
    parts = [line for shard in shards for line in shard]
    assert texts(parts) == texts(whole)
    assert [line["index"] for line in parts] == list(range(40))
    assert generate("--num-shards", 3, "--shard-id", 0, lines=["a", "b"], output="none.txt") == [""]


def test_samples_are_repeatable(generate, call_command, options, monkeypatch, tmp_path):
    sampling = ("--sampling", "--temperature", 3, "--beam", 2, "--nbest", 2, "--buffer-size", 8, "--batch-size", 3)
    whole = generate(*sampling, output="whole.jsonl")
    assert generate(*sampling, "--seed", 1, output="same.jsonl") == whole
    assert generate(*sampling, "--seed", 2, output="other.jsonl") != whole
    # No sample depends on the batch or the window of its source, but on its line.
    batches = ("--buffer-size", 20, "--batch-size", 7)
    assert texts(generate(*sampling, *batches, output="batches.jsonl")) == texts(whole)
    shard = generate(*sampling, "--num-shards", 2, "--shard-id", 1, output="shard.jsonl")
    assert texts(shard) == texts(whole)[20:]
    twice = generate(*sampling, lines=["a b c d"] * 16, output="twice.jsonl")
    assert texts(twice)[:8] != texts(twice)[8:]

    append = ResumableOutput.append

    def append_twice(output, lines):
        append(output, lines)
        if output.file.tell() and len((tmp_path / "out.jsonl.part").read_text().splitlines()) >= 16:
            raise KeyboardInterrupt

    monkeypatch.setattr(ResumableOutput, "append", append_twice)
    words = ("generate", *options, "--input", "in.txt", "--output", "out.jsonl", *sampling)
    (tmp_path / "in.txt").write_text("".join(f"{line}\n" for line in SOURCES))
    call_command(*words, status=130)
    monkeypatch.undo()
    monkeypatch.chdir(tmp_path)
    done = call_command(*words)
    assert "out.jsonl: 40 lines, 16 of them by an earlier run; 24 sentences (" in done.stdout
    assert read(tmp_path / "out.jsonl") == whole


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGUSR1, signal.SIGINT])
def test_a_run_that_gets_a_signal_keeps_windows(generate, call_command, options, tmp_path, monkeypatch, number):
    whole = generate("--buffer-size", 8, output="whole.txt")
    append = ResumableOutput.append

    def append_and_signal(output, lines):
        append(output, lines)
        if output.written == 16:
            os.kill(os.getpid(), number)

    words = ("generate", *options, "--input", "in.txt", "--output", "out.txt", "--buffer-size", 8)
    monkeypatch.setattr(ResumableOutput, "append", append_and_signal)
    done = call_command(*words, status=130 if number == signal.SIGINT else 75)
    monkeypatch.setattr(ResumableOutput, "append", append)
    kept = read(tmp_path / "out.txt.part")
    assert len(kept) in (16, 24) and kept == whole[: len(kept)]
    assert f"out.txt.part has {len(kept)} lines" in done.stderr and not (tmp_path / "out.txt").exists()
    assert f"{len(kept)} of them by an earlier run" in call_command(*words).stdout
    assert read(tmp_path / "out.txt") == whole


def test_a_signal_while_the_model_is_loaded(generate, call_command, options, tmp_path, monkeypatch):
    """The run ends with the status that schedulers queue again."""

    def load(*_):
        os.kill(os.getpid(), signal.SIGTERM)

    monkeypatch.setattr(file_generator, "FileGenerator", load)
    (tmp_path / "in.txt").write_text("a b c d\n")
    call_command("generate", *options, "--input", "in.txt", "--output", "out.txt", status=75)
    assert not list(tmp_path.glob("out.txt*"))


def test_a_killed_run_resumes(generate, start_command, options, tmp_path):
    lines = SOURCES * 10
    whole = generate("--beam", 4, lines=lines, output="whole.txt")
    words = ("generate", *options, "--beam", 4, "--input", "in.txt", "--output", "out.txt", "--buffer-size", 4)
    part = tmp_path / "out.txt.part"
    process = start_command(*words)
    until = time.monotonic() + 120
    while not part.exists() or part.read_bytes().count(b"\n") < 20:
        assert process.poll() is None, process.stderr.read()
        assert time.monotonic() < until
        time.sleep(0.001)
    process.send_signal(signal.SIGKILL)
    process.wait()
    written = part.read_bytes().count(b"\n")
    assert written < len(lines)
    assert not (tmp_path / "out.txt").exists()
    with part.open("ab") as file:
        file.write(b"half of a li")
    process = start_command(*words)
    stdout, stderr = process.communicate(timeout=120)
    assert process.returncode == 0, stderr
    assert f"out.txt: 400 lines, {written // 4 * 4} of them by an earlier run" in stdout
    assert read(tmp_path / "out.txt") == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["in.txt", "out.txt", "whole.txt"]


def test_does_not_resume_with_other_options_or_files(generate, call_command, options, tmp_path, monkeypatch):
    generate("--beam", 2, lines=["a"])
    words = ("generate", *options, "--input", "in.txt", "--output", "out.txt", "--beam")
    refused = call_command(*words, 2, status=2)
    assert refused.stderr == "error: --output out.txt exists already: give another name, or --overwrite\n"
    assert call_command(*words, 2, "--overwrite").status == 0

    def fail(output):
        raise KeyboardInterrupt

    (tmp_path / "out.txt").unlink()
    with monkeypatch.context() as patch:
        patch.setattr(ResumableOutput, "finish", fail)
        call_command(*words, 2, status=130)
    (tmp_path / "in.txt").write_text("a\nb\n")
    stderr = call_command(*words, 3, "--lenpen", 2, status=2).stderr
    assert "out.txt.part was begun with other settings (to start anew remove out.txt.part, or give --output" in stderr
    for text in ("--beam was 2, now is 3", "--lenpen was 1.0, now is 2.0", "--input, sha256 was "):
        assert text in stderr
    assert not (tmp_path / "out.txt").exists()


def test_a_tokenizer_that_is_edited_before_a_run_goes_on(call_command, options, toy, tmp_path, monkeypatch):
    shutil.copytree(toy.folder, tmp_path / "tokenizer")
    (tmp_path / "in.txt").write_text("a b\n")
    words = ("generate", *options, "--tokenizer-dir", "tokenizer", "--input", "in.txt", "--output", "out.txt")

    def fail(output):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ResumableOutput, "finish", fail)
        call_command(*words, status=130)
    before = (tmp_path / "out.txt.part").read_bytes()
    symbols = (tmp_path / "tokenizer" / "vocab.txt").read_text().split("\n")
    place = symbols.index("a")
    symbols[place : place + 2] = reversed(symbols[place : place + 2])
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join(symbols))
    assert "--tokenizer-dir, vocab.txt was " in call_command(*words, status=2).stderr
    assert (tmp_path / "out.txt.part").read_bytes() == before


@pytest.mark.process
def test_a_pipe(generate, call_command, options, tmp_path):
    expected = generate(lines=["a b", "c"])
    os.mkfifo(tmp_path / "pipe")
    with subprocess.Popen(["bash", "-c", "printf 'a b\nc\n' >pipe"], cwd=tmp_path):
        call_command("generate", *options, "--input", "pipe", "--output", "piped.txt")
    assert read(tmp_path / "piped.txt") == expected


def test_mistakes_in_the_input(call_command, options, tmp_path):
    (tmp_path / "in.jsonl").write_bytes(b'{"src": "a"}\n{"tgt": "a"}\n{\n{"src": "\xff"}\n{"src": 1}\n{\n')
    words = ("generate", *options, "--input", "in.jsonl", "--output", "out.txt")
    assert call_command(*words, status=2).stderr.splitlines()[-5:] == [
        "error: nothing was written:",
        '  - in.jsonl: 1 line(s) lack "src": line 2',
        "  - in.jsonl: 2 line(s) are not valid JSON: line 3, 6",
        "  - in.jsonl: 1 line(s) are not valid UTF-8: line 4",
        '  - in.jsonl: 1 line(s) have a "src" that is neither text nor a list of tokens: line 5',
    ]
    (tmp_path / "in.txt").write_bytes(b"a\nb\xff\n")
    stderr = call_command(*words[:-4], "--input", "in.txt", "--output", "out.txt", status=2).stderr
    assert "in.txt: 1 line(s) are not valid UTF-8: line 2" in stderr
    stderr = call_command(*words[:-4], "--input", "no.txt", "--output", "out.txt", status=2).stderr
    assert "no.txt: cannot be read: No such file or directory" in stderr
    assert [path.name for path in tmp_path.iterdir() if path.name.startswith("out")] == []


def test_a_dictionary_that_is_not_the_checkpoints(generate, call_command, options, toy, tmp_path):
    generate(lines=["a"])
    (tmp_path / "tokenizer").mkdir()
    symbols = (toy.folder / "vocab.txt").read_text().split()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join([*symbols, "more"]))
    words = ("--tokenizer-dir", "tokenizer", "--input", "in.txt", "--output", "other.txt")
    stderr = call_command("generate", *options, *words, status=2).stderr
    assert f"the dictionary has {len(symbols) + 1} symbols, but the checkpoint was made with {len(symbols)}" in stderr
