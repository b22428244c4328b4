"""Converts models: element types, opsets, external data, fixed sizes, .onnx and .ort files.

`convert` reads a model from a file or memory and writes another file. Weights are read where they
are, and written one at a time; a file is replaced only by a complete one, and never one that is
read.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.log import logger
from sardonyx.base.records import field, frozen, mutable
from sardonyx.convert.dims import check_names, sizes_of, with_output_dims
from sardonyx.convert.half import HalfReport, to_half
from sardonyx.convert.half_plan import KEPT_OPS, HalfOptions, half_type
from sardonyx.convert.inference import loaded
from sardonyx.convert.opset import lower_opset, needed_opset
from sardonyx.convert.rounded import Range
from sardonyx.errors import InvalidArgument
from sardonyx.graph.dtype import DType
from sardonyx.graph.graph import Graph
from sardonyx.graph.op import ONNX
from sardonyx.load import NEWEST, LoadOptions, load
from sardonyx.load.model import Model
from sardonyx.load.source import ModelBytes, read_model
from sardonyx.save import MAX_BYTES, SaveOptions, save, serialized

KEPT: Final = KEPT_OPS
_LARGE: Final = 1 << 30  # bytes of weights that get a file of their own
_MIN_BYTES: Final = 1024  # of weights in that file


@frozen
class ConvertOptions:
    """Options of a conversion."""

    dtype: str | None = None  # float16 or bfloat16, instead of float32
    keep_io_types: bool | Collection[str] = False  # inputs and outputs that stay float32
    op_block_list: Collection[str] = KEPT_OPS  # ops that stay float32
    node_block_list: Collection[str] = ()  # nodes that stay float32, by name
    min_positive: float | None = None  # magnitudes of weights; None: the limits of the type
    max_finite: float | None = None
    opset: int | None = None  # of ai.onnx; None: that of the model, or a newer one if needed
    dims: Mapping[str, int] = field(default_factory=dict)  # sizes of symbolic dims
    shapes: Mapping[str, Sequence[int]] = field(default_factory=dict)  # of inputs
    external_data: str | bool | None = None  # a file beside the output; None: if large


@mutable
class Converted:
    """The result of `convert`."""

    files: list[str]
    opset: int
    half: HalfReport | None = None


def convert(
    model: Any, output: str | os.PathLike[str], options: ConvertOptions | None = None
) -> Converted:
    """Convert a model and write it to a file: .ort by that suffix, else ONNX.

    `model` is a path, bytes, or an onnx.ModelProto. Raises before anything is written if the
    output is a file that is read.
    """
    options = options or ConvertOptions()
    path = os.path.abspath(os.fsdecode(output))
    source = read_model(model)
    changed, report = converted(source, options)
    is_ort = path.lower().endswith(".ort")
    if is_ort and options.external_data:
        raise InvalidArgument(
            f"{path} cannot have external data: files in the .ort format hold their weights",
            hint="write an .onnx file",
        )
    data_file = _data_file(options, changed.graph, source, path) if not is_ort else None
    outputs = [path]
    if data_file is not None:
        outputs.append(os.path.normpath(os.path.join(os.path.dirname(path), data_file)))
    _check_outputs(outputs, _inputs(model, source))
    opset = needed_opset(changed, options.opset or changed.opsets.get(ONNX, 0))
    save(changed, SaveOptions(path, data_file, _MIN_BYTES, is_ort, opset))
    return Converted([p for p in outputs if os.path.exists(p)], opset, report)


def convert_to_bytes(model: Any, options: ConvertOptions) -> bytes:
    """Convert a model as `convert` does, and return it as an ONNX file of less than 2 GB."""
    changed, _ = converted(read_model(model), options)
    return to_bytes(changed, options.opset or 0)


def to_bytes(model: Model, opset: int = 0) -> bytes:
    """Return a model as an ONNX file, in its own opset or a given one, or a newer one if needed."""
    opset = needed_opset(model, opset or model.opsets.get(ONNX, 0))
    message = serialized(model, None, opset)
    if message.size > MAX_BYTES:
        raise InvalidArgument(
            f"the model would have {message.size} bytes, and a ModelProto has at most {MAX_BYTES}",
            hint="convert it from file to file: sardonyx.convert.convert, or sardonyx convert",
        )
    return bytes(message.joined())


def converted(
    source: ModelBytes, options: ConvertOptions, half: HalfOptions | None = None
) -> tuple[Model, HalfReport | None]:
    """Return a model with these changes, ready to be saved; `half` overrides the 16-bit type's."""
    model = _fixed(source, options)
    if options.opset is not None and not 1 <= options.opset <= NEWEST[ONNX]:
        raise InvalidArgument(f"there is no opset {options.opset}; the newest is {NEWEST[ONNX]}")
    report = None
    if half is None and options.dtype is not None:
        half = half_options(options)
        _warn_of_unknown(model.graph, half.kept_nodes)
    if half is not None:
        model, report = to_half(model, half)
    if options.opset is not None:
        lower_opset(model, options.opset)
    return model, report


def _warn_of_unknown(graph: Graph, names: Collection[str]) -> None:
    for name in sorted(set(names) - {node.name for node in graph.all_nodes()}):
        logger.warning("no node has the name %s, which was to stay in float32", name)


def _fixed(source: ModelBytes, options: ConvertOptions) -> Model:
    """Return the inferred model, with its sizes fixed."""
    declared = load(source) if options.dims or options.shapes else None
    if declared is None:
        return loaded(source, LoadOptions(), {})
    check_names(declared, options.dims)
    sizes = dict(options.dims) | sizes_of(declared, options.shapes)
    model = loaded(source, LoadOptions(dims_by_name=sizes), options.shapes)
    return with_output_dims(model)


def half_options(options: ConvertOptions) -> HalfOptions:
    """Return the options of the conversion to a 16-bit type."""
    dtype = half_type(options.dtype or "")
    if dtype is None:
        raise InvalidArgument(f"{options.dtype!r} is not a type: give float16 or bfloat16")
    keeps = options.keep_io_types
    return HalfOptions(
        dtype,
        keeps if isinstance(keeps, bool) else names_in(keeps, "keep_io_types"),
        names_in(options.op_block_list, "op_block_list"),
        names_in(options.node_block_list, "node_block_list"),
        limits(dtype, options.min_positive, options.max_finite),
        opset=options.opset or 0,
    )


def names_in(given: Collection[str], what: str) -> frozenset[str]:
    """Return names; raise for a string, which would be taken for its letters."""
    if isinstance(given, str):
        raise InvalidArgument(f"{what} must be a list of names, got the string {given!r}")
    return frozenset(given)


def limits(dtype: DType, least: float | None, largest: float | None) -> Range:
    """Return the magnitudes that weights keep in a 16-bit type."""
    within = Range.of(dtype, least, largest)
    if within.least > within.largest:
        raise InvalidArgument(
            f"no number is between the least magnitude {least} and the largest, {largest}"
        )
    return within


def _data_file(options: ConvertOptions, graph: Graph, source: ModelBytes, path: str) -> str | None:
    """Return the name of the file for the weights, if they get one."""
    wanted = options.external_data
    if isinstance(wanted, str):
        return wanted
    if wanted is None:
        wanted = bool(source.files.states()) or _weight_bytes(graph) > _LARGE
    return f"{os.path.basename(path)}.data" if wanted else None


def _weight_bytes(graph: Graph) -> int:
    values = {v for n in graph.all_nodes() for v in n.inputs if v is not None}
    return sum(v.const.size_bytes for v in values if v.const is not None)


def _inputs(model: Any, source: ModelBytes) -> list[str]:
    """Return the files that a model was read from."""
    own = [os.fsdecode(model)] if isinstance(model, (str, os.PathLike)) else []
    return [*(own if own and os.path.exists(own[0]) else []), *source.files.states()]


def _check_outputs(outputs: Iterable[str], inputs: Sequence[str]) -> None:
    for path in outputs:
        for source in inputs:
            if os.path.exists(path) and os.path.exists(source) and os.path.samefile(path, source):
                raise InvalidArgument(f"{path} is a file of the model itself: choose another name")
