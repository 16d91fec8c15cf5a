"""The HTTP surface: routes, the calling convention and the shapes of success and failure.

Invariants:
* a method is called as the real server calls it: the body's `args` and `kwargs` if it has any of
  them, else the body itself as keyword arguments; a body that is no JSON object counts as empty;
* success is 200 with `status`, `result` and `error`; every refusal is `{"detail": ...}`.
"""

import inspect
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from contextlib import asynccontextmanager
from typing import Any

import orjson
from fastapi import FastAPI
from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp, Receive, Scope, Send

from mock_env_server import wording
from mock_env_server.evaluate import GradedGames
from mock_env_server.fault_middleware import FaultMiddleware
from mock_env_server.faults import NO_FAULTS, FaultPlan
from mock_env_server.rooms import GameRoom
from mock_env_server.settings import ServerSettings
from mock_env_server.stepping import BadArguments, SteppedGames

MAX_BODY_BYTES = 4 * 2**20
API_VERSION = "0.1.0"
"""Version that the real servers claim: FastAPI's default, since they name none."""


class CallBody(BaseModel):  # type: ignore[no-redef]  # mypy's pydantic plugin adds **kwargs
    """Body of /call."""

    method: str
    args: list[Any] = Field(default_factory=list)
    kwargs: dict[str, Any] = Field(default_factory=dict)


class Method:
    """One method of the API: callable by `answer`, and the ASGI endpoint of its path.

    The endpoint reads and writes ASGI messages itself: that costs a third of what Starlette's
    request and response objects do, and these are the paths that training hammers.
    """

    def __init__(self, function: Callable[..., Awaitable[Any]]) -> None:
        self.name = function.__name__
        self.path = f"/{self.name}"
        self.signature = inspect.signature(function)
        self._function = function

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one POST request."""
        body = await _read_body(receive)
        if body is None:
            status, answer = 413, _refusal(f"request body of more than {MAX_BODY_BYTES} bytes")
        else:
            status, answer = await self.answer(*_arguments(body))
        length = str(len(answer)).encode()
        headers = [(b"content-type", b"application/json"), (b"content-length", length)]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": answer})

    async def answer(self, args: Any, kwargs: Any) -> tuple[int, bytes]:
        """HTTP status and body for a call with these arguments."""
        try:
            self.signature.bind(*args, **kwargs)
        except TypeError as error:
            return 500, _refusal(f"{self.name}: arguments {args!r}, {kwargs!r}: {error}")
        try:
            return 200, success(await self._function(*args, **kwargs))
        except BadArguments as error:
            return 500, _refusal(f"{self.name}: {error}")


def success(result: Any, status: str = "success") -> bytes:
    """The envelope of an answer."""
    document = {"status": status, "result": result, "error": None}
    try:
        return orjson.dumps(document)
    except TypeError:  # an integer beyond 64 bits, which JSON allows
        return json.dumps(document).encode()


def _refusal(detail: str) -> bytes:
    return orjson.dumps({"detail": detail})


async def _read_body(receive: Receive) -> bytes | None:
    """A request's body, None if it is too large."""
    message = await receive()
    body: bytes = message.get("body", b"")
    while message.get("more_body"):
        message = await receive()
        body += message.get("body", b"")
        if len(body) > MAX_BODY_BYTES:
            return None
    return body


def _arguments(body: bytes) -> tuple[Any, Any]:
    """Positional and keyword arguments in a request's body."""
    document = _json_or_none(body)
    if not isinstance(document, dict):
        return (), {}
    if "args" in document or "kwargs" in document:
        return document.get("args", ()), document.get("kwargs", {})
    return (), document


def _json_or_none(body: bytes) -> Any:
    try:
        return orjson.loads(body)
    except orjson.JSONDecodeError:
        pass
    try:
        return json.loads(body)  # reads what orjson refuses: NaN, Infinity
    except ValueError:
        return None


def create_app(settings: ServerSettings) -> ASGIApp:
    """The server as an ASGI application with the fault middleware around it."""
    room = GameRoom(settings)
    stepped = SteppedGames(settings, room)
    graded = GradedGames(settings, room)

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        yield
        await graded.close()

    functions: tuple[Callable[..., Awaitable[Any]], ...] = (
        graded.evaluate,
        stepped.reset,
        stepped.state,
        stepped.step,
        stepped.stop,
    )
    methods = [Method(function) for function in functions]
    app = FastAPI(
        title=wording.API_TITLE,
        version=API_VERSION,
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        strict_content_type=False,
    )
    app.router.routes.extend(Route(m.path, endpoint=m, methods=["POST"]) for m in methods)
    _add_common_routes(app, {method.name: method for method in methods})
    faulty = FaultMiddleware(
        _Shortcut(app, methods),
        forget=lambda episode_id: stepped.episodes.pop(episode_id, None),
        forget_all=stepped.episodes.clear,
        plan=settings.faults,
    )
    if settings.admin:
        _add_admin_routes(app, faulty)
    return faulty


class _Shortcut:
    """Sends the API's methods straight to their endpoints, past FastAPI's middleware."""

    def __init__(self, app: ASGIApp, methods: Iterable[Method]) -> None:
        self._app = app
        self._endpoints = {method.path: method for method in methods}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope.get("method") == "POST" and scope["path"] in self._endpoints:
            await self._endpoints[scope["path"]](scope, receive, send)
        else:
            await self._app(scope, receive, send)


def _add_common_routes(app: FastAPI, methods: Mapping[str, Method]) -> None:
    @app.get("/health")
    async def health() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/methods")
    async def list_methods() -> dict[str, Any]:
        return {"methods": [_described(m) for m in methods.values()], "usage": wording.USAGE}

    @app.post("/call")
    async def call(body: CallBody) -> Response:
        if body.method not in methods:
            detail = wording.method_not_found(body.method)
            return JSONResponse({"detail": detail}, status_code=404)
        if not _is_number(body.kwargs.get("timeout", 0)):
            answer = success({"error": wording.BAD_TIMEOUT}, status="failed")
            return Response(answer, media_type="application/json")
        status, answer = await methods[body.method].answer(body.args, body.kwargs)
        return Response(answer, status, media_type="application/json")


def _described(method: Method) -> dict[str, str]:
    # Without types: they are Python's here, not the wire's; each method judges its arguments.
    bare = [p.replace(annotation=p.empty) for p in method.signature.parameters.values()]
    return {
        "name": method.name,
        "signature": str(inspect.Signature(bare)),
        "source": "Actor",
        "endpoint": f"POST {method.path}",
    }


def _is_number(value: Any) -> bool:
    """Return whether /call takes a timeout for a number (the method itself may still refuse it)."""
    try:
        float(value)
    except ValueError:
        return False
    except TypeError:
        return value is None
    return True


def _add_admin_routes(app: FastAPI, faulty: FaultMiddleware) -> None:
    @app.get("/admin/faults")
    async def show_faults() -> dict[str, Any]:
        return {"plan": faulty.plan.model_dump(mode="json"), "injected": dict(faulty.injected)}

    @app.put("/admin/faults")
    async def set_faults(request: Request) -> Any:
        # Not a parameter of type FaultPlan: curl -d sends no JSON content type.
        try:
            faulty.plan = FaultPlan.model_validate_json(await request.body())
        except ValidationError as error:
            detail = error.errors(include_url=False, include_context=False, include_input=False)
            return JSONResponse({"detail": detail}, status_code=422)
        return await show_faults()

    @app.delete("/admin/faults")
    async def clear_faults() -> dict[str, Any]:
        faulty.plan = NO_FAULTS
        return await show_faults()
