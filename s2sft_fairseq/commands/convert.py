"""``s2sft convert``: convert a pretrained encoder, a language model or DeltaLM from another program's format."""

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from s2sft_fairseq.data.dictionary import LANGUAGE_TOKEN
from s2sft_fairseq.hub import local_path, tokenizer_path
from s2sft_fairseq.objectives.objective import OBJECTIVES


class _List(argparse.Action):
    """Print the families and exit."""

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from s2sft_fairseq.checkpoints.families import table

        print(table())
        parser.exit()


class _UserDir(argparse.Action):
    """Import a plugin at once, so that ``--list`` shows its families."""

    def __call__(self, parser: argparse.ArgumentParser, namespace: argparse.Namespace, value: Any, *_: Any) -> None:
        from s2sft_fairseq.commands.fairseq_command import import_plugin

        import_plugin(value)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="s2sft convert", description=__doc__)
    parser.add_argument(
        "--list",
        action=_List,
        nargs=0,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        help="show the families that can be converted, and end",
    )
    parser.add_argument(
        "--user-dir",
        action=_UserDir,
        dest=argparse.SUPPRESS,
        default=argparse.SUPPRESS,
        metavar="DIR",
        help="a plugin of your own that registers a family of encoders, as for s2sft train",
    )
    parser.add_argument(
        "source",
        type=local_path,
        help="a folder, or the file of the weights: Hugging Face's (config.json, tokenizer, model.safetensors or "
        "pytorch_model.bin, in shards too), UniLM's (NAME.bin, NAME-config.json, NAME-vocab.txt), fairseq's "
        "(model.pt, dict.txt), Baidu's ERNIE (*.pdparams), a language model of llama.cpp (*.gguf), what "
        "s2s-ft fine-tuned, or DeltaLM (deltalm-base.pt, spm.model, dict.txt)",
    )
    parser.add_argument("--to", type=Path, required=True, metavar="DIR", help="where to write the folder")
    parser.add_argument(
        "--config", type=Path, metavar="FILE", help="the configuration, where it is not beside the weights"
    )
    parser.add_argument(
        "--tokenizer-dir",
        type=tokenizer_path,
        metavar="DIR",
        help="the tokenizer's files, if not beside the weights",
    )
    parser.add_argument(
        "--layers",
        type=int,
        metavar="N",
        help="keep the first N layers alone: the last ones of a sentence encoder were trained for sentence vectors",
    )
    parser.add_argument(
        "--max-positions",
        type=int,
        metavar="N",
        help="make the position table longer, by tiling, or shorter, by cutting",
    )
    parser.add_argument(
        "--local-attention-window",
        type=int,
        metavar="N",
        help="for long inputs: let layers see half as many positions to either side, all but those of "
        "--global-attention-every",
    )
    parser.add_argument(
        "--global-attention-every",
        type=int,
        default=3,
        metavar="N",
        help="with --local-attention-window: layers 0, N, 2N ... stay global (default: 3)",
    )
    parser.add_argument(
        "--add-token",
        action="append",
        default=[],
        metavar="NAME[=OTHER]",
        help="add a token, which starts as the mean of all others, or as a copy of OTHER; may be given several times",
    )
    parser.add_argument(
        "--add-language-tokens",
        default="",
        metavar="en,de,...",
        help=f"add a token for each of these languages, {LANGUAGE_TOKEN.format('en')} and so on, which "
        f"--language-token '{LANGUAGE_TOKEN}' of s2sft train puts before the sources",
    )
    parser.add_argument(
        "--sentinels",
        type=int,
        default=0,
        metavar="N",
        help="add the tokens <extra_id_0> and so on, which stand for spans in the pre-training of DeltaLM; 100 are "
        "enough for texts of 512 tokens",
    )
    parser.add_argument(
        "--finetune-method",
        choices=sorted(OBJECTIVES),
        help="how to decode a checkpoint that is already fine-tuned (default for s2s-ft's: pseudo_masked)",
    )
    parser.add_argument(
        "--fit-head",
        type=Path,
        metavar="FILE",
        help="tokenized sources: fit the head's dense layer, if the encoder has none, by least squares to "
        "predict each token from its final state",
    )
    parser.add_argument(
        "--output-prior",
        type=Path,
        metavar="FILE",
        help="tokenized targets: use the frequencies of their symbols as the output bias, if the encoder has none",
    )
    options = vars(parser.parse_args(arguments))
    from s2sft_fairseq.models.convert import ConvertOptions, convert  # imports PyTorch, which --help does not need

    convert(options.pop("source"), options.pop("to"), ConvertOptions(**options))
