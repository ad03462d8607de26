"""From the options of fairseq-generate to a generator."""

from collections.abc import Sequence
from typing import Any

from s2sft_fairseq.data.dictionary import PretrainedDictionary
from s2sft_fairseq.errors import UserError
from s2sft_fairseq.generation.candidates import beam_candidates, sampled_candidates
from s2sft_fairseq.generation.ngram_blocking import NGramBlocker
from s2sft_fairseq.generation.reference_scorer import ReferenceScorer
from s2sft_fairseq.generation.search_options import SearchOptions
from s2sft_fairseq.generation.sequence_generator import SequenceGenerator
from s2sft_fairseq.models.unilm import UnilmModel
from s2sft_fairseq.objectives.objective import Objective
from s2sft_fairseq.objectives.sequence_form import SequenceForm

# fairseq's generation options that have no meaning here, with the value that leaves them off.
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
}


def build_generator(
    models: Sequence[UnilmModel],
    form: SequenceForm,
    objective: Objective,
    dictionary: PretrainedDictionary,
    args: Any,
    task: Any,
) -> SequenceGenerator | ReferenceScorer:
    """Build a generator, or with ``--score-reference`` a scorer.

    Args:
        models: one, or an ensemble.
        form: the layout they were trained with.
        objective: what they were trained with.
        dictionary: their dictionary.
        args: fairseq's `GenerationConfig`.
        task: the options of the task.

    Raises:
        UserError: naming every option that is not supported, out of range or contradicts another.
    """
    problems = _problems(args) + early_stop_problems(args, task) + _beam_problems(args, dictionary)
    problems += _ngram_problems(args, task, dictionary) + _draft_problems(args, task, form)
    if problems:
        raise UserError.of(problems)
    if args.score_reference:
        return ReferenceScorer(models, form, objective)
    options = SearchOptions(
        beam=args.beam,
        max_len_a=args.max_len_a,
        max_len_b=args.max_len_b,
        min_len=args.min_len,
        length_penalty=str(task.length_penalty),
        lenpen=0.0 if args.unnormalized else args.lenpen,
        temperature=args.temperature,
        never_generated=tuple(sorted({*dictionary.never_generated(), form.placeholder})),
        early_stop=early_stop(args, task),
        # Samples are drawn to their end: random numbers must not depend on the scores of another sentence.
        nbest=None if args.sampling else args.nbest,
        keep_unfinished=task.keep_unfinished,
        rank_each_step=task.rank_each_step,
        draft_placeholders=task.draft_placeholders,
        draft_source=task.draft_source,
    )
    select = sampled_candidates(args.sampling_topk, args.sampling_topp) if args.sampling else beam_candidates
    blocker = None
    if args.no_repeat_ngram_size:
        # Padding too, which hypotheses of several lengths have on their left.
        ignored = [form.pad, *(dictionary.index(name) for name in _ignored_symbols(task))]
        blocker = NGramBlocker(args.no_repeat_ngram_size, ignored)
    return SequenceGenerator(models, form, options, select, blocker)


def early_stop(args: Any, task: Any) -> str:
    """Return when a search ends, see `SearchOptions`: fairseq's own ``--no-early-stop`` stands for ``never``."""
    return "never" if getattr(args, "no_early_stop", False) else str(task.early_stop)


def early_stop_problems(args: Any, task: Any) -> list[str]:
    """Return what is wrong with the options that say when a search ends."""
    if early_stop(args, task) == "never" and task.early_stop == "fairseq":
        return ["--early-stop fairseq and --no-early-stop exclude each other: give one of them"]
    return []


def _problems(args: Any) -> list[str]:
    found = [
        f"--{name.replace('_', '-')} is not supported by unilm_seq2seq"
        for name, off in UNSUPPORTED.items()
        if getattr(args, name, off) != off
    ]
    if not args.sampling:
        found += [
            f"--{name.replace('_', '-')} needs --sampling"
            for name in ("sampling_topk", "sampling_topp")
            if getattr(args, name) > 0
        ]
    if args.sampling_topp > 1:
        found.append(f"--sampling-topp must not exceed 1, but is {args.sampling_topp:g}")
    if args.temperature <= 0:
        found.append(f"--temperature must be positive, but is {args.temperature:g}")
    found += [
        f"--{name.replace('_', '-')} must not be negative, but is {getattr(args, name):g}"
        for name in ("max_len_a", "max_len_b", "min_len", "no_repeat_ngram_size")
        if getattr(args, name) < 0
    ]
    return found


def _beam_problems(args: Any, dictionary: PretrainedDictionary) -> list[str]:
    found = []
    if args.beam < 1:
        found.append(f"--beam must be at least 1, but is {args.beam}")
    if args.beam > len(dictionary) and not args.sampling:
        found.append(f"--beam must not exceed the {len(dictionary)} symbols of the dictionary, but is {args.beam}")
    if args.nbest > args.beam:
        found.append(f"--nbest must not exceed --beam ({args.beam}), but is {args.nbest}")
    return found


def _draft_problems(args: Any, task: Any, form: SequenceForm) -> list[str]:
    drafts = {
        name: getattr(task, name.lstrip("-").replace("-", "_")) for name in ("--draft-placeholders", "--draft-source")
    }
    given = [name for name, count in drafts.items() if count > 0]
    found = [f"{name} must not be negative, but is {count}" for name, count in drafts.items() if count < 0]
    if len(given) == 2:
        found.append("--draft-placeholders and --draft-source exclude each other: give one of them")
    for name in given:
        if args.beam != 1:
            found.append(f"{name} is for greedy search: it needs --beam 1, but --beam is {args.beam}")
        if args.sampling:
            found.append(f"{name} and --sampling exclude each other")
    if task.rank_each_step:
        others = ["--sampling"] * args.sampling + given
        found += [f"--rank-each-step and {other} exclude each other" for other in others]
    if "--draft-placeholders" in given and not form.has_placeholders:
        found.append("--draft-placeholders needs a model that predicts at placeholders, but this one is causal")
    return found


def _ngram_problems(args: Any, task: Any, dictionary: PretrainedDictionary) -> list[str]:
    found = []
    if task.no_repeat_ngram_ignore and not args.no_repeat_ngram_size:
        found.append("--no-repeat-ngram-ignore needs --no-repeat-ngram-size")
    if unknown := [name for name in _ignored_symbols(task) if name not in dictionary]:
        found.append(f"--no-repeat-ngram-ignore must name symbols of the dictionary, but it lacks {', '.join(unknown)}")
    return found


def _ignored_symbols(task: Any) -> list[str]:
    return task.no_repeat_ngram_ignore.split("|") if task.no_repeat_ngram_ignore else []
