"""The special symbols of language models: those of their own, reserved ones, and which are added."""

import pytest

from s2sft_fairseq.data.dictionary import SpecialSymbols
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.language_models import begins_with_end, language_model_symbols

SMOLLM2 = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<repo_name>", "<reponame>", "<file_sep>", "<filename>", "a"]
LLAMA3 = [
    *("a", "<|begin_of_text|>", "<|end_of_text|>", "<|reserved_special_token_0|>", "<|reserved_special_token_1|>"),
    *("<|finetune_right_pad_id|>", "<|reserved_special_token_2|>", "<|eot_id|>"),
]
QWEN = ["a", "<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|object_ref_start|>", "<|box_start|>", "<|fim_prefix|>"]
GEMMA = ["<pad>", "<eos>", "<bos>", "<unk>", "<mask>", "<unused0>", "a", "<start_of_turn>", "<end_of_turn>"]
TINY_LLAMA = ["<unk>", "<s>", "</s>", "<0x00>", "a"]


def tokens(**names):
    return {f"{role}_token": name for role, name in names.items()}


def ids(**numbers):
    return {f"{role}_token_id": number for role, number in numbers.items()}


@pytest.mark.parametrize(
    ("symbols", "stated", "config", "expected"),
    [
        pytest.param(
            SMOLLM2,
            tokens(bos="<|im_start|>", eos="<|im_end|>", pad="<|im_end|>", unk="<|endoftext|>"),
            ids(bos=1, eos=2, pad=2),
            ("<|im_start|>", "<reponame>", "<|im_end|>", "<|endoftext|>", "<repo_name>"),
            id="SmolLM2-Instruct",
        ),
        pytest.param(
            SMOLLM2,
            tokens(bos="<|endoftext|>", eos="<|endoftext|>", unk="<|endoftext|>"),
            ids(bos=0, eos=0),
            ("<repo_name>", "<file_sep>", "<|endoftext|>", "<filename>", "<reponame>"),
            id="SmolLM2",
        ),
        pytest.param(
            LLAMA3,
            tokens(bos="<|begin_of_text|>", eos="<|end_of_text|>"),
            ids(bos=1, eos=2),
            *[
                (
                    "<|begin_of_text|>",
                    "<|finetune_right_pad_id|>",
                    "<|end_of_text|>",
                    "<|reserved_special_token_1|>",
                    "<|reserved_special_token_0|>",
                )
            ],
            id="Llama 3.2",
        ),
        pytest.param(
            LLAMA3,
            tokens(bos="<|begin_of_text|>", eos="<|eot_id|>"),
            ids(bos=1, eos=[2, 7]),  # the tokenizer's counts
            *[
                (
                    "<|begin_of_text|>",
                    "<|finetune_right_pad_id|>",
                    "<|eot_id|>",
                    "<|reserved_special_token_1|>",
                    "<|reserved_special_token_0|>",
                )
            ],
            id="Llama 3.2-Instruct",
        ),
        pytest.param(
            QWEN,
            tokens(eos="<|im_end|>", pad="<|endoftext|>"),
            ids(eos=3),
            ("<|object_ref_start|>", "<|endoftext|>", "<|im_end|>", "<|fim_prefix|>", "<|box_start|>"),
            id="Qwen, no bos",
        ),
        pytest.param(
            [*QWEN[:4], "madeupword0000", "madeupword0001"],
            tokens(eos="<|im_end|>", pad="<|endoftext|>"),
            ids(bos=1, eos=3),
            ("<|endoftext|>", "madeupword0001", "<|im_end|>", "<unk>", "madeupword0000"),
            id="Qwen2, rows beyond the tokenizer",
        ),
        pytest.param(
            GEMMA,
            tokens(bos="<bos>", eos="<eos>", pad="<pad>", unk="<unk>"),
            ids(eos=[1, 8]),
            ("<bos>", "<pad>", "<eos>", "<unk>", "<mask>"),
            id="Gemma 3",
        ),
        pytest.param(
            TINY_LLAMA,
            tokens(bos="<s>", eos="</s>", pad="</s>", unk="<unk>"),
            ids(bos=1, eos=2),
            ("<s>", "<pad>", "</s>", "<unk>", "<mask>"),
            id="TinyLlama, two are added",
        ),
        pytest.param(["a", "b"], {}, ids(eos=[1]), ("<s>", "<pad>", "b", "<unk>", "<mask>"), id="ids alone"),
    ],
)
def test_symbols(symbols, stated, config, expected):
    bos, pad, eos, unk, mask = expected
    found = language_model_symbols(stated, symbols, config)
    assert found == SpecialSymbols(bos=bos, pad=pad, eos=eos, unk=unk, mask=mask)
    assert len(set(vars(found).values())) == 5


def test_no_symbol_ends_texts():
    for stated, config in (({}, {}), (tokens(eos="zz"), {}), ({}, ids(eos=9)), ({}, ids(eos=[])), ({}, ids(eos="a"))):
        with pytest.raises(UserError, match="must state the symbol that ends texts"):
            language_model_symbols(stated, ["a", "b"], config)


def test_a_text_that_begins_with_the_symbol_that_ends_it():
    same, other = tokens(bos="a", eos="a"), tokens(bos="b", eos="a")
    assert begins_with_end(same, ["a", "b"], {})
    assert begins_with_end({}, ["a", "b"], ids(bos=0, eos=0))
    assert not begins_with_end(other, ["a", "b"], {})
    assert not begins_with_end(tokens(eos="a"), ["a", "b"], {})
