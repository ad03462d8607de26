"""The ``README.md`` of a model folder: a model card, filled in from the configuration."""

import json
from collections.abc import Mapping, Sequence
from typing import Any

_SIZES = {
    "encoder_layers": "layers",
    "decoder_layers": "layers of the decoder",
    "encoder_embed_dim": "width",
    "encoder_attention_heads": "attention heads",
    "max_positions": "positions",
}
_KINDS = {
    "unilm_seq2seq": "generates text: an encoder fine-tuned as a sequence-to-sequence model",
    "deltalm_seq2seq": "generates text: an encoder-decoder",
    "unilm_classification": "classifies texts",
    "unilm_question_answering": "finds answers in passages",
}
_USE = {
    "unilm_seq2seq": ("Seq2Seq", 'print(model.generate("..."))'),
    "deltalm_seq2seq": ("Seq2Seq", 'print(model.generate("..."))'),
    "unilm_classification": ("Classifier", 'print(model(["..."]))'),
    "unilm_question_answering": ("Reader", 'print(model("Who ...?", "..."))'),
}


def model_card(
    config: Mapping[str, Any], parameters: int, library: str = "s2sft_fairseq", usage: Sequence[str] | None = None
) -> str:
    """Return a model card in Markdown.

    Args:
        config: the configuration of the model folder.
        parameters: number of parameters.
        library: the library that loads the folder.
        usage: lines that show how to use the folder; None: those of this package.
    """
    options, task, facts = config["cfg"]["model"], config["cfg"]["task"], config["training"]
    name = str(task.get("_name"))
    layout = config["task_state"].get("layout") or {}
    rows: dict[str, Any] = {"encoder": facts.get("encoder"), "method": layout.get("finetune_method")}
    rows["parameters"] = f"{parameters:,}"
    rows |= {what: options.get(option) for option, what in _SIZES.items()}
    rows["longest source and target"] = _pair(layout.get("max_source_positions"), layout.get("max_target_positions"))
    rows["classes"] = ", ".join(map(str, config["task_state"].get("classes") or []))
    rows |= {key.replace("_", " "): value for key, value in facts.items() if key not in ("encoder", "method", "scores")}
    heading = f"A fine-tuned {facts['encoder']}" if facts.get("encoder") else "A fine-tuned model"
    lines = [
        *("---", f"library_name: {library}", "license:  # to complete", "language:  # to complete"),
        *([f"base_model: {json.dumps(facts['encoder'], ensure_ascii=False)}"] if facts.get("encoder") else []),
        *(
            "---",
            "",
            f"# {heading}",
            "",
            f"A model of s2sft_fairseq {config['package_version']} that {_kind(name)}.",
            "",
        ),
        *("| | |", "|---|---|"),
        *(f"| {what} | {_text(value)} |" for what, value in rows.items() if value not in (None, "", [])),
        *_scores(facts.get("scores")),
        *(_usage(name, config["search"]) if usage is None else usage),
        *("## Licence", "", "To complete: that of the encoder, of the data, and yours.", ""),
    ]
    return "\n".join(lines)


def _kind(task: str) -> str:
    return _KINDS.get(task, f"was trained with the task {task}")


def _pair(source: Any, target: Any) -> str:
    return "" if source is None else f"{source} and {target} positions"


def _text(value: Any) -> str:
    if isinstance(value, Mapping):
        value = ", ".join(f"{name} {_text(each)}" for name, each in value.items())
    elif isinstance(value, list):
        value = ", ".join(map(_text, value))
    elif isinstance(value, float):
        value = f"{value:.4g}"
    elif isinstance(value, int) and not isinstance(value, bool):
        value = f"{value:,}"
    return str(value).replace("|", "\\|").replace("\n", " ")


def _scores(scores: Any) -> list[str]:
    """Return a table of scores, given as a list of ``name``, ``value`` and ``signature``, or as values by name."""
    if not scores:
        return []
    rows = [{"name": name, "value": value} for name, value in scores.items()] if isinstance(scores, Mapping) else scores
    lines = [f"| {row['name']} | {_text(row['value'])} | {_text(row.get('signature', ''))} |" for row in rows]
    return ["", "## Scores", "", "| | | signature |", "|---|---|---|", *lines]


def _usage(task: str, search: Mapping[str, Any]) -> list[str]:
    if task not in _USE:
        return [""]
    kind, call = _USE[task]
    lines = ["", "## Use", "", "```python", f"from s2sft_fairseq import {kind}", ""]
    lines += [f'model = {kind}.from_pretrained("DIR")  # this folder', call, "```", ""]
    if kind == "Seq2Seq":
        lines += ["or `s2sft generate --path DIR --input texts.txt --output generated.txt`.", ""]
    if search:
        settings = ", ".join(f"{name} {value}" for name, value in search.items())
        lines += [f"By default it searches with {settings}.", ""]
    return lines
