"""Servers with onnxruntime that bench/serve.py compares with: onnxruntime, fastapi and litserve."""

from __future__ import annotations

import socket
import sys
from typing import Any

import numpy as np
import onnxruntime


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def typed(session: Any, message: dict[str, Any]) -> dict[str, Any]:
    types = {"tensor(int64)": np.int64, "tensor(float)": np.float32}
    return {i.name: np.array(message[i.name], types[i.type]) for i in session.get_inputs()}


def starlette(session: Any, port: int) -> None:
    """The protocol's codecs around onnxruntime, run in a thread."""
    import asyncio
    from concurrent.futures import ThreadPoolExecutor

    import uvicorn
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route

    from sardonyx.serve.protocol.json_codec import decode, encode
    from sardonyx.serve.protocol.limits import Limits
    from sardonyx.serve.protocol.messages import InferResponse, RequestedOutput

    names = [output.name for output in session.get_outputs()]
    limits, pool = Limits(), ThreadPoolExecutor(2)

    async def infer(request: Request) -> Response:
        size = int(request.headers["inference-header-content-length"])
        feed = decode(await request.body(), size, limits).feed
        loop = asyncio.get_running_loop()
        results = await loop.run_in_executor(pool, session.run, None, feed)
        outputs = [(RequestedOutput(n, True), r) for n, r in zip(names, results, strict=True)]
        parts, json_size = encode(InferResponse("m", "1", "", outputs))
        headers = {"inference-header-content-length": str(json_size)}
        return Response(b"".join(map(bytes, parts)), headers=headers)

    app = Starlette(routes=[Route("/infer", infer, methods=["POST"])])
    print(f"HTTP http://127.0.0.1:{port}/infer", flush=True)
    uvicorn.run(app, port=port, log_level="error", access_log=False)


def fastapi(session: Any, port: int) -> None:
    """The handler that tutorials show: JSON in, JSON out, a thread pool for the run."""
    import fastapi
    import uvicorn

    app = fastapi.FastAPI()

    @app.post("/infer")
    def infer(message: dict[str, Any]) -> Any:
        results = session.run(None, typed(session, message))
        return {"outputs": [result.tolist() for result in results]}

    print(f"HTTP http://127.0.0.1:{port}/infer", flush=True)
    uvicorn.run(app, port=port, log_level="error", access_log=False)


if sys.argv[1:2] == ["litserve"]:  # its processes import this module to find the class
    import litserve

    class Api(litserve.LitAPI):
        """LitServe without batching: its batches need inputs of one length."""

        def setup(self, device: str) -> None:
            self.session = onnxruntime.InferenceSession(sys.argv[2])

        def decode_request(self, request):  # type: ignore[no-untyped-def]  # a type would be a schema
            return typed(self.session, request)

        def predict(self, x: Any) -> Any:
            return self.session.run(None, x)

        def encode_response(self, output: Any) -> Any:
            return {"outputs": [result.tolist() for result in output]}


if __name__ == "__main__":
    name, path = sys.argv[1:]
    port = free_port()
    if name == "litserve":
        server = litserve.LitServer(Api(api_path="/infer"), accelerator="cpu")
        print(f"HTTP http://127.0.0.1:{port}/infer", flush=True)
        server.run(port=port, host="127.0.0.1", log_level="error", generate_client_file=False)
    else:
        serve = {"onnxruntime": starlette, "fastapi": fastapi}[name]
        serve(onnxruntime.InferenceSession(path), port)
