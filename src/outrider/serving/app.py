"""The HTTP interface: routes, and errors in one shape."""

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any, Final

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import JSONResponse, PlainTextResponse, Response

import outrider
from outrider.errors import OutriderError, unknown_name
from outrider.serving.driver import Driver
from outrider.serving.failures import ApiError, api_error_of
from outrider.serving.formats import dumps
from outrider.serving.guard import Guard
from outrider.serving.live import live_router
from outrider.serving.metrics import Exposition
from outrider.serving.protocol import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    ErrorBody,
    Strict,
    TokenizeRequest,
)
from outrider.serving.reply import Reply
from outrider.serving.service import Service
from outrider.serving.settings import ServeSettings

PROMETHEUS: Final = "text/plain; version=0.0.4; charset=utf-8"
_BODIES: Final[dict[str, type[Strict]]] = {
    "/v1/chat/completions": ChatRequest,
    "/v1/completions": CompletionRequest,
    "/tokenize": TokenizeRequest,
    "/detokenize": DetokenizeRequest,
}
_FAULTS: Final[dict[int | str, dict[str, Any]]] = {
    status: {"model": ErrorBody, "description": text}
    for status, text in (
        (400, "The request cannot be served."),
        (401, "The API key is missing or wrong."),
        (404, "There is no such model."),
        (408, "It took longer than the server allows."),
        (413, "The body is too large."),
        (422, "A field is unknown or has the wrong type."),
        (429, "The queue is full; see the Retry-After header."),
        (500, "The request failed."),
        (503, "The server is shutting down."),
    )
}
_STREAM: Final[dict[int | str, dict[str, Any]]] = {
    200: {
        "description": "The answer, or server-sent events with stream: true.",
        "content": {
            "application/json": {"schema": {"type": "object"}},
            "text/event-stream": {"schema": {"type": "string"}},
        },
    }
}


def create_app(driver: Driver, settings: ServeSettings) -> FastAPI:
    """Build the app around a driver, which it starts and stops."""

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        driver.start()
        yield
        await driver.stop()

    app = FastAPI(
        title="Outrider",
        version=outrider.__version__,
        description=outrider.__doc__ or "",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        redirect_slashes=False,
        responses=_FAULTS,
    )
    service = Service(driver, settings)
    _add_completions(app, service)
    _add_tokens(app, service)
    _add_status(app, service)
    _add_error_handlers(app)
    app.add_middleware(Guard, settings=settings)
    if settings.cors_origins:
        app.add_middleware(
            CORSMiddleware,
            allow_origins=list(settings.cors_origins),
            allow_methods=["*"],
            allow_headers=["*"],
        )
    return app


def _add_completions(app: FastAPI, service: Service) -> None:
    clock = service.driver.clock

    @app.post("/v1/chat/completions", responses=_STREAM, response_class=JSONResponse)
    async def chat_completions(body: ChatRequest) -> Response:
        """Answer a conversation."""
        return Reply(await service.chat(body, clock()))

    @app.post("/v1/completions", responses=_STREAM, response_class=JSONResponse)
    async def completions(body: CompletionRequest) -> Response:
        """Continue prompts."""
        return Reply(await service.complete(body, clock()))


def _add_tokens(app: FastAPI, service: Service) -> None:
    @app.post("/tokenize")
    async def tokenize(body: TokenizeRequest) -> dict[str, Any]:
        """Count and list the tokens of a text or a conversation."""
        tokens = await service.tokenize(body)
        answer: dict[str, Any] = {
            "count": len(tokens),
            "max_model_len": service.max_model_len,
            "tokens": tokens,
        }
        if body.return_token_strs:
            answer["token_strs"] = [service.tokenizer.token(token) for token in tokens]
        return answer

    @app.post("/detokenize")
    async def detokenize(body: DetokenizeRequest) -> dict[str, str]:
        """Give the text of tokens."""
        service.require_model(body.model)
        text = service.detokenize(body.tokens, skip_special_tokens=body.skip_special_tokens)
        return {"prompt": text}


def _add_status(app: FastAPI, service: Service) -> None:
    driver = service.driver
    exposition = Exposition(
        driver.metrics,
        driver.llm.engine,
        service.model,
        driver.llm.config.length_policy,
        lambda: driver.num_waiting,
    )

    app.include_router(live_router(driver, service.model))

    @app.get("/health")
    async def health() -> dict[str, str]:
        """Answer 200 while requests are taken."""
        if driver.is_draining or not driver.is_alive:
            raise ApiError(503, "the server is shutting down", code="shutting_down")
        return {"status": "ok"}

    @app.get("/metrics", response_class=PlainTextResponse)
    async def metrics() -> Response:
        """Give the counters in Prometheus' text format."""
        return Response(exposition.text(), media_type=PROMETHEUS)

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        """List the one model."""
        return {"object": "list", "data": [_model_card(service)]}

    @app.get("/v1/models/{name:path}")
    async def model(name: str) -> dict[str, Any]:
        """Describe the one model."""
        service.require_model(name)
        return _model_card(service)


def _model_card(service: Service) -> dict[str, Any]:
    return {
        "id": service.model,
        "object": "model",
        "created": service.started,
        "owned_by": "outrider",
        "max_model_len": service.max_model_len,
    }


def _add_error_handlers(app: FastAPI) -> None:
    def answer(error: ApiError) -> Response:
        text = dumps(error.body()).encode("utf-8", "replace")
        return Response(text, error.status, error.headers, "application/json")

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return answer(_named(error, _BODIES.get(request.url.path)))

    @app.exception_handler(HTTPException)
    async def http(_request: Request, error: HTTPException) -> Response:
        return answer(ApiError(error.status_code, str(error.detail), headers=error.headers))

    @app.exception_handler(OutriderError)
    @app.exception_handler(ApiError)
    async def known(_request: Request, error: Exception) -> Response:
        return answer(api_error_of(error))

    @app.exception_handler(Exception)
    async def unknown(_request: Request, error: Exception) -> Response:
        return answer(api_error_of(error))


def _named(error: RequestValidationError, body: type[Strict] | None) -> ApiError:
    """Name the field that is wrong; of several readings of it, the one that got furthest."""
    worst = max(
        error.errors(), key=lambda each: (len(each["loc"]), not each["type"].endswith("_type"))
    )
    if worst["type"] == "json_invalid":
        return ApiError(400, f"the body is not JSON: {worst.get('ctx', {}).get('error', '')}")
    place = _place(worst["loc"])
    if worst["type"] == "extra_forbidden":
        name = str(worst["loc"][-1])
        if len(worst["loc"]) == _TOP_LEVEL and body is not None:
            return ApiError(
                422, unknown_name("field", name[:_LONGEST_NAME], body.model_fields), param=name
            )
        return ApiError(422, f"unknown field {'.'.join([*place, name])!r}", param=name)
    param = ".".join(place) or None
    return ApiError(422, f"{param or 'the body'}: {worst['msg']}", param=param)


_TOP_LEVEL: Final = 2
_LONGEST_NAME: Final = 100


def _place(loc: tuple[int | str, ...]) -> list[str]:
    """Where a fault is, in the client's words: names of fields and numbers of elements."""
    return [str(part) for part in loc[1:] if isinstance(part, int) or part in _FIELD_NAMES]


def _field_names(kinds: list[type[Strict]]) -> Iterator[str]:
    for kind in kinds:
        for name, field in kind.model_fields.items():
            yield field.alias or name
        yield from _field_names(kind.__subclasses__())


_FIELD_NAMES: Final = frozenset(_field_names([Strict]))
