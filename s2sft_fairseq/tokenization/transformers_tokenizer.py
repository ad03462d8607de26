"""Write a tokenizer as ``AutoTokenizer`` of transformers reads it, whatever the model beside it is called.

``tokenizer.json`` says how text becomes ids, special symbols included; two texts have one separator between them, as in
training.
"""

import json
import shutil
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.tokenization.folder import open_tokenizer
from s2sft_fairseq.tokenization.library_tokenizer import LibraryTokenizer, require_library
from s2sft_fairseq.tokenization.vocabulary import (
    TOKENIZER_CONFIG,
    XLMR_MODEL,
    Vocabulary,
    read_ids,
    read_vocabulary,
)


def write_transformers_tokenizer(folder: Path, destination: Path, max_length: int) -> None:
    """Write the tokenizer of a folder.

    Args:
        folder: that holds it.
        destination: the folder to write into.
        max_length: positions of the longest source, special symbols included.

    Raises:
        UserError: if transformers has no tokenizer that gives the same ids.
    """
    require_library(folder)
    from tokenizers import processors

    vocabulary = read_vocabulary(folder)
    dictionary = PretrainedDictionary.of(vocabulary.symbols)
    config: dict[str, Any] = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": max_length,
        "model_input_names": ["input_ids", "attention_mask"],
        "padding_side": "right",
        "clean_up_tokenization_spaces": vocabulary.scheme == "wordpiece",
        **dict.fromkeys(("cls_token", "bos_token"), dictionary.symbols[dictionary.bos()]),
        **dict.fromkeys(("sep_token", "eos_token"), dictionary.eos_word),
        "pad_token": dictionary.pad_word,
        "unk_token": dictionary.unk_word,
        "mask_token": dictionary.symbols[dictionary.mask()],
    }
    library, opened = _library_tokenizer(folder, vocabulary)
    special = {symbol: opened.index(symbol) for symbol in (config["cls_token"], config["sep_token"])}
    cls, sep = special
    library.post_processor = processors.TemplateProcessing(
        single=f"{cls} $A {sep}", pair=f"{cls} $A {sep} $B {sep}", special_tokens=list(special.items())
    )
    library.save(str(destination / "tokenizer.json"))
    (destination / TOKENIZER_CONFIG).write_text(json.dumps(config, indent=2, ensure_ascii=False) + "\n", "utf-8")


def copy_tokenizer(folder: Path, vocabulary: Vocabulary, destination: Path) -> None:
    """Copy the tokenizer's files; GPT-2's, which fairseq gives ids of its own, as RoBERTa's."""
    for name in vocabulary.files:
        if name == "encoder.json":
            tokens = {str(number): token for token, number in read_ids(folder / name).items()}
            ids = {tokens.get(symbol, symbol): number for number, symbol in enumerate(vocabulary.symbols)}
            (destination / "vocab.json").write_text(json.dumps(ids, ensure_ascii=False), encoding="utf-8")
        else:
            shutil.copyfile(folder / name, destination / {"vocab.bpe": "merges.txt"}.get(name, name))


def _library_tokenizer(folder: Path, vocabulary: Vocabulary) -> tuple[Any, PretrainedDictionary]:
    """Return a tokenizer of the library `tokenizers`, and the dictionary whose ids it gives."""
    what = f"{folder}: transformers has no tokenizer with the ids of this one ({vocabulary.scheme})"
    if vocabulary.scheme == "sentencepiece" and vocabulary.files[0] == XLMR_MODEL and not vocabulary.added:
        from transformers import XLMRobertaTokenizer

        opened = XLMRobertaTokenizer.from_pretrained(folder)
        return opened.backend_tokenizer, PretrainedDictionary.of(vocabulary.symbols)
    with TemporaryDirectory() as temporary:
        if "encoder.json" in vocabulary.files:
            copy_tokenizer(folder, vocabulary, Path(temporary))
            folder = Path(temporary)
        tokenizer = open_tokenizer(folder)
    if not isinstance(tokenizer, LibraryTokenizer):
        raise UserError(f"{what}: wordpiece, byte_level_bpe, tokenizer_json and {XLMR_MODEL} can be exported")
    dictionary = tokenizer.dictionary  # of GPT-2 with the tokens in place of their numbers
    moved = [
        symbol
        for number, symbol in enumerate(tokenizer.symbols)
        if symbol != dictionary.unk_word and dictionary.index(symbol) != number
    ]
    if moved:
        raise UserError(f"{what}: {', '.join(moved[:5])} have other ids in the model")
    from tokenizers import AddedToken, decoders

    library = tokenizer.library
    names = [dictionary.symbols[dictionary.bos()], dictionary.eos_word, dictionary.pad_word, dictionary.unk_word]
    library.add_special_tokens([AddedToken(name, special=True) for name in names])
    if vocabulary.scheme == "wordpiece":
        library.decoder = decoders.WordPiece(prefix="##", cleanup=True)
    return library, dictionary
