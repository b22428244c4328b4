"""From a configuration to a running server, in one process or several."""

from __future__ import annotations

from sardonyx.serve.config import ServerConfig
from sardonyx.serve.logs import announce, start_logging


def serve(config: ServerConfig) -> int:
    """Serve until a signal; return the exit status."""
    start_logging(config.log)
    if config.workers > 1:
        from sardonyx.serve.supervisor import supervise  # forks: it imports little

        return supervise(config)
    from sardonyx.serve.server import Server, run
    from sardonyx.serve.sockets import bind

    server = Server(config, bind(config.host, config.port), config.grpc_port)
    run(server, lambda: announce(config, server.http_port, server.grpc_port))
    return 0
