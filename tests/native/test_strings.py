"""Strings as native values: feeds and outputs, kernels, control flow, hostile models."""

from __future__ import annotations

import sys
import threading
import time
from typing import Any

import numpy as np
import onnx
import pytest
from hypothesis import given, reject, settings
from hypothesis import strategies as st
from onnx import TensorProto, helper

import sardonyx
import sardonyx._native as native
from sardonyx.errors import SardonyxError
from sardonyx.ops.text.case import case_pairs, change_case

ML, MICROSOFT = "ai.onnx.ml", "com.microsoft"
STRING = TensorProto.STRING


def session_of(
    nodes: list[onnx.NodeProto],
    inputs: dict[str, tuple[int, list[Any]]],
    outputs: dict[str, Any],
    options: sardonyx.SessionOptions | None = None,
    **initializers: Any,
) -> sardonyx.InferenceSession:
    """A session; outputs whose type is None are left to their maker."""
    values = [
        onnx.ValueInfoProto(name=n) if t is None else helper.make_tensor_value_info(n, t, None)
        for n, t in outputs.items()
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(n, *how) for n, how in inputs.items()],
        values,
        [
            helper.make_tensor(n, STRING, a.shape, [s.encode() for s in a.flat])
            if a.dtype == object
            else onnx.numpy_helper.from_array(a, n)
            for n, a in initializers.items()
        ],
    )
    opsets = [helper.make_opsetid(d, v) for d, v in (("", 20), (ML, 3), (MICROSOFT, 1))]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    return sardonyx.InferenceSession(model.SerializeToString(), options)


def node(op: str, inputs: str, outputs: str, domain: str = "", **attrs: Any) -> onnx.NodeProto:
    return helper.make_node(op, inputs.split(), outputs.split(), domain=domain, **attrs)


def python_steps(session: sardonyx.InferenceSession) -> int:
    return session._compiled.program.python_steps


def text(*words: str) -> Any:
    return np.array(words, object)


def echo(shape: list[Any] | None = None) -> sardonyx.InferenceSession:
    return session_of(
        [node("StringConcat", "x e", "y")],
        {"x": (STRING, ["n"] if shape is None else shape)},
        {"y": STRING},
        e=np.array("", object),
    )


# --- at the border


ODD = ["", "a", "é", "€", "😀", "a\0b", "\0", "\x7f\x80\u07ff\u0800\uffff\U00010000\U0010ffff"]


@pytest.mark.parametrize(
    "fed",
    [
        text(*ODD),
        np.array(ODD[:5]),
        np.array(ODD[:5]).astype(">U3"),
        np.array([w.encode() for w in ODD[:5]]),
        text(*ODD)[::-2],
        ODD,
        np.array(["x" * 100_000, "", "é" * 70_000], object),
        text(),
    ],
    ids=lambda x: getattr(getattr(x, "dtype", None), "str", "list"),
)
def test_round_trip(fed: Any) -> None:
    want = [w.decode() if isinstance(w, bytes) else str(w) for w in list(fed)]
    (y,) = echo().run(None, {"x": fed})
    assert y.dtype == object
    assert y.tolist() == want
    assert all(type(s) is str for s in y)


def test_scalars_and_strings_of_other_classes() -> None:
    class Name(str):
        __slots__ = ()

    (y,) = echo([]).run(None, {"x": np.array(Name("é"), object)})
    assert y.shape == ()
    assert y.item() == "é"
    (y,) = echo().run(None, {"x": np.array([np.str_("a")], object)})
    assert y.tolist() == ["a"]


@pytest.mark.parametrize(
    ("fed", "match"),
    [
        (text("a", "\ud800"), "a lone surrogate at element 1"),
        (np.array(["\udfff"]), "a lone surrogate at element 0"),
        (np.array([["a"], [["b"]], None], object), "a list at element 0"),
        (np.array([b"a"], object), "a bytes at element 0"),
        (np.array([b"a", b"\xff"]), "bytes that are not UTF-8 at element 1"),
        (np.array([1.0]), "expected: \\(tensor\\(string\\)\\)"),
    ],
)
def test_elements_that_are_not_strings_are_refused(fed: Any, match: str) -> None:
    session = echo()
    with pytest.raises(SardonyxError, match=match):
        session.run(None, {"x": fed})
    assert session.run(None, {"x": text("a")})[0].tolist() == ["a"]


def test_numbers_among_text_are_fed_as_text() -> None:
    """As in onnxruntime; a missing value of text is NaN in pandas and scikit-learn."""
    fed = np.array(["a", np.nan, 1.5, 2, np.float32(0.5), None, np.True_], object)
    with pytest.warns(UserWarning, match="x is a tensor\\(string\\), and has numbers or None"):
        (y,) = echo().run(None, {"x": fed})
    assert y.tolist() == ["a", "nan", "1.5", "2", "0.5", "None", "True"]


def test_equal_results_may_be_one_object_and_are_counted() -> None:
    """Labels come from a table: a string of it is made once."""
    session = session_of(
        [node("Gather", "names x", "y")],
        {"x": (TensorProto.INT64, ["n"])},
        {"y": STRING},
        names=text("a label of some length", "another"),
    )
    (y,) = session.run(None, {"x": np.zeros(1000, np.int64)})
    assert set(y) == {"a label of some length"}
    alone = sys.getrefcount(y[0])
    copy = y.copy()
    together = sys.getrefcount(y[0])
    del copy, y
    assert together == alone + 1000


def test_inputs_are_copied_before_the_run() -> None:
    session = echo()
    fed, errors = text(*["word" * 50] * 2000), []

    def change() -> None:
        for i in range(200):
            fed[:] = [f"{i}-{k}" * 7 for k in range(len(fed))]

    def run() -> None:
        for _ in range(20):
            (y,) = session.run(None, {"x": fed})
            if not all(isinstance(s, str) for s in y):
                errors.append(y)

    threads = [threading.Thread(target=t) for t in (change, run, run)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


def test_a_memory_limit_counts_strings() -> None:
    options = sardonyx.SessionOptions()
    options.add_session_config_entry("sardonyx.max_arena_bytes", "1000000")
    session = session_of(
        [node("StringConcat", "x x", "y")], {"x": (STRING, ["n"])}, {"y": STRING}, options
    )
    assert session.run(None, {"x": text("a")})[0].tolist() == ["aa"]
    for fed in (text("x" * 2_000_000), text("x" * 600_000)):
        with pytest.raises(SardonyxError, match="memory"):
            session.run(None, {"x": fed})


# --- whole models


def columns() -> sardonyx.InferenceSession:
    """A pipeline as sklearn's exporter writes it: columns of words, encoded and put together."""
    nodes = []
    for i, words in enumerate((["a", "b", "ü"], ["x"], ["long words", "of eight"])):
        nodes.append(node("Gather", f"x at{i}", f"c{i}", axis=1))
        nodes.append(node("OneHotEncoder", f"c{i}", f"h{i}", ML, cats_strings=words))
    nodes.append(node("Concat", "h0 h1 h2", "h", axis=-1))
    nodes.append(node("Reshape", "h shape", "y"))
    places = {f"at{i}": np.array([i], np.int64) for i in range(3)}
    return session_of(
        nodes,
        {"x": (STRING, ["n", 3])},
        {"y": TensorProto.FLOAT},
        shape=np.array([-1, 6], np.int64),
        **places,
    )


def test_string_columns_run_natively() -> None:
    session = columns()
    assert python_steps(session) == 0
    fed = np.array([["a", "x", "of eight"], ["ü", "?", ""], ["b", "X", "long words"]], object)
    (y,) = session.run(None, {"x": fed})
    assert y.tolist() == [[1, 0, 0, 1, 0, 1], [0, 0, 1, 0, 0, 0], [0, 1, 0, 0, 1, 0]]
    (y,) = session.run(None, {"x": np.tile(fed, (500, 1))})
    assert y.sum(axis=0).tolist() == [500, 500, 500, 500, 500, 500]


def pipeline() -> sardonyx.InferenceSession:
    words = ["the", "quick", "brown", "fox", "größe"]
    return session_of(
        [
            node("StringNormalizer", "x", "a", case_change_action="LOWER"),
            node("Tokenizer", "a", "b", MICROSOFT, mark=0, mincharnum=2, pad_value="#",
                 tokenexp="[a-zäöüß]+"),
            node("TfIdfVectorizer", "b", "c", mode="TF", min_gram_length=1, max_gram_length=1,
                 max_skip_count=0, ngram_counts=[0], ngram_indexes=list(range(5)),
                 pool_strings=words),
            node("ZipMap", "c", "z", ML, classlabels_strings=words),
        ],
        {"x": (STRING, ["n"])},
        {"c": TensorProto.FLOAT, "z": None},
    )  # fmt: skip


def test_text_pipeline_to_dicts() -> None:
    session = pipeline()
    assert python_steps(session) == 0
    c, z = session.run(None, {"x": text("The QUICK fox: the fox!", "", "GRÖßE a fox")})
    assert c.tolist() == [[2, 1, 0, 2, 0], [0] * 5, [0, 0, 0, 1, 1]]
    assert z[0] == {"the": 2.0, "quick": 1.0, "brown": 0.0, "fox": 2.0, "größe": 0.0}
    assert [sum(d.values()) for d in z] == [5, 0, 2]
    assert all(type(v) is float for d in z for v in d.values())


def test_zipmap_of_an_input() -> None:
    session = session_of(
        [node("ZipMap", "x", "z", ML, classlabels_int64s=[7, -3])],
        {"x": (TensorProto.FLOAT, ["n", 2])},
        {"z": None},
    )
    assert python_steps(session) == 0
    (z,) = session.run(None, {"x": np.array([[1, 2], [3, np.inf]], np.float32)})
    assert z == [{7: 1.0, -3: 2.0}, {7: 3.0, -3: np.inf}]
    assert session.run(["z"], {"x": np.zeros((0, 2), np.float32)}) == [[]]


def test_strings_through_control_flow() -> None:
    """If and Loop hand strings on; those that a pass makes are there in the next."""
    body = helper.make_graph(
        [
            node("Identity", "go", "on"),
            node("StringConcat", "word x", "longer"),
            node("Identity", "longer", "seen"),
        ],
        "body",
        [
            helper.make_tensor_value_info("i", TensorProto.INT64, []),
            helper.make_tensor_value_info("go", TensorProto.BOOL, []),
            helper.make_tensor_value_info("word", STRING, [2]),
        ],
        [
            helper.make_tensor_value_info("on", TensorProto.BOOL, []),
            helper.make_tensor_value_info("longer", STRING, [2]),
            helper.make_tensor_value_info("seen", STRING, [2]),
        ],
    )
    session = session_of(
        [helper.make_node("Loop", ["n", "", "x"], ["last", "all"], body=body)],
        {"x": (STRING, [2]), "n": (TensorProto.INT64, [])},
        {"last": STRING, "all": STRING},
    )
    assert python_steps(session) == 0
    last, seen = session.run(None, {"x": text("ab", "é"), "n": np.array(3)})
    assert last.tolist() == ["ab" * 4, "é" * 4]
    assert seen.tolist() == [[w * k for w in ("ab", "é")] for k in (2, 3, 4)]


# --- letters, patterns and tables against Python's own


EVERY = [chr(c) for c in range(1, 0x110000) if not 0xD800 <= c < 0xE000]


@pytest.mark.parametrize("action", ["LOWER", "UPPER"])
@pytest.mark.parametrize("locale", ["en_US.UTF-8", "tr_TR.UTF-8"])
def test_case_mapping_of_every_character(action: str, locale: str) -> None:
    session = session_of(
        [node("StringNormalizer", "x", "y", case_change_action=action, locale=locale)],
        {"x": (STRING, ["n"])},
        {"y": STRING},
    )
    blocks = ["".join(EVERY[i : i + 4096]) for i in range(0, len(EVERY), 4096)]
    (y,) = session.run(None, {"x": text(*blocks)})
    is_dotted = locale.startswith("tr")
    assert y.tolist() == [change_case(b, action == "UPPER", is_dotted) for b in blocks]


def test_case_pairs_are_sorted() -> None:
    for upper in (False, True):
        for dotted in (False, True):
            before, after = case_pairs(upper, dotted)
            assert (np.diff(before.astype(np.int64)) > 0).all()
            assert (before != after).all()


@settings(max_examples=100, deadline=None)
@given(st.lists(st.text(max_size=20), max_size=200), st.lists(st.text(max_size=20), max_size=30))
def test_an_index_finds_the_last_of_equal_keys(keys: list[str], others: list[str]) -> None:
    try:
        block = native.pack_strings([k.encode() for k in keys])
    except UnicodeEncodeError:
        reject()  # a lone surrogate
    index = native.string_index(block, len(keys))
    last = {k: i for i, k in enumerate(keys)}
    found = native.string_numbers(block, len(keys), index)
    assert found.tolist() == [last[k] for k in keys]


def test_many_keys_and_many_strings() -> None:
    keys = [f"key {i}" for i in range(50_000)]
    session = session_of(
        [node("LabelEncoder", "x", "y", ML, keys_strings=keys, values_int64s=range(50_000))],
        {"x": (STRING, ["n"])},
        {"y": TensorProto.INT64},
    )
    assert python_steps(session) == 0
    fed = text(*keys[::-1], "none", "")
    (y,) = session.run(None, {"x": fed})
    assert y.tolist() == [*range(49_999, -1, -1), -1, -1]


def test_invalid_utf8_in_a_model() -> None:
    """They are read with a mark in their place, in tensors and attributes alike."""
    graph = helper.make_graph(
        [
            node("Gather", "names x", "y"),
            node("LabelEncoder", "y", "z", ML, keys_strings=[b"a\xff"], values_strings=[b"\xfe!"]),
        ],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.INT64, ["n"])],
        [helper.make_tensor_value_info(n, STRING, ["n"]) for n in "yz"],
        [helper.make_tensor("names", STRING, [2], [b"a\xff", b"ok"])],
    )
    opsets = [helper.make_opsetid("", 20), helper.make_opsetid(ML, 3)]
    model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
    session = sardonyx.InferenceSession(model.SerializeToString())
    y, z = session.run(None, {"x": np.array([0, 1, 0])})
    assert y.tolist() == ["a\ufffd", "ok", "a\ufffd"]
    assert z.tolist() == ["\ufffd!", "_Unused", "\ufffd!"]


def test_string_views_have_no_steps() -> None:
    session = session_of(
        [
            node("Transpose", "x", "t"),
            node("Gather", "t at", "y"),
            node("Equal", "y y", "same"),
        ],
        {"x": (STRING, ["n", 4])},
        {"same": TensorProto.BOOL},
        at=np.array([2], np.int64),
    )
    assert [kernel for *_, kernel in session._compiled.program.nodes()] == ["text_equal"]
    (same,) = session.run(None, {"x": np.full((3, 4), "é", object)})
    assert same.shape == (1, 3)
    assert same.all()


@pytest.mark.parametrize("count", [0, 1, 255, 256, 257, 5000])
def test_any_number_of_strings(count: int) -> None:
    session = session_of(
        [
            node("StringSplit", "x", "parts n", delimiter="-"),
            node("Unique", "parts", "u first which counts"),
            node("Cast", "n", "said", to=STRING),
        ],
        {"x": (STRING, ["n"])},
        {"parts": STRING, "u": STRING, "which": TensorProto.INT64, "said": STRING},
    )
    assert python_steps(session) == 0
    words = [f"{i % 7}-{'é' * (i % 3)}" for i in range(count)]
    parts, u, which, said = session.run(None, {"x": text(*words)})
    assert parts.tolist() == [w.split("-") for w in words]
    assert u.tolist() == sorted({p for w in words for p in w.split("-")})
    assert u[which].tolist() == [p for w in words for p in w.split("-")]
    assert said.tolist() == ["2"] * count


@pytest.mark.parametrize("op", ["Gather", "GatherElements"])
def test_a_large_table(op: str) -> None:
    """Constants of that size are read in place from their file, but for strings."""
    words = text(*(f"word {i}" for i in range(9000)))
    places = np.array([0, 8999, -1, 4000])
    inputs = {"i": (TensorProto.INT64, [4])}
    session = session_of([node(op, "words i", "y")], inputs, {"y": STRING}, words=words)
    assert session.run(None, {"i": places})[0].tolist() == words[places].tolist()


def test_a_delimiter_that_almost_matches_everywhere() -> None:
    """A search that begins anew at each place would take seconds."""
    n = 300_000
    session = session_of(
        [node("StringSplit", "x", "y n", delimiter="a" * n + "b")],
        {"x": (STRING, ["k"])},
        {"y": STRING, "n": TensorProto.INT64},
    )
    words = ["a" * (2 * n), "a" * (n + 1) + "b!"]
    began = time.perf_counter()
    parts, counts = session.run(None, {"x": text(*words)})
    assert time.perf_counter() - began < 1
    assert counts.tolist() == [1, 2]
    assert parts.tolist() == [[words[0], ""], ["a", "!"]]
