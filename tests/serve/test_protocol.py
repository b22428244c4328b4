"""The codecs of HTTP bodies: what is encoded is decoded, and all else is refused."""

from __future__ import annotations

import contextlib
import json
import tracemalloc
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as numpy_st

from sardonyx.serve.protocol.datatypes import BY_DTYPE, DATATYPES, Datatype
from sardonyx.serve.protocol.json_codec import decode, encode
from sardonyx.serve.protocol.limits import Limits
from sardonyx.serve.protocol.messages import InferResponse, RequestedOutput
from sardonyx.serve.protocol.tensors import from_bytes, string_array, to_bytes
from sardonyx.serve.refusals import BadRequest, Refusal, TooLarge

LIMITS = Limits(tensors=4, rank=4, elements=1000)
SHAPES = numpy_st.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=4)


@st.composite
def arrays(draw: Any, datatype: Datatype | None = None) -> Any:
    kind = draw(st.sampled_from(DATATYPES)) if datatype is None else datatype
    shape = draw(SHAPES)
    if kind.is_bytes:
        count = int(np.prod(shape))
        text = st.text(st.characters(exclude_categories=["Cs"]))
        return string_array(draw(st.lists(text, min_size=count, max_size=count)), shape)
    raw = draw(st.binary(min_size=1, max_size=16))
    count = int(np.prod(shape)) * kind.dtype.itemsize
    data = (raw * (count // len(raw) + 1))[:count]
    if kind.dtype.kind == "b":
        data = bytes(byte & 1 for byte in data)
    return np.frombuffer(data, kind.dtype).reshape(shape)


def same(a: Any, b: Any) -> bool:
    return a.dtype == b.dtype and a.shape == b.shape and bytes(to_bytes(a)) == bytes(to_bytes(b))


@given(arrays())
def test_bytes_of_a_tensor_give_the_tensor(array: Any) -> None:
    datatype = BY_DTYPE[array.dtype]
    assert same(from_bytes("x", datatype, array.shape, bytes(to_bytes(array))), array)


@given(st.lists(arrays(), min_size=1, max_size=3))
def test_binary_requests_are_decoded(tensors: list[Any]) -> None:
    entries, parts = [], []
    for index, array in enumerate(tensors):
        parts.append(bytes(to_bytes(array)))
        entries.append(
            {
                "name": f"x{index}",
                "datatype": BY_DTYPE[array.dtype].name,
                "shape": list(array.shape),
                "parameters": {"binary_data_size": len(parts[-1])},
            }
        )
    text = json.dumps({"id": "7", "inputs": entries}).encode()
    request = decode(text + b"".join(parts), len(text), LIMITS)
    assert request.id == "7"
    assert all(same(request.feed[f"x{i}"], array) for i, array in enumerate(tensors))


@given(st.lists(st.tuples(arrays(), st.booleans()), min_size=1, max_size=3))
def test_responses_are_requests(outputs: list[tuple[Any, bool]]) -> None:
    """A response has the form of a request: what is encoded can be decoded."""
    named = [
        (RequestedOutput(f"x{i}", is_binary), array)
        for i, (array, is_binary) in enumerate(outputs)
        if is_binary or array.dtype.kind in "iub"  # floats may be NaN, and lose bits as text
    ]
    parts, size = encode(InferResponse("m", "1", "", named))
    body = b"".join(map(bytes, parts))
    message = json.loads(body if size is None else body[:size])
    message["inputs"] = message.pop("outputs")
    text = json.dumps(message).encode()
    request = decode(text + (b"" if size is None else body[size:]), len(text), LIMITS)
    assert all(same(request.feed[output.name], array) for output, array in named)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.dictionaries(
            st.sampled_from(
                ["name", "shape", "datatype", "data", "parameters", "binary_data_size"]
            ),
            inner,
            max_size=5,
        )
    ),
    max_leaves=12,
)
ENTRY = st.fixed_dictionaries(
    {},
    optional={
        "name": st.just("x") | JSON,
        "datatype": st.sampled_from(["FP32", "INT8", "BYTES", "BOOL", "BF16"]) | JSON,
        "shape": st.lists(st.integers(-1, 5), max_size=3) | JSON,
        "data": st.lists(st.integers(-300, 300) | st.floats() | st.text(max_size=3)) | JSON,
        "parameters": JSON,
    },
)


@given(
    st.fixed_dictionaries(
        {"inputs": st.lists(ENTRY, max_size=3) | JSON},
        optional={"outputs": JSON, "id": JSON, "parameters": JSON},
    ),
    st.binary(max_size=20),
    st.integers(-2, 2),
)
def test_wrong_requests_are_refused(message: Any, rest: bytes, shift: int) -> None:
    text = json.dumps(message).encode()
    with contextlib.suppress(BadRequest, TooLarge):  # any other exception fails
        decode(text + rest, max(0, len(text) + shift) if rest else None, LIMITS)


@given(st.binary(max_size=40))
def test_any_bytes_are_decoded_or_refused(body: bytes) -> None:
    with contextlib.suppress(Refusal):  # any other exception fails
        decode(body, None, LIMITS)


def entry(**changes: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP32", "shape": [2], "data": [1, 2], **changes}


@pytest.mark.parametrize(
    ("message", "kind", "match"),
    [
        ([], BadRequest, "a JSON object, got a list"),
        ({"inputs": {}}, BadRequest, "inputs must be a list"),
        ({"inputs": [entry(), entry()]}, BadRequest, "x is there twice"),
        ({"inputs": [entry()] * 5}, TooLarge, "5 inputs; at most 4"),
        ({"inputs": [entry(name="")]}, BadRequest, "needs a name"),
        ({"inputs": [entry(name="n" * 300)]}, TooLarge, "got 300"),
        ({"inputs": [entry(datatype="FP8")]}, BadRequest, "one of BOOL"),
        ({"inputs": [entry(shape=2)]}, BadRequest, "list of sizes"),
        ({"inputs": [entry(shape=[-1])]}, BadRequest, "got -1"),
        ({"inputs": [entry(shape=[True])]}, BadRequest, "got True"),
        ({"inputs": [entry(shape=[1] * 5)]}, TooLarge, "5 dims"),
        ({"inputs": [entry(shape=[2000])]}, TooLarge, "a dim of x is 2000"),
        ({"inputs": [entry(shape=[900, 2])]}, TooLarge, "1800 elements"),
        ({"inputs": [entry(data=[1])]}, BadRequest, "1 elements"),
        ({"inputs": [entry(data=[[1], [1, 2]])]}, BadRequest, "ragged"),
        ({"inputs": [entry(data=["a", "b"])]}, BadRequest, "not numbers"),
        ({"inputs": [entry(datatype="INT8", data=[1, 200])]}, BadRequest, "outside of the range"),
        ({"inputs": [entry(datatype="INT8", data=[1, 2.5])]}, BadRequest, "not numbers"),
        (
            {"inputs": [entry(datatype="INT64", data=[1, 2**70])]},
            BadRequest,
            "outside of the range",
        ),
        ({"inputs": [entry(datatype="BYTES")]}, BadRequest, "not strings"),
        ({"inputs": [entry(data=[1, "a" * 1000])]}, BadRequest, "not numbers"),
        ({"inputs": [entry(data=[[1], 2])]}, BadRequest, "ragged"),
        ({"inputs": [entry(data=[1, 10**400])]}, BadRequest, "outside of the range"),
        ({"inputs": [entry(datatype="BYTES", data=["a"])]}, BadRequest, "1 elements"),
        ({"inputs": [entry(data=None)]}, BadRequest, "neither a list"),
        (
            {"inputs": [entry(parameters={"shared_memory_region": "r"})]},
            BadRequest,
            "shared_memory_region, which is not supported",
        ),
        (
            {"inputs": [], "outputs": [{"name": "y", "parameters": {"classification": 3}}]},
            BadRequest,
            "classification, which is not supported",
        ),
        ({"inputs": [], "id": 7}, BadRequest, "id must be a string"),
        ({"inputs": [], "parameters": {"timeout": -1}}, BadRequest, "microseconds"),
        (
            {"inputs": [], "parameters": {"priority": "high"}},
            BadRequest,
            "priority must be a number",
        ),
        ({"inputs": [], "parameters": {"binary_data_output": 1}}, BadRequest, "true or false"),
    ],
)
def test_refusals_say_why(message: Any, kind: type[Refusal], match: str) -> None:
    with pytest.raises(kind, match=match):
        decode(json.dumps(message).encode(), None, LIMITS)


def test_json_has_a_limit_of_its_own() -> None:
    with pytest.raises(TooLarge, match="send binary tensors"):
        decode(b" " * 101, None, Limits(json_bytes=100))


def test_deep_nesting_is_refused() -> None:
    for body in (b"[" * 100_000, b'{"inputs":[{"data":' + b"[" * 100_000):
        with pytest.raises(BadRequest, match="not JSON"):
            decode(body, None, LIMITS)
    deep = '{"inputs":[{"name":"x","datatype":"BYTES","shape":[1],"data":' + "[" * 500 + '"a"'
    request = decode((deep + "]" * 500 + "}]}").encode(), None, LIMITS)
    assert request.feed["x"].tolist() == ["a"]


@pytest.mark.parametrize(
    ("data", "match"),
    [
        (b"", "cannot be 1 BYTES elements"),
        (b"\x05\0\0\0ab", "end within element 0"),
        (b"\x01\0\0\0ab", "1 bytes after"),
        (b"\x01\0\0\0\xff", "not UTF-8"),
        (b"\xff\xff\xff\xffab", "end within element 0"),
    ],
)
def test_wrong_strings_are_refused(data: bytes, match: str) -> None:
    with pytest.raises(BadRequest, match=match):
        from_bytes("x", BY_DTYPE[np.dtype(object)], (1,), data)


def test_nested_data_are_flattened() -> None:
    message = {"inputs": [entry(shape=[2, 2], data=[[1, 2], [3, 4]])]}
    request = decode(json.dumps(message).encode(), None, LIMITS)
    assert request.feed["x"].tolist() == [[1, 2], [3, 4]]
    message = {"inputs": [entry(data=[10**20, 1e-3])]}  # whole numbers of any size are floats
    request = decode(json.dumps(message).encode(), None, LIMITS)
    assert request.feed["x"].tolist() == [np.float32(1e20), np.float32(1e-3)]


def test_a_long_string_among_numbers_takes_no_memory() -> None:
    data = [0] * 1000 + ["a" * 100_000]  # as an array of strings: 400 MB
    message = {"inputs": [entry(shape=[1001], data=data)]}
    tracemalloc.start()
    try:
        with pytest.raises(BadRequest, match="not numbers"):
            decode(json.dumps(message).encode(), None, Limits())
        assert tracemalloc.get_traced_memory()[1] < 10 << 20
    finally:
        tracemalloc.stop()
