"""Expected results of a case: its ONNX model, run by onnxruntime or by onnx's reference."""

from __future__ import annotations

import functools
from collections.abc import Collection, Sequence
from typing import Any

import ml_dtypes
import numpy as np
import onnx
import onnx.defs
import onnxruntime  # type: ignore[import-untyped]
from onnx import AttributeProto, TypeProto, helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from sardonyx.graph.show import attr_kind
from sardonyx.ops import lookup
from tests.op_cases import Array, Case

NEWEST = {"": 28, "ai.onnx.ml": 5, "ai.onnx.preview": 1, "ai.onnx.preview.training": 1}
ORT_NEWEST = {"": 26, "ai.onnx.ml": 5, "com.microsoft": 1}
ORT_IR = 13
# Types that onnxruntime hands to numpy only after a cast to one that holds all their values.
CARRIERS = {
    "bfloat16": (np.float32, ml_dtypes.bfloat16),
    "float8e4m3fn": (np.float32, ml_dtypes.float8_e4m3fn),
    "float8e4m3fnuz": (np.float32, ml_dtypes.float8_e4m3fnuz),
    "float8e5m2": (np.float32, ml_dtypes.float8_e5m2),
    "float8e5m2fnuz": (np.float32, ml_dtypes.float8_e5m2fnuz),
    "int4": (np.int8, ml_dtypes.int4),
    "uint4": (np.uint8, ml_dtypes.uint4),
}
KINDS = {
    "int": AttributeProto.INT,
    "float": AttributeProto.FLOAT,
    "bytes": AttributeProto.STRING,
    "ints": AttributeProto.INTS,
    "floats": AttributeProto.FLOATS,
    "strings": AttributeProto.STRINGS,
    "tensor": AttributeProto.TENSOR,
    "graph": AttributeProto.GRAPH,
    "type": AttributeProto.TYPE_PROTO,
}

onnxruntime.set_default_logger_severity(4)


class NoAnswer(Exception):
    """An oracle cannot run a case."""


def input_names(case: Case) -> list[str]:
    """The names of a case's inputs in its model; empty for absent ones."""
    return ["" if x is None else f"x{i}" for i, x in enumerate(case.inputs)]


def feeds_of(case: Case) -> dict[str, Any]:
    """The inputs of a case by name."""
    return {n: x for n, x in zip(input_names(case), case.inputs, strict=True) if n}


def opset_of(case: Case) -> int:
    """The opset of the case's domain."""
    return case.opset or NEWEST.get(case.domain, 1)


def model_of(
    case: Case,
    *,
    constants: Collection[str] = (),
    symbolic: bool = False,
    unranked: Collection[str] = (),
    opsets: dict[str, int] | None = None,
) -> onnx.ModelProto:
    """The case as a model of one node; inputs may be constants, dims may be names.

    The tensors among the `unranked` inputs have no shape at all.
    """
    feeds = feeds_of(case)
    outputs = [f"y{i}" for i in range(case.outputs)]
    node = helper.make_node(case.op, _trimmed(input_names(case)), outputs, domain=case.domain)
    node.attribute.extend(attribute_of(case, k, v) for k, v in case.attrs.items() if v is not None)
    inputs = [
        helper.make_value_info(n, _type(x, n if symbolic else None))
        for n, x in feeds.items()
        if n not in constants
    ]
    for info in inputs:
        if info.name in unranked and info.type.HasField("tensor_type"):
            info.type.tensor_type.ClearField("shape")
    graph = helper.make_graph(
        [node], "case", inputs, [onnx.ValueInfoProto(name=n) for n in outputs],
        [numpy_helper.from_array(_storable(feeds[n]), n) for n in feeds if n in constants],
    )  # fmt: skip
    versions = opsets or {"": NEWEST[""], case.domain: opset_of(case)}
    imports = [helper.make_opsetid(d, v) for d, v in versions.items()]
    return helper.make_model(graph, opset_imports=imports, ir_version=onnx.IR_VERSION)


def _trimmed(names: list[str]) -> list[str]:
    while names and not names[-1]:
        names = names[:-1]
    return names


def _storable(array: Any) -> Array:
    plain: Array = np.asarray(array)
    return plain.astype(object) if plain.dtype.kind in "US" else plain


def _type(value: Any, name: str | None) -> TypeProto:
    """The type of an input; with a name, each dim is called after it and its position."""
    if isinstance(value, list):
        elem = _type(value[0], None) if value else helper.make_tensor_type_proto(1, None)
        if value and isinstance(value[0], np.ndarray):
            elem = helper.make_tensor_type_proto(_onnx_type(value[0]), None)
        return helper.make_sequence_type_proto(elem)
    if isinstance(value, dict):
        key, item = next(iter(value.items()))
        key_type = onnx.TensorProto.STRING if isinstance(key, str) else onnx.TensorProto.INT64
        plain = np.float32(item) if isinstance(item, float) else item  # as maps hold it
        return helper.make_map_type_proto(key_type, _type(np.asarray(plain), None))
    array = np.asarray(value)
    dims = [f"{name}_{i}" for i in range(array.ndim)] if name else list(array.shape)
    return helper.make_tensor_type_proto(_onnx_type(array), dims)


def _onnx_type(array: Array) -> int:
    if array.dtype.kind in "OUS":
        return onnx.TensorProto.STRING
    return int(helper.np_dtype_to_tensor_dtype(array.dtype))


def attribute_of(case: Case, name: str, value: Any) -> AttributeProto:
    kind = _attribute_kind(case, name)
    if kind == AttributeProto.TENSOR and isinstance(value, np.ndarray):
        value = numpy_helper.from_array(value)
    elif isinstance(value, np.ndarray):
        value = value.tolist()
    elif isinstance(value, (bool, np.generic)):
        value = value.item() if isinstance(value, np.generic) else int(value)
    if kind == AttributeProto.FLOAT and isinstance(value, int):
        value = float(value)
    if kind == AttributeProto.FLOATS and isinstance(value, (list, tuple)):
        value = [float(v) if isinstance(v, int) else v for v in value]
    is_empty = isinstance(value, (list, tuple)) and not value
    return helper.make_attribute(name, value, attr_type=kind if is_empty else None)


def _attribute_kind(case: Case, name: str) -> int | None:
    schema = _schema(case, opset_of(case))
    if schema is None:
        op = lookup(case.domain, case.op)
        spec = None if op is None else op.attrs.get(name)
        return KINDS.get(attr_kind(spec).removeprefix("array "))
    if name not in schema.attributes:
        return None
    kind = str(schema.attributes[name].type).rpartition(".")[2]
    return int(AttributeProto.AttributeType.Value(kind))


def answers(case: Case) -> Sequence[Any]:
    """The results that a case must give: those it knows itself, else the oracle's."""
    if case.expect is not None:
        return case.expect
    asked = {
        "auto": (by_onnxruntime, by_onnx),
        "onnxruntime": (by_onnxruntime,),
        "onnx": (by_onnx,),
    }
    refusals: list[str] = []
    for ask in asked[case.oracle]:
        try:
            return ask(case)
        except NoAnswer as reason:
            refusals.append(f"{ask.__name__}: {str(reason)[:400]}")
    raise NoAnswer("\n".join(refusals))


def by_onnxruntime(case: Case) -> Sequence[Any]:
    """The case run by onnxruntime, without its optimizers."""
    opsets = _ort_opsets(case)
    # Types that numpy lends no buffer for travel as constants.
    foreign = [
        n for n, x in feeds_of(case).items() if getattr(x, "dtype", np.dtype("f4")).kind == "V"
    ]
    model = model_of(case, constants=foreign, opsets=opsets)
    model.ir_version = ORT_IR
    feeds = {n: _storable(x) if isinstance(x, np.ndarray) else x for n, x in feeds_of(case).items()}
    feeds = {n: x for n, x in feeds.items() if n not in foreign}
    try:
        session = _ort_session(model)
        carried = [CARRIERS.get(o.type[7:-1]) for o in session.get_outputs()]
        if any(carried):
            session = _ort_session(with_casts(model, carried))
        results = session.run(None, feeds)
    except Exception as error:  # its classes share no base, and any of them means that it cannot
        raise NoAnswer(str(error)) from error
    return [r if c is None else r.astype(c[1]) for r, c in zip(results, carried, strict=True)]


def _ort_opsets(case: Case) -> dict[str, int]:
    newest, wanted = ORT_NEWEST.get(case.domain), opset_of(case)
    if newest is None:
        raise NoAnswer(f"onnxruntime has no {case.domain}")
    if wanted > newest and case.oracle == "auto":
        schemas = [_schema(case, version) for version in (wanted, newest)]
        if _signature(schemas[0]) != _signature(schemas[1]):
            raise NoAnswer(f"{case.op} changed after the newest version that onnxruntime has")
    return {"": ORT_NEWEST[""], case.domain: min(wanted, newest)}


def _schema(case: Case, version: int) -> onnx.defs.OpSchema | None:
    try:
        return onnx.defs.get_schema(case.op, version, case.domain)
    except onnx.defs.SchemaError:
        return None


def _signature(schema: onnx.defs.OpSchema | None) -> Any:
    """Return a schema without types: equal for two versions of which the newer only adds types."""
    if schema is None:
        return None
    return [p.name for p in schema.inputs], sorted(schema.attributes)


@functools.cache
def _ort_options() -> onnxruntime.SessionOptions:
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.intra_op_num_threads = 1
    options.log_severity_level = 4
    return options


def _ort_session(model: onnx.ModelProto) -> onnxruntime.InferenceSession:
    data = model.SerializeToString()
    return onnxruntime.InferenceSession(data, _ort_options(), providers=["CPUExecutionProvider"])


def with_casts(model: onnx.ModelProto, carried: Sequence[Any]) -> onnx.ModelProto:
    """The model with a cast after each output that onnxruntime cannot hand out."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    for output, carrier in zip(model.graph.output, carried, strict=True):
        if carrier is not None:
            to = helper.np_dtype_to_tensor_dtype(np.dtype(carrier[0]))
            cast = helper.make_node("Cast", [output.name], [f"{output.name}_cast"], to=to)
            model.graph.node.append(cast)
            output.name = f"{output.name}_cast"
            output.ClearField("type")
    return model


def by_onnx(case: Case) -> Sequence[Any]:
    """The case run by the reference evaluator of onnx."""
    try:
        return list(ReferenceEvaluator(model_of(case)).run(None, feeds_of(case)))
    except Exception as error:  # it raises whatever numpy raises
        raise NoAnswer(f"{type(error).__name__}: {error}") from error


def difference(actual: Any, expected: Any, ulps: float) -> str:
    """Empty if two results agree: same type and shape, and floats within ulps of the largest."""
    if isinstance(expected, (list, tuple)):
        if not isinstance(actual, (list, tuple)) or len(actual) != len(expected):
            return f"a sequence of {len(expected)} expected, not {actual!r:.200}"
        pairs = enumerate(zip(actual, expected, strict=True))
        found = ((i, difference(a, e, ulps)) for i, (a, e) in pairs)
        return next((f"at {i}: {text}" for i, text in found if text), "")
    if isinstance(expected, dict):
        if not isinstance(actual, dict) or actual.keys() != expected.keys():
            return f"{expected!r:.200} expected, not {actual!r:.200}"
        found = ((k, difference(actual[k], e, ulps)) for k, e in expected.items())
        return next((f"at {k!r}: {text}" for k, text in found if text), "")
    if expected is None or actual is None:
        return "" if expected is actual else f"{expected!r} expected, not {actual!r}"
    return _array_difference(np.asarray(actual), np.asarray(expected), ulps)


def _array_difference(actual: Array, expected: Array, ulps: float) -> str:
    actual, expected = _storable(actual), _storable(expected)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        return f"{expected.dtype}{expected.shape} expected, not {actual.dtype}{actual.shape}"
    if actual.dtype.kind == "c":
        parts = [(a.real, a.imag) for a in (actual, expected)]
        return difference(parts[0], parts[1], ulps)
    if actual.dtype.kind not in "fV" or not _is_float(actual.dtype):
        same = actual == expected
        return "" if np.all(same) else _first_difference(actual, expected, ~np.asarray(same))
    return _float_difference(actual, expected, ulps)


def _is_float(dtype: np.dtype[Any]) -> bool:
    try:
        ml_dtypes.finfo(dtype)  # type: ignore[no-untyped-call]
    except ValueError:
        return False
    return True


def _float_difference(actual: Array, expected: Array, ulps: float) -> str:
    info = ml_dtypes.finfo(actual.dtype)  # type: ignore[no-untyped-call]
    a, e = actual.astype(np.float64), expected.astype(np.float64)
    finite = np.isfinite(e)
    special = ~finite & ~((a == e) | (np.isnan(a) & np.isnan(e)))
    wrong = special | (finite & ~np.isfinite(a))
    if np.any(wrong):
        return _first_difference(actual, expected, wrong)
    scale = np.max(np.abs(e), initial=0.0, where=finite)
    unit = max(float(info.eps) * scale, float(info.smallest_subnormal))
    gap = np.where(finite, np.abs(np.where(finite, a, 0) - np.where(finite, e, 0)), 0)
    if not gap.size or gap.max() <= ulps * unit:
        return ""
    worst = f"{gap.max() / unit:.1f} ulps, {ulps} are allowed; "
    return worst + _first_difference(actual, expected, gap > ulps * unit)


def _first_difference(actual: Array, expected: Array, wrong: Array) -> str:
    where = tuple(int(i) for i in np.argwhere(wrong)[0])
    count = int(np.count_nonzero(wrong))
    return (
        f"{count} of {wrong.size} differ, first at {where}: {actual[where]}, not {expected[where]}"
    )
