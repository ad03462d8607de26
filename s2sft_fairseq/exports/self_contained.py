"""Write a generator with the code that runs it: a folder for transformers, without this package."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from s2sft_fairseq.checkpoints.model_folder import CARD, CONFIG, WEIGHTS, read_config
from s2sft_fairseq.checkpoints.safetensors_file import write_safetensors
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.exports.original import Original
from s2sft_fairseq.files import new_folder
from s2sft_fairseq.inference.options import SearchOptions
from s2sft_fairseq.models.export_verification import compare, write_comparison
from s2sft_fairseq.models.model_card import model_card
from s2sft_fairseq.models.unilm_config import UnilmConfig
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.tokenization.transformers_tokenizer import write_transformers_tokenizer

MODELLING = Path(__file__).with_name("modeling_s2sft.py")
GENERATION = "generation_config.json"
_CLASS = "S2SFTForConditionalGeneration"

# Names there and here; those of the same name in both are not listed.
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
            *("max_relative_position", "rotary_base", "local_rotary_base", "local_attention_window"),
            "global_attention_every",
        )
    },
}


def export_self_contained(original: Original, destination: Path, texts: Sequence[str]) -> None:
    """Write a folder, and compare what it generates with the original.

    Args:
        original: the model.
        destination: the folder to write.
        texts: to generate from, for the comparison.

    Raises:
        UserError: if transformers is not installed, or has no tokenizer that gives the same ids.
    """
    version = _transformers_version()
    with new_folder(destination, "--to") as staging:
        lacking = write_self_contained(original, staging)
        exported = SelfContained(staging)
        program = f"transformers {version}"
        comparison = compare(program, texts, original.search, exported.search, original.logits, exported.logits)
        write_comparison(staging, comparison, original.weight_bytes())
    print(f"wrote {destination}: {_CLASS}, with {MODELLING.name}")
    for each in lacking:
        print(f"not searched so by transformers: {each}")
    print(comparison)


def write_self_contained(original: Original, destination: Path) -> list[str]:
    """Write configuration, weights, code, tokenizer and model card.

    Args:
        original: the model.
        destination: the folder to write into.

    Returns:
        What of the search `generate` of transformers cannot do, a sentence each.

    Raises:
        UserError: if transformers has no tokenizer that gives the same ids.
    """
    form, options, weights = original.form, original.options, original.weights()
    config = model_config(weights, original.cfg, form, keep_unfinished=options.keep_unfinished)
    # A causal model reads no final separator: the target begins with it.
    max_length = form.max_source + (not form.has_placeholders)
    write_transformers_tokenizer(original.folder, destination, max_length)
    write_safetensors(weights, destination / WEIGHTS)
    shutil.copyfile(MODELLING, destination / MODELLING.name)
    for name, content in ((CONFIG, config), (GENERATION, generation_config(form, options))):
        (destination / name).write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    lacking = list(_inexpressible(options))
    parameters = sum(value.numel() for value in weights.values())
    card = model_card(read_config(original.folder), parameters, library="transformers", usage=_usage(lacking))
    (destination / CARD).write_text(card, encoding="utf-8")
    return lacking


class SelfContained:
    """A folder as transformers runs it; the class is taken from this package, whose file the folder has a copy of."""

    def __init__(self, folder: Path) -> None:
        from transformers import AutoTokenizer

        from s2sft_fairseq.exports.modeling_s2sft import S2SFTForConditionalGeneration

        self.model = S2SFTForConditionalGeneration.from_pretrained(folder).eval()
        # Without the configuration it would look for the class of that, and ask whether to trust the folder's.
        self.tokenizer = AutoTokenizer.from_pretrained(folder, config=self.model.config)

    @torch.inference_mode()
    def search(self, texts: Sequence[str], batch_size: int = 16) -> list[list[int]]:
        """Return the ids of the best hypothesis of each text, without eos."""
        end, found = self.model.config.eos_token_id, []
        for start in range(0, len(texts), batch_size):
            sequences = self.model.generate(**self._batch(list(texts[start : start + batch_size])))
            per_text = len(sequences) // len(texts[start : start + batch_size])
            for row in sequences[::per_text, 1:].tolist():
                found.append(row[: row.index(end)] if end in row else row)
        return found

    @torch.inference_mode()
    def logits(self, text: str, ids: Sequence[int]) -> Tensor:
        """Return the logits (T, V) that predict a target of T - 1 ids, and eos, in one pass."""
        labels = torch.tensor([[*ids, self.model.config.eos_token_id]])
        logits: Tensor = self.model(**self._batch([text]), labels=labels).logits[0]
        return logits

    def _batch(self, texts: list[str]) -> Any:
        return self.tokenizer(texts, return_tensors="pt", padding=True, truncation=True)


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
        "activation": str(cfg.activation_fn),
        "pre_norm": str(cfg.layer_norm_position) == "pre",
        "gated": str(cfg.feed_forward) == "gated",
        "biases": str(cfg.biases) == "all",
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
    """Return the ``generation_config.json`` that searches as our options say."""
    config: dict[str, Any] = {
        "bos_token_id": form.cls,
        "eos_token_id": form.sep,
        "pad_token_id": form.pad,
        "decoder_start_token_id": _start(form),
        # They count the start token too.
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
        # "never" there: not before no open hypothesis can become one of the best, as "exact" here.
        config["early_stopping"] = True if options.early_stop == "fairseq" else "never"
        config["length_penalty"] = float(options.lenpen)
    return config


def _start(form: SequenceForm) -> int:
    """Return the token that `generate` begins with; where targets begin with none, the model does not see it."""
    return form.cls if form.starts_with == "cls" else form.sep


def _inexpressible(options: SearchOptions) -> Iterator[str]:
    """Yield which options of a search `generate` of transformers cannot follow, a sentence each."""
    if options.rank_each_step:
        yield "--rank-each-step: there an ended hypothesis takes no place in the beam"
    if options.length_penalty == "gnmt" and options.lenpen and options.beam > 1:
        yield "--length-penalty gnmt: there scores are divided by length ** lenpen"
    if options.max_len_a:
        yield f"--max-len-a {options.max_len_a:g}: there the maximum length does not depend on the source"
    if options.temperature != 1 and not options.sampling:
        yield f"--temperature {options.temperature:g}: there it is for samples alone"
    if options.never_blocked:
        yield "--no-repeat-ngram-ignore: there all n-grams are blocked"


def _transformers_version() -> str:
    try:
        import transformers
    except ImportError:
        raise UserError(
            "--self-contained compares the folder with the original by the package transformers, which is not "
            "installed: pip install transformers"
        ) from None
    version: str = transformers.__version__
    return version


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
        "`tokenizer(passages, answers, ...)`, or with the separator between them.",
        "",
    ]
    if lacking:
        lines += ["What the search of s2sft_fairseq was set to and that of transformers has not:", ""]
        lines += [*(f"* {each}" for each in lacking), ""]
    return lines
