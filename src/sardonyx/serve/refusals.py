"""Refusals: errors of requests, with their HTTP and gRPC status."""

from __future__ import annotations

from typing import ClassVar

from sardonyx.errors import SardonyxError


class Refusal(SardonyxError):
    """A request that is refused, with one sentence that its client may read."""

    http_status: ClassVar[int] = 500
    grpc_code: ClassVar[str] = "INTERNAL"
    retry_after_s: int | None = None


class BadRequest(Refusal):
    """The request contradicts the protocol or the model."""

    http_status = 400
    grpc_code = "INVALID_ARGUMENT"


class Unauthorized(Refusal):
    """The request has no token, or a wrong one."""

    http_status = 401
    grpc_code = "UNAUTHENTICATED"


class Forbidden(Refusal):
    """The host or origin is not allowed, or the operation is disabled."""

    http_status = 403
    grpc_code = "PERMISSION_DENIED"


class Unknown(Refusal):
    """There is no such model or version."""

    http_status = 404
    grpc_code = "NOT_FOUND"


class DeadlineExceeded(Refusal):
    """The deadline passed before the answer was there."""

    http_status = 504
    grpc_code = "DEADLINE_EXCEEDED"


class RequestTimeout(Refusal):
    """The client took too long to send its request."""

    http_status = 408
    grpc_code = "DEADLINE_EXCEEDED"


class TooLarge(Refusal):
    """The request exceeds a limit."""

    http_status = 413
    grpc_code = "RESOURCE_EXHAUSTED"


class UnsupportedEncoding(Refusal):
    """The body is compressed by a method that is not supported."""

    http_status = 415
    grpc_code = "UNIMPLEMENTED"


class Cancelled(Refusal):
    """The client has disconnected."""

    http_status = 499
    grpc_code = "CANCELLED"


class Overloaded(Refusal):
    """The queue is full."""

    http_status = 429
    grpc_code = "RESOURCE_EXHAUSTED"

    def __init__(self, what: str, retry_after_s: int) -> None:
        super().__init__(what)
        self.retry_after_s = retry_after_s


class Unavailable(Refusal):
    """The server stops, or the model is being replaced."""

    http_status = 503
    grpc_code = "UNAVAILABLE"
    retry_after_s = 1


class ModelFailed(Refusal):
    """The model could not be loaded, or failed on this request for another reason than its data."""
