"""Estimates of how much longer a ``tokenizer.json`` may make a text."""

import inspect
import json
import math
import sys
import unicodedata

import pytest
from tokenizer_folders import write_sentencepiece

from s2sft_fairseq.tokenization.growth import _GROWTH, _PARTS, _growth, _steps, check_growth
from s2sft_fairseq.tokenization.unigram import UnigramModel

tokenizers = pytest.importorskip("tokenizers", reason="tokenizers is not installed")
from tokenizers import decoders, normalizers, pre_tokenizers  # noqa: E402

SPACES = normalizers.Replace(tokenizers.Regex(" {2,}"), " ")
METASPACE = pre_tokenizers.Metaspace()
ALBERT = [normalizers.Replace("``", '"'), normalizers.NFKD(), normalizers.StripAccents(), normalizers.Lowercase()]
REAL = {
    "BERT": (normalizers.BertNormalizer(), pre_tokenizers.BertPreTokenizer(), decoders.WordPiece()),
    "ModernBERT": (normalizers.NFC(), pre_tokenizers.ByteLevel(), decoders.ByteLevel()),
    "mmBERT": (
        normalizers.Replace(" ", "▁"),
        pre_tokenizers.Split(" ", "merged_with_previous"),
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]),
    ),
    "EuroBERT": (
        None,
        pre_tokenizers.Sequence(
            [
                pre_tokenizers.Split(tokenizers.Regex("\\s+"), "isolated"),
                pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
            ]
        ),
        decoders.ByteLevel(),
    ),
    "Llama": (
        normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]),
        None,
        decoders.Sequence([decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Strip(" ", 1, 0)]),
    ),
}


GROWTH = {"BERT": 48, "ModernBERT": 48, "mmBERT": 1, "EuroBERT": 16, "Llama": 4, "XLM-R": 144, "ALBERT": 5184}


@pytest.mark.parametrize("name", GROWTH)
def test_real_tokenizers(tmp_path, name):
    words = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), METASPACE])
    path = write_sentencepiece(tmp_path) / "sentencepiece.bpe.model"
    table = normalizers.Precompiled(UnigramModel.read(path, path.read_bytes()).character_map)
    of_sentencepiece = {"XLM-R": [table, SPACES], "ALBERT": [*ALBERT, table, SPACES]}
    library = tokenizers.Tokenizer(tokenizers.models.BPE())
    normalizer, library.pre_tokenizer, library.decoder = REAL.get(name) or (
        normalizers.Sequence(of_sentencepiece[name]),
        words,
        decoders.Metaspace(),
    )
    if normalizer:
        library.normalizer = normalizer
    document = json.loads(library.to_str())
    check_growth(document, tmp_path / "tokenizer.json")
    assert math.prod(_growth(step) for part in _PARTS for step in _steps(document[part])) == GROWTH[name]


@pytest.mark.parametrize("name", ["NFC", "NFD", "NFKC", "NFKD", "Lowercase", "StripAccents", "Nmt", "ByteLevel"])
def test_the_growth_of_each_character(name):
    """Also BertNormalizer, which is left out here, does not exceed its number: 3 around Chinese, 4 of NFD, 2."""
    step = getattr(normalizers, name)()
    codes = (code for code in range(sys.maxunicode + 1) if not 0xD800 <= code < 0xE000)
    special = (text for text in map(chr, codes) if unicodedata.normalize("NFKD", text) != text or text.lower() != text)
    lengths = [len(step.normalize_str(text)) for text in (*special, "a", "\u00e9", "\u4e00", "\U0001f600")]
    assert max(lengths) == _GROWTH[name]


def test_all_steps_of_the_library_are_known():
    bases = {"Normalizer", "PreTokenizer", "Decoder", "DecodeStream"}
    modules = (normalizers, pre_tokenizers, decoders)
    names = {name for module in modules for name, _ in inspect.getmembers(module, inspect.isclass)}
    assert names - bases - set(_GROWTH) == set()
