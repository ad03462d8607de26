"""A training that is done is not gone on with, whichever command resumes it."""


def test_the_last_update_is_the_last(call_command, tiny_data, tiny_options, tmp_path):
    words = (tiny_data, *tiny_options.training, "--save-dir", "saved", "--max-update")
    call_command("train", *words, 2)
    last = tmp_path / "saved" / "checkpoint_last.pt"
    before = last.read_bytes()
    for updates in (2, 1):
        log = call_command("train", *words, updates).stdout
        assert f"nothing is left to train: 2 updates are done, and --max-update is {updates}" in log
        assert "num_updates=3" not in log and last.read_bytes() == before
    assert "num_updates=3" in call_command("train", *words, 3).stdout
