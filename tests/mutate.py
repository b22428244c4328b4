"""Makes models hostile: changed bytes, and changed parts of models that still decode."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Sequence
from random import Random
from typing import Any

import numpy as np
import onnx
import onnx.defs
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    TensorProto,
    TypeProto,
    numpy_helper,
)

from sardonyx.ops import all_ops

NUMBERS = (
    0, 1, -1, 2, -2, 3, 4, 5, 7, 16, 63, 64, 65, 255, 1000, 10**6, 10**9, 10**12, 2**31 - 1, 2**31,
    -(2**31), 2**32, 2**62, 2**63 - 1, -(2**63),
)  # fmt: skip
FLOATS = (
    0.0, -0.0, 1.0, -1.0, 0.5, 2.0, 1e-45, 1e-20, 1e9, 1e20, 3e38, -3e38, float("nan"),
    float("inf"), float("-inf"),
)  # fmt: skip
TEXTS = (
    b"", b"a", b"\xff\xfe", b"\0", b"linear", b"nearest", b"cubic", b"constant", b"reflect", b"SUM",
    b"SAME_UPPER", b"bidirectional", b"Relu", b"...,i->", b"(a|aa)+$", b"(", b"x" * 3000,
    b"(a|b)*a(a|b){99}", b"(()*){999}", "ßİﬁ😀".encode(), b"1e400", b" 0x1 ",
)  # fmt: skip
NEWEST_OPSET = 28

Mutation = Callable[[Random, ModelProto], None]


def change_bytes(rng: Random, data: bytes, other: bytes) -> bytes:
    """Some bytes changed, cut off, repeated, or replaced by a piece of another model."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = min(len(data), start + rng.choice((1, 2, 8, 40, 400)))
        kind = rng.randrange(5)
        if kind == 0:
            data = data[:start] + bytes(rng.randrange(256) for _ in range(end - start)) + data[end:]
        elif kind == 1:
            data = data[:start]
        elif kind == 2:
            data = data[:end] + data[start:end] * rng.choice((1, 2, 50)) + data[end:]
        elif kind == 3:
            there = rng.randrange(len(other))
            data = data[:start] + other[there : there + end - start] + data[end:]
        else:
            data = data[:start] + data[end:]
    return data


def change_model(rng: Random, data: bytes) -> bytes:
    """Some parts of a model changed, one after the other."""
    model = ModelProto.FromString(data)
    for _ in range(rng.randint(1, 3)):
        rng.choice(MUTATIONS)(rng, model)
    return bytes(model.SerializeToString())


def _graphs(model: ModelProto) -> list[GraphProto]:
    """The graph and all bodies in it."""
    found = [model.graph]
    for graph in found:
        found += [a.g for n in graph.node for a in n.attribute if a.type == AttributeProto.GRAPH]
    return found


def _nodes(model: ModelProto) -> list[Any]:
    """Lists of nodes: of the graphs, and of functions."""
    return [g.node for g in _graphs(model)] + [f.node for f in model.functions]


def _some_node(rng: Random, model: ModelProto) -> NodeProto | None:
    nodes = [n for group in _nodes(model) for n in group]
    return rng.choice(nodes) if nodes else None


def _names(model: ModelProto) -> list[str]:
    """Every name that a node could read."""
    names = [t.name for g in _graphs(model) for t in (*g.initializer, *g.input)]
    names += [o for group in _nodes(model) for n in group for o in n.output]
    return [*dict.fromkeys(names), ""]


def _number(rng: Random) -> int:
    return rng.choice(NUMBERS)


def _list(rng: Random, old: Sequence[Any], pool: Sequence[Any]) -> list[Any]:
    """A list with one element changed, added or gone, or one of another length altogether."""
    new = list(old)
    kind = rng.randrange(6)
    if kind == 0 or not new:
        return [rng.choice(pool) for _ in range(rng.choice((0, 1, 2, 4, 70)))]
    if kind == 1:
        new.append(rng.choice(pool))
    elif kind == 2:
        del new[rng.randrange(len(new))]
    elif kind == 3:
        new = new * 2
    else:
        new[rng.randrange(len(new))] = rng.choice(pool)
    return new


def array(rng: Random, dtype: np.dtype[Any], shape: Sequence[int]) -> Any:
    """Values that ops may not expect: zeros, small counts, or a mix with the ends of the type."""
    count = math.prod(shape)
    if dtype.kind == "O":
        texts = [t.decode("utf-8", "replace") for t in TEXTS]
        return np.array([rng.choice(texts) for _ in range(count)], object).reshape(shape)
    kind = rng.randrange(3)
    if kind == 0:
        return np.zeros(shape, dtype)
    pool: Sequence[Any] = range(-2, 4) if kind == 1 else (*FLOATS, *NUMBERS)
    picked = [rng.choice(pool) for _ in range(min(count, 64))] or [0]
    with np.errstate(all="ignore"):
        if dtype.kind in "iu":
            wrapped = [0 if v != v or abs(v) > 2**63 else int(v) % 2**64 for v in picked]
            cells = np.array(wrapped, np.uint64).astype(dtype)
        else:
            cells = np.array(picked, np.float64).astype(dtype)
    return np.resize(cells, shape)


# ---------------------------------------------------------------------------------- attributes


@functools.cache
def _schema(domain: str, op_type: str) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(op_type, domain)
    except onnx.defs.SchemaError:
        return None


def change_attribute(rng: Random, model: ModelProto) -> None:
    """Another value of the same type."""
    nodes = [n for group in _nodes(model) for n in group if n.attribute]
    if not nodes:
        return add_attribute(rng, model)
    attribute = rng.choice(rng.choice(nodes).attribute)
    return _change(rng, attribute)


def _change(rng: Random, a: AttributeProto) -> None:
    kind = a.type
    if kind == AttributeProto.INT:
        a.i = _number(rng)
    elif kind == AttributeProto.FLOAT:
        a.f = rng.choice(FLOATS)
    elif kind == AttributeProto.STRING:
        a.s = rng.choice(TEXTS)
    elif kind == AttributeProto.INTS:
        a.ints[:] = _list(rng, a.ints, NUMBERS)
    elif kind == AttributeProto.FLOATS:
        a.floats[:] = _list(rng, a.floats, FLOATS)
    elif kind == AttributeProto.STRINGS:
        a.strings[:] = _list(rng, a.strings, TEXTS)
    elif kind == AttributeProto.TENSOR:
        _change_tensor(rng, a.t)


def change_attribute_type(rng: Random, model: ModelProto) -> None:
    """An attribute that says it is of another type, with a value of that type or none."""
    node = _some_node(rng, model)
    if node is not None and node.attribute:
        attribute = rng.choice(node.attribute)
        attribute.type = rng.randrange(15) if rng.random() < 0.2 else rng.randrange(1, 9)
        if attribute.type in range(1, 9):
            _change(rng, attribute)


def drop_attribute(rng: Random, model: ModelProto) -> None:
    """An attribute gone, or given twice."""
    node = _some_node(rng, model)
    if node is not None and node.attribute:
        place = rng.randrange(len(node.attribute))
        if rng.random() < 0.8:
            del node.attribute[place]
        else:
            node.attribute.add().CopyFrom(node.attribute[place])


def add_attribute(rng: Random, model: ModelProto) -> None:
    """An attribute that the op has and the node does not give yet."""
    node = _some_node(rng, model)
    schema = None if node is None else _schema(node.domain, node.op_type)
    if node is None or schema is None:
        return
    free = sorted(schema.attributes.keys() - {a.name for a in node.attribute})
    if free:
        name = rng.choice(free)
        kind = AttributeProto.AttributeType.Value(
            str(schema.attributes[name].type).rpartition(".")[2]
        )
        added = node.attribute.add(name=name, type=kind)
        _change(rng, added)


# ------------------------------------------------------------------------------------- tensors


def _change_tensor(rng: Random, t: TensorProto) -> None:
    """Other values, another shape, another type, or dims that do not fit the data."""
    kind = rng.randrange(4)
    if kind == 0:
        t.dims[:] = _list(rng, t.dims, NUMBERS)
        return
    if kind == 1:
        t.data_type = rng.randrange(30)
        return
    if t.external_data:
        entry = rng.choice(t.external_data)
        entry.value = rng.choice((entry.value, str(_number(rng)), "", "/etc/passwd", "../x"))
        return
    try:
        old = numpy_helper.to_array(t)
    except (ValueError, TypeError, KeyError, RuntimeError):
        return  # changed before, and no tensor any more
    shape = old.shape
    if kind == 2:
        shape = tuple(d for d in _list(rng, shape, NUMBERS) if 0 <= d <= 64)[:6]
        shape = shape if math.prod(shape) <= 4096 else (2,)
    new = numpy_helper.from_array(array(rng, old.dtype, shape), t.name)
    t.CopyFrom(new)


def _tensors(model: ModelProto) -> Iterator[TensorProto]:
    for graph in _graphs(model):
        yield from graph.initializer
        yield from (a.t for n in graph.node for a in n.attribute if a.type == AttributeProto.TENSOR)


def change_tensor(rng: Random, model: ModelProto) -> None:
    """A constant changed."""
    tensors = [*_tensors(model)]
    if tensors:
        _change_tensor(rng, rng.choice(tensors))


def make_constant(rng: Random, model: ModelProto) -> None:
    """An input that becomes a constant, so that its contents count while compiling."""
    inputs = [i for i in model.graph.input if i.type.HasField("tensor_type")]
    if not inputs:
        return
    info = rng.choice(inputs)
    dims = [d.dim_value or rng.randrange(3) for d in info.type.tensor_type.shape.dim]
    try:
        dtype = onnx.helper.tensor_dtype_to_np_dtype(info.type.tensor_type.elem_type)
    except (KeyError, TypeError, ValueError):
        return
    if all(0 <= d <= 4096 for d in dims) and math.prod(dims) <= 4096 and len(dims) < 64:
        value = numpy_helper.from_array(array(rng, dtype, dims), info.name)
        model.graph.initializer.append(value)
        model.graph.input.remove(info)


def make_input(rng: Random, model: ModelProto) -> None:
    """A constant that becomes an input, so that nothing is known of it before the run."""
    constants = model.graph.initializer
    if constants:
        t = constants[rng.randrange(len(constants))]
        dims = [None if rng.random() < 0.3 else d for d in t.dims]
        info = onnx.helper.make_tensor_value_info(t.name, t.data_type, dims)
        if t.name not in {i.name for i in model.graph.input}:
            model.graph.input.append(info)
        constants.remove(t)


def _tensor_type(declared: TypeProto) -> Any:
    """The tensor in a type, which may be an element of a list or of an optional."""
    kind = declared.WhichOneof("value")
    if kind == "tensor_type":
        return declared.tensor_type
    if kind in ("sequence_type", "optional_type"):
        return _tensor_type(getattr(declared, kind).elem_type)
    return None


def change_type(rng: Random, model: ModelProto) -> None:
    """A declared input or output of another shape or element type."""
    infos = [i.type for g in _graphs(model) for i in (*g.input, *g.output, *g.value_info)]
    tensors = [t for t in map(_tensor_type, infos) if t is not None]
    if not tensors:
        return
    tensor = rng.choice(tensors)
    kind = rng.randrange(5)
    dims = tensor.shape.dim
    if kind == 0:
        tensor.elem_type = rng.randrange(30)
    elif kind == 1:
        tensor.ClearField("shape")
    elif kind == 2 or not dims:
        dims.add(dim_value=_number(rng))
    elif kind == 3:
        del dims[rng.randrange(len(dims))]
    else:
        dim = rng.choice(dims)
        if rng.random() < 0.5:
            dim.dim_value = _number(rng)
        else:
            dim.dim_param = rng.choice(("N", "N", "M", "", "N + 1"))


# --------------------------------------------------------------------------------------- nodes


def rewire(rng: Random, model: ModelProto) -> None:
    """A node that reads something else, or more, or less."""
    node = _some_node(rng, model)
    if node is None:
        return
    names, kind = _names(model), rng.randrange(4)
    place = rng.randrange(len(node.input)) if node.input else 0
    if kind == 0 or not node.input:
        node.input.append(rng.choice(names))
    elif kind == 1:
        del node.input[place]
    else:
        node.input[place] = rng.choice(names)


def rename_output(rng: Random, model: ModelProto) -> None:
    """A node that makes fewer values, more, or one that exists already."""
    node = _some_node(rng, model)
    if node is None:
        return
    kind = rng.randrange(3)
    if kind == 0 or not node.output:
        node.output.append(rng.choice(("extra", *_names(model))))
    elif kind == 1:
        del node.output[rng.randrange(len(node.output))]
    else:
        node.output[rng.randrange(len(node.output))] = rng.choice(_names(model))


def show_value(rng: Random, model: ModelProto) -> None:
    """Another value as an output of a graph, so that nothing before it is dropped as unused."""
    graph = rng.choice(_graphs(model))
    made = [o for n in graph.node for o in n.output]
    if made:
        graph.output.append(onnx.ValueInfoProto(name=rng.choice(made)))


def move_node(rng: Random, model: ModelProto) -> None:
    """A node gone, doubled, or moved to the end."""
    nodes = rng.choice(_nodes(model))
    if not nodes:
        return
    place = rng.randrange(len(nodes))
    copy = NodeProto.FromString(nodes[place].SerializeToString())
    kind = rng.randrange(3)
    if kind != 1:
        del nodes[place]
    if kind == 1:
        copy.output[:] = [f"{o}_again" for o in copy.output]
    if kind != 0:
        nodes.append(copy)


@functools.cache
def _ops() -> list[tuple[str, str]]:
    schemas = onnx.defs.get_all_schemas_with_history()
    return sorted({(s.domain, s.name) for s in schemas} | {(o.domain, o.name) for o in all_ops()})


def swap_op(rng: Random, model: ModelProto) -> None:
    """A node of another op with the same inputs and attributes, or without attributes."""
    node = _some_node(rng, model)
    if node is None:
        return
    node.domain, node.op_type = rng.choice(_ops())
    if rng.random() < 0.7:
        del node.attribute[:]
    if node.domain not in {o.domain for o in model.opset_import}:
        model.opset_import.add(domain=node.domain, version=1)


def change_versions(rng: Random, model: ModelProto) -> None:
    """Another opset or format version."""
    if rng.random() < 0.1:
        model.ir_version = _number(rng)
    for imported in model.opset_import:
        is_main = imported.domain in ("", "ai.onnx")
        imported.version = rng.randint(1, NEWEST_OPSET) if is_main else rng.randint(1, 6)


MUTATIONS: tuple[Mutation, ...] = (
    change_attribute, change_attribute, change_attribute, change_attribute_type, drop_attribute,
    add_attribute, add_attribute, change_tensor, change_tensor, make_constant, make_constant,
    make_input, change_type, change_type, rewire, rewire, rename_output, show_value, move_node,
    swap_op, change_versions,
)  # fmt: skip
