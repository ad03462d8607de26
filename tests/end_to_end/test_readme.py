"""The ten lines of the README, unchanged, with a tiny encoder in place of BERT."""

import ast
import json
import re
import shlex

import pytest
from hugging_face import save, their_model
from processes import ROOT

pytest.importorskip("transformers", reason="makes the tiny encoder")

SECTION = re.search(r"## Ten lines\n(.*?)\n## ", (ROOT / "README.md").read_text(encoding="utf-8"), re.DOTALL)[1]


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """The files that the lines need: an encoder and pairs."""
    save("bert", their_model("bert", max_position_embeddings=200), tmp_path / "bert-base-uncased")
    pairs = [{"src": f"w{number % 40 + 5} w{number % 7 + 5}", "tgt": f"w{number % 7 + 5}"} for number in range(60)]
    (tmp_path / "pairs.jsonl").write_text("".join(f"{json.dumps(pair)}\n" for pair in pairs))
    (tmp_path / "sources.txt").write_text("w5 w6\nw7 w8\n")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def block(language):
    return re.search(rf"```{language}\n(.*?)```", SECTION, re.DOTALL)[1]


@pytest.mark.process
def test_python_and_then_the_shell(folder, call_command, capsys):
    """The commands find the work done, and generate the same as Python."""
    printed = []
    exec(compile(block("python"), "README.md", "exec"), {"print": lambda *words: printed.append(words)})
    ((one,), (several,)) = printed
    assert isinstance(one, str)
    assert [len(texts) for texts in several] == [2, 2] and all(
        isinstance(text, str) for texts in several for text in texts
    )
    lines = [shlex.split(line)[1:] for line in block("bash").splitlines()]
    assert [words[0] for words in lines] == ["finetune", "generate", "serve"]
    call_command(*lines[1], "--cpu")
    assert len((folder / "texts.txt").read_text().splitlines()) == 2
    card = (folder / "out" / "model" / "README.md").read_text()
    assert "# A fine-tuned bert-base-uncased" in card and "ROUGE-L" in card


@pytest.mark.process
def test_the_notebook(folder):
    """The cells of docs/first-steps.ipynb have the same lines; they print texts, and nothing on stderr."""
    nbclient = pytest.importorskip("nbclient", reason="runs the notebook")
    nbformat = pytest.importorskip("nbformat", reason="reads the notebook")
    notebook = nbformat.read(ROOT / "docs" / "first-steps.ipynb", as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert "\n\n".join(cell.source for cell in cells) == block("python").rstrip()
    kernel = pytest.importorskip("jupyter_client").AsyncKernelManager(kernel_name="python3", transport="ipc")
    nbclient.NotebookClient(notebook, km=kernel, resources={"metadata": {"path": folder}}).execute()
    streams = [output for cell in cells for output in cell.outputs]
    assert {output.output_type for output in streams} == {"stream"}
    printed = [[out.text for out in cell.outputs if out.name == "stdout"] for cell in cells]
    assert printed[0] == [] and "the model is " in printed[1][-2]
    assert printed[1][-1].strip() and [len(texts) for texts in ast.literal_eval(printed[2][0])] == [2, 2]
    told = [out.text for out in streams if out.name == "stderr" and out.text.strip()]
    expected = ("sources are cut", "symbols are unknown to the vocabulary")  # of the tiny encoder
    assert [text for text in told if not any(part in text for part in expected)] == []
