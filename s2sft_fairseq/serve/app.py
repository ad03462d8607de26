"""The application: the endpoints of the model, and the web page."""

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Mapping, Sequence
from contextlib import asynccontextmanager
from importlib.resources import files
from typing import Any, Protocol

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from s2sft_fairseq import __version__
from s2sft_fairseq.errors import UserError, first_of
from s2sft_fairseq.serve import schemas
from s2sft_fairseq.serve.batching import ENDED, Batcher
from s2sft_fairseq.serve.gate import Gate, unexpected
from s2sft_fairseq.serve.metrics import Metrics
from s2sft_fairseq.serve.settings import Access, Limits, Refused

PAGE = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/page.js": ("page.js", "text/javascript; charset=utf-8"),
    "/page.css": ("page.css", "text/css; charset=utf-8"),
}
REASONS = {
    401: "no key, or a wrong one",
    403: "the Host or the Origin header names another server",
    413: "the body or a text is too long",
    422: "the request is not as described",
    429: "too many sources wait for the model",
    500: "an error within the server",
    503: "too many requests are open, or the server is shutting down",
    504: "no answer in time",
}
SOURCE_NEEDED = "must be a text in Unicode, an object of such texts, or a list of either"
"""Replaces pydantic's messages, one for each of the three."""
BODY_NEEDED = "the body must be a JSON object in UTF-8, and Content-Type application/json"
MOST_PROBLEMS = 5
"""Maximum number of problems in the answer to a malformed request."""


class Model(Protocol):
    """The methods of `s2sft_fairseq.Seq2Seq` that the server calls, always in the same thread."""

    def hypotheses(self, sources: Any, **options: Any) -> list[list[Any]]:
        """Return the best hypotheses of each source."""

    def score(self, sources: Any, targets: Any) -> Sequence[Any]:
        """Return the score of each target."""

    def attention(self, source: Any, target: str) -> Any:
        """Return the attention weights of the tokens of a source."""

    def search_defaults(self) -> Mapping[str, Any]:
        """Return the search arguments that a request without options has, by name."""


def create_app(
    model: Model, limits: Limits | None = None, access: Access | None = None, *, name: str = "model"
) -> Gate:
    """Return the ASGI application that serves a model.

    Args:
        model: the model, which one thread of this application calls.
        limits: the limits of requests.
        access: who may use the server.
        name: the name of the model in ``/health``.
    """
    limits, access = limits or Limits(), access or Access()
    metrics = Metrics()
    batcher = Batcher(limits, metrics)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        yield
        await asyncio.to_thread(batcher.close)

    app = FastAPI(
        title="s2sft serve",
        version=__version__,
        lifespan=lifespan,
        docs_url=None,  # these pages load their scripts from other servers
        redoc_url=None,
        redirect_slashes=False,  # /generate/ is a wrong path like others: a redirect has no JSON
        responses={status: {"model": schemas.ErrorAnswer, "description": text} for status, text in REASONS.items()},
    )
    _add_model(app, model, batcher, limits)
    _add_state(app, model, batcher, metrics, name)
    _add_page(app)
    _add_errors(app)
    paths = {route.path for route in app.routes}  # type: ignore[attr-defined]
    return Gate(app, access, limits, metrics, free={*PAGE, "/health", "/defaults"}, paths=paths)


def _add_model(app: FastAPI, model: Model, batcher: Batcher, limits: Limits) -> None:
    async def run(key: Hashable, work: Callable[[list[Any]], Sequence[Any]], items: list[Any]) -> list[Any]:
        try:
            return await asyncio.wrap_future(batcher.submit(key, work, items))
        except UserError as error:
            raise Refused(422, str(error)) from None

    @app.post("/generate")
    async def generate(request: schemas.GenerateRequest) -> schemas.GenerateAnswer:
        """Generate texts for one source or several."""
        sources = schemas.sources_of(request.source, limits)
        schemas.check_options(request, limits)
        options = request.options()
        key = ("generate", *sorted(options.items()))

        def work(items: list[Any]) -> list[list[Any]]:
            # A source has its number in the request, so its samples do not depend on the requests of the same batch.
            numbers, texts = map(list, zip(*items, strict=True))
            return model.hypotheses(texts, numbers=numbers, **options)

        results = await run(key, work, list(enumerate(sources)))
        return schemas.GenerateAnswer(
            results=[[schemas.HypothesisAnswer(**vars(each)) for each in best] for best in results]
        )

    @app.post("/score")
    async def score(request: schemas.ScoreRequest) -> schemas.ScoreAnswer:
        """Score given targets."""
        sources = schemas.sources_of(request.source, limits)
        targets = request.target if isinstance(request.target, list) else [request.target]
        if len(sources) != len(targets):
            raise Refused(422, f"target: a target for each of {len(sources)} sources is needed, not {len(targets)}")
        schemas.check_length("target", max(map(len, targets)), limits)
        pairs = list(zip(sources, targets, strict=True))
        scores = await run("score", lambda items: model.score(*map(list, zip(*items, strict=True))), pairs)
        return schemas.ScoreAnswer(results=[schemas.TargetScore(**vars(each)) for each in scores])

    @app.post("/attention")
    async def attention(request: schemas.AttentionRequest) -> schemas.AttentionAnswer:
        """Return the attention weights of the source tokens for each target token."""
        (source,) = schemas.sources_of(request.source, limits)
        schemas.check_length("target", len(request.target), limits)

        def work(items: list[Any]) -> list[Any]:
            return [model.attention(*item) for item in items]

        (found,) = await run("attention", work, [(source, request.target)])
        return schemas.AttentionAnswer(
            source_tokens=list(found.source),
            target_tokens=list(found.target),
            weights=[[round(weight, 6) for weight in row] for row in found.weights.tolist()],
        )


def _add_state(app: FastAPI, model: Model, batcher: Batcher, metrics: Metrics, name: str) -> None:
    @app.get("/health")
    async def health() -> schemas.HealthAnswer:
        """Return the state of the server, if the model's thread runs."""
        if not batcher.is_alive():
            raise Refused(503, ENDED)
        return schemas.HealthAnswer(status="ok", model=name, version=__version__, queue_length=batcher.queue_length())

    @app.get("/defaults", include_in_schema=False)  # a part of the page
    async def defaults() -> schemas.DefaultsAnswer:
        """Return the search options of a request that leaves them out: those of the model's folder."""
        found = model.search_defaults()
        return schemas.DefaultsAnswer(**{name: found.get(name) for name in schemas.DefaultsAnswer.model_fields})

    @app.get("/metrics", response_class=Response)
    async def prometheus() -> Response:
        """Return counters in Prometheus' text format."""
        return Response(metrics.text(), media_type="text/plain; version=0.0.4; charset=utf-8")


def _add_page(app: FastAPI) -> None:
    def add(path: str, content: bytes, kind: str) -> None:
        async def page() -> Response:
            return Response(content, media_type=kind)

        app.get(path, include_in_schema=False)(page)

    folder = files("s2sft_fairseq.serve") / "static"
    for path, (name, kind) in PAGE.items():  # read the files now, so that requests do not access the file system
        add(path, (folder / name).read_bytes(), kind)


def _add_errors(app: FastAPI) -> None:
    def answer(refused: Refused) -> Response:
        return Response(refused.body(), refused.status, refused.headers, "application/json")

    @app.exception_handler(Refused)
    async def refuse(request: Request, error: Refused) -> Response:
        return answer(error)

    @app.exception_handler(HTTPException)
    async def from_fastapi(request: Request, error: HTTPException) -> Response:
        if error.status_code == 400:  # JSON that cannot be parsed
            return answer(Refused(422, BODY_NEEDED))
        reason = f"{error.detail}{_hint(request, error.status_code, error.headers or {})}"
        return answer(Refused(error.status_code, reason, error.headers))

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(Refused(422, "; ".join(_problems(error.errors()))))

    @app.exception_handler(Exception)
    async def unforeseen(request: Request, error: Exception) -> Response:
        return answer(unexpected())


def _hint(request: Request, status: int, headers: Mapping[str, str]) -> str:
    """Return what a client with a wrong path or method can do."""
    if status == 404:
        return f": {request.scope['path']} is no path of this server; /openapi.json lists them"
    if status == 405:
        return f": {request.scope['path']} takes {headers.get('Allow', '')}, not {request.method}"
    return ""


def _problems(found: Sequence[Any]) -> list[str]:
    """Return the problems of a request, one for each of its values."""
    texts = {}
    for each in found:
        name = next((part for part in each["loc"][1:] if isinstance(part, str)), "")
        if not name:
            return [BODY_NEEDED]
        texts[name] = SOURCE_NEEDED if name == "source" and each["type"] != "missing" else each["msg"]
    lines = [f"{name}: {text}" for name, text in texts.items()]
    return first_of(lines, MOST_PROBLEMS)
