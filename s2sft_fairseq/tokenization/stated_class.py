"""What the configuration of a tokenizer says about it: its class, and steps that this package does not have.

The names of a folder's files do not tell the tokenizer: a ``vocab.txt`` belongs to BERT's tokenizer, or to a Japanese
one that needs MeCab, and a ``sentencepiece.bpe.model`` has other ids in CamemBERT than in XLM-R.
"""

from collections.abc import Iterator, Mapping
from typing import Any

from s2sft_fairseq.errors import shown

_CLASSES: Mapping[str, tuple[str, ...]] = {
    "wordpiece": (
        *("BertTokenizer", "DistilBertTokenizer", "ElectraTokenizer", "MobileBertTokenizer", "ConvBertTokenizer"),
        *("SqueezeBertTokenizer", "RetriBertTokenizer", "LayoutLMTokenizer", "ErnieTokenizer", "MPNetTokenizer"),
    ),
    "byte_level_bpe": (
        *("RobertaTokenizer", "GPT2Tokenizer", "BartTokenizer", "LongformerTokenizer", "LEDTokenizer"),
        "DebertaTokenizer",
    ),
    "sentencepiece": ("XLMRobertaTokenizer", "DebertaV2Tokenizer"),
}
"""The classes of transformers that each scheme of a folder's files has here."""
_ANY = ("PreTrainedTokenizer", "TokenizersBackend", "PythonBackend", "SentencePieceBackend")
"""Classes that say nothing about the scheme."""
_PYTHON_ONLY = (
    *("BertJapaneseTokenizer", "BertweetTokenizer", "PhobertTokenizer", "BartphoTokenizer", "RoCBertTokenizer"),
    *("KoBertTokenizer", "KoBERTTokenizer", "BertGenerationTokenizer", "TapasTokenizer", "EsmTokenizer"),
    *("FlaubertTokenizer", "XLMTokenizer", "FSMTTokenizer", "ProphetNetTokenizer", "CanineTokenizer", "ByT5Tokenizer"),
)
"""Classes whose steps no ``tokenizer.json`` describes, also if a folder holds one."""
# Settings, and their values that say nothing more than the class.
_WORDS = {
    "word_tokenizer_type": (None, "basic"),
    "subword_tokenizer_type": (None, "wordpiece"),
    "do_word_tokenize": (None, True),
    "do_subword_tokenize": (None, True),
    "mecab_kwargs": (None, {}),
    "sudachi_kwargs": (None, {}),
    "jumanpp_kwargs": (None, {}),
}
_STEPS: Mapping[str, Mapping[str, tuple[Any, ...]]] = {
    "wordpiece": {"do_basic_tokenize": (None, True), "do_split_on_punc": (None, True), "never_split": (None, [])},
    "sentencepiece": {"sp_model_kwargs": (None, {})},
    "DebertaV2Tokenizer": {"do_lower_case": (None, False), "split_by_punct": (None, False)},
}
"""Settings of schemes and classes, as above."""


def refusals(config: Mapping[str, Any], path: object) -> Iterator[str]:
    """Yield what a configuration says that no file of the folder can describe.

    Args:
        config: ``tokenizer_config.json``, or a ``config.json``.
        path: its file, for messages.
    """
    name = class_name(config)
    if name in _PYTHON_ONLY:
        yield f"{path}: tokenizer_class is {name}, which this package does not have"
    elif _has_own_code(config) and not _is_known(name):
        yield f"{path}: auto_map names a tokenizer of its own program, {shown(config.get('tokenizer_class'))}"
    for setting, values in _WORDS.items():
        if config.get(setting) not in values:
            yield f"{path}: {setting} is {shown(config[setting])}, a step that this package does not have"


def differences(config: Mapping[str, Any], scheme: str, path: object) -> Iterator[str]:
    """Yield what a configuration says that a scheme does not do; a ``tokenizer.json`` may describe it.

    Args:
        config: ``tokenizer_config.json``, or a ``config.json``.
        scheme: the scheme that the names of the files tell.
        path: the file of the configuration, for messages.
    """
    name = class_name(config)
    classes = _CLASSES.get(scheme, ())
    if classes and name not in (None, *_ANY, *classes):
        yield f"{path}: tokenizer_class must be one of {', '.join(classes)} for these files, but is {name}"
    for setting, values in {**_STEPS.get(scheme, {}), **_STEPS.get(name or "", {})}.items():
        if config.get(setting) not in values:
            yield f"{path}: {setting} is {shown(config[setting])}, a step that this package does not have"


def class_name(config: Mapping[str, Any]) -> str | None:
    """Return the class of the tokenizer, without the ending of its fast or its slow program."""
    name = config.get("tokenizer_class")
    return name.removesuffix("Fast").removesuffix("Legacy") if isinstance(name, str) else None


def _is_known(name: str | None) -> bool:
    return name in _ANY or any(name in classes for classes in _CLASSES.values())


def _has_own_code(config: Mapping[str, Any]) -> bool:
    own = config.get("auto_map")
    return isinstance(own, dict) and "AutoTokenizer" in own
