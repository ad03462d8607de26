"""From text to generated text by the command lines; fairseq's own run in processes of their own."""

import re

import pytest
from command_output import generated, last_value, scores

from s2sft_fairseq.data.dictionary import PretrainedDictionary

METHODS = ["pseudo_masked", "masked", "causal", "infilling"]


def lines(path):
    return path.read_text().splitlines()


@pytest.fixture(scope="module")
def model(trained):
    return trained("pseudo_masked")


def quiet(output):
    """Return whether the output has nothing that the user need not see."""
    return not re.search("Warning|Traceback|Exception ignored", output)


def test_preprocess(toy, fairseq_command, tmp_path):
    done = fairseq_command(toy.folder, "preprocess", *toy.preprocessing, "--destdir", tmp_path)
    output = done.stdout + done.stderr
    assert quiet(output)
    assert "raw/train.src: 200 sents, 1000 tokens, 0.0% replaced" in output
    names = {path.name for path in tmp_path.iterdir()}
    assert names >= {
        f"{split}.src-tgt.{language}.{end}"
        for split in ("train", "valid", "test", "test1")
        for language in ("src", "tgt")
        for end in ("bin", "idx")
    }
    assert all(path.read_bytes() == (toy.data / path.name).read_bytes() for path in tmp_path.glob("*.bin"))
    written = PretrainedDictionary.load(str(tmp_path / "dict.src.txt"))
    assert written.symbols == PretrainedDictionary.load(str(toy.dictionary)).symbols


def test_train(toy, fairseq_command, tmp_path):
    words = ("--finetune-method", "pseudo_masked", *toy.training, "--save-dir", tmp_path, "--max-update", 4)
    done = fairseq_command(toy.folder, "train", "data", *words)
    output = done.stdout + done.stderr
    assert quiet(output)
    assert last_value(output, "num_updates", "valid on 'valid' subset") == 4
    assert (tmp_path / "checkpoint_last.pt").exists()


@pytest.mark.rounding
@pytest.mark.parametrize("method", METHODS)
def test_train_learns(trained, method):
    model = trained(method)
    output = model.output
    assert quiet(output)
    assert last_value(output, "nll_loss", "valid on 'valid' subset") < 1.0
    if method != "masked":  # half of its target is unseen and can only be guessed
        assert last_value(output, "accuracy", "valid on 'valid' subset") == 100.0
    assert last_value(output, "lr", f"num_updates {model.updates}") == 0.0  # the end of polynomial_decay
    assert "Saved checkpoint" in output


def test_validate(toy, model, fairseq_command):
    done = fairseq_command(toy.folder, "validate", "data", "--path", model.best, "--batch-size", "8", "--cpu")
    output = done.stdout + done.stderr
    assert quiet(output)
    trained_loss = last_value(model.output, "loss", "valid on 'valid' subset")
    assert last_value(output, "loss", "valid on 'valid' subset") == pytest.approx(trained_loss, abs=0.002)


def test_generate_and_interactive(toy, model, fairseq_command):
    options = ("data", "--path", model.best, "--cpu", "--beam", "4", "--nbest", "3")
    by_generate = fairseq_command(toy.folder, "generate", *options, "--gen-subset", "test")
    assert quiet(by_generate.stdout + by_generate.stderr)
    references = dict(enumerate(lines(toy.raw / "test.tgt")))
    assert {number: texts[0] for number, texts in generated(by_generate.stdout).items()} == references
    assert "Translated 5 sentences" in by_generate.stdout + by_generate.stderr
    assert "Generate test with beam=4: BLEU4 = 100.00" in by_generate.stdout

    text = (toy.raw / "test.src").read_text()
    by_interactive = fairseq_command(toy.folder, "interactive", *options, "--buffer-size", "3", stdin=text)
    assert quiet(by_interactive.stdout + by_interactive.stderr)
    assert generated(by_interactive.stdout) == generated(by_generate.stdout)
    assert list(generated(by_interactive.stdout)) == list(range(5))
    for number, of_example in scores(by_generate.stdout).items():
        assert len(of_example) == 3
        assert of_example == sorted(of_example, reverse=True)
        assert scores(by_interactive.stdout)[number] == pytest.approx(of_example, abs=1e-4)


@pytest.mark.rounding
@pytest.mark.parametrize("method", METHODS)
def test_generates_the_learned_targets(toy, trained, call_command, method):
    done = call_command(
        *("generate", toy.data, "--path", trained(method).best, "--cpu", "--gen-subset", "train", "--batch-size", "100")
    )
    references = lines(toy.raw / "train.tgt")
    hypotheses = generated(done.stdout)
    assert sorted(hypotheses) == list(range(200))
    assert sum(hypotheses[number] == [reference] for number, reference in enumerate(references)) >= 190
    assert quiet(done.stdout + done.stderr)


@pytest.mark.parametrize("method", METHODS[1:])
def test_the_other_methods_validate_and_take_lines(toy, trained, call_command, tmp_path, method):
    best = trained(method).best
    done = call_command("validate", toy.data, "--path", best, "--batch-size", "8", "--cpu")
    assert last_value(done.stdout, "loss", "valid on 'valid' subset") < 1.0
    (tmp_path / "lines.txt").write_text("a b c d\n\nh g f e\n")
    done = call_command("interactive", toy.data, "--path", best, "--cpu", "--input", "lines.txt", "--buffer-size", "3")
    assert generated(done.stdout) == {0: ["d c b a"], 1: [""], 2: ["e f g h"]}
