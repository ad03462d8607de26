"""Examples beyond a multiple of ``--required-batch-size-multiple``, 8 by default: fairseq drops them silently."""

import shutil

from command_output import generated, last_value


def test_generation_of_five_and_of_thirteen(toy, trained, call_command):
    best = trained("pseudo_masked").best
    for subset, count in (("test", 5), ("valid", 13)):
        for batch in ("--batch-size", "8"), ("--batch-size", "100"), ("--max-tokens", "200"):
            done = call_command("generate", toy.data, "--path", best, "--cpu", "--gen-subset", subset, *batch)
            assert sorted(generated(done.stdout)) == list(range(count))
            assert f"Translated {count} sentences" in done.stderr
            assert "BLEU4 = 100.00" in done.stdout


def test_validation_counts_all(toy, trained, call_command):
    options = ("--path", trained("pseudo_masked").best, "--cpu", "--batch-size", "8")
    for subset, count in (("valid", 13), ("test", 5)):
        log = call_command("validate", toy.data, *options, "--valid-subset", subset).stdout
        assert last_value(log, "bsz", f"valid on '{subset}' subset") == count
        assert last_value(log, "wpb", f"valid on '{subset}' subset") == 5 * count  # four letters and eos


def test_training_uses_all(toy, call_command, tmp_path):
    options = ("--train-subset", "valid", "--valid-subset", "test", "--batch-size", "8", "--max-epoch", "2")
    log = call_command(
        "train", toy.data, *toy.training, *options, "--validate-interval", 1, "--save-dir", tmp_path
    ).stdout
    assert last_value(log, "num_updates", "| train |") == 4
    assert last_value(log, "bsz", "| train |") == 6.5  # 13 in 2 batches
    assert last_value(log, "bsz", "valid on 'test' subset") == 5


def test_training_leaves_out_no_long_example(call_command, tiny_corpus, tiny_options, tmp_path):
    """Fairseq drops, with a warning, an example with a side that is longer than --max-tokens."""
    raw = shutil.copytree(tiny_corpus, tmp_path / "raw")
    for split in ("train", "valid", "test"):
        (raw / f"{split}.src").write_text("a b\n" * 7 + "a b c d e f g h i j a b\n")
        (raw / f"{split}.tgt").write_text("a\n" * 8)
    call_command("preprocess", *tiny_options.preprocess(raw, tmp_path / "data"))
    words = [word for word in tiny_options.training if word not in ("--batch-size", "8")]
    options = ("--finetune-method", "causal", "--max-tokens", "12", "--max-update", 1, "--save-dir", "saved")
    error = call_command("train", "data", *words, "--disable-validation", *options, status=2).stderr
    assert "error: --max-tokens must be at least 15, " in error and "train (number 8 of 8), but is 12" in error
    assert not (tmp_path / "saved" / "checkpoint_last.pt").exists()
    error = call_command(
        "train", "data", *words, *options, "--max-tokens", 15, "--max-tokens-valid", 14, status=2
    ).stderr
    assert "error: --max-tokens (--max-tokens-valid while training) must be at least 15, " in error
