"""``s2sft generate --engine ray``: each shard equals the output of ``s2sft generate --input``, also after kills."""

import contextlib
import gzip
import hashlib
import json
import os
import random
import re
import signal
import sys
import threading
import time

import pytest
from processes import environment

ray = pytest.importorskip("ray", reason="ray is not installed")
pyarrow = pytest.importorskip("pyarrow", reason="pyarrow is not installed")

from pyarrow import parquet  # noqa: E402
from ray.cluster_utils import Cluster  # noqa: E402

from s2sft_fairseq.inference import ray_engine  # noqa: E402
from s2sft_fairseq.inference.ray_engine import TRIALS, ShardWriter  # noqa: E402

# Ray warns when it copies its own settings.
pytestmark = pytest.mark.filterwarnings("ignore:`use_.*` is deprecated:DeprecationWarning")

DRAW = random.Random(4)
SOURCES = [" ".join(DRAW.choices("abcdefgh", k=DRAW.randint(1, 8))) for _ in range(24)]
LONG = SOURCES * 40
MISTAKES = b'{"src": "a"}\n{\n{"tgt": "a"}\n'


@pytest.fixture
def options(toy, trained):
    return ("generate", "--path", trained("pseudo_masked").best, "--tokenizer-dir", toy.folder, "--cpu", "--beam", 2)


@pytest.fixture
def by_ray(options):
    return (*options, "--engine", "ray", "--input", "corpus", "--output", "out", "--buffer-size", 8)


@pytest.fixture
def corpus(tmp_path):
    """A folder of shards with the same sources, and two names that are not shards."""
    folder = tmp_path / "corpus"
    folder.mkdir()
    text = "".join(f"{line}\n" for line in SOURCES)
    (folder / "plain.txt").write_text(text)
    (folder / "part.0001").write_text(text)
    with gzip.open(folder / "packed.txt.gz", "wt") as file:
        file.write(text)
    (folder / "lines.jsonl").write_text("".join(f"{json.dumps({'src': line, 'id': 1})}\n" for line in SOURCES))
    parquet.write_table(pyarrow.table({"id": range(24), "src": SOURCES}), folder / "table.parquet")
    (folder / "_SUCCESS").touch()
    (folder / "below").mkdir()
    return folder


@pytest.fixture(scope="module")
def cluster():
    """One Ray for this process, which commands in it use too: starting Ray takes seconds. Tests may add nodes."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {**ray_engine.QUIET, "PYTHONPATH": environment()["PYTHONPATH"]}.items():
            patch.setenv(name, value)
        started = Cluster(initialize_head=True, head_node_args={"num_cpus": 2, "include_dashboard": False})
        ray.init(address=started.address, log_to_driver=False)
        yield started
        ray.shutdown()
        started.shutdown()


@pytest.fixture
def without_ray(monkeypatch):
    """Write shards within this process, one after another."""

    def rows(_, shards, raw, cfg):
        writer = ShardWriter(raw, cfg)
        return (writer({"input": str(shard.input), "output": str(shard.output)}) for shard in shards)

    monkeypatch.setattr(ray_engine, "_rows", rows)
    monkeypatch.setattr(ray_engine, "_cluster", lambda actors: contextlib.nullcontext(ray))


def texts(folder):
    return {path.name: path.read_text() for path in sorted(folder.iterdir()) if path.name != "manifest.json"}


def times(folder):
    return {path.name: path.stat().st_mtime_ns for path in sorted(folder.iterdir()) if path.name != "manifest.json"}


def wait_for(found):
    """Return the first true result of `found`."""
    until = time.monotonic() + 600  # on a busy machine, starting Ray's actors takes minutes
    while not (result := found()):
        assert time.monotonic() < until
        time.sleep(0.005)
    return result


@pytest.mark.process
def test_each_shard_equals_generate_although_an_actor_is_killed(
    cluster, call_command, options, by_ray, corpus, tmp_path
):
    (corpus / "long.txt").write_text("".join(f"{line}\n" for line in LONG))
    (corpus / "bad.jsonl").write_bytes(MISTAKES)
    killed = []

    def kill():
        begun = wait_for(lambda: [path for path in out.glob(".long.jsonl.*.tmp") if path.stat().st_size])
        killed.append(int(re.fullmatch(r"\.long\.jsonl\.(\d+)-.*", begun[0].name)[1]))
        os.kill(killed[0], signal.SIGKILL)

    out = tmp_path / "out"
    thread = threading.Thread(target=kill)
    thread.start()
    words = ("--nbest", 2, "--output-format", "jsonl", "--actors", 2)
    stderr = call_command(*by_ray, *words, status=2).stderr
    thread.join()
    assert len(killed) == 1
    assert "error: 1 of 7 shards could not be done, all others are saved:" in stderr
    assert f"{corpus / 'bad.jsonl'}: 1 line(s) are not valid JSON: line 2" in stderr
    inputs = ("lines.jsonl", "long.txt", "packed.txt.gz", "part.0001", "plain.txt", "table.parquet")
    outputs = [f"{stem}.jsonl" for stem in ("lines", "long", "packed", "part.0001", "plain", "table")]
    for shard, output in zip(inputs, outputs, strict=True):
        files = ("--input", f"corpus/{shard}", "--output", f"expected/{output}")
        call_command(*options, *files, "--buffer-size", 8, "--nbest", 2)
    assert texts(out) == texts(tmp_path / "expected")
    shards = json.loads((out / "manifest.json").read_text())["shards"]
    assert {name: record["lines"] for name, record in shards.items()} == {
        **dict.fromkeys(outputs, 24),
        "long.jsonl": 960,
    }
    for name, record in shards.items():
        assert record["sha256"] == hashlib.sha256((out / name).read_bytes()).hexdigest()
    table = {
        "path": str(corpus / "table.parquet"),
        "sha256": hashlib.sha256((corpus / "table.parquet").read_bytes()).hexdigest(),
    }
    assert shards["table.jsonl"]["input"] == table


def parent(process):
    """Return the process that started a process; None if it has ended."""
    with contextlib.suppress(OSError), open(f"/proc/{process}/stat") as file:
        return int(file.read().rpartition(")")[2].split()[1])


@pytest.mark.slow
@pytest.mark.process
def test_a_node_that_is_killed_loses_no_line(cluster, call_command, options, by_ray, tmp_path):
    """Two actors are on the first node. The one of the second node gets a place there when another has no work left."""
    (tmp_path / "corpus").mkdir()
    text = "".join(f"{line}\n" for line in LONG)
    for number in range(3):
        (tmp_path / "corpus" / f"{number}.txt").write_text(text)
    node, out, killed = cluster.add_node(num_cpus=1), tmp_path / "out", []
    raylet = node.all_processes["raylet"][0].process.pid

    def kill():
        def begun():
            paths = [path for path in out.glob(".*.txt.*.tmp") if path.stat().st_size]
            return [path for path in paths if parent(re.fullmatch(r"\..\.txt\.(\d+)-.*", path.name)[1]) == raylet]

        killed.extend(wait_for(begun))
        cluster.remove_node(node, allow_graceful=False)

    thread = threading.Thread(target=kill)
    thread.start()
    stdout = call_command(*by_ray, "--actors", 3).stdout
    thread.join()
    assert len(killed) == 1 and "out: 3 shards; 2,880 sentences" in stdout  # below what Ray says about the node
    call_command(*options, "--input", "corpus/0.txt", "--buffer-size", 8, "--output", "expected.txt")
    assert texts(out) == dict.fromkeys(("0.txt", "1.txt", "2.txt"), (tmp_path / "expected.txt").read_text())


@pytest.mark.slow
@pytest.mark.process
def test_an_actor_is_where_a_gpu_is(cluster, call_command, options, by_ray, tmp_path):
    """A node that only pretends to have one: the model runs on its CPU. The second actor waits for another GPU."""
    (tmp_path / "corpus").mkdir()
    for number in range(2):
        (tmp_path / "corpus" / f"{number}.txt").write_text("".join(f"{line}\n" for line in LONG))
    node, places = cluster.add_node(num_cpus=1, num_gpus=1), []
    raylet = node.all_processes["raylet"][0].process.pid

    def look():
        begun = wait_for(lambda: [path for path in (tmp_path / "out").glob(".*.txt.*.tmp") if path.stat().st_size])
        places.extend(parent(re.fullmatch(r"\..\.txt\.(\d+)-.*", path.name)[1]) for path in begun)

    thread = threading.Thread(target=look)
    thread.start()
    stdout = call_command(*(word for word in by_ray if word != "--cpu"), "--actors", 2).stdout
    thread.join()
    cluster.remove_node(node)
    assert places == [raylet] and "out: 2 shards; 1,920 sentences" in stdout
    call_command(*options, "--input", "corpus/0.txt", "--buffer-size", 8, "--output", "expected.txt")
    assert texts(tmp_path / "out") == dict.fromkeys(("0.txt", "1.txt"), (tmp_path / "expected.txt").read_text())


@pytest.mark.usefixtures("without_ray")
def test_only_missing_shards_are_written_again(call_command, by_ray, corpus, tmp_path):
    call_command(*by_ray)
    out = tmp_path / "out"
    before, written = texts(out), times(out)
    assert before.keys() == {f"{stem}.txt" for stem in ("lines", "packed", "part.0001", "plain", "table")}
    assert len(set(before.values())) == 1
    assert call_command(*by_ray).stdout.startswith("out: 5 shards, 5 of them by an earlier run; 0 sentences")
    assert times(out) == written

    (out / "packed.txt").unlink()
    (out / "lines.txt").write_text(before["lines.txt"][:-1])
    (corpus / "plain.txt").write_text("a b c d\n")
    (corpus / "more.txt").write_text("D E F G\n")
    (out / ".more.txt.99-0123abcd.tmp").write_text("d c")
    done = call_command(*by_ray)
    assert done.stdout.startswith("out: 6 shards, 2 of them by an earlier run; 50 sentences")
    assert texts(out) == {**before, "more.txt": "g f e d\n", "plain.txt": "d c b a\n"}
    assert {name for name, at in times(out).items() if written.get(name) == at} == {"part.0001.txt", "table.txt"}


@pytest.mark.usefixtures("without_ray", "corpus")
def test_a_folder_begun_with_other_options(call_command, by_ray, tmp_path, lock_elsewhere):
    call_command(*by_ray)
    before = times(tmp_path / "out")
    stderr = call_command(*by_ray, "--beam", 3, "--output-format", "jsonl", "--source", "text", status=2).stderr
    for text in (
        "--beam was 2, now is 3",
        "--output-format was txt, now is jsonl",
        "--source was None, now is ['text']",
    ):
        assert text in stderr
    assert times(tmp_path / "out") == before
    manifest = tmp_path / "out" / "manifest.json"
    manifest.write_text("{}")
    assert "manifest.json must hold settings and shards" in call_command(*by_ray, status=2).stderr
    manifest.unlink()
    assert "holds lines.txt, packed.txt," in call_command(*by_ray, status=2).stderr
    assert times(tmp_path / "out") == before
    (tmp_path / "other").mkdir()
    lock_elsewhere(tmp_path / "other" / ".lock")
    stderr = call_command(*by_ray, "--output", "other", status=2).stderr
    assert "other is being written by another process" in stderr


@pytest.mark.usefixtures("without_ray")
def test_mistakes_of_all_shards_are_named_and_the_others_are_saved(call_command, by_ray, corpus, tmp_path):
    (corpus / "bad.jsonl").write_bytes(MISTAKES)
    (corpus / "broken.parquet").write_bytes(b"PAR1")
    parquet.write_table(pyarrow.table({"text": ["a"]}), corpus / "columns.parquet")
    parquet.write_table(pyarrow.table({"src": ["a", None, "b"]}), corpus / "none.parquet")
    (corpus / "long.txt").write_text("a " * 40)
    done = call_command(*by_ray, status=2)
    lines = done.stderr.splitlines()
    assert lines[-6] == "error: 4 of 10 shards could not be done, all others are saved:"
    assert lines[-5:-3] == [
        f"  - {corpus / 'bad.jsonl'}: 1 line(s) are not valid JSON: line 2",
        f'  - {corpus / "bad.jsonl"}: 1 line(s) lack "src": line 3',
    ]
    assert lines[-3].startswith(f"  - {corpus / 'broken.parquet'}: cannot be read as Parquet: ")
    assert lines[-2:] == [
        f"  - {corpus / 'columns.parquet'} must have the column(s) src, but has text",
        f'  - {corpus / "none.parquet"}: 1 line(s) have a "src" that is neither text nor a list of tokens: line 2',
    ]
    assert f"{corpus / 'long.txt'}: 1 of 1 sources are cut" in done.stderr
    saved = times(tmp_path / "out")
    assert len(saved) == 6
    for name in ("bad.jsonl", "broken.parquet", "columns.parquet", "none.parquet"):
        (corpus / name).unlink()
    (corpus / "bad.jsonl").write_text('{"src": "a b c d"}\n')
    call_command(*by_ray)
    assert (tmp_path / "out" / "bad.txt").read_text() == "d c b a\n"
    assert saved.items() <= times(tmp_path / "out").items()


@pytest.mark.usefixtures("without_ray")
def test_a_shard_that_kills_its_actors_is_given_up(call_command, by_ray, corpus, tmp_path, monkeypatch):
    def begin(writer, shard):
        if shard.input.name == "plain.txt":
            for number in range(TRIALS):
                (shard.output.parent / f".plain.txt.{number}-0123abcd.tmp").touch()
        return write(writer, shard)

    write = ShardWriter._write
    monkeypatch.setattr(ShardWriter, "_write", begin)
    stderr = call_command(*by_ray, status=2).stderr
    assert f"{corpus / 'plain.txt'}: {TRIALS} processes that wrote plain.txt were killed" in stderr
    assert len(texts(tmp_path / "out")) == 4
    monkeypatch.undo()
    assert [path.name for path in (tmp_path / "out").glob(".*")] == []


@pytest.mark.process
@pytest.mark.usefixtures("without_ray")  # in its second run
@pytest.mark.parametrize(
    ("number", "address", "status"),
    [
        (signal.SIGTERM, "of the cluster", 75),
        pytest.param(signal.SIGTERM, "", 75, marks=pytest.mark.slow),
        pytest.param(signal.SIGKILL, "", -signal.SIGKILL, marks=pytest.mark.slow),
    ],
)
def test_the_command_is_ended_and_given_again(
    cluster, call_command, start_command, options, by_ray, corpus, tmp_path, monkeypatch, number, address, status
):
    """On a cluster that goes on, and on a Ray of its own."""
    monkeypatch.setenv("RAY_ADDRESS", address and cluster.address)
    (corpus / "z.txt").write_text("".join(f"{line}\n" for line in LONG))
    process = start_command(*by_ray, "--no-progress-bar")
    manifest = tmp_path / "out" / "manifest.json"

    def is_in_last_shard():
        assert process.poll() is None, process.stderr.read()
        done = json.loads(manifest.read_text())["shards"] if manifest.exists() else {}
        return len(done) == 5 and any((tmp_path / "out").glob(".z.txt.*.tmp"))

    wait_for(is_in_last_shard)
    process.send_signal(number)
    assert process.wait() == status
    assert not (tmp_path / "out" / "z.txt").exists()
    saved = times(tmp_path / "out")
    done = {name: at for name, at in saved.items() if name.endswith(".txt") and not name.startswith(".")}
    assert len(done) == 5
    stdout = call_command(*by_ray).stdout
    assert stdout.startswith("out: 6 shards, 5 of them by an earlier run; 960 sentences")
    assert done.items() <= times(tmp_path / "out").items()
    call_command(*options, "--input", "corpus/z.txt", "--buffer-size", 8, "--output", "z.txt")
    assert (tmp_path / "out" / "z.txt").read_text() == (tmp_path / "z.txt").read_text()
    assert sorted(texts(tmp_path / "out")) == sorted([*done, "z.txt"])


@pytest.mark.process
@pytest.mark.usefixtures("corpus")
def test_a_model_that_cannot_be_loaded(cluster, call_command, by_ray, toy, tmp_path):
    (tmp_path / "tokenizer").mkdir()
    symbols = (toy.folder / "vocab.txt").read_text().split()
    (tmp_path / "tokenizer" / "vocab.txt").write_text("\n".join([*symbols, "more"]))
    stderr = call_command(*by_ray, "--tokenizer-dir", "tokenizer", status=2).stderr
    (line,) = [line for line in stderr.splitlines() if line.startswith("error: ")]
    assert f"the dictionary has {len(symbols) + 1} symbols, but the checkpoint was made with {len(symbols)}" in line
    assert "Traceback" not in stderr


def test_options_that_do_not_fit(call_command, by_ray, options, corpus, tmp_path):
    (corpus / "plain.jsonl").write_text('{"src": "a"}\n')
    words = ("--actors", 0, "--nbest", 2, "--overwrite", "--num-shards", 2, "--output", "corpus")
    stderr = call_command(*by_ray, *words, status=2).stderr
    for text in (
        "--actors must be at least 1, but is 0",
        "--nbest 2 needs --output-format jsonl, but it is txt",
        "--overwrite is for one file",
        "--num-shards must be 1 with --engine ray, whose shards are files, but is 2",
        f"--input must not hold both {corpus / 'plain.jsonl'} and corpus/plain.txt",
        f"--output corpus holds the input {corpus / 'plain.txt'}, which would be replaced",
    ):
        assert text in stderr
    stderr = call_command(*by_ray, "--input", "corpus/*.src", "--output", "corpus/plain.txt", status=2).stderr
    assert "no file is at corpus/*.src" in stderr
    assert "--output must be a folder with --engine ray, but corpus/plain.txt is a file" in stderr
    stderr = call_command(*by_ray, "--input", "corpus/*.txt", "--source", "text", status=2).stderr
    assert "--source names fields of .jsonl and .parquet files, but --input corpus/*.txt has none" in stderr
    words = ("--input", "corpus", "--output", "out.txt", "--actors", 2, "--output-format", "txt")
    stderr = call_command(*options, *words, status=2).stderr
    for text in (
        "--actors is for --engine ray and must be left out without it, but is 2",
        "--output-format is for --engine ray and must be left out without it, but is txt",
        "--input must be a file, but corpus is a folder (--engine ray takes one)",
    ):
        assert text in stderr
    assert not (tmp_path / "out").exists()


@pytest.mark.usefixtures("corpus")
def test_without_ray_nothing_is_begun(call_command, by_ray, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "ray.data", None)
    stderr = call_command(*by_ray, status=2).stderr
    assert "--engine ray needs the package ray.data, which is not installed: pip install 'ray[data]'" in stderr
    assert not (tmp_path / "out").exists()
