"""Requests with random faults, over HTTP and gRPC."""

from __future__ import annotations

import random
from typing import Final

from sardonyx.serve.grpc.messages import InferRequestMessage

_BODY: Final = b'{"inputs":[{"name":"x","datatype":"FP32","shape":[1,3],"data":[1,2,3]}]}'
_BINARY: Final = _BODY.replace(b'"data":[1,2,3]', b'"parameters":{"binary_data_size":12}')


def http_requests(model: str) -> list[bytes]:
    """Return requests of several kinds for a model of three numbers."""
    path = f"/v2/models/{model}/infer".encode()
    head = b"POST " + path + b" HTTP/1.1\r\nHost: localhost\r\n"
    plain = head + b"Content-Length: %d\r\n\r\n%b" % (len(_BODY), _BODY)
    binary = _BINARY + bytes(12)
    sizes = b"Content-Length: %d\r\nInference-Header-Content-Length: %d\r\n\r\n"
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(c), c) for c in (_BODY[:9], _BODY[9:]))
    return [
        plain,
        head + sizes % (len(binary), len(_BINARY)) + binary,
        head + b"Transfer-Encoding: chunked\r\n\r\n" + chunks + b"0\r\nX: y\r\n\r\n",
        b"GET /v2/models/" + model.encode() + b" HTTP/1.1\r\nHost: localhost\r\n\r\n",
        plain + plain,
    ]


def grpc_request(model: str) -> bytes:
    """Return an inference message for a model of three numbers."""
    tensor = {"name": "x", "datatype": "FP32", "shape": [1, 3]}
    whole = InferRequestMessage(model_name=model, inputs=[tensor], raw_input_contents=[bytes(12)])
    data: bytes = whole.SerializeToString()
    return data


def mutant(whole: bytes, chance: random.Random) -> bytes:
    """Return a message with some bytes replaced, removed or inserted, and perhaps cut off."""
    data = bytearray(whole[: chance.randrange(len(whole))] if chance.random() < 0.2 else whole)
    for _ in range(chance.choice((1, 1, 2, 10))):
        begin = chance.randrange(len(data) + 1)
        data[begin : begin + chance.randrange(3)] = chance.randbytes(chance.randrange(3))
    return bytes(data)
