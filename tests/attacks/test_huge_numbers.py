"""Numbers of more digits than Python or 64 bits take."""

from argparse import Namespace

import pytest
import torch
from fairseq import checkpoint_utils
from hostile_files import save_weights

from s2sft_fairseq.data.bounded_files import read_json
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.plots.training import read_run
from s2sft_fairseq.recipes.settings import TRAINING, read_toml, read_values
from s2sft_fairseq.spans.vocabulary import load_spans
from s2sft_fairseq.tokenization.folder import open_tokenizer


@pytest.mark.parametrize("text", [f"[{2**63}]", "9" * 5000, "-" + "9" * 30, '"\\ud800"', '{"\\udc00": 1}', "", "[1,]"])
def test_invalid_json(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(UserError, match=r"a\.json must be JSON: "):
        read_json(tmp_path / "a.json")


def test_no_limit_of_transformers(tmp_path):
    """The number that transformers writes for "no limit" is read as a float, which no size may be."""
    (tmp_path / "a.json").write_text(f'{{"model_max_length": {int(1e30)}, "vocab_size": 5}}')
    read = read_json(tmp_path / "a.json")
    assert (read["model_max_length"], type(read["model_max_length"])) == (1e30, float)


@pytest.mark.parametrize("name", ["layers", "activation_fn"])
def test_a_number_of_600_digits(tmp_path, name):
    options = Namespace(arch="unilm", **{name: 10**600})
    path = save_weights(tmp_path, {"model": {"a": torch.zeros(1)}, "args": options})
    with pytest.raises(UserError, match=rf"args\.{name} must be a number.* but is a whole number of 1,994 bits"):
        checkpoint_utils.load_checkpoint_to_cpu(str(path))


NUMBERS = ["9" * 5000, "1" * 19, "²", "٣", "-1", "1.0", ""]


@pytest.mark.parametrize("number", NUMBERS, ids=lambda number: number[:5])
def test_counts_of_a_dictionary(tmp_path, number):
    (tmp_path / "dict.txt").write_text(f"[PAD] 1\na {number}\n", encoding="utf-8")
    with pytest.raises(UserError, match=r"dict\.txt, line 2: needs '<symbol> <count>', found 'a "):
        PretrainedDictionary.load(str(tmp_path / "dict.txt"))


@pytest.mark.parametrize("number", NUMBERS[:2], ids=lambda number: number[:5])
def test_ids_of_a_vocabulary(tmp_path, number):
    (tmp_path / "vocab.txt").write_text(f"[PAD]\t0\n[UNK]\t{number}\n")
    with pytest.raises(UserError, match=r"vocab\.txt, line 2: the id after the tab must be 1, but is [19]{19,40}$"):
        open_tokenizer(tmp_path)


@pytest.mark.parametrize("number", ["1e400", "true", '"1"', "null", "1.0"])
def test_numbers_of_a_span_vocabulary(tmp_path, number):
    first = f'{{"format": "s2sft span vocabulary", "version": 1, "listed": {{"bigrams": {number}, "trigrams": 0}}}}'
    (tmp_path / "spans.txt").write_text(f"{first}\ncontinuing\t\n")
    dictionary = PretrainedDictionary.of(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"])
    with pytest.raises(
        UserError, match=r"spans\.txt, line 1: needs whole numbers of n-grams in listed, but bigrams is "
    ):
        load_spans(tmp_path / "spans.txt", dictionary)


@pytest.mark.parametrize("number", ["9" * 5000, f"0x{'f' * 5000}", f'"{"9" * 5000}"', "1e400"], ids=lambda n: n[:5])
def test_numbers_of_a_configuration(tmp_path, number):
    (tmp_path / "mine.toml").write_text(f"seed = {number}\n")
    with pytest.raises(UserError, match=r"TOML|seed"):
        read_values(TRAINING, read_toml(tmp_path / "mine.toml"))


@pytest.mark.parametrize("number", ["1e400", '"inf"', '"nan"', "NaN"])
def test_updates_of_a_log(tmp_path, number):
    (tmp_path / "train.log").write_text(f'{{"epoch": 1, "num_updates": {number}, "loss": "2.5"}}\n')
    with pytest.raises(UserError, match=r"train\.log, line 1: num_updates must be a number, but is (inf|nan)"):
        read_run(tmp_path)
