"""Write a DeltaLM for transformers, as an equivalent BART with twice as many decoder layers, without own code."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fairseq.dataclass.configs import GenerationConfig

from s2sft_fairseq.checkpoints.conversion import Sizes, Weights
from s2sft_fairseq.checkpoints.deltalm import TOKENS, read_deltalm
from s2sft_fairseq.checkpoints.deltalm_as_bart import KEY, bart_config, bart_weights
from s2sft_fairseq.checkpoints.finite_weights import check_finite
from s2sft_fairseq.checkpoints.model_folder import CARD, CONFIG, WEIGHTS
from s2sft_fairseq.checkpoints.safe_loading import load_checkpoint
from s2sft_fairseq.checkpoints.safetensors_file import write_safetensors
from s2sft_fairseq.data.dictionary import DICTIONARY, PretrainedDictionary, symbols_fingerprint
from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.files import check_replaceable, new_folder
from s2sft_fairseq.models.deltalm import SIZES
from s2sft_fairseq.models.pretrained_checkpoint import section, weights_file
from s2sft_fairseq.tokenization.fast_tokenizer import FAST, write_fast_tokenizer
from s2sft_fairseq.tokenization.vocabulary import TOKENIZER_CONFIG, Vocabulary, read_vocabulary

GENERATION_CONFIG = "generation_config.json"
_NOT_COPIED = (FAST, TOKENIZER_CONFIG, "special_tokens_map.json")


@dataclass(frozen=True)
class DeltaLM:
    """A `deltalm` model with all that an export needs."""

    file: Path
    """The file of its weights."""
    state: Mapping[str, Any]
    """The checkpoint."""
    weights: Weights
    sizes: Sizes
    """All sizes, by the names of `DeltaLMConfig`."""
    tokenizer: Path
    """The folder of its tokenizer."""
    vocabulary: Vocabulary
    dictionary: PretrainedDictionary
    """The symbol of each row of the token embedding."""

    @property
    def layout(self) -> Mapping[str, Any]:
        """Return the layout of sources and targets in the checkpoint; empty if the model is not fine-tuned."""
        return (self.state.get("task_state") or {}).get("layout") or {}

    @property
    def language_symbols(self) -> dict[str, str]:
        """Return the symbol that a source begins with, for each target language."""
        token = self.layout.get("language_token")
        return {language: token.replace("{}", language) for language in self.layout["languages"]} if token else {}

    @property
    def max_source(self) -> int:
        """Return the maximum number of positions of a source."""
        return int(self.layout.get("max_source_positions") or self.sizes["max_positions"])

    def search(self) -> dict[str, Any]:
        """Return the model's default options of ``s2sft generate``, completed with fairseq's defaults."""
        names = (
            *("beam", "max_len_a", "max_len_b", "min_len", "lenpen", "unnormalized", "no_early_stop", "temperature"),
            *("no_repeat_ngram_size", "sampling", "sampling_topk", "sampling_topp"),
        )
        defaults = GenerationConfig()
        known = {name: getattr(defaults, name) for name in names}
        return {**known, "early_stop": "exact", **(self.state.get("search") or {})}


def is_deltalm_checkpoint(path: Path) -> bool:
    """Return whether this is a checkpoint or model folder of the `deltalm` model, or a converted DeltaLM."""
    state = load_checkpoint(weights_file(path), lazily=True)
    return str(section(state, "model").get("_name")).startswith("deltalm")


def read_model(checkpoint: Path, tokenizer_dir: Path | None = None) -> DeltaLM:
    """Read a model and its vocabulary.

    Args:
        checkpoint: a checkpoint file of this plugin, a model folder, or the folder of a converted DeltaLM.
        tokenizer_dir: the folder of the tokenizer's files; None: `checkpoint`, which must be a folder.

    Raises:
        UserError: something is missing or does not fit.
    """
    folder = tokenizer_dir or (checkpoint if checkpoint.is_dir() else None)
    if folder is None:
        raise UserError(
            f"--tokenizer-dir is needed for {checkpoint}: the folder of the encoder that it was trained from"
        )
    file = weights_file(checkpoint)
    state = load_checkpoint(file, lazily=True)
    check_finite(file, state["model"])
    vocabulary = read_vocabulary(folder, to_copy=True)
    dictionary = PretrainedDictionary.of(vocabulary.symbols, vocabulary.special)
    options = section(state, "model")
    found = read_deltalm(state["model"], options, dictionary.pad())
    rows = len(found.weights[TOKENS])
    if len(vocabulary.symbols) != rows:
        raise UserError(f"{folder} has {len(vocabulary.symbols)} symbols, but {checkpoint} was trained with {rows}")
    symbols = (state.get("task_state") or {}).get("symbols")
    if symbols and symbols_fingerprint(vocabulary.symbols) != symbols:
        raise UserError(f"{folder} has other symbols than {checkpoint} was trained with, or the same in another order")
    sizes = {name: default if found.sizes.get(name) is None else found.sizes[name] for name, default in SIZES.items()}
    sizes["encoder_attention_heads"] = sizes["encoder_attention_heads"] or max(1, sizes["encoder_embed_dim"] // 64)
    return DeltaLM(file, state, found.weights, sizes, folder, vocabulary, dictionary)


def export_to_transformers(model: DeltaLM, destination: Path) -> None:
    """Write ``config.json``, ``generation_config.json``, ``model.safetensors``, tokenizer and README.

    Args:
        model: the model to export.
        destination: the folder to write.

    Raises:
        UserError: something is missing or does not fit.
    """
    check_replaceable(destination, "--to")
    config, generation = transformers_config(model), generation_config(model)
    weights = bart_weights(model.weights, model.sizes, model.dictionary.pad())
    with new_folder(destination, "--to") as staging:
        write_safetensors(weights, staging / WEIGHTS)
        for name, values in ((CONFIG, config), (GENERATION_CONFIG, generation)):
            (staging / name).write_text(json.dumps(values, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
        copy_tokenizer(model, staging, left_out=_NOT_COPIED)
        write_fast_tokenizer(model.tokenizer, model.vocabulary, staging, default_prefix(model), model.max_source)
        (staging / CARD).write_text(_card(model, config, generation), encoding="utf-8")
    print(f"wrote {destination}: {config['architectures'][0]}, {len(weights)} tensors, {config['vocab_size']} symbols")
    for note in _notes(model):
        print(note)


def transformers_config(model: DeltaLM) -> dict[str, Any]:
    """Return the ``config.json``."""
    config, dictionary = bart_config(model.sizes), model.dictionary
    if model.layout:
        config[KEY]["layout"] = dict(model.layout)
    return {
        **config,
        "vocab_size": len(dictionary),
        "decoder_vocab_size": len(dictionary),
        "pad_token_id": dictionary.pad(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "decoder_start_token_id": dictionary.eos(),
        "forced_eos_token_id": dictionary.eos(),
    }


def generation_config(model: DeltaLM) -> dict[str, Any]:
    """Return the ``generation_config.json``: the model's search options as those of transformers.

    transformers counts the start symbol as a token of the target. Its maximum length includes eos, too.
    """
    search, dictionary = model.search(), model.dictionary
    most = int(search["max_len_a"] * model.max_source + search["max_len_b"])
    config: dict[str, Any] = {
        "decoder_start_token_id": dictionary.eos(),
        "bos_token_id": dictionary.bos(),
        "eos_token_id": dictionary.eos(),
        "pad_token_id": dictionary.pad(),
        "forced_eos_token_id": dictionary.eos(),
        "suppress_tokens": [dictionary.pad()],
        "max_length": min(most, model.sizes["max_positions"] - 1) + 2,
        "min_length": search["min_len"] + 1,
        "no_repeat_ngram_size": search["no_repeat_ngram_size"],
    }
    if search["sampling"]:
        top_k, top_p = (search[f"sampling_top{kind}"] for kind in "kp")
        # The default of transformers is to sample from the 50 most probable tokens.
        config |= {"do_sample": True, "num_beams": 1, "temperature": search["temperature"]}
        return config | {"top_k": max(top_k, 0), "top_p": top_p if top_p > 0 else 1.0}
    config["num_beams"] = search["beam"]
    if search["beam"] > 1:
        early = search["early_stop"] == "fairseq" and not search["no_early_stop"]
        config["early_stopping"] = True if early else "never"
        config["length_penalty"] = 0.0 if search["unnormalized"] else float(search["lenpen"])
    return config


def default_prefix(model: DeltaLM) -> list[str]:
    """Return the symbols that the tokenizer puts before every text: the language symbol, if there is only one."""
    symbols = list(model.language_symbols.values())
    return symbols if len(symbols) == 1 else []


def copy_tokenizer(model: DeltaLM, destination: Path, left_out: tuple[str, ...] = ()) -> None:
    """Copy the tokenizer's files, except `left_out`, and write ``dict.txt``, so that this package reads the folder."""
    for name in model.vocabulary.files:
        if name not in left_out:
            shutil.copyfile(model.tokenizer / name, destination / name)
    FairseqDictionary.of(model.vocabulary.symbols, model.vocabulary.special).save(str(destination / DICTIONARY))


def _notes(model: DeltaLM) -> list[str]:
    """Return what the search of transformers does differently from ``s2sft generate``, a sentence each."""
    search, symbols, notes = model.search(), list(model.language_symbols.values()), []
    if ratio := search["max_len_a"]:
        notes.append(f"--max-len-a {ratio:g}: transformers has one maximum length, that of the longest source")
    if (temperature := search["temperature"]) != 1 and not search["sampling"]:
        notes.append(f"--temperature {temperature:g} is left out: transformers' beam search has none")
    if len(symbols) > 1:
        notes.append(f"several languages: a source begins with one of {', '.join(symbols)}")
    return notes


def _card(model: DeltaLM, config: Mapping[str, Any], generation: Mapping[str, Any]) -> str:
    symbols = list(model.language_symbols.values())
    text = f"{symbols[0]} ..." if len(symbols) > 1 else "..."
    lines = [
        *("---", "library_name: transformers", "license:  # to complete", "language:  # to complete", "---", ""),
        f"# A DeltaLM as {config['architectures'][0]}",
        "",
        f"Its decoder of {model.sizes['decoder_layers']} interleaved layers is one of {config['decoder_layers']} "
        "layers here, in which every second attention adds nothing: the same function, without code of its own.",
        *("", "```python", "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer", ""),
        'tokenizer = AutoTokenizer.from_pretrained("DIR")  # this folder',
        'model = AutoModelForSeq2SeqLM.from_pretrained("DIR")',
        f'batch = tokenizer(["{text}"], return_tensors="pt", padding=True, truncation=True)',
        "print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))",
        *("```", ""),
        f"`{GENERATION_CONFIG}` searches as the model did: {json.dumps(dict(generation))}.",
        *(f"\n{note}" for note in _notes(model)),
        *("", "## Licence", "", "To complete: that of the encoder, of the data, and yours.", ""),
    ]
    return "\n".join(lines)
