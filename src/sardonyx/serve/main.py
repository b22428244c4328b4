"""From a configuration to a running server, in one process or several."""

from __future__ import annotations

import sys

from sardonyx.serve.config import ServerConfig
from sardonyx.serve.logs import start_logging


def serve(config: ServerConfig) -> int:
    """Serve until a signal; return the exit status."""
    start_logging(config.log)
    if config.workers > 1:
        from sardonyx.serve.supervisor import supervise

        return supervise(config)
    from sardonyx.serve.server import Server, bind, run

    server = Server(config, bind(config.host, config.port), config.grpc_port)
    run(server, lambda: announce(config, server.http_port, server.grpc_port))
    return 0


def announce(config: ServerConfig, http_port: int, grpc_port: int) -> None:
    """Print where the server is; programs that start one read these lines."""
    host = f"[{config.host}]" if ":" in config.host else config.host
    scheme = "https" if config.certificate else "http"
    lines = [f"HTTP {scheme}://{host}:{http_port}"]
    if grpc_port >= 0:
        lines.append(f"gRPC {host}:{grpc_port}")
    print("\n".join(lines), flush=True)
    print("ready", file=sys.stderr, flush=True)
