"""The options of a search with their types and bounds, once for all doors.

The command line (`inference.options`), Python (`api.search_arguments`), HTTP (`serve.schemas`) and the ``config.json``
of a model folder (`checkpoints.model_folder`) read this table.
"""

from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

from s2sft_fairseq.errors import as_option, shown

MOST = 2**31 - 1
"""The largest whole number of an option without another bound."""
MOST_POSITIONS = 1_000_000
"""Far above any real encoder: a table of that many positions takes 3 GB at a width of 768."""
MOST_HYPOTHESES = 10_000
MOST_DRAFTS = 1024
EARLY_STOPS = ("exact", "fairseq", "never")
LENGTH_PENALTIES = ("length", "gnmt")
_KINDS = {bool: "true or false", int: "a whole number", float: "a number", str: "a text"}


class SearchOption(NamedTuple):
    """The type, the bounds and the name in Python of an option."""

    kind: type
    least: float = 0
    most: float = MOST
    off: float | None = None
    """A value outside the bounds that switches the option off."""
    choices: tuple[str, ...] = ()
    python: str = ""
    """The name in Python and HTTP; "": Python does not have the option."""

    @property
    def needed(self) -> str:
        """What a value must be, for messages."""
        if self.choices:
            return f"one of {', '.join(self.choices)}"
        if self.kind not in (int, float):
            return _KINDS[self.kind]
        bounds = f"{_KINDS[self.kind]} from {self.least:.10g} to {self.most:.10g}"
        return bounds if self.off is None else f"{bounds}, or {self.off:g} (off)"

    def problem(self, value: Any) -> str | None:
        """Return what is wrong with a value, without the name of the option; None: nothing."""
        return None if self._fits(value) else f"must be {self.needed}, but is {shown(value)}"

    def _fits(self, value: Any) -> bool:
        if self.choices:
            return value in self.choices
        if self.kind not in (int, float):
            return isinstance(value, self.kind)
        if isinstance(value, bool) or not isinstance(value, (int, float) if self.kind is float else int):
            return False
        return value == self.off or self.least <= value <= self.most  # neither holds for NaN


SEARCH: Mapping[str, SearchOption] = {
    "beam": SearchOption(int, 1, MOST_HYPOTHESES, python="beam"),
    "nbest": SearchOption(int, 1, MOST_HYPOTHESES, python="num_return"),
    "max_len_b": SearchOption(int, python="max_len"),
    "max_len_a": SearchOption(float, 0, 1e6, python="max_len_ratio"),
    "min_len": SearchOption(int, python="min_len"),
    # 10 is far beyond any use; length ** lenpen must be a float32 that is neither 0 nor infinite.
    "lenpen": SearchOption(float, -10, 10, python="length_penalty"),
    "unnormalized": SearchOption(bool),
    "length_penalty": SearchOption(str, choices=LENGTH_PENALTIES, python="length_penalty_form"),
    "no_repeat_ngram_size": SearchOption(int, 0, 100, python="no_repeat_ngram"),
    "no_repeat_ngram_ignore": SearchOption(str, python="no_repeat_ngram_ignore"),
    "early_stop": SearchOption(str, choices=EARLY_STOPS, python="early_stop"),
    "no_early_stop": SearchOption(bool),
    "keep_unfinished": SearchOption(bool, python="keep_unfinished"),
    "rank_each_step": SearchOption(bool, python="rank_each_step"),
    "count_ended": SearchOption(bool, python="count_ended"),
    "draft_placeholders": SearchOption(int, 0, MOST_DRAFTS, python="draft_placeholders"),
    "draft_source": SearchOption(int, 0, MOST_DRAFTS, python="draft_source"),
    "draft_blocks": SearchOption(int, -1, MOST_DRAFTS, python="draft_blocks"),
    "decode_blocks": SearchOption(int, python="decode_blocks"),
    "confidence": SearchOption(float, 0, 1, python="confidence"),
    "max_passes": SearchOption(int, python="max_passes"),
    "revise": SearchOption(float, 0, 1, python="revise"),
    "sampling": SearchOption(bool, python="sampling"),
    "sampling_topk": SearchOption(int, 1, off=-1, python="top_k"),
    "sampling_topp": SearchOption(float, 1e-6, 1, off=-1, python="top_p"),
    # Logits are divided by it in float32.
    "temperature": SearchOption(float, 1e-3, 1e3, python="temperature"),
}
"""The options of a search that a model folder may set, by their names in fairseq's configuration. Folders are not
trusted, and other options name files to write or, as ``--user-dir``, code to run."""

PYTHON: Mapping[str, str] = {option.python: name for name, option in SEARCH.items() if option.python}
"""The option of each argument in Python."""

_FURTHER: Mapping[str, SearchOption] = {
    "prefix_size": SearchOption(int),
    "unkpen": SearchOption(float, -1e6, 1e6),
    "lm_weight": SearchOption(float, -1e3, 1e3),
    "diversity_rate": SearchOption(float, 0, 1e6, off=-1),
    "diverse_beam_groups": SearchOption(int, 1, MOST_HYPOTHESES, off=-1),
    "diverse_beam_strength": SearchOption(float, 0, 1e6),
}
"""Numbers of fairseq's search that only its command line has."""


_DEPENDENT = {
    "sampling": ("sampling_topk", "sampling_topp"),
    "decode_blocks": ("confidence", "max_passes", "revise"),
    "no_repeat_ngram_size": ("no_repeat_ngram_ignore",),
}
"""The options that are refused if another one is off."""


def applicable(search: Mapping[str, Any], chosen: Mapping[str, Any]) -> dict[str, Any]:
    """Return the search of a model folder without the options that depend on one which is switched off.

    Args:
        search: the options that the folder sets.
        chosen: the options that the caller sets.
    """
    off = [name for switch, names in _DEPENDENT.items() if not chosen.get(switch, True) for name in names]
    return {name: value for name, value in search.items() if name not in off}


def number_problems(*configurations: Any) -> Iterator[str]:
    """Yield an error for each number of a search that is out of bounds.

    Args:
        configurations: objects with options as attributes, such as fairseq's `GenerationConfig`. Each may lack some;
            the first that has one counts.
    """
    for name, option in {**SEARCH, **_FURTHER}.items():
        values = (getattr(configuration, name, None) for configuration in configurations)
        value = next((value for value in values if value is not None), None)
        if value is not None and option.kind in (int, float) and (what := option.problem(value)):
            yield f"{as_option(name)} {what}"


def length_problems(args: Any, most: float) -> Iterator[str]:
    """Yield an error if the bounds of the length contradict each other for every source.

    Args:
        args: fairseq's `GenerationConfig`; it may lack options.
        most: the most tokens of a hypothesis without eos that the model was trained for.
    """
    shortest, longest = getattr(args, "min_len", 1), getattr(args, "max_len_b", 200)
    if shortest > most:
        yield f"--min-len must be at most {most}, the most tokens that this model writes, but is {shortest}"
    if getattr(args, "max_len_a", 0):
        return  # the limit depends on the source: see `too_short`
    if longest < 1:
        yield f"--max-len-b must be at least 1, because --max-len-a is 0, but is {longest}"
    elif shortest > longest:
        yield f"--min-len must be at most --max-len-b ({longest}), but is {shortest}"


def too_short(args: Any, limit: int, positions: int) -> str:
    """Return the error for a source whose longest hypothesis is shorter than ``--min-len``.

    Args:
        args: the options of the search.
        limit: the most tokens of a hypothesis for this source.
        positions: its length, to which ``--max-len-a`` refers.
    """
    return (
        f"--min-len ({args.min_len}) must be at most --max-len-a * positions + --max-len-b, but that is {limit} for a "
        f"source of {positions} positions"
    )


def hypothesis_problems(args: Any) -> Iterator[str]:
    """Yield an error if more hypotheses are to be returned than the search keeps."""
    beam, nbest = getattr(args, "beam", 5), getattr(args, "nbest", 1)
    if nbest > beam:
        yield f"--nbest must not exceed --beam ({beam}), but is {nbest}"
