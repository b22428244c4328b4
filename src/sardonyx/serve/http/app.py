"""The ASGI application: access control, then routing by path."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, Final

from starlette.routing import Match, Route, Router

from sardonyx.base.log import logger
from sardonyx.serve.access import Access
from sardonyx.serve.http import embeddings, inference, pages
from sardonyx.serve.http.exchange import Exchange
from sardonyx.serve.http.responses import send_refusal
from sardonyx.serve.logs import log_access
from sardonyx.serve.refusals import BadRequest, Cancelled, ModelFailed, Refusal, Unknown
from sardonyx.serve.service import Service

Endpoint = Callable[[Exchange], Awaitable[None]]
# Paths that say nothing about models: probes of an orchestrator have no token.
_OPEN: Final = frozenset(("/", "/status.css", "/status.js", "/v2/health/live", "/v2/health/ready"))

_MODEL: Final = "/v2/models/{model}"
_VERSION: Final = _MODEL + "/versions/{version}"
_ROUTES: Final[tuple[tuple[str, str, Endpoint], ...]] = (
    ("POST", f"{_MODEL}/infer", inference.infer),
    ("POST", f"{_VERSION}/infer", inference.infer),
    ("POST", "/v1/embeddings", embeddings.create),
    ("GET", "/v1/models", embeddings.models),
    ("GET", "/v2/health/live", inference.live),
    ("GET", "/v2/health/ready", inference.ready),
    ("GET", "/v2", inference.server_metadata),
    ("GET", _MODEL, inference.model_metadata),
    ("GET", _VERSION, inference.model_metadata),
    ("GET", f"{_MODEL}/ready", inference.model_ready),
    ("GET", f"{_VERSION}/ready", inference.model_ready),
    ("POST", "/v2/repository/index", inference.index),
    ("POST", "/v2/repository/models/{model}/load", inference.load),
    ("POST", "/v2/repository/models/{model}/unload", inference.unload),
    ("GET", "/metrics", pages.metrics),
    ("GET", "/status.json", pages.status),
    ("GET", "/", pages.page),
    ("GET", "/status.css", pages.page),
    ("GET", "/status.js", pages.page),
)


class App:
    """One server's application."""

    def __init__(self, service: Service) -> None:
        self._service = service
        self._access = Access(service.config)
        self._router = Router([Route(path, _unused, methods=[m]) for m, path, _ in _ROUTES])
        self._endpoints: dict[int, Endpoint] = {
            id(route): endpoint
            for route, (_, _, endpoint) in zip(self._router.routes, _ROUTES, strict=True)
        }

    async def __call__(self, scope: dict[str, Any], receive: Any, send: Any) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return  # uvicorn is configured without lifespan and websockets
        exchange = Exchange(self._service, scope, receive, send)
        try:
            await self._answer(exchange)
        except Cancelled:
            pass  # the client has disconnected
        except Refusal as refusal:
            await self._refuse(exchange, refusal)
        except Exception:
            logger.exception("%s %s failed", scope["method"], scope["path"])
            if not exchange.has_answered:
                await self._refuse(exchange, ModelFailed("the server failed: see its log"))
        finally:
            exchange.close()
        if self._service.config.access_log:
            log_access(exchange)

    async def _refuse(self, exchange: Exchange, refusal: Refusal) -> None:
        if not exchange.has_model:
            self._service.metrics.refused.labels(refusal.grpc_code).inc()
        closes = not exchange.has_read_body or self._service.is_stopping
        await send_refusal(exchange.send, refusal, exchange.path, closes)

    async def _answer(self, exchange: Exchange) -> None:
        headers = exchange.headers
        self._access.check_browser(
            headers.get(b"host", b"").decode("latin-1"),
            headers.get(b"origin", b"").decode("latin-1"),
        )
        if exchange.path not in _OPEN:
            self._access.check_token(headers.get(b"authorization", b"").decode("latin-1"))
        await self._endpoint(exchange)(exchange)

    def _endpoint(self, exchange: Exchange) -> Endpoint:
        partial = False
        for route in self._router.routes:
            match, child = route.matches(exchange.scope)
            if match is Match.FULL:
                exchange.params = child["path_params"]
                return self._endpoints[id(route)]
            partial = partial or match is Match.PARTIAL
        if partial:
            raise BadRequest(f"this path does not accept {exchange.scope['method'][:10]}")
        raise Unknown("there is no such path")


async def _unused(request: Any) -> None:
    """Stand for an endpoint: `App` calls them itself, without a request object."""
