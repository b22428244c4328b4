"""Cases that are the nodes of models: their ops, attributes, sizes and weights."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import AttributeProto, ValueInfoProto, helper, numpy_helper

import sardonyx
from bench.sweep.case import DOMAINS, Array, Case
from sardonyx.cli.inputs import generate, input_shapes
from sardonyx.compile import load_model

LARGEST = 256 << 20  # bytes of operands


def cases(path: Path, count: int, seed: int) -> Iterator[Case]:
    """Return up to `count` different nodes of a model, at sizes that it runs with."""
    model = onnx.load(str(path))
    values = _values(model, path, seed)
    opset = next((o.version for o in model.opset_import if o.domain in ("", "ai.onnx")), 1)
    found: dict[str, Case] = {}
    for node in model.graph.node:
        case = _case(node, values, opset, path.stem)
        if case is not None:
            found.setdefault(case.key, case)
    drawn = sorted(found.values(), key=lambda c: c.key)
    random.Random(seed).shuffle(drawn)
    yield from drawn[:count]


def _values(model: Any, path: Path, seed: int) -> dict[str, tuple[Any, bool]]:
    """Return the values of a run by name, each with whether it is constant."""
    values = {t.name: (numpy_helper.to_array(t), True) for t in model.graph.initializer}
    feed = _feed(path, seed)
    values |= {name: (array, False) for name, array in feed.items()}
    names = [o for n in model.graph.node for o in n.output if o]
    del model.graph.output[:]
    model.graph.output.extend(ValueInfoProto(name=name) for name in names)
    options = sardonyx.SessionOptions()
    options.graph_optimization_level = sardonyx.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = sardonyx.InferenceSession(model.SerializeToString(), options)
    computed = dict(zip(names, session.run(names, feed), strict=True))
    constants = {n.output[0] for n in model.graph.node if n.op_type == "Constant"}
    return values | {name: (array, name in constants) for name, array in computed.items()}


def _feed(path: Path, seed: int) -> dict[str, Any]:
    """Return the inputs beside the model (NAME.npz), or random ones."""
    example = path.with_suffix(".npz")
    if example.is_file():
        with np.load(example, allow_pickle=False) as arrays:
            return dict(arrays)
    inputs = load_model(path).inputs
    return generate(inputs, input_shapes(inputs, {}, {}), seed)


def _case(node: Any, values: dict[str, tuple[Any, bool]], opset: int, source: str) -> Case | None:
    """Return a node as a case, unless it has a body, or operands that are not (small) arrays."""
    has_body = any(a.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for a in node.attribute)
    if has_body or node.op_type == "Constant" or node.domain not in ("", "ai.onnx", *DOMAINS):
        return None
    operands: list[Array | None] = []
    constants = set()
    for i, name in enumerate(node.input):
        array, is_constant = values.get(name, (None, False)) if name else (None, False)
        if name and not isinstance(array, np.ndarray):
            return None
        operands.append(array)
        if is_constant:
            constants.add(i)
    if sum(x.nbytes for x in operands if x is not None) > LARGEST or not operands:
        return None
    return Case(
        op=node.op_type,
        operands=operands,
        attrs={a.name: helper.get_attribute_value(a) for a in node.attribute},
        constants=frozenset(constants),
        domain="" if node.domain == "ai.onnx" else node.domain,
        opset=opset,
        n_outputs=len(node.output),
        source=source,
    )
