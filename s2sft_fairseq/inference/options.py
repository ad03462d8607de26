"""The options of a search. All are declared and checked here."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Optional

import torch
from fairseq.dataclass import ChoiceEnum
from torch import Tensor

from s2sft_fairseq.data.fairseq_dictionary import FairseqDictionary
from s2sft_fairseq.errors import UserError, as_option
from s2sft_fairseq.inference.draws import seed_of
from s2sft_fairseq.objectives.sequence_form import SequenceForm
from s2sft_fairseq.search_bounds import (
    EARLY_STOPS,
    LENGTH_PENALTIES,
    hypothesis_problems,
    length_problems,
    number_problems,
)

CUDA_GRAPHS = ("auto", "on", "off")
CHANGES_SHAPES = ("draft_placeholders", "draft_source", "draft_blocks", "decode_blocks")
"""Options whose steps have other shapes each time; at most one can be given."""

OF_BLOCKS = ("confidence", "max_passes", "revise")
"""Options that only ``--decode-blocks`` reads."""

# fairseq's generation options that are not supported, with the value that disables them.
UNSUPPORTED = {
    "match_source_len": False,
    "unkpen": 0,
    "replace_unk": None,
    "constraints": None,
    "diverse_beam_groups": -1,
    "diversity_rate": -1.0,
    "print_alignment": None,
    "print_step": False,
    "lm_path": None,
    "retain_dropout": False,
    "retain_dropout_modules": None,
    "eos_token": None,
    "iter_decode_eos_penalty": 0.0,
    "iter_decode_max_iter": 10,
    "iter_decode_force_max_iter": False,
    "iter_decode_with_beam": 1,
    "iter_decode_with_external_reranker": False,
    "retain_iter_history": False,
    "decoding_format": None,
}


@dataclass
class SearchConfig:
    """The search options of both encoders and encoder-decoders, beyond fairseq's."""

    early_stop: ChoiceEnum(list(EARLY_STOPS)) = field(  # type: ignore[valid-type]
        default="exact",
        metadata={
            "help": "when the search for a sentence ends before the maximum length. exact: when no open hypothesis can "
            "become one of the --nbest, so the result is the same as without early stop; fairseq: when "
            "--beam hypotheses have ended; never: not at all, as with --no-early-stop"
        },
    )


@dataclass
class UnilmSearchConfig(SearchConfig):
    """Further search options, for encoders only. Each is an attribute of :class:`SearchOptions`, too."""

    length_penalty: ChoiceEnum(list(LENGTH_PENALTIES)) = field(  # type: ignore[valid-type]
        default="length",
        metadata={
            "help": "divisor of the score of a hypothesis: length ** lenpen, as in fairseq, or ((5 + length) / 6) "
            "** lenpen, as in s2s-ft (gnmt)"
        },
    )
    no_repeat_ngram_ignore: Optional[str] = field(
        default=None,
        metadata={"help": "symbols, separated by |, that --no-repeat-ngram-size leaves alone, such as '.'"},
    )
    keep_unfinished: bool = field(
        default=False,
        metadata={
            "help": "also rank hypotheses that reach the maximum length without eos, instead of forcing eos there"
        },
    )
    rank_each_step: bool = field(
        default=False,
        metadata={
            "help": "rank ended and open hypotheses together by normalized score in each step, as ERNIE-GEN does: an "
            "ended one takes a place in the beam until better ones push it out"
        },
    )
    count_ended: bool = field(
        default=False,
        metadata={
            "help": "count hypotheses that end among the --beam of their step, as the program of s2s-ft does: as many "
            "fewer go on from there (default: --beam open ones go on)"
        },
    )
    all_ended: bool = field(
        default=False,
        metadata={
            "help": "record the search: write all hypotheses that end in it to a .jsonl --output, for s2sft rerank. It "
            "then runs to the maximum length"
        },
    )
    draft_placeholders: int = field(
        default=0,
        metadata={
            "help": "greedy search: draft this many tokens at further placeholders, and verify them in the next "
            "step; the same hypotheses in fewer steps"
        },
    )
    draft_source: int = field(
        default=0,
        metadata={
            "help": "greedy search: draft this many tokens, copied from where the source matches the end of the "
            "hypothesis, and verify them in the next step; the same hypotheses in fewer steps"
        },
    )
    draft_blocks: int = field(
        default=0,
        metadata={
            "help": "greedy search with a model that was trained in blocks: draft this many tokens at the placeholders "
            "of a block, and verify them in the next step; the same hypotheses in fewer steps. -1: as many as pay off; "
            "steps are timed"
        },
    )
    decode_blocks: int = field(
        default=0,
        metadata={
            "help": "decode in blocks of this many placeholders, with a model that was trained in blocks: in each step "
            "those with enough confidence get their tokens; 0: one token at a time, from left to right"
        },
    )
    confidence: float = field(
        default=0.9,
        metadata={
            "help": "--decode-blocks: least probability at which a token is kept; the most probable one always is "
            "(default: 0.9)"
        },
    )
    max_passes: int = field(
        default=0, metadata={"help": "--decode-blocks: most steps for a block; 0: as many as it has tokens"}
    )
    revise: float = field(
        default=0.0,
        metadata={
            "help": "--decode-blocks: probability below which a token is taken back once, when others of its block are "
            "known; 0: never"
        },
    )
    cuda_graphs: ChoiceEnum(list(CUDA_GRAPHS)) = field(  # type: ignore[valid-type]
        default="auto",
        metadata={
            "help": "record the kernels of a step as CUDA graphs, which launch together; a GPU waits for the host "
            "otherwise. The graphs keep their memory from batch to batch. auto: on a GPU, except with drafts and "
            "--decode-blocks, whose steps change their shapes"
        },
    )


@dataclass
class SearchOptions(UnilmSearchConfig):
    """All options of a search: the options above, and those of fairseq that it reads, under fairseq's names."""

    beam: int = 5
    max_len_a: float = 0.0
    """A hypothesis has at most ``max_len_a * source length + max_len_b`` tokens, without eos ..."""
    max_len_b: int = 200
    """... and never more than the model was trained for."""
    min_len: int = 1
    """Fewest tokens before eos."""
    lenpen: float = 1.0
    temperature: float = 1.0
    no_repeat_ngram_size: int = 0
    sampling: bool = False
    sampling_topk: int = -1
    sampling_topp: float = -1.0
    nbest: int | None = None
    """Number of best hypotheses to return; None: all ``beam`` hypotheses."""
    seed: int = 1
    """Of the random numbers of ``sampling``."""
    never_generated: tuple[int, ...] = ()
    """Ids that no hypothesis may hold."""
    never_blocked: tuple[int, ...] = ()
    """Ids that ``no_repeat_ngram_size`` ignores."""

    @classmethod
    def of(cls, args: Any, task: Any, form: SequenceForm, dictionary: FairseqDictionary) -> "SearchOptions":
        """Gather the options.

        Args:
            args: fairseq's `GenerationConfig`.
            task: the options of the task.
            form: the layout that the models were trained with.
            dictionary: the dictionary of the models.

        Raises:
            UserError: naming every option that is not supported, out of range or contradicts another.
        """
        if problems := _problems(args, task, form, dictionary):
            raise UserError.of(problems)
        derived: dict[str, Any] = {
            "early_stop": early_stop(args, task),
            "length_penalty": str(task.length_penalty),
            "lenpen": 0.0 if args.unnormalized else args.lenpen,
            "nbest": None if args.sampling else args.nbest,  # all samples are drawn to their end
            "seed": seed_of(args, task),
            "never_generated": tuple(sorted({*dictionary.never_generated(), form.placeholder})),
            "never_blocked": tuple(dictionary.index(symbol) for symbol in _ignored_symbols(task)),
        }
        own = {option.name for option in fields(UnilmSearchConfig)}
        names = [option.name for option in fields(cls) if option.name not in derived]
        return cls(**derived, **{name: getattr(task if name in own else args, name) for name in names})

    def normalizer(self, length: Tensor) -> Tensor:
        """Return the divisor of a summed log-probability: ``length ** lenpen``, as in fairseq.

        With the length penalty ``gnmt`` it is ``((5 + length) / 6) ** lenpen``, as in s2s-ft (Wu et al., 2016,
        equation 14, without the coverage term).

        Args:
            length: number of tokens of hypotheses, with eos (any shape).

        Returns:
            The same shape, float32.
        """
        base = (5.0 + length) / 6.0 if self.length_penalty == "gnmt" else length.float()
        return base**self.lenpen


def early_stop(args: Any, task: Any) -> str:
    """Return when a search ends. fairseq's ``--no-early-stop`` means ``never``.

    * ``exact``: when no open hypothesis can become one of the ``nbest``; the result is the same as for ``never``.
    * ``fairseq``: when ``beam`` hypotheses have ended, even if an open one may be better.
    * ``never``: at the maximum length.

    With a beam of one, all three are greedy search, which ends with the first eos.
    """
    return "never" if getattr(args, "no_early_stop", False) else str(task.early_stop)


def early_stop_problems(args: Any, task: Any) -> list[str]:
    """Return error messages for the options that say when a search ends."""
    if early_stop(args, task) == "never" and task.early_stop == "fairseq":
        return ["--early-stop fairseq and --no-early-stop exclude each other: give one of them"]
    return []


def search_problems(args: Any, task: Any, most: float = math.inf) -> list[str]:
    """Return error messages for the options that every search has.

    Args:
        args: fairseq's `GenerationConfig`.
        task: the options of the task.
        most: the most tokens of a hypothesis without eos that the model was trained for, if it is known yet.
    """
    found = list(number_problems(args, task))
    if not found:  # comparisons of numbers that are not valid say nothing
        found = [*hypothesis_problems(args), *length_problems(args, most)]
    if not getattr(args, "sampling", False):
        limits = (name for name in ("sampling_topk", "sampling_topp") if getattr(args, name, -1) > 0)
        found += [f"{as_option(name)} needs --sampling" for name in limits]
    return [*found, *early_stop_problems(args, task)]


def uses_cuda_graphs(options: Any, device: torch.device) -> bool:
    """Return whether a search with these options records CUDA graphs on a device.

    Args:
        options: `SearchOptions`, or the configuration of a task, with the options of `UnilmSearchConfig`.
        device: the device of the models.
    """
    if options.cuda_graphs != "auto":
        return bool(options.cuda_graphs == "on")
    return device.type == "cuda" and not any(getattr(options, name) for name in CHANGES_SHAPES)


def _problems(args: Any, task: Any, form: SequenceForm, dictionary: FairseqDictionary) -> list[str]:
    found = [
        f"{as_option(name)} is not supported by unilm_seq2seq"
        for name, off in UNSUPPORTED.items()
        if getattr(args, name, off) != off
    ]
    found += search_problems(args, task, form.max_target - 1)
    if args.beam > len(dictionary) and not args.sampling:
        found.append(f"--beam must not exceed the {len(dictionary)} symbols of the dictionary, but is {args.beam}")
    if task.no_repeat_ngram_ignore and not args.no_repeat_ngram_size:
        found.append("--no-repeat-ngram-ignore needs --no-repeat-ngram-size")
    if unknown := [symbol for symbol in _ignored_symbols(task) if symbol not in dictionary]:
        found.append(f"--no-repeat-ngram-ignore must name symbols of the dictionary, but it lacks {', '.join(unknown)}")
    return found + _draft_problems(args, task, form)


def _draft_problems(args: Any, task: Any, form: SequenceForm) -> list[str]:
    found = []
    drafts = [as_option(name) for name in CHANGES_SHAPES if getattr(task, name)]
    if len(drafts) > 1:
        found.append(f"{' and '.join(drafts)} exclude each other: give one of them")
    for option in drafts:
        if args.beam != 1:
            found.append(f"{option} is for greedy search: it needs --beam 1, but --beam is {args.beam}")
        if args.sampling and option != "--decode-blocks":
            found.append(f"{option} and --sampling exclude each other")
    other_ways = ["--sampling", *drafts] if args.sampling else drafts
    if task.rank_each_step:
        found += [f"--rank-each-step and {other} exclude each other" for other in other_ways]
    if task.count_ended:
        others = [*other_ways, "--rank-each-step"] if task.rank_each_step else other_ways
        found += [f"--count-ended and {other} exclude each other" for other in others]
    if task.all_ended:
        found += _record_problems(args, task, other_ways)
    if task.cuda_graphs == "on":
        found += [f"--cuda-graphs on and {option} exclude each other: the shapes of steps change" for option in drafts]
    if not form.has_placeholders:
        found += [
            f"{option} needs a model that predicts at placeholders, but this one is causal"
            for option in drafts
            if option != "--draft-source"
        ]
    if not task.decode_blocks:
        usual = UnilmSearchConfig()
        changed = [name for name in OF_BLOCKS if getattr(task, name) != getattr(usual, name)]
        found += [f"{as_option(name)} needs --decode-blocks" for name in changed]
    if task.decode_blocks and task.keep_unfinished:
        found.append("--decode-blocks and --keep-unfinished exclude each other: blocks end with eos")
    return found


def _record_problems(args: Any, task: Any, other_ways: Sequence[str]) -> Iterator[str]:
    """Yield an error for each option that ``--all-ended``, the record of a search, excludes."""
    if task.rank_each_step:
        yield "--all-ended and --rank-each-step exclude each other"
    if early_stop(args, task) == "fairseq":
        yield "--all-ended and --early-stop fairseq exclude each other"
    for other in other_ways:
        yield f"--all-ended and {other} exclude each other"
    if args.nbest != 1:
        yield f"--all-ended writes all hypotheses: leave out --nbest, which is {args.nbest}"


def _ignored_symbols(task: Any) -> list[str]:
    return task.no_repeat_ngram_ignore.split("|") if task.no_repeat_ngram_ignore else []
