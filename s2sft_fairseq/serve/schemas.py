"""The JSON of requests and answers. FastAPI checks requests, and describes both in ``/openapi.json``."""

from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from s2sft_fairseq.search_bounds import PYTHON, SEARCH
from s2sft_fairseq.serve.settings import Limits, Refused


def _in_unicode(text: str) -> str:
    """Refuse an unpaired surrogate, which is possible in JSON but not in UTF-8."""
    text.encode()
    return text


def _bounded(name: str, description: str, *, least: float | None = None) -> Any:
    """Return the field of a search option, with the bounds that it has at every door."""
    option = SEARCH[PYTHON[name]]
    lowest = option.least if least is None else least
    return Field(ge=lowest, le=option.most, description=description, allow_inf_nan=False)


Text = Annotated[str, AfterValidator(_in_unicode)]
Source = Text | dict[Text, Text]
"""A text, or named fields for models that were trained with fields."""


class Request(BaseModel):
    """A request. Unknown names and values of another type, such as "5" for 5, are refused."""

    model_config = ConfigDict(extra="forbid", strict=True)


class GenerateRequest(Request):
    """Sources and search options; options that are left out have the defaults of the model folder."""

    source: Annotated[Source | list[Source], Field(description="a text, named fields, or a list of either")]
    beam: Annotated[int | None, _bounded("beam", "hypotheses that the search keeps")] = None
    num_return: Annotated[int | None, _bounded("num_return", "hypotheses to return, at most beam")] = None
    max_len: Annotated[int | None, _bounded("max_len", "most tokens of a hypothesis", least=1)] = None
    length_penalty: Annotated[float | None, _bounded("length_penalty", "exponent of the length of a hypothesis")] = None
    no_repeat_ngram: Annotated[int | None, _bounded("no_repeat_ngram", "no n-gram of this length twice; 0: any")] = None

    def options(self) -> dict[str, int | float]:
        """Return the options that were given."""
        return self.model_dump(exclude={"source"}, exclude_none=True)


class ScoreRequest(Request):
    """Sources, and a target for each."""

    source: Source | list[Source]
    target: Text | list[Text]


class AttentionRequest(Request):
    """One source and one target."""

    source: Source
    target: Text


class HypothesisAnswer(BaseModel):
    """A generated text."""

    text: str
    score: Annotated[float, Field(description="sum of log_probs, divided as the length penalty says")]
    tokens: list[str]
    log_probs: Annotated[list[float], Field(description="natural logarithm of each token's probability")]


class GenerateAnswer(BaseModel):
    """The hypotheses of each source, the best first."""

    results: list[list[HypothesisAnswer]]


class TargetScore(BaseModel):
    """The log-probability of a target."""

    total: Annotated[float, Field(description="sum of log_probs")]
    tokens: list[str]
    log_probs: list[float]


class ScoreAnswer(BaseModel):
    """The score of each target."""

    results: list[TargetScore]


class AttentionAnswer(BaseModel):
    """Attention weights of the source tokens for each target token."""

    source_tokens: list[str]
    target_tokens: list[str]
    weights: Annotated[list[list[float]], Field(description="a row for each token of the target")]


class HealthAnswer(BaseModel):
    """The state of a server whose model's thread runs."""

    status: str
    model: str
    version: str
    queue_length: int


class DefaultsAnswer(BaseModel):
    """The options of a request that leaves them out."""

    beam: int | None
    num_return: int | None
    max_len: int | None
    length_penalty: float | None
    no_repeat_ngram: int | None


class ErrorAnswer(BaseModel):
    """Why a request was not answered."""

    error: str


def sources_of(given: Source | list[Source], limits: Limits) -> list[Source]:
    """Return the sources of a request as a list.

    Raises:
        Refused: 422 if there are none or too many, 413 if one is too long.
    """
    sources = given if isinstance(given, list) else [given]
    check_count(len(sources), limits)
    for source in sources:
        if isinstance(source, dict) and not source:
            raise Refused(422, "source: the fields of a source must not be empty")
        texts = source.values() if isinstance(source, dict) else [source]
        check_length("source", sum(map(len, texts)), limits)
    return sources


def check_count(count: int, limits: Limits) -> None:
    """Refuse an empty list, and one that is longer than a batch.

    Raises:
        Refused: 422.
    """
    if not 1 <= count <= limits.max_batch:
        raise Refused(422, f"source: 1 to {limits.max_batch} sources are taken at once, but there are {count}")


def check_length(name: str, characters: int, limits: Limits) -> None:
    """Refuse a text that is too long.

    Raises:
        Refused: 413.
    """
    if characters > limits.max_length:
        reason = f"{name}: at most {limits.max_length} characters are taken, but one has {characters}"
        raise Refused(413, reason)


def check_options(request: GenerateRequest, limits: Limits) -> None:
    """Refuse search options above the limits.

    Raises:
        Refused: 422; the reason lists all of them.
    """
    most = {"beam": limits.max_beam, "num_return": request.beam or limits.max_beam, "max_len": limits.max_tokens}
    found = [
        f"{name} must be at most {bound}, but is {value}"
        for name, bound in most.items()
        if (value := getattr(request, name)) is not None and value > bound
    ]
    if found:
        raise Refused(422, "; ".join(found))
