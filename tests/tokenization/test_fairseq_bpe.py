"""``--bpe pretrained`` of fairseq's commands."""

import json
from argparse import Namespace

import pytest
from fairseq import options
from fairseq.data import encoders
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from tokenizer_folders import SENTENCES, WRITERS

from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer


def generation_options(*words: str) -> Namespace:
    parser = options.get_interactive_generation_parser(default_task="translation")
    return options.parse_args_and_arch(parser, ["data", "--path", "x.pt", "--bpe", "pretrained", *words])


def build(*words: str):
    return encoders.build_bpe(convert_namespace_to_omegaconf(generation_options(*words)).bpe)


@pytest.mark.parametrize("name", WRITERS)
def test_every_scheme_is_a_bpe_of_fairseq(tokenizer_folder, name):
    folder = tokenizer_folder(name)
    bpe, tokenizer = build("--tokenizer-dir", str(folder)), open_tokenizer(folder)
    assert type(bpe) is type(tokenizer)
    assert bpe.encode(SENTENCES[0]) == tokenizer.encode(SENTENCES[0])


def test_the_folder_is_missing():
    with pytest.raises(UserError, match=r"--bpe pretrained needs --tokenizer-dir, .* found none"):
        build()


@pytest.fixture
def letters(tiny_corpus, tmp_path):
    """A byte-level tokenizer of the letters that `tiny_data` has, without merges."""
    symbols = [line.split()[0] for line in (tiny_corpus / "dict.txt").read_text().splitlines()]
    (tmp_path / "vocab.json").write_text(json.dumps({symbol: number for number, symbol in enumerate(symbols)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    return tmp_path


def test_raw_text_goes_in_and_plain_text_comes_out(call_command, tiny_data, tiny_training, letters):
    (letters / "lines.txt").write_text("abc\njihg[SEP]a\n")
    words = ("--path", tiny_training.checkpoint, "--cpu", "--min-len", 3, "--bpe", "pretrained", "--tokenizer-dir", ".")
    interactive = call_command("interactive", tiny_data, *words, "--input", "lines.txt").stdout.splitlines()
    assert "S-0\ta b c" in interactive
    assert "S-1\tj i h g [SEP] a" in interactive
    generated = call_command("generate", tiny_data, *words, "--batch-size", 10).stdout.splitlines()
    for lines in (interactive, generated):
        texts = {line[:3]: line.split("\t")[-1] for line in lines if line[:2] in ("H-", "D-")}
        assert len(texts["H-0"]) > 1
        assert texts["D-0"] == texts["H-0"].replace(" ", "")


def test_the_command_line_knows_it(run_command):
    assert "--tokenizer-dir" in run_command("interactive", "--bpe", "pretrained", "--help").stdout
