"""NHWC rules: what each op becomes if its images are [batch, *spatial, channels]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.records import field, frozen
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F32, I8, I64, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value, input_of, optional_input
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX, Op
from sardonyx.ops import lookup
from sardonyx.ops.elementwise.fusible import FUSIBLE
from sardonyx.passes.layout.nhwc_nodes import (
    NodeMaker,
    build_batch_norm,
    build_conv,
    build_depth_space,
    build_instance_norm,
    can_build,
    int64s,
    typed_constant,
)


@frozen
class NhwcRule:
    """How a node works on NHWC images."""

    slots: tuple[int, ...]  # positions of the inputs that are images
    has_image_output: bool = True  # else the outputs are the same in both layouts
    requires_nhwc: bool = False  # the node has no NCHW kernel
    broadcasts: bool = False  # inputs may have fewer dims than the output
    op: Op | None = None  # if it changes
    attrs: Mapping[str, Any] = field(default_factory=dict)  # the attributes that change
    inputs: Mapping[int, Value] = field(default_factory=dict)  # changed inputs, as axes or pads
    # For ops that become several nodes: builds them from the NHWC images.
    build: Callable[[NodeMaker, Node, list[Value]], Value] | None = None


# From a node and the rank of its first input; None: this node cannot work in NHWC.
RuleFor = Callable[[Node, int], NhwcRule | None]


def nhwc_perm(rank: int) -> tuple[int, ...]:
    """The permutation from NCHW to NHWC."""
    return (0, *range(2, rank), 1)


def nchw_perm(rank: int) -> tuple[int, ...]:
    """The permutation from NHWC to NCHW."""
    return (0, rank - 1, *range(1, rank - 1))


def is_same_in_both(shape: Shape) -> bool:
    """Whether an NCHW shape has the same bytes in NHWC: one channel, or one pixel."""
    return shape[1] == 1 or all(d == 1 for d in shape[2:])


def rank_of(value: Value | None) -> int:
    """The rank of a tensor; -1 if it is unknown."""
    fact = None if value is None else value.fact
    return len(fact.shape) if isinstance(fact, Fact) and fact.shape is not None else -1


def nhwc_rule_of(node: Node) -> NhwcRule | None:
    """The NHWC rule of a node; None if it has none."""
    rule_for = NHWC_RULES.get(node.op.key)
    if rule_for is None or rank_of(node.outputs[0]) < 0:
        return None
    rank = rank_of(node.inputs[0])
    # An operand that broadcasts need not have the rank of an image itself.
    is_broadcast = rule_for in (elementwise, unary, quantized_sum)
    return rule_for(node, rank) if rank >= (0 if is_broadcast else 3) else None


def _nhwc_axis(axis: int, rank: int) -> int:
    """The position in NHWC of an NCHW axis."""
    axis %= rank
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1


def _nhwc_axes(axes: Iterable[int], rank: int) -> Value:
    """The positions in NHWC of NCHW axes, as a constant input."""
    return int64s([_nhwc_axis(a, rank) for a in axes])


def _ints(node: Node, slot: int) -> tuple[int, ...] | None:
    """The elements of an integer input, if inference knows them."""
    value = optional_input(node, slot)
    return value.tensor.ints if value is not None and isinstance(value.fact, Fact) else None


def _is_float32(node: Node) -> bool:
    """Whether the first input is float32."""
    return input_of(node, 0).tensor.dtype is F32


def elementwise(node: Node, rank: int) -> NhwcRule | None:
    """Elementwise ops: all operands are permuted and broadcast as before."""
    slots = [i for i, v in enumerate(node.inputs) if v is not None]
    # Operands of lower rank are aligned at the last axis, so all ranks must be known.
    if rank_of(node.outputs[0]) < 3 or any(rank_of(node.inputs[i]) < 0 for i in slots):
        return None
    return NhwcRule(tuple(slots), broadcasts=True)


def unary(node: Node, rank: int) -> NhwcRule | None:
    """Activations of com.microsoft with one input.

    With more they stay NCHW: a bias (BiasGelu, FastGelu) is along the last axis, and the scales of
    QOrderedGelu belong to matrices.
    """
    return elementwise(node, rank) if len(node.inputs) == 1 else None


def along_axis(node: Node, rank: int) -> NhwcRule:
    """Ops along one axis, as Softmax and Split."""
    return NhwcRule((0,), attrs={"axis": _nhwc_axis(node.attrs["axis"], rank)})


def concat(node: Node, rank: int) -> NhwcRule | None:
    """Concat of images of one rank."""
    if any(rank_of(v) != rank for v in node.inputs):
        return None
    slots = tuple(range(len(node.inputs)))
    return NhwcRule(slots, attrs={"axis": _nhwc_axis(node.attrs["axis"], rank)})


def slice_(node: Node, rank: int) -> NhwcRule | None:
    """Slice; axes that are left out are written out."""
    # Without axes, Slice cuts the first len(starts) axes.
    starts, axes = node.inputs[1], _ints(node, 3)
    if optional_input(node, 3) is None and starts is not None and starts.tensor.static is not None:
        axes = tuple(range(starts.tensor.static[0]))
    return None if axes is None else NhwcRule((0,), inputs={3: _nhwc_axes(axes, rank)})


def pad(node: Node, rank: int) -> NhwcRule | None:
    """Pad; constant pads are permuted, others keep their order and name their axes."""
    axes = tuple(range(rank)) if optional_input(node, 3) is None else _ints(node, 3)
    if axes is None:
        return None
    pads = _ints(node, 1)
    if pads is None or len(axes) != rank or not all(0 <= a < rank for a in axes):
        return NhwcRule((0,), inputs={3: _nhwc_axes(axes, rank)})
    # ONNX lists the pads before all axes, then those after all axes.
    both = dict(zip(axes, zip(pads[:rank], pads[rank:], strict=True), strict=True))
    inputs = {1: int64s([both[a][end] for end in (0, 1) for a in nhwc_perm(rank)])}
    if len(node.inputs) > 3:
        inputs[3] = int64s(range(rank))
    return NhwcRule((0,), inputs=inputs)


def resize(node: Node, rank: int) -> NhwcRule:
    """Resize; constant scales or sizes are permuted, others keep their order and name axes."""
    axes, order = node.attrs["axes"], nhwc_perm(rank)
    scales = None if (operand := optional_input(node, 2)) is None else operand.const
    is_plain = axes is None and optional_input(node, 1) is None
    if is_plain and scales is not None and scales.shape == (rank,):
        return NhwcRule((0,), inputs={2: typed_constant(scales.read()[list(order)], F32)})
    sizes = _ints(node, 3) or ()
    if is_plain and len(sizes) == rank:
        return NhwcRule((0,), inputs={3: int64s([sizes[i] for i in order])})
    return NhwcRule((0,), attrs={"axes": tuple(_nhwc_axis(a, rank) for a in axes or range(rank))})


def reduce(node: Node, rank: int) -> NhwcRule | None:
    """Reductions over known axes."""
    axes = _ints(node, 1)
    # No axes mean all of them, unless the attribute says none.
    if optional_input(node, 1) is None or axes == ():
        axes = () if node.attrs["noop_with_empty_axes"] else tuple(range(rank))
    if axes is None:
        return None
    inputs = {1: _nhwc_axes(axes, rank)} if axes else {}
    return _removing_axes(rank, axes, node.attrs["keepdims"], inputs=inputs)


def arg_reduce(node: Node, rank: int) -> NhwcRule | None:
    """ArgMax and ArgMin: an index along the axis is the same in both layouts."""
    axis, keepdims = node.attrs["axis"], node.attrs["keepdims"]
    return _removing_axes(rank, (axis,), keepdims, attrs={"axis": _nhwc_axis(axis, rank)})


def squeeze(node: Node, rank: int) -> NhwcRule | None:
    """Squeeze of known axes."""
    if (axes := _ints(node, 1)) is None:
        return None
    return _removing_axes(rank, axes, False, inputs={1: _nhwc_axes(axes, rank)})


def _removing_axes(rank: int, axes: Sequence[int], keeps: object, **change: Any) -> NhwcRule | None:
    """The rule of an op that removes axes.

    The remaining axes must be in NCHW order, so that the result is the same in both layouts, or
    batch and channels must both remain, so that it is an image again.
    """
    removed = {a % rank for a in axes}
    left = [a for a in range(rank) if a not in removed]
    if keeps:
        return NhwcRule((0,), **change)
    # Dropping the channels, or all spatial axes, leaves the other axes in their NCHW order.
    moved = [_nhwc_axis(a, rank) for a in left]
    if moved == sorted(moved):
        return NhwcRule((0,), has_image_output=False, **change)
    return NhwcRule((0,), **change) if left[:2] == [0, 1] else None


def unsqueeze(node: Node, rank: int) -> NhwcRule | None:
    """Unsqueeze of spatial axes."""
    axes, rank = _ints(node, 1), rank_of(node.outputs[0])
    # A new axis before or next to the channels would change which axis is the channels.
    if axes is None or any(a % rank < 2 for a in axes):
        return None
    return NhwcRule((0,), inputs={1: int64s([a % rank - 1 for a in axes])})


def flatten(node: Node, rank: int) -> NhwcRule | None:
    """Flatten of images whose bytes are the same in both layouts."""
    is_same = is_same_in_both(input_of(node, 0).tensor.dims) and node.attrs["axis"] in (0, 1)
    return NhwcRule((0,), has_image_output=False) if is_same else None


def reshape(node: Node, rank: int) -> NhwcRule | None:
    """Reshape that keeps the bytes, or that regroups spatial axes only."""
    old, new = input_of(node, 0).tensor.dims, node.outputs[0].tensor.dims
    if is_same_in_both(old):
        # A 0 in the target copies a dim, which may be at another position in NHWC.
        shape = reshape_target(node, new) if 0 in (_ints(node, 1) or (0,)) else {}
        return None if shape is None else NhwcRule((0,), has_image_output=False, **shape)
    # Batch and channels stay: spatial axes are contiguous in NHWC, too, and regroup there.
    if len(new) < 3 or old[:2] != new[:2]:
        return None
    shape = reshape_target(node, tuple(new[i] for i in nhwc_perm(len(new))))
    return None if shape is None else NhwcRule((0,), **shape)


def reshape_target(node: Node, shape: Shape) -> dict[str, Any] | None:
    """The target input and attributes of a Reshape to these dims; None if unknown."""
    # At most one symbolic dim can be written as -1; more need a Sizes node.
    numbers = [d if isinstance(d, int) else -1 for d in shape]
    if 0 not in numbers and numbers.count(-1) < 2:
        return {"inputs": {1: int64s(numbers)}, "attrs": {"allowzero": 0}}
    operand = optional_input(node, 1)
    maker = None if operand is None else operand.node
    is_sizes = maker is not None and maker.op.key == (INTERNAL, "Sizes")
    if operand is None or maker is None or not is_sizes or -1 in (operand.tensor.sym or (-1,)):
        return None
    # The dims follow from those of the inputs, as the Sizes node of the old target shows.
    fact = Fact(I64, (len(shape),), None, shape)
    sizes = node.graph.add(maker.op, (), {"fact": fact}, [Value("", fact)])
    return {"inputs": {1: sizes.outputs[0]}, "attrs": {"allowzero": 1}}


def quantize(node: Node, rank: int) -> NhwcRule | None:
    """QuantizeLinear and DequantizeLinear with one scale, or one per position of an axis."""
    scale_rank = rank_of(node.inputs[1])
    if scale_rank not in (0, 1) or node.attrs["block_size"]:
        return None
    return along_axis(node, rank) if scale_rank else NhwcRule((0,))


def tile(node: Node, rank: int) -> NhwcRule | None:
    """Tile with known repeats."""
    if (repeats := _ints(node, 1)) is None:
        return None
    return NhwcRule((0,), inputs={1: int64s([repeats[i] for i in nhwc_perm(rank)])})


def batch_norm(node: Node, rank: int) -> NhwcRule | None:
    """BatchNormalization with constant statistics, which become a factor and a shift."""
    # Outputs after the first are running statistics of training.
    is_const = all(v is not None and v.const is not None for v in node.inputs[1:])
    is_used = any(v.is_used for v in node.outputs[1:])
    if not _is_float32(node) or not is_const or is_used or node.attrs["training_mode"]:
        return None
    return NhwcRule((0,), build=build_batch_norm)


def instance_norm(node: Node, rank: int) -> NhwcRule | None:
    """InstanceNormalization of float32."""
    return NhwcRule((0,), build=build_instance_norm) if _is_float32(node) else None


def depth_space(node: Node, rank: int) -> NhwcRule | None:
    """DepthToSpace and SpaceToDepth, if all sizes after the batch are known."""
    dims = (*input_of(node, 0).tensor.dims[1:], *node.outputs[0].tensor.dims[1:])
    is_known = len(dims) == 6 and all(isinstance(d, int) and d > 0 for d in dims)
    return NhwcRule((0,), build=build_depth_space) if is_known else None


def conv(node: Node, rank: int) -> NhwcRule | None:
    """Conv, FusedConv and ConvTranspose of float32: their kernels are NHWC."""
    if not _is_float32(node) or not can_build(node):
        return None
    # Input 3 of FusedConv is an image that is added to the result.
    slots = (0,) if optional_input(node, 3) is None else (0, 3)
    return NhwcRule(slots, requires_nhwc=True, build=build_conv)


def weight_gradient(node: Node, rank: int) -> NhwcRule:
    """ConvWeightGradient, whose kernels are NHWC; weights have one layout."""
    attrs = {"channels_last": 1}
    return NhwcRule((0, 1), has_image_output=False, requires_nhwc=True, attrs=attrs)


def pooling(node: Node, rank: int) -> NhwcRule | None:
    """Poolings, which have kernels for both layouts: internal ops of the same names are NHWC."""
    has_kernel = input_of(node, 0).tensor.dtype in (F32, I8, U8)
    if any(v.is_used for v in node.outputs[1:]):  # the indices of MaxPool
        if not _is_float32(node) or node.attrs["storage_order"]:
            return None
        return NhwcRule((0,), requires_nhwc=True, op=lookup(INTERNAL, "IndexedMaxPool"))
    if not has_kernel:
        return None
    has_unused_outputs = len(node.outputs) > 1  # which the internal op does not have
    op = lookup(INTERNAL, node.op.name)
    return NhwcRule((0,), requires_nhwc=has_unused_outputs, op=op)


def quantized_image(node: Node, rank: int) -> NhwcRule:
    """QConv, whose kernels are NHWC."""
    return NhwcRule((0,), requires_nhwc=True, attrs={"channels_last": 1})


def quantized_mean(node: Node, rank: int) -> NhwcRule | None:
    """QMean, which a model may have over NHWC images already."""
    is_last = node.attrs["channels_last"]
    return None if is_last else NhwcRule((0,), attrs={"channels_last": 1})


def quantized_sum(node: Node, rank: int) -> NhwcRule | None:
    """QAdd, whose operands broadcast."""
    if rank_of(node.outputs[0]) < 3 or rank_of(node.inputs[3]) < 0:
        return None
    return NhwcRule((0, 3), broadcasts=True)


def _named(names: str, rule_for: RuleFor) -> dict[tuple[str, str], RuleFor]:
    """The entries of ops, separated by spaces, that share a rule."""
    return {(ONNX, name): rule_for for name in names.split()}


# Ops that are missing keep NCHW and read NCHW forms of their inputs.
NHWC_RULES: Final[dict[tuple[str, str], RuleFor]] = {
    **{key: elementwise for key in FUSIBLE if key[0] == ONNX},
    **_named("Identity", elementwise),
    **{key: unary for key in FUSIBLE if key[0] == MICROSOFT},
    **_named("Softmax LogSoftmax Hardmax LpNormalization Split", along_axis),
    **_named(
        "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
        "ReduceLogSumExp ReduceSumSquare",
        reduce,
    ),
    **_named("ArgMax ArgMin", arg_reduce),
    **_named("QuantizeLinear DequantizeLinear", quantize),
    **_named("DepthToSpace SpaceToDepth", depth_space),
    **_named("Conv ConvTranspose", conv),
    (MICROSOFT, "FusedConv"): conv,
    **_named("MaxPool AveragePool LpPool", pooling),
    (INTERNAL, "ConvWeightGradient"): weight_gradient,
    (INTERNAL, "QAdd"): quantized_sum,
    (INTERNAL, "QConv"): quantized_image,
    (INTERNAL, "QMean"): quantized_mean,
    (ONNX, "Concat"): concat,
    (ONNX, "DynamicQuantizeLinear"): lambda node, rank: NhwcRule((0,)),  # one scale for all
    (ONNX, "Slice"): slice_,
    (ONNX, "Pad"): pad,
    (ONNX, "Resize"): resize,
    (ONNX, "Squeeze"): squeeze,
    (ONNX, "Unsqueeze"): unsqueeze,
    (ONNX, "Flatten"): flatten,
    (ONNX, "Reshape"): reshape,
    (ONNX, "Tile"): tile,
    (ONNX, "BatchNormalization"): batch_norm,
    (ONNX, "InstanceNormalization"): instance_norm,
}
# Its operands must have one shape, while the elementwise rule lets them broadcast.
del NHWC_RULES[ONNX, "SwiGLU"]
