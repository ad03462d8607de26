"""fairseq's own commands find the plugin by every form of --user-dir, in spawned workers too."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

import s2sft_fairseq

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(
        sys.version_info >= (3, 14), reason="fairseq's own commands do not start there: docs/dependencies.md#python"
    ),
]
PACKAGE = Path(s2sft_fairseq.__path__[0])

# Run each form in a process that is forked after fairseq is imported. Print what is registered after fairseq has made
# its parser and the folder of the package, or the exception.
EACH_FORM = """
import json, os, sys
from fairseq import options
for name, (folder, first, arguments) in json.loads(sys.argv[1]).items():
    if os.fork() == 0:
        os.chdir(folder)
        if first:
            sys.path.insert(0, first)
            import s2sft_fairseq
        sys.argv[1:] = arguments
        try:
            options.get_training_parser()
        except Exception as error:
            result = repr(error)
        else:
            import s2sft_fairseq
            from fairseq.criterions import CRITERION_REGISTRY
            from fairseq.models import ARCH_MODEL_REGISTRY
            from fairseq.tasks import TASK_REGISTRY
            registered = "unilm_seq2seq" in TASK_REGISTRY, "unilm_tiny" in ARCH_MODEL_REGISTRY
            result = [all(registered) and "mask_attention" in CRITERION_REGISTRY, s2sft_fairseq.__path__[0]]
        print("RESULT", json.dumps([name, result]), flush=True)
        os._exit(0)
    os.wait()
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """The result of every form by its name, the path of an installed copy, and the path of a link."""
    installed = tmp_path_factory.mktemp("site-packages") / "s2sft_fairseq"
    shutil.copytree(PACKAGE, installed, ignore=shutil.ignore_patterns("__pycache__"))
    link = tmp_path_factory.mktemp("links") / "s2sft_fairseq"
    link.symlink_to(PACKAGE)
    elsewhere, parent = str(link.parent), str(PACKAGE.parent)
    forms = {
        "absolute": (elsewhere, None, ["--user-dir", str(PACKAGE)]),
        "relative": (parent, None, ["--user-dir", "s2sft_fairseq"]),
        "relative_with_dot": (parent, None, ["--user-dir=./s2sft_fairseq"]),
        "trailing_slash": (parent, None, ["--user-dir", "s2sft_fairseq/"]),
        "given_twice": (parent, None, ["--user-dir", "s2sft_fairseq", "--user-dir", str(PACKAGE)]),
        "link": (elsewhere, None, ["--user-dir", "s2sft_fairseq"]),
        "installed": (elsewhere, None, ["--user-dir", str(installed)]),
        "installed_and_imported": (elsewhere, str(installed.parent), ["--user-dir", str(installed)]),
        "imported": (elsewhere, str(installed.parent), []),
        "another_copy": (elsewhere, str(installed.parent), ["--user-dir", str(PACKAGE)]),
    }
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    command = [sys.executable, "-c", EACH_FORM, json.dumps(forms)]
    # Do not run in this checkout, where Python would find the package without --user-dir.
    done = subprocess.run(command, cwd=elsewhere, env=environment, capture_output=True, text=True, timeout=300)
    found = dict(json.loads(line.removeprefix("RESULT ")) for line in done.stdout.splitlines() if "RESULT" in line)
    assert set(found) == set(forms), done.stdout + done.stderr
    return found, installed, link


@pytest.mark.parametrize("form", ["absolute", "relative", "relative_with_dot", "trailing_slash", "given_twice"])
def test_a_checkout(results, form):
    assert results[0][form] == [True, str(PACKAGE)]


def test_a_link(results):
    found, _, link = results
    assert found["link"] == [True, str(link)]


@pytest.mark.parametrize("form", ["installed", "installed_and_imported", "imported"])
def test_an_installed_copy(results, form):
    found, installed, _ = results
    assert found[form] == [True, str(installed)]


def test_another_copy_than_the_imported_one_is_refused_by_fairseq(results):
    assert "is not globally unique" in results[0]["another_copy"]


# fairseq starts one process per GPU. Pretend that there are two, also in the processes, which run this file again.
SPAWNING = """
import os
import torch
torch.cuda.device_count = lambda: 2

def work(cfg):
    from fairseq import utils
    utils.import_user_module(cfg.common)  # how the main function of every fairseq command begins
    from fairseq.criterions import CRITERION_REGISTRY
    from fairseq.tasks import TASK_REGISTRY
    rank = cfg.distributed_training.distributed_rank
    registered = "unilm_seq2seq" in TASK_REGISTRY and "mask_attention" in CRITERION_REGISTRY
    # One write a line: print() writes the line's end apart, and the two processes share the stream.
    os.write(1, f"rank {rank}: {registered}\\n".encode())

if __name__ == "__main__":
    from fairseq import options
    from fairseq.dataclass.utils import convert_namespace_to_omegaconf
    from fairseq.distributed import utils
    cfg = convert_namespace_to_omegaconf(options.parse_args_and_arch(options.get_training_parser()))
    utils.call_main.__wrapped__(cfg, work)  # past the refusal to spawn without a GPU
"""


def test_spawned_workers_import_it_again(run_process, tiny_options, tmp_path):
    (tmp_path / "spawning.py").write_text(SPAWNING)
    options = ("--user-dir", PACKAGE, "--task", "unilm_seq2seq", *tiny_options.training)
    done = run_process(sys.executable, "spawning.py", "data", *options, "--distributed-backend", "gloo")
    assert sorted(done.stdout.splitlines()) == ["rank 0: True", "rank 1: True"]
