"""A client over http.client: one connection, JSON and binary tensors."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from typing import Any, NamedTuple, Self

import numpy as np

from sardonyx.serve.protocol.datatypes import BY_DTYPE, BY_NAME
from sardonyx.serve.protocol.tensors import from_bytes, to_bytes


class Answer(NamedTuple):
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class Client:
    def __init__(self, port: int, context: Any = None) -> None:
        if context is None:
            self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        else:
            self._connection = http.client.HTTPSConnection(
                "127.0.0.1", port, timeout=30, context=context
            )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._connection.close()

    def send(
        self, method: str, path: str, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> Answer:
        if isinstance(body, dict | list):
            body = json.dumps(body).encode()
        self._connection.request(method, path, body, dict(headers or {}))
        response = self._connection.getresponse()
        return Answer(response.status, dict(response.getheaders()), response.read())

    def get(self, path: str, **headers: str) -> Answer:
        return self.send("GET", path, headers=headers)

    def post(self, path: str, body: Any = b"", **headers: str) -> Answer:
        return self.send("POST", path, body, headers)

    def infer(self, model: str, feed: Mapping[str, Any], **parameters: Any) -> dict[str, Any]:
        """Infer with binary tensors in both directions."""
        parts, entries = [], []
        for name, array in feed.items():
            data = bytes(to_bytes(array))
            parts.append(data)
            entries.append(
                {
                    "name": name,
                    "datatype": BY_DTYPE[array.dtype].name,
                    "shape": list(array.shape),
                    "parameters": {"binary_data_size": len(data)},
                }
            )
        message = {"inputs": entries, "parameters": {"binary_data_output": True, **parameters}}
        text = json.dumps(message).encode()
        answer = self.send(
            "POST",
            f"/v2/models/{model}/infer",
            b"".join([text, *parts]),
            {"Inference-Header-Content-Length": str(len(text))},
        )
        assert answer.status == 200, answer
        return outputs_of(answer)


def outputs_of(answer: Answer) -> dict[str, Any]:
    """Return the output tensors of a response, JSON or binary."""
    size = int(answer.headers.get("inference-header-content-length", len(answer.body)))
    message, rest = json.loads(answer.body[:size]), answer.body[size:]
    outputs: dict[str, Any] = {}
    for entry in message["outputs"]:
        datatype, shape = BY_NAME[entry["datatype"]], tuple(entry["shape"])
        n_bytes = entry.get("parameters", {}).get("binary_data_size")
        if n_bytes is None:
            outputs[entry["name"]] = np.array(entry["data"], datatype.dtype).reshape(shape)
        else:
            outputs[entry["name"]] = from_bytes(entry["name"], datatype, shape, rest[:n_bytes])
            rest = rest[n_bytes:]
    assert not rest
    return outputs


def tensor(name: str, array: Any, **more: Any) -> dict[str, Any]:
    """Return an input in JSON."""
    return {
        "name": name,
        "datatype": BY_DTYPE[array.dtype].name,
        "shape": list(array.shape),
        "data": array.ravel().tolist(),
        **more,
    }
