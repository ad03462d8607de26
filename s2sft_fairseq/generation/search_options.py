"""What a search is to find."""

from dataclasses import dataclass

EARLY_STOPS = ("exact", "fairseq", "never")


@dataclass(frozen=True)
class SearchOptions:
    """The settings of a search that do not depend on the batch."""

    beam: int = 5
    max_len_a: float = 0.0
    """A hypothesis has at most ``max_len_a * source length + max_len_b`` tokens, eos not counted ..."""
    max_len_b: int = 200
    """... and never more than the model was trained for."""
    min_len: int = 1
    """Fewest tokens before eos."""
    length_penalty: str = "length"
    """See :func:`length_normalizer`."""
    lenpen: float = 1.0
    temperature: float = 1.0
    never_generated: tuple[int, ...] = ()
    """Ids that no hypothesis may hold."""
    early_stop: str = "exact"
    """When a sentence is done before the maximum length. ``exact``: no open hypothesis can get among the ``nbest`` any
    more, so the result is that of ``never``. ``fairseq``: ``beam`` hypotheses have ended, though an open one may be
    better. With a beam of one, each of them is greedy search, which ends with the first eos."""
    nbest: int | None = None
    """How many of the best hypotheses are returned; all ``beam`` of them if None."""
    keep_unfinished: bool = False
    """At the maximum length, rank hypotheses without eos too, as s2s-ft does; otherwise eos is forced there."""
    rank_each_step: bool = False
    """Rank ended and other hypotheses together by normalised score at each step, as ERNIE-GEN does: an ended one takes
    a place in the beam until better ones push it out. Otherwise the beam is of hypotheses that have not ended."""
    draft_placeholders: int = 0
    """Greedy search: verify so many drafts a step, from placeholders beyond the next token ..."""
    draft_source: int = 0
    """... or from where the source reads like the end of the hypothesis."""
