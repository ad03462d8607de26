"""Dictionaries keep the ids of the pretrained vocabulary, whatever its tokens are."""

import io
import pickle
from pathlib import Path

import pytest
import torch
from tiny import tiny_dictionary

from s2sft_fairseq.data.dictionary import (
    BERT_SYMBOLS,
    GEMMA_SYMBOLS,
    MPNET_SYMBOLS,
    ROBERTA_SYMBOLS,
    SpecialSymbols,
)
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError

BERT = ["[PAD]", "[unused1]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "##s", "."]
ROBERTA_FILE = ["the", "Ġof", "."]


def write(path, symbols, end="\n"):
    path.write_bytes("".join(f"{symbol} {count}{end}" for count, symbol in enumerate(symbols, 1)).encode())
    return str(path)


def specials(dictionary):
    return dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk(), dictionary.mask()


@pytest.fixture
def bert(tmp_path):
    return FairseqDictionary.load(write(tmp_path / "dict.txt", BERT))


@pytest.fixture
def roberta(tmp_path):
    return FairseqDictionary.load(write(tmp_path / "dict.txt", ROBERTA_FILE))


def test_bert_symbols_stay_where_they_are(bert):
    assert bert.symbols == BERT
    assert specials(bert) == (3, 0, 4, 2, 5)
    assert bert.never_generated() == [0, 2, 3, 5]
    assert bert.nspecial == 0
    assert [bert.index(symbol) for symbol in BERT] == list(range(len(BERT)))
    assert bert.index("absent") == bert.unk()


def test_roberta_symbols_come_first_and_mask_last(roberta):
    assert roberta.symbols == ["<s>", "<pad>", "</s>", "<unk>", *ROBERTA_FILE, "<mask>"]
    assert specials(roberta) == (0, 1, 2, 3, 7)
    assert roberta.never_generated() == [0, 1, 3, 7]


def test_a_mask_symbol_in_a_roberta_file_stays_there(tmp_path):
    symbols = ["the", "<mask>", "."]
    dictionary = FairseqDictionary.load(write(tmp_path / "dict.txt", symbols))
    assert dictionary.symbols == ["<s>", "<pad>", "</s>", "<unk>", *symbols]
    assert dictionary.mask() == 5


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_round_trip(kind, request, tmp_path):
    dictionary = request.getfixturevalue(kind)
    saved = str(tmp_path / "saved" / "dict.txt")
    dictionary.save(saved)
    for again in (FairseqDictionary.load(saved), pickle.loads(pickle.dumps(dictionary))):
        assert again.symbols == dictionary.symbols
        assert again.indices == dictionary.indices
        assert again.count == dictionary.count
        assert specials(again) == specials(dictionary)
    with open(saved, encoding="utf-8", newline="") as file:
        assert FairseqDictionary.load(file).symbols == dictionary.symbols
    assert FairseqDictionary.load(io.StringIO("[PAD] 1\n[UNK] 1\n[CLS] 1\n[SEP] 1\n[MASK] 1")).pad() == 0


def test_fairseq_encodes_and_decodes_with_it(bert, roberta):
    ids = bert.encode_line("the ##s nowhere .", add_if_not_exist=False)
    assert ids.tolist() == [6, 7, 2, 8, 4]
    assert bert.string(ids) == "the ##s [UNK] ."
    assert bert.string(torch.tensor([3, 6, 4, 0]), extra_symbols_to_ignore={bert.pad()}) == "the"
    ids = roberta.encode_line("Ġof nowhere", add_if_not_exist=False)
    assert ids.tolist() == [5, 3, 2]
    assert roberta.string(ids) == "Ġof <unk>"


def test_a_symbol_that_comes_twice_keeps_both_ids(tmp_path):
    symbols = [*BERT, "[unused1]", "last"]
    dictionary = FairseqDictionary.load(write(tmp_path / "dict.txt", symbols))
    assert dictionary.symbols == symbols
    assert dictionary.index("[unused1]") == 9
    assert dictionary.index("last") == len(symbols) - 1
    assert dictionary[9] == "[unused1]"
    dictionary.save(str(tmp_path / "again.txt"))
    assert FairseqDictionary.load(str(tmp_path / "again.txt")).symbols == symbols


# Characters at which str.splitlines() or str.split() end a line or a word.
STRANGE = ["\u2028", "\u2029", "\x85", "\x0b", "\x0c", "\x1c", "\u3000", "\xa0", "a\u2028b", "\u200b", "\ufeff"]


def test_strange_spaces_are_tokens(tmp_path):
    symbols = [*BERT, *STRANGE, "end"]
    dictionary = FairseqDictionary.load(write(tmp_path / "dict.txt", symbols))
    assert dictionary.symbols == symbols
    dictionary.save(str(tmp_path / "again.txt"))
    assert FairseqDictionary.load(str(tmp_path / "again.txt")).symbols == symbols


@pytest.mark.parametrize(
    ("symbols", "special", "listed"),
    [
        (BERT, BERT_SYMBOLS, len(BERT)),
        (["<s>", "<pad>", "</s>", "<unk>", "a", "b", "<mask>", "[ATTN]"], ROBERTA_SYMBOLS, 4),
        (["<unk>", "<s>", "</s>", "a", "<pad>", "<mask>"], ROBERTA_SYMBOLS, 6),
        (["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<s>"], GEMMA_SYMBOLS, 6),
        (["<s>", "<pad>", "</s>", "<unk>", *BERT, "<mask>"], MPNET_SYMBOLS, 5 + len(BERT)),
    ],
)
def test_a_whole_vocabulary(tmp_path, symbols, special, listed):
    """The file omits the symbols that fairseq puts first, if they come first; loading restores all symbols."""
    dictionary = FairseqDictionary.of(symbols)
    assert dictionary.symbols == symbols and set(dictionary.count) == {1}
    ids = (dictionary.bos(), dictionary.pad(), dictionary.eos(), dictionary.unk(), dictionary.mask())
    assert [dictionary[number] for number in ids] == [*vars(special).values()]
    dictionary.save(str(tmp_path / "dict.txt"))
    assert len((tmp_path / "dict.txt").read_text().splitlines()) == listed
    again = FairseqDictionary.load(str(tmp_path / "dict.txt"))
    assert again.symbols == symbols and again.bos() == dictionary.bos()


def test_windows_line_ends_and_flags_of_fairseq(tmp_path):
    path = write(tmp_path / "dict.txt", BERT, end="\r\n")
    assert FairseqDictionary.load(path).symbols == BERT
    path = write(tmp_path / "flags.txt", BERT, end=" #fairseq:overwrite\n")
    assert FairseqDictionary.load(path).symbols == BERT


def test_malformed_lines_are_named_with_their_numbers(tmp_path):
    path = tmp_path / "dict.txt"
    path.write_text("[PAD] 1\nword\n[UNK] many\n\n[CLS] -1\nfine 3\n 4\nthe \u0661\n", encoding="utf-8")
    with pytest.raises(UserError) as raised:
        FairseqDictionary.load(str(path))
    assert str(raised.value).splitlines() == [
        f"6 malformed lines in dictionary {path}:",
        f"  - {path}, line 2: needs '<symbol> <count>', found 'word'",
        f"  - {path}, line 3: needs '<symbol> <count>', found '[UNK] many'",
        f"  - {path}, line 4: needs '<symbol> <count>', found ''",
        f"  - {path}, line 5: needs '<symbol> <count>', found '[CLS] -1'",
        f"  - {path}, line 7: needs '<symbol> <count>', found ' 4'",
        f"  - {path}, line 8: needs '<symbol> <count>', found 'the \u0661'",
    ]


def test_a_whole_vocabulary_in_place_of_a_dictionary(tmp_path):
    """The most common mistake: the error names the first ten lines, not thirty thousand."""
    (tmp_path / "vocab.txt").write_text("\n".join(["[PAD]", *map(str, range(999))]))
    with pytest.raises(UserError, match=r"^1000 malformed lines in dictionary") as raised:
        FairseqDictionary.load(str(tmp_path / "vocab.txt"))
    lines = str(raised.value).splitlines()
    assert len(lines) == 12 and "990 more" in lines[-1]


def test_missing_special_symbols(tmp_path):
    needed = r"must hold \[CLS\], \[PAD\], \[SEP\], \[UNK\], \[MASK\], but lacks \[CLS\], \[MASK\]$"
    path = write(tmp_path / "dict.txt", ["[PAD]", "[UNK]", "[SEP]", "word"])
    with pytest.raises(UserError, match=f"^{path}: the dictionary {needed}"):
        FairseqDictionary.load(path)
    without_pad = write(tmp_path / "without_pad.txt", [symbol for symbol in BERT if symbol != "[PAD]"])
    with pytest.raises(UserError, match=r"but lacks \[PAD\]$"):
        FairseqDictionary.load(str(without_pad))
    with pytest.raises(UserError, match=f"^the dictionary {needed}"):
        FairseqDictionary.of(["[PAD]", "[UNK]", "[SEP]", "word"])
    with pytest.raises(UserError, match="but lacks </s>"):
        FairseqDictionary([("<s>", 1), ("<pad>", 1), ("<unk>", 1), ("<mask>", 1)], ROBERTA_SYMBOLS)
    assert tiny_dictionary().pad_word == BERT_SYMBOLS.pad


def test_unreadable_files(tmp_path):
    latin = tmp_path / "latin.txt"
    latin.write_bytes("[PAD] 1\ncafé 2\n".encode("latin-1"))
    (tmp_path / "folder").mkdir()
    for path, problem in {
        "absent.txt": "does not exist",
        "folder": "must be a file, but is a folder",
        "latin.txt": "must be UTF-8, but byte 11 is not",
    }.items():
        with pytest.raises(UserError, match=rf"^dictionary .*{path} {problem}$"):
            FairseqDictionary.load(str(tmp_path / path))


def test_ids_come_from_one_file_alone():
    with pytest.raises(NotImplementedError, match=r"FairseqDictionary\.load"):
        tiny_dictionary().add_from_file("more.txt")


def test_symbols_as_text():
    """The start and end symbols are left out; symbols between two fields of a source are not."""
    dictionary = tiny_dictionary()
    ids = torch.tensor([dictionary.bos(), 7, dictionary.eos(), 8, 1, dictionary.eos(), dictionary.eos()])
    assert dictionary.string(ids) == "w7 [SEP] w8 [UNK]"
    assert dictionary.string(ids, include_eos=True) == "w7 [SEP] w8 [UNK] [SEP] [SEP]"
    assert dictionary.string(ids, escape_unk=True, extra_symbols_to_ignore={7, dictionary.eos()}) == "w8 <[UNK]>"
    assert dictionary.string(torch.stack([ids, ids])) == "w7 [SEP] w8 [UNK]\nw7 [SEP] w8 [UNK]"
    assert dictionary.string(torch.tensor([], dtype=torch.long)) == ""
    assert dictionary.string([7, dictionary.eos(), 8]) == "w7 w8"


STATED = SpecialSymbols(bos="<|im_start|>", pad="<reponame>", eos="<|im_end|>", unk="<|endoftext|>", mask="<repo_name>")
SMOLLM2 = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "a", "<pad>", "a"]


def test_a_file_states_the_special_symbols_that_names_do_not_tell(tmp_path):
    path = str(tmp_path / "dict.txt")
    FairseqDictionary.of(SMOLLM2, STATED).save(path)
    assert Path(path).read_text().splitlines()[1] == "<|im_start|> 1 #s2sft:bos"
    found = FairseqDictionary.load(path)
    assert (found.symbols, found.special, found.is_stated) == (SMOLLM2, STATED, True)
    assert (found.bos(), found.pad(), found.eos(), found.unk(), found.mask()) == (1, 4, 2, 0, 3)
    assert found.never_generated() == [0, 1, 3, 4]


def test_fairseqs_first_symbols_stay_in_a_file_that_states_others(tmp_path):
    symbols = ["<s>", "<pad>", "</s>", "<unk>", "<|im_end|>", "<mask>"]
    special = SpecialSymbols(bos="<s>", pad="<pad>", eos="<|im_end|>", unk="<unk>", mask="<mask>")
    path = str(tmp_path / "dict.txt")
    FairseqDictionary.of(symbols, special).save(path)
    assert FairseqDictionary.load(path).symbols == symbols
    assert FairseqDictionary.load(path).special == special


def test_names_that_tell_are_not_stated(tmp_path):
    path = str(tmp_path / "dict.txt")
    FairseqDictionary.of(BERT, BERT_SYMBOLS).save(path)
    assert "#s2sft" not in Path(path).read_text()
    assert not FairseqDictionary.load(path).is_stated


@pytest.mark.parametrize(
    "roles",
    [
        {"a": "bos"},
        {"a": "bos", "b": "pad", "c": "eos", "d": "unk"},
        {"a": "bos", "b": "pad", "c": "eos", "d": "unk", "e": "cls"},
        {"a": "bos", "b": "pad", "c": "eos", "d": "unk", "e": "mask", "f": "mask"},
        {"a": "bos", "b": "pad", "c": "eos", "d": "unk", "e": ""},
    ],
)
def test_a_file_that_states_too_few_symbols_or_others(tmp_path, roles):
    path = tmp_path / "dict.txt"
    path.write_text("".join(f"{symbol} 1 #s2sft:{role}\n" for symbol, role in roles.items()))
    with pytest.raises(UserError, match="must state another symbol for each of bos, pad, eos, unk, mask"):
        FairseqDictionary.load(str(path))


def test_a_symbol_of_two_uses(tmp_path):
    path = tmp_path / "dict.txt"
    lines = ["a 1 #s2sft:bos", "b 1 #s2sft:pad", "a 1 #s2sft:eos", "d 1 #s2sft:unk", "e 1 #s2sft:mask"]
    path.write_text("".join(f"{line}\n" for line in lines))
    with pytest.raises(UserError, match="a as bos, b as pad, a as eos"):
        FairseqDictionary.load(str(path))
