"""The latency of single requests over HTTP and gRPC, with their Python clients, beside a run.

python bench/serve_latency.py MODEL.onnx      # inputs of one row, open dims of 16
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from pathlib import Path

import grpc
import numpy as np

import sardonyx
from sardonyx.serve.grpc.messages import SERVICE, InferRequestMessage
from sardonyx.serve.models.signature import signature_of
from sardonyx.serve.protocol.tensors import to_bytes
from tests.serve.http_client import Client
from tests.serve.process import Process

COUNT = 3000


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", type=Path)
    path = str(parser.parse_args().model)
    session = sardonyx.InferenceSession(path)
    feed, tensors, raw = {}, [], []
    for spec in signature_of(session).inputs:
        shape = [d if isinstance(d, int) else 16 if i else 1 for i, d in enumerate(spec.shape)]
        feed[spec.name] = np.ones(shape, spec.datatype.dtype)
        tensors.append({"name": spec.name, "datatype": spec.datatype.name, "shape": shape})
        raw.append(bytes(to_bytes(feed[spec.name])))
    message = InferRequestMessage(model_name="m", inputs=tensors, raw_input_contents=raw)
    data = message.SerializeToString()
    show("session.run", lambda: session.run(None, feed))
    with Process(f"m={path}", "--grpc-port", "0") as server:
        with Client(server.http_port) as client:
            show("HTTP", lambda: client.infer("m", feed))
        with grpc.insecure_channel(f"127.0.0.1:{server.grpc_port}") as channel:
            call = channel.unary_unary(f"/{SERVICE}/ModelInfer", bytes, bytes)
            show("gRPC", lambda: call(data))


def show(name: str, ask: Callable[[], object]) -> None:
    """Print the latency of many calls, one after another."""
    times = []
    for _ in range(COUNT):
        began = time.perf_counter()
        ask()
        times.append((time.perf_counter() - began) * 1e6)
    least, median = np.percentile(times, (0, 50))
    print(f"{name:<12} min {least:6.0f} us, median {median:6.0f} us")


if __name__ == "__main__":
    main()
