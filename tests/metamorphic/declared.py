"""Other declarations of the same graph: what is said of shapes, and what is constant."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

import numpy as np
from onnx import AttributeProto, ModelProto, helper, numpy_helper

from tests.metamorphic.variant import (
    Variant,
    constant,
    family,
    fed_inputs,
    tensor_types,
    type_of,
)

IR_OF_CONSTANTS = 8  # from 4 on, initializers need not be inputs


def ranks_open(v: Variant, rng: Random) -> Variant:
    """No shape is declared, in bodies neither."""
    model = v.copy()
    for graph in family(model.graph):
        for info in (*graph.input, *graph.output, *graph.value_info):
            for tensor in tensor_types(info.type):
                tensor.ClearField("shape")
    return v.changed(model)


def _named(v: Variant, name: Callable[[str, int, int], str]) -> Variant | None:
    """Every dim of an input has a name: of the input's name, the axis and the size."""
    model = v.copy()
    del model.graph.value_info[:]
    for output in model.graph.output:
        for tensor in tensor_types(output.type):
            tensor.ClearField("shape")
    found = False
    for info in fed_inputs(model):
        value = v.feeds.get(info.name)
        if not isinstance(value, np.ndarray) or not info.type.HasField("tensor_type"):
            continue
        dims = [name(info.name, axis, size) for axis, size in enumerate(value.shape)]
        info.type.CopyFrom(type_of(value, dims))
        found |= bool(dims)
    return v.changed(model) if found else None


def names_apart(v: Variant, rng: Random) -> Variant | None:
    """Each dim has a name of its own."""
    return _named(v, lambda name, axis, size: f"{name}_{axis}")


def names_by_size(v: Variant, rng: Random) -> Variant | None:
    """Dims of equal sizes have equal names."""
    return _named(v, lambda name, axis, size: f"d{size}")


def names_lie(v: Variant, rng: Random) -> Variant | None:
    """All dims have one name, whatever their sizes: a warning for onnxruntime."""
    return _named(v, lambda name, axis, size: "N")


def _constants(v: Variant, chosen: Callable[[list[str]], list[str]]) -> Variant | None:
    arrays = {i.name for i in fed_inputs(v.model) if isinstance(v.feeds.get(i.name), np.ndarray)}
    names = chosen(sorted(arrays))
    if not names:
        return None
    model = v.copy()
    model.ir_version = max(model.ir_version, IR_OF_CONSTANTS)
    kept = [i for i in model.graph.input if i.name not in names]
    del model.graph.input[:]
    model.graph.input.extend(kept)
    model.graph.initializer.extend(constant(v.feeds[n], n) for n in names)
    return v.changed(model, feeds={n: x for n, x in v.feeds.items() if n not in names})


def constants_all(v: Variant, rng: Random) -> Variant | None:
    """Every tensor that is fed is a constant."""
    return _constants(v, lambda names: names)


def constants_some(v: Variant, rng: Random) -> Variant | None:
    """Some of what is fed is constant, as weights are."""
    return _constants(v, lambda names: [n for n in names if rng.random() < 0.5])


def _inputs(v: Variant, chosen: Callable[[str], bool]) -> Variant | None:
    model = v.copy()
    model.ir_version = max(model.ir_version, IR_OF_CONSTANTS)
    made = _taken_constants(model, chosen)
    if not made:
        return None
    declared = {i.name for i in model.graph.input}
    for name, array in made.items():
        if name not in declared:
            model.graph.input.append(helper.make_value_info(name, type_of(array)))
    return v.changed(model, feeds={**v.feeds, **made})


def _taken_constants(model: ModelProto, chosen: Callable[[str], bool]) -> dict[str, Any]:
    """Takes initializers and Constant nodes out of a model."""
    made: dict[str, Any] = {}
    for tensor in list(model.graph.initializer):
        if chosen(tensor.name) and tensor.data_location != tensor.EXTERNAL:
            made[tensor.name] = numpy_helper.to_array(tensor)
            model.graph.initializer.remove(tensor)
    for node in [n for n in model.graph.node if n.op_type == "Constant" and not n.domain]:
        value = node.attribute[0]
        if value.type == AttributeProto.TENSOR and chosen(node.output[0]):
            made[node.output[0]] = numpy_helper.to_array(value.t)
            model.graph.node.remove(node)
    return made


def inputs_all(v: Variant, rng: Random) -> Variant | None:
    """Every constant of the main graph is fed."""
    return _inputs(v, lambda name: True)


def inputs_some(v: Variant, rng: Random) -> Variant | None:
    """Some constants of the main graph are fed."""
    return _inputs(v, lambda name: rng.random() < 0.5)


def feeds_strided(v: Variant, rng: Random) -> Variant | None:
    """The same numbers, backwards over the first axis and with gaps along the last."""
    feeds = {n: _strided(x) for n, x in v.feeds.items()}
    changed = any(feeds[n] is not x for n, x in v.feeds.items())
    return v.changed(feeds=feeds, exact=True) if changed else None


def _strided(x: Any) -> Any:
    if isinstance(x, list):
        return [_strided(item) for item in x]
    if not isinstance(x, np.ndarray) or x.ndim == 0:
        return x
    view = np.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2][::-1]
    view[...] = x
    return view
