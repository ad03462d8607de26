"""``s2sft generate``: from binarized data, as ``fairseq-generate``, or with ``--input`` from raw text to a file."""

import argparse
import logging
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from fairseq import options
from fairseq.dataclass.utils import convert_namespace_to_omegaconf
from fairseq.tasks import TASK_REGISTRY

from s2sft_fairseq import other_names
from s2sft_fairseq.checkpoints.model_folder import ENGINES, engine_of, read_config, source_names_of
from s2sft_fairseq.commands import fairseq_command
from s2sft_fairseq.data.source_names import order_problem
from s2sft_fairseq.data.text_files import has_fields, is_json_lines
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.files import added_files
from s2sft_fairseq.inference.file_generator import generate_file
from s2sft_fairseq.inference.ray_engine import generate_shards
from s2sft_fairseq.inference.shards import FORMATS, find_shards
from s2sft_fairseq.search_bounds import SearchOption, applicable
from s2sft_fairseq.signals import end, handled
from s2sft_fairseq.tasks.deltalm_seq2seq import DeltaLMSeq2SeqTask
from s2sft_fairseq.tasks.unilm_seq2seq import UnilmSeq2SeqTask

logger = logging.getLogger(__name__)

RAW_TEXT_OPTIONS: dict[str, dict[str, Any]] = {
    "input": {
        "type": Path,
        "metavar": "FILE",
        "help": "raw text, one source a line; .jsonl or .json, one JSON object a line (both also .gz); or .parquet; "
        "with --engine ray a folder of such files, or a pattern (in quotation marks)",
    },
    "output": {
        "type": Path,
        "metavar": "FILE",
        "help": "what is generated, in the order of the input: the best text of each source, or where the name ends in "
        ".jsonl a JSON object with --nbest hypotheses and their scores (natural logarithms); with --engine ray the "
        "folder for one output file per input file",
    },
    "overwrite": {
        "action": "store_true",
        "help": "replace --output where it exists, once the new one is complete",
    },
    "source": {
        "nargs": "+",
        "metavar": "FIELD",
        "help": "keys of JSON objects, or columns of Parquet, that make up the source, joined by the separator symbol "
        "(default: the names of the model folder, or src)",
    },
    "engine": {
        "choices": ("pytorch", *ENGINES, "ray"),
        "help": "the program that runs the model; --path is a folder that s2sft export --format wrote for it (default: "
        "the one that the folder is for); ray: that one, by --actors on the cluster of RAY_ADDRESS or on this machine",
    },
    "actors": {
        "type": int,
        "metavar": "N",
        "help": "with --engine ray: processes that hold the model, with a GPU each where there are any (default: 1)",
    },
    "output-format": {
        "choices": FORMATS,
        "help": "with --engine ray: the best text of each source, or the JSON objects of an --output that ends in "
        ".jsonl (default: txt)",
    },
    "separator": {
        "metavar": "TEXT",
        "help": "split raw text at this text into fields, which are joined by the separator symbol (default: [SEP], in "
        "sources of one field)",
    },
    "buffer-size": {
        "type": int,
        "default": 1024,
        "metavar": "N",
        "help": "lines that are read, sorted by length, generated from and written together; a killed run "
        "loses at most these (default: 1024)",
    },
}
# Options of fairseq-generate that do not apply to raw text, with the value that each has if it is not given.
FOR_BINARIZED_DATA = {
    "data": None,
    "prefix_size": 0,
    "score_reference": False,
    "results_path": None,
    "tokenizer": None,
    "post_process": None,
}


def main(arguments: list[str]) -> None:
    """Run the command line.

    Raises:
        UserError: naming everything that is wrong with the options, or with the input.
    """
    other_names.refuse(arguments, other_names.GENERATE)
    not_found: list[str] = []  # on the hub: said together with what is wrong with the options
    try:
        arguments = fairseq_command.with_local_paths(arguments)
    except UserError as error:
        not_found = error.problems
    arguments = [*arguments, *_of_model_folder(arguments)]
    given = {argument.partition("=")[0] for argument in arguments}
    wants_help = bool({"-h", "--help"} & given)
    if not wants_help and not {"--input", "--output"} & given:
        if "--all-ended" in given:
            raise UserError("--all-ended needs --input, raw text, and an --output that ends in .jsonl")
        if not_found:
            raise UserError.of(not_found)
        _generate_from_binarized(
            arguments, None if wants_help else fairseq_command.value_of(arguments, "--results-path")
        )
        return
    # --tokenizer-dir is an option of --bpe pretrained.
    if (bpe := fairseq_command.value_of(arguments, "--bpe")) not in (None, "pretrained"):
        raise UserError(f"--bpe must be pretrained with --input, or left out, but is {bpe}")
    fairseq_command.set_arguments(fairseq_command.complete(["--bpe", "pretrained", *arguments]))
    parser = options.get_generation_parser(default_task=fairseq_command.DEFAULT_TASK)
    raw_options = _add_raw_options(parser)
    if wants_help:
        options.parse_args_and_arch(parser)
    args = vars(options.parse_args_and_arch(parser, modify_parser=_make_data_optional))
    raw = argparse.Namespace(**{name: args.pop(name) for name in raw_options})
    if problems := list(_problems(raw, args, not_found)):
        raise UserError.of(problems)
    args["data"] = args["tokenizer_dir"]  # the folder of the dictionary
    generate = generate_shards if raw.engine == "ray" else generate_file
    with handled(end):
        generate(raw, convert_namespace_to_omegaconf(argparse.Namespace(**args)))


def _generate_from_binarized(arguments: list[str], results: str | None) -> None:
    """Run fairseq's command; what it writes to the folder `results` appears there when it is complete."""
    if results is None:
        fairseq_command.run("generate", arguments)
        return
    with added_files(Path(results)) as made:
        fairseq_command.run("generate", [*arguments, "--results-path", str(made)])  # the last one counts
        _name_shard(arguments, made)


def _name_shard(arguments: list[str], made: Path) -> None:
    """Add the number of the shard to the names of the files in a folder, so that shards may share their folder."""
    count = fairseq_command.value_of(arguments, "--num-shards") or "1"
    shard = fairseq_command.value_of(arguments, "--shard-id") or "0"
    for path in list(made.iterdir()) if int(count) > 1 else ():
        path.rename(path.with_name(f"{path.stem}-{shard}-of-{count}{path.suffix}"))


def _of_model_folder(arguments: list[str]) -> list[str]:
    """Return the options that the model folder of ``--path`` sets and the arguments do not: tokenizer and search."""
    path = fairseq_command.value_of(arguments, "--path")
    if path is None or not Path(path).is_dir():
        return []
    given = {argument.partition("=")[0] for argument in arguments}
    search = read_config(Path(path))["search"]
    chosen = {name: fairseq_command.value_of(arguments, as_option(name)) for name in search if as_option(name) in given}
    off = {name: False for name, value in chosen.items() if value == "0"}
    search = {name: value for name, value in applicable(search, off).items() if name not in chosen}
    # Joined by =, so that a value that begins with - is not taken for an option.
    words = [
        as_option(name) if value is True else f"{as_option(name)}={value}"
        for name, value in search.items()
        if value is not False
    ]
    if words:
        logger.info(f"{path} is searched with {' '.join(words)}")
    if "--tokenizer-dir" not in given and "--input" in given:
        words.append(f"--tokenizer-dir={path}")
    return words


def _add_raw_options(parser: argparse.ArgumentParser) -> list[str]:
    """Add the options that fairseq's command lacks, and return their names."""
    group = parser.add_argument_group(
        "raw text",
        "With --input, DATA is left out; --path, --tokenizer-dir and --output are needed. --num-shards and --shard-id "
        "take consecutive lines.",
    )
    return [group.add_argument(f"--{name}", **settings).dest for name, settings in RAW_TEXT_OPTIONS.items()]


def _make_data_optional(parser: argparse.ArgumentParser) -> None:
    for action in parser._actions:
        if action.dest == "data":
            action.nargs, action.required, action.default = "?", False, None


def _problems(raw: argparse.Namespace, args: dict[str, Any], not_found: Sequence[str]) -> Iterator[str]:
    absent = list(fairseq_command.absent_models(args["path"])) if args["path"] else []
    yield from not_found or absent
    if raw.input is None:
        yield f"--output {raw.output} needs --input, the raw text"
    if raw.output is None:
        kind = "folder" if raw.engine == "ray" else "file"
        yield f"--input {raw.input} needs --output, the {kind} to write"
    yield from (_shard_problems if raw.engine == "ray" else _file_problems)(raw, args)
    if args["path"] is None:
        yield "--path is needed: the checkpoint file"
    may_be_folder = absent and not str(args["path"]).endswith(".pt")  # a model folder has its tokenizer
    if args.get("tokenizer_dir") is None and not may_be_folder:
        yield "--tokenizer-dir is needed: the folder of the converted encoder"
    found = engine_of(args["path"] or "") or "pytorch"
    if raw.engine not in (None, found, "ray"):
        yield f"--engine {raw.engine} needs a model for it, but --path {args['path']} is one for {found}"
    if raw.source and (what := order_problem(raw.source, source_names_of(args["path"] or ""))):
        yield f"--source {what}"
    if raw.separator == "":
        yield "--separator must be a text, but is empty"
    if what := SearchOption(int, 1).problem(raw.buffer_size):
        yield f"--buffer-size {what}"
    if not 0 <= args["shard_id"] < args["num_shards"]:
        yield f"--shard-id must be at least 0 and below --num-shards ({args['num_shards']}), but is {args['shard_id']}"
    if not issubclass(TASK_REGISTRY[args["task"]], UnilmSeq2SeqTask | DeltaLMSeq2SeqTask):
        yield f"--task must be unilm_seq2seq or deltalm_seq2seq for --input, but is {args['task']}"
    for name, off in FOR_BINARIZED_DATA.items():
        if args.get(name, off) != off:
            option = "DATA" if name == "data" else as_option(name)
            yield f"{option} is for binarized data and must be left out with --input, but is {args[name]}"


def _file_problems(raw: argparse.Namespace, args: dict[str, Any]) -> Iterator[str]:
    """Yield errors in the options for one file."""
    for name in ("actors", "output_format"):
        if (value := getattr(raw, name)) is not None:
            yield f"{as_option(name)} is for --engine ray and must be left out without it, but is {value}"
    if raw.input and raw.input.is_dir():
        yield f"--input must be a file, but {raw.input} is a folder (--engine ray takes one)"
    if raw.source and raw.input and not has_fields(raw.input):
        yield f"--source names fields of .jsonl and .parquet files, but --input is {raw.input}"
    if raw.output is None:
        return
    if raw.output.exists() and not raw.overwrite:
        yield f"--output {raw.output} exists already: give another name, or --overwrite"
    if raw.output.is_dir():
        yield f"--output must be a file, but {raw.output} is a folder"
    if raw.input and raw.output.resolve() == raw.input.resolve():
        yield f"--output must be another file than --input, but both are {raw.output}"
    if raw.output.suffix == ".gz":
        yield f"--output must not end in .gz, for it is not compressed, but is {raw.output}"
    if args.get("all_ended") and not is_json_lines(raw.output):
        yield f"--all-ended needs an --output that ends in .jsonl, but it is {raw.output}"
    if args["nbest"] > 1 and not is_json_lines(raw.output):
        yield f"--nbest {args['nbest']} needs an --output that ends in .jsonl, but it is {raw.output}"


def _shard_problems(raw: argparse.Namespace, args: dict[str, Any]) -> Iterator[str]:
    """Yield errors in the options for the files of a corpus."""
    suffix = raw.output_format or FORMATS[0]
    if raw.actors is not None and raw.actors < 1:
        yield f"--actors must be at least 1, but is {raw.actors}"
    if args.get("all_ended") and suffix != "jsonl":
        yield f"--all-ended needs --output-format jsonl, but it is {suffix}"
    if args["nbest"] > 1 and suffix != "jsonl":
        yield f"--nbest {args['nbest']} needs --output-format jsonl, but it is {suffix}"
    if raw.overwrite:
        yield f"--overwrite is for one file and must be left out with --engine ray: remove {raw.output} to start anew"
    if args["num_shards"] != 1:
        yield f"--num-shards must be 1 with --engine ray, whose shards are files, but is {args['num_shards']}"
    if raw.output and raw.output.exists() and not raw.output.is_dir():
        yield f"--output must be a folder with --engine ray, but {raw.output} is a file"
    if raw.input and raw.output:
        try:
            shards = find_shards(raw.input, raw.output, suffix)
        except UserError as error:
            yield from error.problems
            return
        if raw.source and not any(has_fields(shard.input) for shard in shards):
            yield f"--source names fields of .jsonl and .parquet files, but --input {raw.input} has none"
