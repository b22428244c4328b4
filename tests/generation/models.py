"""Small decoders with caches, in the forms that searches take them in."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
from onnx import TensorProto as T
from onnx import helper, numpy_helper

WORDS, HEADS, SIZE, POSITIONS = 11, 2, 4, 32
WIDTH = HEADS * SIZE
TYPES = dict.fromkeys(("length_penalty", "repetition_penalty", "temperature"), T.FLOAT)
MATRICES = (
    "decoder_input_ids",
    "input_ids",
    "prefix_vocab_mask",
    "presence_mask",
    "attention_mask",
)


def info(name: str, kind: int, dims: Any) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, dims)


class Nodes:
    """The nodes of a graph, each with one output, over a few constants."""

    def __init__(self, seed: int) -> None:
        rng = np.random.default_rng(seed)
        self.made: list[onnx.NodeProto] = []
        arrays = {
            "words": rng.standard_normal((WORDS, WIDTH)),
            "places": rng.standard_normal((POSITIONS, WIDTH)) * 0.3,
            "out": rng.standard_normal((WIDTH, WORDS)) * 1.5,
        }
        numbers = {"apart": [0, 0, HEADS, SIZE], "whole": [0, 0, WIDTH], "a0": [0], "a13": [1, 3],
                   "a2": [2], "zero": 0}  # fmt: skip
        self.constants = [
            numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()
        ]
        self.constants += [numpy_helper.from_array(np.array(a), n) for n, a in numbers.items()]

    def add(self, output: str, op: str, *inputs: str, **attrs: Any) -> None:
        self.made.append(helper.make_node(op, inputs, [output], **attrs))

    def heads(self, output: str, x: str) -> None:
        """[rows, length, width] as [rows, heads, length, size]."""
        self.add(f"{output}_apart", "Reshape", x, "apart")
        self.add(output, "Transpose", f"{output}_apart", perm=[0, 2, 1, 3])

    def logits(self, x: str, total: str) -> None:
        """Scores from the tokens and a sum over caches, [rows, heads, 1, size]."""
        self.add("transposed", "Transpose", total, perm=[0, 2, 1, 3])
        self.add("joined", "Reshape", "transposed", "whole")
        self.add("bent", "Tanh", "joined")
        self.add("seen", "Add", x, "bent")
        self.add("logits", "MatMul", "seen", "out")

    def graph(self, name: str, inputs: list[Any], outputs: list[Any]) -> onnx.GraphProto:
        return helper.make_graph(self.made, name, inputs, outputs, self.constants)


def gpt(seed: int) -> onnx.GraphProto:
    """Keys and values of all tokens in one cache; scores are of the sum of what the mask shows."""
    n = Nodes(seed)
    n.add("token", "Gather", "words", "input_ids")
    n.add("place", "Gather", "places", "position_ids")
    n.add("x", "Add", "token", "place")
    n.heads("key", "x")
    n.add("keys", "Unsqueeze", "key", "a0")
    n.add("both", "Concat", "keys", "keys", axis=0)
    n.add("present_0", "Concat", "past_0", "both", axis=3)
    n.add("shown", "Cast", "attention_mask", to=T.FLOAT)
    n.add("mask", "Unsqueeze", "shown", "a13")
    n.add("first", "Gather", "present_0", "zero", axis=0)
    n.add("masked", "Mul", "first", "mask")
    n.add("total", "ReduceSum", "masked", "a2", keepdims=1)
    n.logits("x", "total")
    cache = [2, "B", HEADS, "P", SIZE]
    return n.graph(
        "decoder",
        [info("input_ids", T.INT32, ["B", "S"]), info("position_ids", T.INT32, ["B", "S"]),
         info("attention_mask", T.INT32, ["B", "T"]), info("past_0", T.FLOAT, cache)],
        [info("logits", T.FLOAT, ["B", "S", WORDS]),
         info("present_0", T.FLOAT, [2, "B", HEADS, "T", SIZE])],
    )  # fmt: skip


def _step(n: Nodes, has_past: bool, has_mask: bool = True) -> None:
    """Scores of the tokens `ids` after those in caches, beside what the encoder saw."""
    n.add("x", "Gather", "words", "ids")
    n.heads("key", "x")
    for kind in ("key", "value"):
        made = f"present_{kind}_self_0"
        if has_past:
            n.add(made, "Concat", f"past_{kind}_self_0", "key", axis=2)
        else:
            n.add(made, "Identity", "key")
    n.add("own", "ReduceSum", "present_value_self_0", "a2", keepdims=1)
    if has_mask:
        n.add("shown", "Cast", "encoder_attention_mask", to=T.FLOAT)
        n.add("mask", "Unsqueeze", "shown", "a13")
        n.add("masked", "Mul", "cross", "mask")
    n.add("others", "ReduceSum", "masked" if has_mask else "cross", "a2", keepdims=1)
    n.add("total", "Add", "own", "others")
    n.logits("x", "total")


def _caches(when: str, kind: str, length: Any) -> list[onnx.ValueInfoProto]:
    dims = ["B", HEADS, length, SIZE]
    return [info(f"{when}_{part}_{kind}_0", T.FLOAT, dims) for part in ("key", "value")]


SEEN = ("encoder_attention_mask", T.INT32, ["B", "E"])


def decoder(seed: int, *, reads_all: bool = False) -> onnx.GraphProto:
    """A step after the caches; with `reads_all` of all tokens so far, and of the encoder's."""
    n = Nodes(seed)
    if reads_all:
        n.add("largest", "ReduceMax", "input_ids", axes=[1], keepdims=1)
        n.add("least", "ReduceMin", "encoder_input_ids", axes=[1], keepdims=1)
        n.add("ids", "Max", "largest", "least")
    else:
        n.add("ids", "Identity", "input_ids")
    n.add("cross", "Identity", "past_value_cross_0")
    _step(n, has_past=True)
    inputs = [info("input_ids", T.INT32, ["B", "L" if reads_all else 1])]
    inputs += [info("encoder_input_ids", T.INT32, ["B", "E"])] if reads_all else []
    inputs += [info(*SEEN), *_caches("past", "self", "P"), *_caches("past", "cross", "E")]
    logits = info("logits", T.FLOAT, ["B", 1, WORDS])
    return n.graph("decoder", inputs, [logits, *_caches("present", "self", "Q")])


def encoder(seed: int, *, is_first_step: bool) -> onnx.GraphProto:
    """Keys and values for the decoder; of the first step too, as older exports have it."""
    n = Nodes(seed)
    n.add("encoded", "Gather", "words", "encoder_input_ids")
    n.heads("present_key_cross_0", "encoded")
    n.add("present_value_cross_0", "Neg", "present_key_cross_0")
    inputs = [info("encoder_input_ids", T.INT32, ["B", "E"]), info(*SEEN)]
    outputs = _caches("present", "cross", "E")
    if is_first_step:
        n.add("encoder_hidden_states", "Identity", "encoded")
        n.add("ids", "Identity", "decoder_input_ids")
        n.add("cross", "Identity", "present_value_cross_0")
        _step(n, has_past=False)
        inputs.append(info("decoder_input_ids", T.INT32, ["B", 1]))
        first = [info("logits", T.FLOAT, ["B", 1, WORDS]),
                 info("encoder_hidden_states", T.FLOAT, ["B", "E", WIDTH])]  # fmt: skip
        outputs = [*first, *_caches("present", "self", 1), *outputs]
    return n.graph("encoder", inputs, outputs)


def whisper(seed: int) -> dict[str, onnx.GraphProto]:
    """Both graphs of a search over features [B, E, WIDTH], as onnxruntime's converter has them."""
    n = Nodes(seed)
    n.add("encoder_hidden_states", "Identity", "encoder_input_ids")
    n.heads("present_key_cross_0", "encoder_hidden_states")
    n.add("present_value_cross_0", "Neg", "present_key_cross_0")
    n.add("cross", "Identity", "present_value_cross_0")
    n.add("ids", "Identity", "decoder_input_ids")
    _step(n, has_past=False, has_mask=False)
    features = ["B", "E", WIDTH]
    first = [info("logits", T.FLOAT, ["B", "S", WORDS]),
             info("encoder_hidden_states", T.FLOAT, features)]  # fmt: skip
    start = n.graph(
        "encoder",
        [
            info("encoder_input_ids", T.FLOAT, features),
            info("decoder_input_ids", T.INT32, ["B", "S"]),
        ],
        [*first, *_caches("present", "self", "S"), *_caches("present", "cross", "E")],
    )
    n = Nodes(seed)
    n.add("ids", "Identity", "input_ids")
    n.add("cross", "Identity", "past_value_cross_0")
    _step(n, has_past=True, has_mask=False)
    inputs = [info("input_ids", T.INT32, ["B", 1]), *_caches("past", "self", "P")]
    logits = info("logits", T.FLOAT, ["B", 1, WORDS])
    step = n.graph(
        "decoder",
        [*inputs, *_caches("past", "cross", "E")],
        [logits, *_caches("present", "self", "Q")],
    )
    return {"encoder": start, "decoder": step}


def model(op: str, inputs: list[str], outputs: list[str], **attrs: Any) -> bytes:
    """A search alone; inputs that are left out are empty names."""
    node = helper.make_node(op, inputs, outputs, domain="com.microsoft", **attrs)
    given = [
        info(n, TYPES.get(n, T.INT32), ["b", f"{n}_length"] if n in MATRICES else [f"{n}_length"])
        for n in inputs
        if n
    ]
    if op == "WhisperBeamSearch":
        given[0] = info("input_ids", T.FLOAT, ["b", "frames", WIDTH])
    made = [info(n, T.INT32 if n == "sequences" else T.FLOAT, None) for n in outputs if n]
    graph = helper.make_graph([node], "search", given, made)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    return bytes(helper.make_model(graph, opset_imports=opsets, ir_version=8).SerializeToString())
