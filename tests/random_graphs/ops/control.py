"""If, Loop, Scan and SequenceMap, with bodies that are random graphs and read from outside."""

from __future__ import annotations

import contextlib

import numpy as np
from onnx import NodeProto, helper

from tests.random_graphs.builder import Builder, Unfit
from tests.random_graphs.ops import sequence
from tests.random_graphs.ops.draw import Generator
from tests.random_graphs.value import DTYPES, Value, type_of

KINDS = ("float", "float", "int64", "int32", "double", "bool")


def tame(b: Builder) -> None:
    """Bodies are left out of wild graphs: what is known of NaN is known of nodes, not of bodies."""
    if b.traits.is_wild:
        raise Unfit("wild")


def grow(b: Builder) -> None:
    from tests.random_graphs.ops import table  # the table has this module's generators too

    with contextlib.suppress(Unfit):
        table.choose(b.rng, is_body=True)(b)


def filled(b: Builder, most: int = 4) -> list[Value]:
    """Some nodes in a body; the tensors that they made."""
    for _ in range(b.rng.randint(1, most)):
        grow(b)
    return [v for v in b.pool if v.is_tensor and v.dtype and not v.is_random]


def open_type(v: Value) -> Value:
    """The value with a type that says nothing of sizes."""
    v.type = type_of(v.data, [None] * v.rank)
    return v


def cast_to(b: Builder, v: Value, dtype: str) -> Value:
    if v.dtype == dtype:
        return b.emit("Identity", [v])[0]
    number = helper.np_dtype_to_tensor_dtype(np.dtype(DTYPES[dtype]))
    return b.emit("Cast", [v], to=int(number))[0]


def condition(b: Builder) -> Value:
    found = b.among(["bool"], lambda v: v.data.size == 1)
    if found is not None and b.rng.random() < 0.5:
        return found
    return b.given(np.array(b.rng.random() < 0.5), b.rng.choice(("input", "input", "initializer")))


def if_(b: Builder, op: str) -> None:
    tame(b)
    chosen = condition(b)
    then, other = b.body(), b.body()
    count = b.rng.choice((1, 1, 2))
    outs: list[list[Value]] = [[], []]
    for body, found in ((then, outs[0]), (other, outs[1])):
        made = filled(body) or [b.pick(["float"])]
        for i in range(count):
            v = body.rng.choice(made)
            if found is outs[1]:
                v = cast_to(body, v, outs[0][i].dtype)
            else:
                v = body.emit("Identity", [v])[0]
            found.append(v)
    node = NodeProto(op_type="If", input=[chosen.name], output=[b.name() for _ in range(count)])
    for name, body, values in (("then_branch", then, outs[0]), ("else_branch", other, outs[1])):
        for v in values:
            v.type = type_of(v.data, None)  # the branches may differ, even in rank
        node.attribute.append(helper.make_attribute(name, body.graph([], values)))
    b.add(node)


def loop(b: Builder, op: str) -> None:
    tame(b)
    carried = [b.pick(KINDS) for _ in range(b.rng.choice((0, 1, 1, 2)))]
    iterations = b.rng.choice((0, 1, 2, 3, 5))
    inner = [Value(b.name("l"), v.data, type_of(v.data, [None] * v.rank)) for v in carried]
    i = Value(b.name("i"), np.array(0), type_of(np.array(0)))
    go = Value(b.name("go"), np.array(True), type_of(np.array(True)))
    body = b.body([i, go, *inner])
    made = filled(body)
    outputs = [body.emit("Identity", [go])[0]]
    for v in inner:
        fits = [m for m in made if m.shape == v.shape and m.dtype in KINDS] or [v]
        outputs.append(cast_to(body, body.rng.choice(fits), v.dtype))
    # What a loop without iterations collects has sizes that nothing says.
    n_scans = b.rng.choice((0, 1, 1)) if iterations else 0
    scans = [body.emit("Identity", [body.rng.choice(made)])[0] for _ in range(n_scans)]
    outputs += [open_type(v) for v in scans]
    count = b.param(np.array(iterations))
    node = NodeProto(
        op_type="Loop", input=[count.name, "", *(v.name for v in carried)],
        output=[b.name() for _ in range(len(carried) + len(scans))],
    )  # fmt: skip
    if not node.output:
        raise Unfit("a loop without results")
    node.attribute.append(helper.make_attribute("body", body.graph([i, go, *inner], outputs)))
    b.add(node)


def scan(b: Builder, op: str) -> None:
    tame(b)
    if b.traits.opset < 9:
        raise Unfit("scans had batches then")
    x = b.pick(("float", "int64", "double"), lambda v: 0 < v.rank < 4 and v.shape[0] > 0)
    dtype = b.rng.choice((x.dtype, "float"))
    state = b.new(dtype, x.shape[1:])
    inner = [
        Value(b.name("s"), state.data, type_of(state.data)),
        Value(b.name("e"), x.data[0], type_of(x.data[0])),
    ]
    body = b.body(inner)
    made = filled(body)
    fits = [m for m in made if m.shape == state.shape and m.dtype in KINDS] or [inner[0]]
    following = cast_to(body, body.rng.choice(fits), dtype)
    row = body.emit("Identity", [body.rng.choice(made)])[0]
    reverse = b.rng.randrange(2)
    node = NodeProto(op_type="Scan", input=[state.name, x.name], output=[b.name(), b.name()])
    node.attribute.extend([
        helper.make_attribute("body", body.graph(inner, [following, open_type(row)])),
        helper.make_attribute("num_scan_inputs", 1),
    ])  # fmt: skip
    if reverse:
        node.attribute.append(helper.make_attribute("scan_input_directions", [1]))
    if b.rng.random() < 0.3:
        node.attribute.append(helper.make_attribute("scan_output_directions", [1]))
    b.add(node)


def sequence_map(b: Builder, op: str) -> None:
    tame(b)
    s = sequence.lists(b)
    first = s.data[0]
    inner = Value(b.name("e"), first, type_of(first, [None] * first.ndim))
    body = b.body([inner])
    made = [m for m in filled(body, 2) if m.dtype in KINDS] or [inner]
    out = open_type(body.emit("Identity", [body.rng.choice(made)])[0])
    node = NodeProto(op_type=op, input=[s.name], output=[b.name()])
    node.attribute.append(helper.make_attribute("body", body.graph([inner], [out])))
    if b.traits.opset < 17:
        raise Unfit("not yet")
    b.add(node)


OPS: dict[str, Generator] = {"If": if_, "Loop": loop, "Scan": scan, "SequenceMap": sequence_map}
