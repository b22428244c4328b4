"""OpenTelemetry traces: a span per inference request, below the client's span, if any."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping
from typing import Any

from sardonyx.errors import NotImplemented


class Tracer:
    """Creates spans if an endpoint is configured."""

    def __init__(self, endpoint: str) -> None:
        """Spans go to an OTLP endpoint such as http://localhost:4318/v1/traces."""
        self._tracer: Any = None
        self._provider: Any = None
        self._propagator: Any = None
        if endpoint:
            self._start(endpoint)

    @property
    def is_on(self) -> bool:
        """Return whether tracing is enabled, so that request headers are needed."""
        return self._tracer is not None

    def _start(self, endpoint: str) -> None:
        try:
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
            from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
        except ImportError as error:
            raise NotImplemented(
                f"traces need a package that is not installed: {error}",
                hint="pip install opentelemetry-sdk opentelemetry-exporter-otlp-proto-http",
            ) from None
        name = os.environ.get("OTEL_SERVICE_NAME", "sardonyx")
        provider = TracerProvider(resource=Resource.create({"service.name": name}))
        self.use(provider, TraceContextTextMapPropagator())
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=endpoint)))

    def use(self, provider: Any, propagator: Any) -> None:
        """Use a tracer provider of the caller."""
        self._provider, self._propagator = provider, propagator
        self._tracer = provider.get_tracer("sardonyx.serve")

    def span(
        self, model: str, headers: Mapping[str, str]
    ) -> contextlib.AbstractContextManager[Any]:
        """Return the span of a request, as the current one."""
        if self._tracer is None:
            return _NO_SPAN
        span: contextlib.AbstractContextManager[Any] = self._tracer.start_as_current_span(
            f"infer {model}",
            context=self._propagator.extract(headers),
            attributes={"model.name": model},
        )
        return span

    def stop(self) -> None:
        """Flush pending spans and stop tracing."""
        if self._provider is not None:
            self._provider.shutdown()
        self._tracer = self._provider = None


_NO_SPAN: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
