"""The gRPC server: methods of the service on the event loop of the HTTP server."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, Final

import grpc
import grpc.aio
from google.protobuf.message import DecodeError

from sardonyx.base.log import logger
from sardonyx.serve.access import Access
from sardonyx.serve.config import ServerConfig
from sardonyx.serve.grpc.codec import decode, encode
from sardonyx.serve.grpc.messages import MESSAGES, SERVICE
from sardonyx.serve.logs import log_call
from sardonyx.serve.refusals import BadRequest, Forbidden, Refusal, Unavailable
from sardonyx.serve.service import Service

Method = Callable[[Any, Any], Awaitable[Any]]
_OPEN: Final = frozenset(("ServerLive", "ServerReady"))
_STREAMED: Final = 16  # requests of one stream in flight
_TRACE: Final = ("traceparent", "tracestate")


class Methods:
    """The methods by the names of the service."""

    def __init__(self, service: Service, access: Access) -> None:
        self._service = service
        self._access = access

    async def ServerLive(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer the liveness probe."""
        return MESSAGES["ServerLiveResponse"](live=True)

    async def ServerReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Answer the readiness probe."""
        return MESSAGES["ServerReadyResponse"](ready=self._service.is_ready)

    async def ModelReady(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Say whether a model is loaded."""
        try:
            self._service.loaded(request.name, request.version)
        except Unavailable:
            return MESSAGES["ModelReadyResponse"](ready=False)
        return MESSAGES["ModelReadyResponse"](ready=not self._service.is_stopping)

    async def ServerMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Describe the server."""
        return MESSAGES["ServerMetadataResponse"](**self._service.metadata())

    async def ModelMetadata(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Describe a model."""
        model = self._service.loaded(request.name, request.version)
        versions = sorted(self._service.repository.entry(model.name).loaded, key=int)
        return MESSAGES["ModelMetadataResponse"](**model.metadata(versions))

    async def ModelInfer(self, message: Any, context: Any) -> Any:  # noqa: N802
        """Run a model, within the deadline of the call."""
        request = decode(message, self._service.limits)
        remaining = context.time_remaining()
        if remaining is not None and remaining < (request.timeout_s or remaining + 1):
            request.timeout_s = max(remaining, 0.0)
        if self._service.tracer.is_on:
            metadata = dict(context.invocation_metadata())
            request.headers = {name: metadata[name] for name in _TRACE if name in metadata}
        name, version = message.model_name, message.model_version
        response = await self._service.infer(name, version, request, "grpc")
        return encode(response, request.is_raw)

    async def ModelStreamInfer(self, messages: Any, context: Any) -> AsyncIterator[Any]:  # noqa: N802
        """Run a model for each message of a stream; answers have the order of the requests."""
        self._check(context)
        running: asyncio.Queue[asyncio.Task[Any] | None] = asyncio.Queue(_STREAMED)

        async def read() -> None:
            async for message in messages:
                await running.put(asyncio.create_task(self._streamed(message, context)))
            await running.put(None)

        reader = asyncio.create_task(read())
        try:
            while (task := await running.get()) is not None:
                yield await task
        finally:
            reader.cancel()
            while not running.empty():
                if (task := running.get_nowait()) is not None:
                    task.cancel()

    async def _streamed(self, message: Any, context: Any) -> Any:
        kind = MESSAGES["ModelStreamInferResponse"]
        if message is None:
            return kind(error_message="a message of the stream is malformed")
        try:
            return kind(infer_response=await self.ModelInfer(message, context))
        except Refusal as refusal:
            response = MESSAGES["ModelInferResponse"](id=message.id)
            return kind(error_message=refusal.what, infer_response=response)

    async def RepositoryIndex(self, request: Any, context: Any) -> Any:  # noqa: N802
        """List the models that the server knows."""
        return MESSAGES["RepositoryIndexResponse"](models=self._service.index(request.ready))

    async def RepositoryModelLoad(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Load or reload a model."""
        if request.parameters:
            raise Forbidden("a model is loaded as the server is configured: no parameters")
        name = request.model_name or request.repository_name
        await self._service.change("load", name)
        return MESSAGES["RepositoryModelLoadResponse"](model_name=name, is_loaded=True)

    async def RepositoryModelUnload(self, request: Any, context: Any) -> Any:  # noqa: N802
        """Unload a model."""
        name = request.model_name or request.repository_name
        await self._service.change("unload", name)
        return MESSAGES["RepositoryModelUnloadResponse"](model_name=name, is_unloaded=True)

    def _check(self, context: Any) -> None:
        metadata = dict(context.invocation_metadata())
        self._access.check_token(str(metadata.get("authorization", "")))

    def guarded(self, name: str) -> Method:
        """Wrap a method: check the token, and map refusals to gRPC status codes."""
        method: Method = getattr(self, name)
        needs_token = self._access.needs_token and name not in _OPEN

        async def call(request: Any, context: Any) -> Any:
            started, code = time.perf_counter(), "OK"
            try:
                if needs_token:
                    self._check(context)
                return await method(_checked(request, name), context)
            except Refusal as refusal:
                code = refusal.grpc_code
                if refusal.retry_after_s is not None:
                    context.set_trailing_metadata((("retry-after", str(refusal.retry_after_s)),))
                await context.abort(grpc.StatusCode[code], refusal.what)
            except asyncio.CancelledError:
                code = "CANCELLED"
                raise
            except grpc.aio.AbortError:
                raise
            except Exception:
                code = "INTERNAL"
                logger.exception("%s failed", name)
                await context.abort(grpc.StatusCode.INTERNAL, "the server failed: see its log")
            finally:
                if self._service.config.access_log:
                    seconds = time.perf_counter() - started
                    log_call(name, _model_of(request), code, seconds, context.peer())

        return call

    async def stream(self, messages: Any, context: Any) -> AsyncIterator[Any]:
        """Answer a stream, or end it if its token is wrong."""
        try:
            async for response in self.ModelStreamInfer(messages, context):
                yield response
        except Refusal as refusal:
            await context.abort(grpc.StatusCode[refusal.grpc_code], refusal.what)


def _model_of(request: Any) -> str:
    """Return the model that a message names, if it names one."""
    return str(getattr(request, "model_name", "") or getattr(request, "name", ""))


def _reader(name: str) -> Callable[[bytes], Any]:
    """Return a function that reads a message; it returns None for malformed ones."""
    kind = MESSAGES[name]

    def read(data: bytes) -> Any:
        try:
            return kind.FromString(data)
        except DecodeError:
            return None

    return read


def _checked(message: Any, name: str) -> Any:
    if message is None:
        raise BadRequest(f"the message is not a {name}Request")
    return message


def _handlers(methods: Methods) -> grpc.GenericRpcHandler:
    handlers = {}
    for name in (
        "ServerLive", "ServerReady", "ModelReady", "ServerMetadata", "ModelMetadata", "ModelInfer",
        "RepositoryIndex", "RepositoryModelLoad", "RepositoryModelUnload",
    ):  # fmt: skip
        handlers[name] = grpc.unary_unary_rpc_method_handler(
            methods.guarded(name),
            request_deserializer=_reader(f"{name}Request"),
            response_serializer=MESSAGES[f"{name}Response"].SerializeToString,
        )
    handlers["ModelStreamInfer"] = grpc.stream_stream_rpc_method_handler(
        methods.stream,
        request_deserializer=_reader("ModelInferRequest"),
        response_serializer=MESSAGES["ModelStreamInferResponse"].SerializeToString,
    )
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def _credentials(config: ServerConfig) -> Any:
    def read(path: str) -> bytes | None:
        if not path:
            return None
        with open(path, "rb") as file:
            return file.read()

    pair = (read(config.key), read(config.certificate))
    authority = read(config.client_ca)
    return grpc.ssl_server_credentials([pair], authority, authority is not None)


async def start_grpc(service: Service, port: int) -> tuple[grpc.aio.Server, int]:
    """Return a server that listens, and its port."""
    config = service.config
    server = grpc.aio.server(
        options=(
            ("grpc.max_receive_message_length", config.max_body),
            ("grpc.max_send_message_length", -1),
            ("grpc.max_metadata_size", 32 << 10),
            ("grpc.max_concurrent_streams", 256),
            ("grpc.server_handshake_timeout_ms", int(config.header_timeout_s * 1e3)),
            ("grpc.max_connection_idle_ms", 600_000),
            # Calls whose message never comes end with their connection.
            ("grpc.max_connection_age_ms", 1_800_000),
            ("grpc.max_connection_age_grace_ms", 300_000),
            ("grpc.keepalive_time_ms", 60_000),
            ("grpc.http2.min_ping_interval_without_data_ms", 10_000),
            ("grpc.so_reuseport", 1 if config.workers > 1 else 0),
        ),
    )
    server.add_generic_rpc_handlers((_handlers(Methods(service, Access(config))),))
    address = f"[{config.host}]:{port}" if ":" in config.host else f"{config.host}:{port}"
    if config.certificate:
        port = server.add_secure_port(address, _credentials(config))
    else:
        port = server.add_insecure_port(address)
    await server.start()
    return server, port
