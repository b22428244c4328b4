"""Requests and responses of the protocol, independent of the transport."""

from __future__ import annotations

from sardonyx.base.records import field, frozen, mutable
from sardonyx.serve.protocol.datatypes import Array


@frozen
class RequestedOutput:
    """An output that a request asks for."""

    name: str
    is_binary: bool = False


@mutable(eq=False)
class InferRequest:
    """An inference request, decoded but not yet compared with a model."""

    feed: dict[str, Array]
    outputs: tuple[RequestedOutput, ...] = ()  # empty: all
    id: str = ""
    priority: int = 0  # 1 is the highest; 0: the model's default
    timeout_s: float | None = None
    is_binary: bool = False  # outputs that the request does not list
    is_raw: bool = True  # gRPC: tensors came as raw contents
    headers: dict[str, str] = field(default_factory=dict)  # of trace context propagation


@mutable(eq=False)
class InferResponse:
    """The outputs of a request, in the order in which they were asked for."""

    model: str
    version: str
    id: str
    outputs: list[tuple[RequestedOutput, Array]]
