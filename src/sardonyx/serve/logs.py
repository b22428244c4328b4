"""Logs of a server: text for people, or a JSON object per line for collectors."""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import TYPE_CHECKING, Any, Final

from sardonyx.base.log import logger
from sardonyx.base.printable import printable

if TYPE_CHECKING:
    from sardonyx.serve.config import ServerConfig
    from sardonyx.serve.http.exchange import Exchange

_ACCESS: Final = "access"  # the attribute of records that describe a request


class _Json(logging.Formatter):
    """One JSON object per record."""

    def format(self, record: logging.LogRecord) -> str:
        facts = {
            "time": time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(record.created))
            + f".{int(record.msecs):03d}Z",
            "level": record.levelname.lower(),
            "process": record.process,
            "message": record.getMessage(),
            **getattr(record, _ACCESS, {}),
        }
        if record.exc_info:
            facts["exception"] = self.formatException(record.exc_info)
        return json.dumps(facts)


def start_logging(form: str) -> None:
    """Send the logs of the server to stderr in a form, text or json."""
    handler = logging.StreamHandler(sys.stderr)
    text = "%(asctime)s %(levelname)s %(message)s"
    handler.setFormatter(_Json() if form == "json" else logging.Formatter(text))
    root = logger.python()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
    root.propagate = False
    # Malformed requests are not logged: any client could fill the disk with them.
    logging.getLogger("uvicorn").setLevel(logging.CRITICAL)


def log_access(exchange: Exchange) -> None:
    """Log one request."""
    seconds = time.perf_counter() - exchange.started
    client = exchange.scope.get("client") or ("", 0)
    facts = {
        "method": exchange.scope["method"],
        "path": printable(exchange.path)[:200],
        "status": exchange.status,
        "seconds": round(seconds, 6),
        "client": client[0],
        "model": exchange.params.get("model", ""),
    }
    _log("{method} {path} {status} {seconds:.4f} s", facts)


def log_call(method: str, model: str, code: str, seconds: float, peer: str) -> None:
    """Log one call over gRPC."""
    facts = {
        "method": method,
        "model": printable(model)[:200],
        "status": code,
        "seconds": round(seconds, 6),
        "client": peer,
    }
    _log("gRPC {method} {model} {status} {seconds:.4f} s", facts)


def _log(text: str, facts: dict[str, Any]) -> None:
    logger.python().info("%s", text.format(**facts), extra={_ACCESS: facts})


def announce(config: ServerConfig, http_port: int, grpc_port: int) -> None:
    """Print the addresses of the server; programs that start one parse these lines."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "https" if config.certificate else "http"
    lines = [f"HTTP {scheme}://{host}:{http_port}"]
    if grpc_port >= 0:
        lines.append(f"gRPC {host}:{grpc_port}")
    print("\n".join(lines), flush=True)
    print("ready", file=sys.stderr, flush=True)
