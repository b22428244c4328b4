"""The whole graph inside something: a branch, a loop, a scan, a function."""

from __future__ import annotations

from random import Random
from typing import Any

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto, ValueInfoProto, helper

from tests.metamorphic.declared import IR_OF_CONSTANTS
from tests.metamorphic.variant import (
    Variant,
    are_tensors,
    body_of,
    constant,
    fed_inputs,
    opset,
    type_of,
    with_nodes,
)

DOMAIN = "meta"
SCALAR: tuple[int, ...] = ()


def _info(name: str, like: ValueInfoProto | None = None) -> ValueInfoProto:
    info = ValueInfoProto(name=name)
    if like is not None and like.HasField("type"):
        info.type.CopyFrom(like.type)
    return info


def _outer(v: Variant, infos: list[ValueInfoProto]) -> list[ValueInfoProto]:
    """Outputs of the model, which must not be called as those of a body are."""
    return [_info(v.name(f"out{i}"), info) for i, info in enumerate(infos)]


# ------------------------------------------------------------------------------------- branches


def _if(v: Variant, taken: bool, known: bool) -> Variant | None:
    if not v.wanted or not are_tensors(v.wanted):
        return None
    model = v.copy()
    opset(model)
    nodes, outputs = body_of(v, model)
    whole = helper.make_graph(nodes, "whole", [], outputs)
    other = _other_branch(v)
    outer = _outer(v, outputs)
    branches = (whole, other) if taken else (other, whole)
    node = helper.make_node(
        "If", [v.name("which")], [o.name for o in outer],
        then_branch=branches[0], else_branch=branches[1],
    )  # fmt: skip
    made = with_nodes(model, [node], outer)
    which = np.array(taken)
    if known:
        made.ir_version = max(made.ir_version, IR_OF_CONSTANTS)
        made.graph.initializer.append(constant(which, v.name("which")))
        return v.changed(made)
    info = helper.make_tensor_value_info(v.name("which"), TensorProto.BOOL, SCALAR)
    made.graph.input.append(info)
    return v.changed(made, feeds={**v.feeds, info.name: which})


def _other_branch(v: Variant) -> GraphProto:
    """A branch that makes zeros of the same types and shapes."""
    made = [_blank(x) for x in v.wanted]
    names = [v.name(f"zero{i}") for i in range(len(made))]
    nodes = [
        helper.make_node("Constant", [], [name], value=constant(x, ""))
        for name, x in zip(names, made, strict=True)
    ]
    infos = [helper.make_value_info(n, type_of(x)) for n, x in zip(names, made, strict=True)]
    return helper.make_graph(nodes, "other", [], infos)


def _blank(x: Any) -> Any:
    return np.full(x.shape, "" if x.dtype.kind in "OUS" else 0, x.dtype)


def if_then(v: Variant, rng: Random) -> Variant | None:
    """In a branch that is taken, with captures."""
    return _if(v, True, known=False)


def if_else(v: Variant, rng: Random) -> Variant | None:
    """In the other branch."""
    return _if(v, False, known=False)


def if_known(v: Variant, rng: Random) -> Variant | None:
    """In a branch of which it is known that it is taken."""
    return _if(v, rng.random() < 0.5, known=True)


# ---------------------------------------------------------------------------------------- loops


def _loop(v: Variant, iterations: int, carries: bool) -> Variant | None:
    """All outputs of each iteration stacked, or those of the last iteration."""
    if not are_tensors(v.wanted) or (carries and not v.wanted):
        return None
    model = v.copy()
    opset(model)
    nodes, outputs = body_of(v, model)
    go, on = v.name("go"), v.name("on")
    inputs = [
        helper.make_tensor_value_info(v.name("iteration"), TensorProto.INT64, SCALAR),
        helper.make_tensor_value_info(go, TensorProto.BOOL, SCALAR),
    ]
    begun = [v.name(f"begin{i}") for i in range(len(outputs))] if carries else []
    inputs += [
        helper.make_value_info(v.name(f"old{i}"), type_of(x, None))
        for i, x in enumerate(v.wanted if carries else ())
    ]
    body = helper.make_graph(
        [helper.make_node("Identity", [go], [on]), *nodes], "iteration", inputs,
        [helper.make_tensor_value_info(on, TensorProto.BOOL, SCALAR), *outputs],
    )  # fmt: skip
    outer = [_info(o.name) for o in _outer(v, outputs)]
    count = v.name("iterations")
    node = helper.make_node("Loop", [count, "", *begun], [o.name for o in outer], body=body)
    made = with_nodes(model, [node], outer)
    made.ir_version = max(made.ir_version, IR_OF_CONSTANTS)
    made.graph.initializer.extend(
        constant(_blank(x), n) for n, x in zip(begun, v.wanted, strict=bool(begun))
    )
    wanted = v.wanted if carries else [np.stack([x] * iterations) for x in v.wanted]
    return _counted(v, made, count, iterations).changed(made, wanted=wanted)


def _counted(v: Variant, model: ModelProto, name: str, iterations: int) -> Variant:
    """The number of iterations of a loop is fed."""
    model.graph.input.append(helper.make_tensor_value_info(name, TensorProto.INT64, SCALAR))
    return v.changed(model, feeds={**v.feeds, name: np.array(iterations, np.int64)})


def loop_once(v: Variant, rng: Random) -> Variant | None:
    """In a loop of one iteration."""
    return _loop(v, 1, carries=False)


def loop_stacked(v: Variant, rng: Random) -> Variant | None:
    """In a loop of three iterations, whose results are stacked."""
    return _loop(v, 3, carries=False)


def loop_carried(v: Variant, rng: Random) -> Variant | None:
    """In a loop of two iterations that carries the results."""
    return _loop(v, 2, carries=True)


# ----------------------------------------------------------------------------------------- scan


def _scan(v: Variant, steps: int) -> Variant | None:
    """Each input has an axis more, along which the graph runs again and again."""
    model = v.copy()
    scanned = [i for i in fed_inputs(model) if isinstance(v.feeds.get(i.name), np.ndarray)]
    if not scanned or not are_tensors(v.wanted) or opset(model) < 9:
        return None
    nodes, outputs = body_of(v, model)
    body = helper.make_graph(nodes, "step", [_info(i.name, i) for i in scanned], outputs)
    outer = [_info(o.name) for o in _outer(v, outputs)]
    feeds = {n: x for n, x in v.feeds.items() if n not in {i.name for i in scanned}}
    for info in scanned:
        array = np.stack([v.feeds[info.name]] * steps)
        feeds[v.name(info.name)] = array
        info.name = v.name(info.name)
        info.type.CopyFrom(type_of(array))
    node = helper.make_node(
        "Scan", [i.name for i in scanned], [o.name for o in outer], body=body,
        num_scan_inputs=len(scanned),
    )  # fmt: skip
    wanted = [np.stack([x] * steps) for x in v.wanted]
    return v.changed(with_nodes(model, [node], outer), feeds=feeds, wanted=wanted)


def scan_once(v: Variant, rng: Random) -> Variant | None:
    """In a scan of one step."""
    return _scan(v, 1)


def scan_twice(v: Variant, rng: Random) -> Variant | None:
    """In a scan of two steps."""
    return _scan(v, 2)


# ------------------------------------------------------------------------------------- function


def function(v: Variant, rng: Random) -> Variant | None:
    """In a function of the model's own."""
    model = v.copy()
    opset(model)
    nodes, outputs = body_of(v, model)
    given = [v_.name for v_ in (*model.graph.input, *model.graph.initializer)]
    given += [s.values.name for s in model.graph.sparse_initializer]
    inputs = [*dict.fromkeys(given)]
    imports = [helper.make_opsetid(o.domain, o.version) for o in model.opset_import]
    name = v.name("whole")
    whole = helper.make_function(DOMAIN, name, inputs, [o.name for o in outputs], nodes, imports)
    outer = _outer(v, outputs)
    call: NodeProto = helper.make_node(name, inputs, [o.name for o in outer], domain=DOMAIN)
    model.functions.append(whole)
    if DOMAIN not in {o.domain for o in model.opset_import}:
        model.opset_import.append(helper.make_opsetid(DOMAIN, 1))
        for f in model.functions:  # functions of earlier wraps may be called from this one
            if f.domain == DOMAIN and f.name == name:
                f.opset_import.append(helper.make_opsetid(DOMAIN, 1))
    model.ir_version = max(model.ir_version, IR_OF_CONSTANTS)
    return v.changed(with_nodes(model, [call], outer), exact=True)
