"""Two and four ranks train like one process with as many batches per update, replicated or sharded.

Only rounding may differ. An update moves a weight by at most the learning rate times the rounding of its gradient over
`--adam-eps`: with `SETTINGS`, about the rounding itself.
"""

import json
import re
import socket
import sys
from types import SimpleNamespace

import pytest
import torch
from called import call
from processes import ROOT, run_in

from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.runtime import sharding

# Run the processes of torchrun for one job after the other, forked after all imports, which take most of the time. A
# job is a command or a program.
RANKS = """
import json, os, signal, sys
import torch._dynamo, torch.distributed.fsdp  # which PyTorch's optimizers and sharding import
from s2sft_fairseq import cli, plugin
for port, size, job in json.loads(sys.argv[1]):
    ranks = set()
    for rank in range(size):
        started = os.fork()
        if started == 0:
            status = 1
            try:
                os.environ.update(MASTER_ADDR="localhost", MASTER_PORT=str(port), WORLD_SIZE=str(size), RANK=str(rank))
                if job[0] == "-c":
                    exec(job[1], {"rank": rank})
                    status = 0
                else:
                    status = cli.main(job)
            except BaseException:
                sys.excepthook(*sys.exc_info())
            finally:
                sys.stdout.flush()
                sys.stderr.flush()
                os._exit(status)
        ranks.add(started)
    while ranks:
        ended, status = os.wait()
        ranks.discard(ended)
        if status:
            for rank in ranks:
                os.kill(rank, signal.SIGKILL)
            sys.exit(f"{job} failed")
    print("=== next job", flush=True)
"""

# A model with tied and frozen layers, and layers smaller than the number of ranks.
PARTS = """
import torch
from torch import nn
from s2sft_fairseq.optim.fused_adamw import exempt_from_decay
from s2sft_fairseq.runtime import sharding

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding, self.output = nn.Embedding(5, 4), nn.Linear(4, 5)
        self.output.weight = self.embedding.weight
        self.layers = nn.ModuleList([nn.Linear(4, 4), nn.Linear(4, 4)])
        self.layers[0].weight.requires_grad_(False)
        self.scale = nn.Parameter(torch.ones(1))

torch.distributed.init_process_group("gloo")
model = Model()
exempt_from_decay([model.output.bias])
whole = {name: value.clone() for name, value in model.state_dict().items()}
sharding.shard(model, torch.device("cpu"), None)
shares = {name: len(parameter.to_local()) for name, parameter in model.named_parameters()}
assert shares["embedding.weight"] == 3 - rank and shares["layers.1.bias"] == 2 and shares["scale"] == 1 - rank, shares
assert [name for name, parameter in model.named_parameters() if not parameter.requires_grad] == ["layers.0.weight"]
assert [name for name, parameter in model.named_parameters() if hasattr(parameter, "param_group")] == ["output.bias"]
gathered = sharding.gather({"model": model.state_dict()}, rank == 0)["model"]
if rank == 0:
    assert all(torch.equal(gathered[name], value) for name, value in whole.items()) and len(gathered) == len(whole)
    assert gathered["output.weight"] is gathered["embedding.weight"]
else:
    assert set(gathered.values()) == {None}
torch.distributed.destroy_process_group()
"""

# An error of one rank: it must not wait for an answer of the other before sharded parameters are saved.
FAILING = """
import os, sys
from s2sft_fairseq import cli
from s2sft_fairseq.criterions.mask_attention import MaskAttentionCriterion

def fail(*args, **options):
    raise ValueError("of one rank")

if rank == 1:
    MaskAttentionCriterion.forward = fail
os.dup2(os.open(os.devnull, os.O_WRONLY), 2)
assert cli.main({words!r}) != 0
"""

# One rank gets a signal to end, as from SLURM: both end after the same update.
SIGNALLED = """
import signal, sys
sys.path.append({support!r})
from faults import fail_at, signalled
from s2sft_fairseq import cli

with fail_at(1, 2, "before update", signalled(signal.SIGTERM)):
    try:
        ended = cli.main({words!r})
    except SystemExit as exit_:
        ended = exit_.code
assert ended == 75, ended
"""

SETTINGS = (
    *("--optimizer", "fused_adamw", "--adam-eps", "0.01", "--weight-decay", "0.1", "--clip-norm", "1"),
    *("--encoder-layers", "2", "--dropout", "0", "--attention-dropout", "0", "--max-update", "4"),
)
LORA = ("--lora-rank", "4", "--lora-targets", "all", "--pretrained", "unused_alone/checkpoint_last.pt")
DELTALM = (
    *("--task", "deltalm_seq2seq", "--criterion", "label_smoothed_cross_entropy", "--arch", "deltalm_tiny"),
    *("-s", "src", "-t", "tgt"),
)
CLASSIFICATION = ("--task", "unilm_classification")
FROZEN = ("--freeze-layers", "1", "--checkpoint-activations", "--relative-position-bins", "8")
SHARDED = ("--ddp-backend", "fully_sharded")

WAYS = {
    "unused": (("--ddp-backend", "pytorch_ddp", "--find-unused-parameters"), 2, ()),
    "frozen": (("--ddp-backend", "c10d"), 1, FROZEN),
    "legacy": (("--ddp-backend", "no_c10d"), 2, ("--freeze-embeddings",)),
    "lora": (("--find-unused-parameters",), 2, LORA),
    "sharded": (SHARDED, 2, ()),
    "sharded_frozen": (SHARDED, 1, FROZEN),
    "sharded_lora": (SHARDED, 1, (*LORA, "--checkpoint-activations")),
    "sharded_deltalm": (SHARDED, 2, (*DELTALM, "--checkpoint-activations")),
    "deltalm": ((), 2, DELTALM),
    "classification": ((), 2, CLASSIFICATION),
    # 13 batches for four ranks: the last update has none for three of them.
    "four": ((), 1, ()),
    "four_sharded": (SHARDED, 1, ()),
    "four_deltalm": ((), 1, DELTALM),
    "four_classification": ((), 1, CLASSIFICATION),
    # 13 batches for two: the last update has none for the second one.
    "empty": ((), 1, ("--max-update", "7")),
    "empty_sharded": (SHARDED, 1, ("--max-update", "7")),
    "empty_deltalm": ((), 1, (*DELTALM, "--max-update", "7")),
    "empty_frozen": ((), 1, (*FROZEN, "--max-update", "7")),
    "empty_lora": ((), 1, (*LORA, "--max-update", "7")),
    "empty_sharded_lora": (SHARDED, 1, (*LORA, "--max-update", "7")),
}
"""Options of the ranks, their `--update-freq`, and further options of the single process."""


def ranks_of(name):
    """Return the number of ranks of a job."""
    return 4 if name.startswith("four") else 2


def free_port():
    with socket.socket() as opened:
        opened.bind(("localhost", 0))
        return opened.getsockname()[1]


def write_classified(folder, corpus):
    """Binarize the tiny corpus's sources with a class each: whether the first and last symbols are equal."""
    prefixes = [f"--{name}pref={corpus}/{name}.src" for name in ("train", "valid")]
    words = ("--only-source", "--srcdict", corpus / "dict.txt", "--destdir", "classified")
    call(folder, "preprocess", *prefixes, *words).check_returncode()
    for split in ("train", "valid"):
        sources = (corpus / f"{split}.src").read_text().splitlines()
        labels = "".join(f"{'yes' if line[0] == line[-1] else 'no'}\n" for line in sources)
        (folder / "classified" / f"{split}.label").write_text(labels)
    (folder / "classified" / "labels.txt").write_text("no\nyes\n")
    return folder / "classified"


@pytest.fixture(scope="module")
def trained(tiny_data, tiny_corpus, tiny_options, tmp_path_factory):
    """The folder of all trainings, by one process and by several ranks, and what the ranks printed."""
    folder = tmp_path_factory.mktemp("ranks")
    classified = write_classified(folder, tiny_corpus)

    def command(name, *options):
        given = [word for word in tiny_options.training if word != "--random-init" or "--pretrained" not in options]
        data = tiny_data
        if "unilm_classification" in options:
            data, without = classified, {"--criterion", "--max-target-positions"}
            given = [word for word, before in zip(given, ["", *given], strict=False) if not {word, before} & without]
        return ("train", str(data), *given, "--batch-size", "4", "--save-dir", name, *options)

    (folder / "unused_alone").mkdir()
    symbols = [line.split()[0] for line in (tiny_corpus / "dict.txt").read_text().splitlines()]
    (folder / "unused_alone" / "vocab.txt").write_text("".join(f"{symbol}\n" for symbol in symbols))
    jobs = {}
    for name, (of_ranks, frequency, options) in WAYS.items():
        options = (*SETTINGS, *options, "--save-interval-updates", "2", "--update-freq")
        call(folder, *command(f"{name}_alone", *options, ranks_of(name) * frequency)).check_returncode()
        jobs[name] = command(name, *options, str(frequency), *of_ranks)
    sharded = (*SETTINGS, "--update-freq", "2", *SHARDED)
    jobs["sharded_resumed"] = command("sharded_resumed", *sharded, "--restore-file", "sharded/checkpoint_1_2.pt")
    within = ("--restore-file", "sharded_alone/checkpoint_1_2.pt")
    jobs["sharded_from_one"] = command("sharded_from_one", *sharded, *within)
    jobs["four_from_one"] = command("four_from_one", *SETTINGS, "--update-freq", "1", *within)
    jobs["sharded_bf16"] = command("sharded_bf16", *sharded, "--bf16")
    jobs["random"] = command("random", "--max-update", "4", "--save-interval-updates", "2")
    resume = ("--restore-file", "random/checkpoint_1_2.pt", "--ddp-backend", "legacy_ddp")
    jobs["random_resumed"] = command("random_resumed", "--max-update", "4", *resume)
    words = command("signalled", "--max-update", "4")
    jobs["signalled"] = ("-c", SIGNALLED.format(support=str(ROOT / "tests" / "support"), words=words))
    jobs["signalled_resumed"] = words
    jobs["failing"] = ("-c", FAILING.format(words=command("failing", *sharded)))
    jobs["parts"] = ("-c", PARTS)
    ports = json.dumps([(free_port(), ranks_of(name), job) for name, job in jobs.items()])
    done = run_in(folder, sys.executable, "-c", RANKS, ports)
    # PyTorch prints this if it looks for unused parameters and finds none.
    assert [line for line in done.stderr.splitlines() if "find_unused_parameters=True was specified" not in line] == []
    *printed, _ = done.stdout.split("=== next job\n")
    return SimpleNamespace(folder=folder, printed=dict(zip(jobs, printed, strict=True)))


def saved(trained, name, file="checkpoint_last.pt"):
    return load_checkpoint(trained.folder / name / file)


def assert_near(found, expected):
    """Check that two checkpoints have equal names, and values that only differ by rounding."""
    torch.testing.assert_close(dict(found["model"]), dict(expected["model"]), rtol=0, atol=1e-6)
    moments = [checkpoint["last_optimizer_state"]["state"] for checkpoint in (found, expected)]
    torch.testing.assert_close(*moments, rtol=1e-5, atol=1e-6)


def losses(printed):
    """Return the losses of training updates and of held-out data, as printed with three digits."""
    return [
        [float(loss) for loss in re.findall(pattern, printed)]
        for pattern in (r"train_inner \| .* loss=([\d.]+)", r"valid on 'valid' subset \| loss ([\d.]+)")
    ]


@pytest.mark.process
@pytest.mark.parametrize("name", WAYS)
def test_ranks_train_as_one_process(trained, name):
    assert f"training on {ranks_of(name)} devices" in trained.printed[name]
    assert ("fully_sharded: " in trained.printed[name]) == ("fully_sharded" in WAYS[name][0])
    found, alone = saved(trained, name), saved(trained, f"{name}_alone")
    assert_near(found, alone)
    assert found.keys() == alone.keys()
    assert found["extra_state"]["val_loss"] == pytest.approx(alone["extra_state"]["val_loss"], abs=0.0011)  # 3 digits
    start = saved(trained, name, "checkpoint_1_2.pt")["model"]
    assert any(not torch.equal(value, start[parameter]) for parameter, value in found["model"].items())


@pytest.mark.process
@pytest.mark.parametrize("name", ["lora", "sharded_lora"])
def test_ranks_write_the_model_folder(trained, name):
    """With the tokenizer beside the checkpoint of --pretrained; its numbers are those that one process writes."""
    facts, alone = (
        json.loads((trained.folder / folder / "model" / "config.json").read_text())["training"]
        for folder in (name, f"{name}_alone")
    )
    for each in (facts, alone):
        assert isinstance(each.pop("seconds", 0), int)  # absent if the training took less than half a second
    assert facts.keys() == alone.keys()
    assert facts["updates"] == 4
    assert facts["held_out_loss"] == pytest.approx(alone["held_out_loss"], abs=0.0011)


@pytest.mark.process
@pytest.mark.parametrize("name", ["unused", "sharded", "deltalm", "classification"])
def test_ranks_save_numbers_as_numbers(trained, name):
    extra = saved(trained, name)["extra_state"]
    numbers = {key: type(value) for key, value in extra.items() if key not in ("metrics", "train_iterator")}
    assert set(numbers.values()) == {float}, numbers
    place = extra["train_iterator"]
    assert {type(value) for key, value in place.items() if not key.startswith("read")} <= {int, bool, str}


@pytest.mark.process
def test_a_signal_to_one_rank_ends_both(trained):
    """A resumed training ends like one without a signal."""
    assert "SIGTERM: the training ends after 2 updates" in trained.printed["signalled"]
    assert len(losses(trained.printed["signalled"])[0]) == len(losses(trained.printed["signalled_resumed"])[0]) == 2
    found, expected = saved(trained, "signalled"), saved(trained, "random")
    torch.testing.assert_close(dict(found["model"]), dict(expected["model"]), rtol=0, atol=0)


@pytest.mark.process
@pytest.mark.parametrize("name", ["random", "sharded"])
def test_a_resumed_training_ends_where_it_would_have_ended(trained, name):
    whole, resumed = (losses(trained.printed[of])[0] for of in (name, f"{name}_resumed"))
    assert len(whole) == 4 and resumed == whole[2:]
    found, expected = saved(trained, f"{name}_resumed"), saved(trained, name)
    torch.testing.assert_close(dict(found["model"]), dict(expected["model"]), rtol=0, atol=0)
    assert found["optimizer_history"][-1]["num_updates"] == 4


@pytest.mark.process
@pytest.mark.parametrize("name", ["sharded_from_one", "four_from_one", "one_from_sharded"])
def test_resumed_with_another_number_of_ranks(trained, call_command, tiny_data, tiny_options, name):
    """Within an epoch, after 8 of its 13 batches: the training ends like one that was not interrupted."""
    if name == "one_from_sharded":
        options = (*tiny_options.training, *SETTINGS, "--batch-size", 4, "--update-freq", 4, *SHARDED)
        path = trained.folder / "sharded/checkpoint_1_2.pt"
        words = ("train", tiny_data, *options, "--save-dir", trained.folder / name, "--restore-file", path)
        printed = call_command(*words).stdout
        assert "fully_sharded: nothing is sharded" in printed
    else:
        printed = trained.printed[name]
    assert f"saved by {2 if name == 'one_from_sharded' else 1} ranks: these" in printed
    assert len(losses(printed)[0]) == 2
    assert_near(saved(trained, name), saved(trained, "sharded_alone"))


@pytest.mark.process
def test_one_process_generates_from_a_sharded_checkpoint(trained, call_command, tiny_data):
    path = trained.folder / "sharded/checkpoint_last.pt"
    generated = call_command("generate", tiny_data, "--path", path, "--batch-size", 8, "--cpu").stdout
    assert generated.count("H-") == 10


@pytest.mark.process
def test_sharded_in_bfloat16(trained):
    """Losses in 16 bits are near those in 32 bits, but not equal; saved weights have 32 bits."""
    exact, found = (losses(trained.printed[name])[0] for name in ("sharded", "sharded_bf16"))
    assert found != exact and found == pytest.approx(exact, rel=0.02)
    weights = saved(trained, "sharded_bf16")["model"]
    assert all(value.dtype == torch.float32 for value in weights.values())
    assert any(not torch.equal(value, value.bfloat16().float()) for value in weights.values())
    assert any(not torch.equal(value, weights[name]) for name, value in saved(trained, "sharded")["model"].items())


@pytest.mark.process
def test_an_error_of_one_rank_ends_a_sharded_training(trained):
    assert "Start iterating over samples" in trained.printed["failing"]
    assert list((trained.folder / "failing").glob("*.pt")) == []


@pytest.mark.process
def test_parts_of_a_model(trained):
    """The part of it that each rank has; the program makes the assertions."""
    assert "sharded" not in trained.printed["parts"]


# Options that need fairscale, or that do not work with sharded parameters.


def options(training=(), common=(), **others):
    flags = dict.fromkeys(("fp16", "amp", "memory_efficient_bf16"), False)
    given = {"ddp_backend": "pytorch_ddp", "zero_sharding": "none", "cpu_offload": False, "use_sharded_state": False}
    return SimpleNamespace(
        common=SimpleNamespace(**{**flags, **dict(common)}),
        distributed_training=SimpleNamespace(**{**given, **dict(training)}),
        optimization=SimpleNamespace(use_bmuf=False),
        ema=SimpleNamespace(store_ema=False),
        task=None,
        optimizer=others.get("optimizer"),
    )


SHARDING = {"ddp_backend": "fully_sharded"}
ADAM, FACTORED = SimpleNamespace(_name="adam"), SimpleNamespace(_name="fused_adamw", factored_moments=True)


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"training": {"ddp_backend": "slowmo"}}, "--ddp-backend slowmo .* pytorch_ddp"),
        ({"training": {"zero_sharding": "os"}}, "--zero-sharding os .* --ddp-backend fully_sharded"),
        ({"training": SHARDING, "optimizer": ADAM}, "fully_sharded needs --optimizer fused_adamw, but it is adam"),
        ({"training": SHARDING, "optimizer": FACTORED}, "fully_sharded excludes --factored-moments;"),
        (
            {"training": SHARDING, "common": {"fp16": True, "amp": True}},
            "fully_sharded excludes --fp16, --amp; .*--bf16",
        ),
    ],
)
def test_refused_by_name(given, named):
    with pytest.raises(UserError, match=named):
        sharding.check(options(**given))


def test_options_that_are_accepted():
    for backend in ("c10d", "no_c10d", "legacy_ddp", "pytorch_ddp", "fully_sharded"):
        sharding.check(options({"ddp_backend": backend}))
