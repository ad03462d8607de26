"""Export a generator with its modeling code, so that transformers runs the folder without this package."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import CARD, CONFIG, WEIGHTS, read_config
from s2sft_fairseq.checkpoints.safetensors_file import write_safetensors
from s2sft_fairseq.data.bounded_files import read_json_object
from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.exports.checks import check_transformers
from s2sft_fairseq.exports.hugging_face import write_tokenizer
from s2sft_fairseq.exports.original import Original
from s2sft_fairseq.files import new_folder
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.model_card import model_card
from s2sft_fairseq.models.unilm_config import UnilmConfig, biased_parts, width_of_head
from s2sft_fairseq.objectives.sequence_form import SequenceForm, SourceFields
from s2sft_fairseq.tokenization.fast_tokenizer import write_fast_tokenizer
from s2sft_fairseq.tokenization.vocabulary import TOKENIZER_CONFIG, read_vocabulary

MODELLING = Path(__file__).with_name("modeling_s2sft.py")
GENERATION = "generation_config.json"
_CLASS = "S2SFTForConditionalGeneration"

# Names of `S2SFTConfig`, each with the name of `UnilmConfig`.
_SIZES = {
    "hidden_size": "encoder_embed_dim",
    "num_hidden_layers": "encoder_layers",
    "num_attention_heads": "encoder_attention_heads",
    "intermediate_size": "encoder_ffn_embed_dim",
    "max_position_embeddings": "max_positions",
    "embedding_size": "embedding_dim",
    **{
        name: name
        for name in (
            *("layer_norm_eps", "dropout", "num_segments", "num_roles", "num_turns", "relative_position_bins"),
            *("max_relative_position", "rotary_base", "rotary_scaling", "local_rotary_base", "local_attention_window"),
            *("global_attention_every", "first_global_layer", "unrotated_layers_every", "embedding_scale"),
        )
    },
}
_CHOICES = ("norm", "layer_norm_position", "query_key_norm", "lm_head", "output_matrix", "source_visibility")
"""Options of `S2SFTConfig` and of `UnilmConfig` with the same words."""

_IMPLEMENTED = {"lm_head": ("bert", "plain"), "lm_head_activation_fn": ("None",)}
"""Options with the values that the code of the folder implements."""


def export_self_contained(original: Original, destination: Path, texts: Sequence[str]) -> None:
    """Write a folder, and compare its hypotheses with the original's.

    Args:
        original: the model to export.
        destination: the folder to write.
        texts: the texts to generate from, for the comparison.

    Raises:
        UserError: an option of the model is not supported, or no tokenizer of transformers gives the same ids.
    """
    with new_folder(destination, "--to") as staging:
        lacking = write_self_contained(original, staging)
    print(f"wrote {destination}: {_CLASS}, with {MODELLING.name}")
    for each in lacking:
        print(f"not supported by transformers: {each}")
    own = original.loaded.tokenizer
    some = [text for text in texts if len(original.loaded.ids(text))]  # an empty source gives an empty text here
    check_transformers(original.model, destination, some, original.weight_file, own, load=_load)


def write_self_contained(original: Original, destination: Path) -> list[str]:
    """Write configuration, weights, code, tokenizer and model card.

    Args:
        original: the model to export.
        destination: the folder to write into.

    Returns:
        A sentence for each option of search or layout that transformers does not support.

    Raises:
        UserError: an option of the model is not supported, or no tokenizer of transformers gives the same ids.
    """
    form, options, weights = original.form, original.options, original.weights()
    if problems := [
        f"--self-contained needs {as_option(name)} {' or '.join(values)}, but {original.folder} has {found}"
        for name, values in _IMPLEMENTED.items()
        if str(found := getattr(original.cfg, name)) not in values
    ]:
        raise UserError.of(problems)
    config = model_config(weights, original.cfg, form, keep_unfinished=options.keep_unfinished)
    # The final separator of a causal model is not part of the source: the target begins with it.
    max_length = form.max_source + (not form.has_placeholders)
    start = original.loaded.tokenizer.dictionary.symbols[form.cls]
    write_tokenizer_of_sources(original.folder, destination, max_length, form.fields.truncation[0], start)
    write_safetensors(weights, destination / WEIGHTS)
    shutil.copyfile(MODELLING, destination / MODELLING.name)
    for name, content in ((CONFIG, config), (GENERATION, generation_config(form, options))):
        (destination / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    lacking = [*_inexpressible_cuts(form.fields), *_inexpressible(options)]
    parameters = sum(value.numel() for value in weights.values())
    card = model_card(read_config(original.folder), parameters, library="transformers", usage=_usage(lacking))
    (destination / CARD).write_text(card, encoding="utf-8")
    return lacking


def write_tokenizer_of_sources(
    folder: Path, destination: Path, max_length: int, side: str = "right", start: str | None = None
) -> None:
    """Write the tokenizer of a folder for transformers: it makes ``[CLS] text [SEP]`` of a text.

    Args:
        folder: the folder of the tokenizer.
        destination: the folder to write into.
        max_length: positions of the longest source, special symbols included.
        side: the side on which longer sources are cut, ``left`` or ``right``.
        start: the symbol that texts begin with; None: the dictionary's.

    Raises:
        UserError: no tokenizer of transformers gives the same ids.
    """
    vocabulary = read_vocabulary(folder, to_copy=True)
    with TemporaryDirectory() as temporary:
        if "encoder.json" in vocabulary.files:
            # Replace the ids that fairseq gives GPT-2's tokens by those of RoBERTa.
            write_tokenizer(folder, vocabulary, Path(temporary))
            folder = Path(temporary)
            vocabulary = read_vocabulary(folder)
        cls = start or PretrainedDictionary.of(vocabulary.symbols, vocabulary.special).bos_word
        write_fast_tokenizer(folder, vocabulary, destination, [cls], max_length)
    config = {**read_json_object(destination / TOKENIZER_CONFIG), "truncation_side": side}
    text = json.dumps(config, indent=2, ensure_ascii=False) + "\n"
    (destination / TOKENIZER_CONFIG).write_text(text, encoding="utf-8")


def model_config(
    weights: Mapping[str, Tensor], cfg: UnilmConfig, form: SequenceForm, *, keep_unfinished: bool
) -> dict[str, Any]:
    """Return the ``config.json`` of a model; see `S2SFTConfig`."""
    embedding = weights["embeddings.tokens.weight"]
    fields = form.fields
    return {
        "architectures": [_CLASS],
        "auto_map": {
            "AutoConfig": f"{MODELLING.stem}.S2SFTConfig",
            "AutoModelForSeq2SeqLM": f"{MODELLING.stem}.{_CLASS}",
        },
        "model_type": "s2sft",
        "dtype": str(embedding.dtype).removeprefix("torch."),
        "is_encoder_decoder": True,
        "vocab_size": len(embedding),
        **{theirs: getattr(cfg, ours) for theirs, ours in _SIZES.items()},
        **{name: str(getattr(cfg, name)) for name in _CHOICES},
        "head_dim": width_of_head(cfg),
        "num_key_value_heads": cfg.key_value_heads or cfg.encoder_attention_heads,
        "activation": str(cfg.activation_fn),
        "gated": str(cfg.feed_forward) == "gated",
        "biases": sorted(biased_parts(cfg.biases)),
        "embedding_norm": str(cfg.embedding_norm) == "yes",
        "output_bias": str(cfg.output_bias) == "yes",
        "starts_with": form.starts_with,
        "placeholder_token_id": form.placeholder,
        "source_segments": list(fields.segments),
        "alternate_segments": fields.alternate,
        "target_segment": form.target_segment,
        "placeholder_segment": form.placeholder_segment,
        "max_source_positions": form.max_source,
        "keep_unfinished": keep_unfinished,
        "pad_token_id": form.pad,
        **dict.fromkeys(("bos_token_id", "cls_token_id"), form.cls),
        **dict.fromkeys(("eos_token_id", "sep_token_id"), form.sep),
        "decoder_start_token_id": _start(form),
    }


def generation_config(form: SequenceForm, options: SearchOptions) -> dict[str, Any]:
    """Return the ``generation_config.json`` with the given search options."""
    config: dict[str, Any] = {
        "bos_token_id": form.cls,
        "eos_token_id": form.sep,
        "pad_token_id": form.pad,
        "decoder_start_token_id": _start(form),
        # transformers also counts the start token.
        "max_length": 1 + min(options.max_len_b + 1, form.max_target),
        "min_length": 1 + options.min_len,
        "suppress_tokens": list(options.never_generated),
        "no_repeat_ngram_size": options.no_repeat_ngram_size,
    }
    if options.sampling:
        config |= {"do_sample": True, "temperature": options.temperature, "top_k": max(0, options.sampling_topk)}
        return config | {"top_p": options.sampling_topp if options.sampling_topp > 0 else 1.0}
    config |= {"num_beams": options.beam, "num_return_sequences": options.nbest or options.beam}
    if options.beam > 1:
        # Like "exact", "never" searches until no open hypothesis can become one of the best.
        config["early_stopping"] = True if options.early_stop == "fairseq" else "never"
        config["length_penalty"] = float(options.lenpen)
    return config


def _start(form: SequenceForm) -> int:
    """Return the token that `generate` begins with. If the content of targets has no start, the model ignores it."""
    return form.cls if form.starts_with == "cls" else form.sep


def _inexpressible_cuts(fields: SourceFields) -> Iterator[str]:
    """Yield a sentence for each truncation option of sources that transformers' tokenizers do not support."""
    if len(fields.truncation) > 1:
        sides = ",".join(fields.truncation)
        yield f"--source-truncation {sides}: there the fields are cut as one, on the {fields.truncation[0]}"
    if any(fields.limits):
        yield f"--source-field-positions {','.join(map(str, fields.limits))}: there single fields have no limit"


def _inexpressible(options: SearchOptions) -> Iterator[str]:
    """Yield a sentence for each search option that transformers' `generate` does not support."""
    if options.rank_each_step:
        yield "--rank-each-step: in transformers, ended hypotheses do not count for the beam"
    if options.count_ended:
        yield "--count-ended: in transformers, ended hypotheses do not count for the beam"
    if options.length_penalty == "gnmt" and options.lenpen and options.beam > 1:
        yield "--length-penalty gnmt: there scores are divided by length ** lenpen"
    if options.max_len_a:
        yield f"--max-len-a {options.max_len_a:g}: there the maximum length does not depend on the source"
    if options.temperature != 1 and not options.sampling:
        yield f"--temperature {options.temperature:g}: there it is for samples alone"
    if options.never_blocked:
        yield "--no-repeat-ngram-ignore: there all n-grams are blocked"


def _load(folder: Path) -> Any:
    """Load a folder with this package's class, of which the folder has a copy."""
    from s2sft_fairseq.exports.modeling_s2sft import S2SFTForConditionalGeneration

    return S2SFTForConditionalGeneration.from_pretrained(folder)


def _usage(lacking: list[str]) -> list[str]:
    lines = [
        *("", "## Use", "", "```python", "from transformers import AutoModelForSeq2SeqLM, AutoTokenizer", ""),
        'tokenizer = AutoTokenizer.from_pretrained("DIR", trust_remote_code=True)  # this folder',
        'model = AutoModelForSeq2SeqLM.from_pretrained("DIR", trust_remote_code=True)',
        'batch = tokenizer(["..."], return_tensors="pt", padding=True, truncation=True)',
        "print(tokenizer.batch_decode(model.generate(**batch), skip_special_tokens=True))",
        *("```", ""),
        f"The code that `trust_remote_code` runs is `{MODELLING.name}` of this folder: read it before. It needs",
        "PyTorch and transformers. Fields of a source, such as passage and answer, are given as two texts,",
        "`tokenizer(passages, answers, ...)`, or as one text with the separator between them and",
        "`split_special_tokens=False`; without it a special symbol in a text is text.",
        "",
    ]
    if lacking:
        lines += ["Options of the model that transformers does not support:", ""]
        lines += [*(f"* {each}" for each in lacking), ""]
    return lines
