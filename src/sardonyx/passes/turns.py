"""What each op becomes when its images have their channels last: [batch, *spatial, channels]."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final

from sardonyx.base.records import field, frozen
from sardonyx.graph.dim import Shape
from sardonyx.graph.dtype import F32, I8, I64, U8
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node, Value
from sardonyx.graph.op import INTERNAL, MICROSOFT, ONNX, Op
from sardonyx.ops import lookup
from sardonyx.ops.index import MODULES
from sardonyx.passes.last import (
    Maker,
    build_conv,
    build_instance_norm,
    build_norm,
    build_shuffle,
    can_build,
    floats,
    int64s,
)


@frozen
class Turn:
    """How a node works on images with the channels last."""

    slots: tuple[int, ...]  # the inputs that are images
    is_image: bool = True  # the outputs are images too; else they are the same either way
    is_must: bool = False  # the node has no other form worth running
    broadcasts: bool = False  # images may have fewer dims than the output
    op: Op | None = None
    attrs: Mapping[str, Any] = field(default_factory=dict)  # those that change
    inputs: Mapping[int, Value] = field(default_factory=dict)  # axes, pads and the like
    build: Callable[[Maker, Node, list[Value]], Value] | None = None  # where it is several nodes


Turner = Callable[[Node], Turn | None]


def to_last(rank: int) -> tuple[int, ...]:
    """The order of axes that puts the channels last."""
    return (0, *range(2, rank), 1)


def to_first(rank: int) -> tuple[int, ...]:
    """The order of axes that puts the channels back behind the batch."""
    return (0, rank - 1, *range(1, rank - 1))


def is_free(shape: Shape) -> bool:
    """Whether images of a shape are the same bytes either way."""
    return shape[1] == 1 or all(d == 1 for d in shape[2:])


def rank_of(value: Value | None) -> int:
    """The rank of a value, or -1 where it is not a tensor of known rank."""
    fact = None if value is None else value.fact
    return len(fact.shape) if isinstance(fact, Fact) and fact.shape is not None else -1


def turn_of(node: Node) -> Turn | None:
    """How a node would work with the channels last; None if it cannot."""
    turner = TURNS.get(node.op.key)
    if turner is None or rank_of(node.inputs[0]) < 0 or rank_of(node.outputs[0]) < 0:
        return None
    return turner(node)


def _moved(axis: int, rank: int) -> int:
    """Where an axis lies when the channels are last."""
    axis %= rank
    return axis if axis == 0 else rank - 1 if axis == 1 else axis - 1


def _ints(node: Node, slot: int) -> tuple[int, ...] | None:
    value = node.inputs[slot] if len(node.inputs) > slot else None
    return value.tensor.ints if value is not None and isinstance(value.fact, Fact) else None


def _is_given(node: Node, slot: int) -> bool:
    return len(node.inputs) > slot and node.inputs[slot] is not None


def _image(node: Node) -> int:
    """The rank of a node's first input if it is that of images, else 0."""
    rank = rank_of(node.inputs[0])
    return rank if rank >= 3 else 0


def _float32(node: Node) -> bool:
    """Whether a node's first input is an image of float32."""
    return bool(_image(node)) and node.inputs[0].tensor.dtype is F32  # type: ignore[union-attr]


def elementwise(node: Node) -> Turn | None:
    """Operands broadcast as before, each with its axes moved."""
    given = [i for i, v in enumerate(node.inputs) if v is not None]
    if rank_of(node.outputs[0]) < 3 or any(rank_of(node.inputs[i]) < 0 for i in given):
        return None
    return Turn(tuple(given), broadcasts=True)


def alone(node: Node) -> Turn | None:
    """An elementwise op of com.microsoft, where no bias along the last axis is given."""
    return elementwise(node) if len(node.inputs) == 1 else None


def along(node: Node) -> Turn | None:
    """One axis is special."""
    rank = _image(node)
    return Turn((0,), attrs={"axis": _moved(node.attrs["axis"], rank)}) if rank else None


def concat(node: Node) -> Turn | None:
    rank = _image(node)
    if not rank or any(rank_of(v) != rank for v in node.inputs):
        return None
    slots = tuple(range(len(node.inputs)))
    return Turn(slots, attrs={"axis": _moved(node.attrs["axis"], rank)})


def cut(node: Node) -> Turn | None:
    """Slice: its axes are named."""
    rank = _image(node)
    starts = node.inputs[1]
    axes = _ints(node, 3)
    if not _is_given(node, 3) and starts is not None and starts.tensor.static is not None:
        axes = tuple(range(starts.tensor.static[0]))
    if not rank or axes is None:
        return None
    return Turn((0,), inputs={3: int64s([_moved(a, rank) for a in axes])})


def pad(node: Node) -> Turn | None:
    rank = _image(node)
    axes = _ints(node, 3) if _is_given(node, 3) else tuple(range(rank))
    if not rank or axes is None:
        return None
    pads = _ints(node, 1)
    if pads is None or len(axes) != rank or not all(0 <= a < rank for a in axes):
        return Turn((0,), inputs={3: int64s([_moved(a, rank) for a in axes])})
    both = dict(zip(axes, zip(pads[:rank], pads[rank:], strict=True), strict=True))
    order = to_last(rank)
    moved = int64s([both[a][end] for end in (0, 1) for a in order])
    return Turn(
        (0,), inputs={1: moved, **({3: int64s(range(rank))} if len(node.inputs) > 3 else {})}
    )


def resize(node: Node) -> Turn | None:
    """Constant scales or sizes move along; else they stay, and the axes they are for are named."""
    rank = _image(node)
    if not rank:
        return None
    axes, order = node.attrs["axes"], to_last(rank)
    scales = node.inputs[2].const if _is_given(node, 2) else None  # type: ignore[union-attr]
    is_plain = axes is None and not _is_given(node, 1)
    if is_plain and scales is not None and scales.shape == (rank,):
        return Turn((0,), inputs={2: floats(scales.read()[list(order)], F32)})
    sizes = _ints(node, 3) or ()
    if is_plain and len(sizes) == rank:
        return Turn((0,), inputs={3: int64s([sizes[i] for i in order])})
    return Turn((0,), attrs={"axes": tuple(_moved(a, rank) for a in axes or range(rank))})


def reduce(node: Node) -> Turn | None:
    rank = _image(node)
    axes = _ints(node, 1)
    if not _is_given(node, 1) or axes == ():
        axes = () if node.attrs["noop_with_empty_axes"] else tuple(range(rank))
    if not rank or axes is None:
        return None
    moved = {1: int64s([_moved(a, rank) for a in axes])}
    return _without(rank, axes, node.attrs["keepdims"], inputs=moved if axes else {})


def arg(node: Node) -> Turn | None:
    """The place of the largest or smallest along an axis."""
    rank, axis = _image(node), node.attrs["axis"]
    if not rank:
        return None
    return _without(rank, (axis,), node.attrs["keepdims"], attrs={"axis": _moved(axis, rank)})


def squeeze(node: Node) -> Turn | None:
    rank, axes = _image(node), _ints(node, 1)
    if not rank or axes is None:
        return None
    return _without(rank, axes, False, inputs={1: int64s([_moved(a, rank) for a in axes])})


def _without(rank: int, axes: Sequence[int], keeps: object, **change: Any) -> Turn | None:
    """A turn that takes out axes: what is left must be in order, or be images again."""
    gone = {a % rank for a in axes}
    left = [a for a in range(rank) if a not in gone]
    if keeps:
        return Turn((0,), **change)
    moved = [_moved(a, rank) for a in left]
    if moved == sorted(moved):
        return Turn((0,), is_image=False, **change)
    return Turn((0,), **change) if left[:2] == [0, 1] else None


def unsqueeze(node: Node) -> Turn | None:
    axes, rank = _ints(node, 1), rank_of(node.outputs[0])
    if not _image(node) or axes is None or any(a % rank < 2 for a in axes):
        return None
    return Turn((0,), inputs={1: int64s([a % rank - 1 for a in axes])})


def flatten(node: Node) -> Turn | None:
    is_plain = _image(node) and is_free(node.inputs[0].tensor.dims)  # type: ignore[union-attr]
    return Turn((0,), is_image=False) if is_plain and node.attrs["axis"] in (0, 1) else None


def reshape(node: Node) -> Turn | None:
    """Images of one pixel or one channel are what they were; else spatial axes may be regrouped."""
    rank, x = _image(node), node.inputs[0]
    if not rank or x is None:
        return None
    old, new = x.tensor.dims, node.outputs[0].tensor.dims
    if is_free(old):
        shape = target(node, new) if 0 in (_ints(node, 1) or (0,)) else {}
        return None if shape is None else Turn((0,), is_image=False, **shape)
    if len(new) < 3 or old[:2] != new[:2]:
        return None
    shape = target(node, tuple(new[i] for i in to_last(len(new))))
    return None if shape is None else Turn((0,), **shape)


def target(node: Node, shape: Shape) -> dict[str, Any] | None:
    """What a Reshape into these dims reads and says; None where they cannot be told."""
    numbers = [d if isinstance(d, int) else -1 for d in shape]
    if 0 not in numbers and numbers.count(-1) < 2:
        return {"inputs": {1: int64s(numbers)}, "attrs": {"allowzero": 0}}
    given = node.inputs[1] if len(node.inputs) > 1 else None
    maker = None if given is None else given.node
    if given is None or maker is None or maker.op.key != (INTERNAL, "Sizes"):
        return None
    if -1 in (given.tensor.sym or (-1,)):
        return None
    fact = Fact(I64, (len(shape),), None, shape)
    sizes = node.graph.add(maker.op, (), {"fact": fact}, [Value("", fact)])
    return {"inputs": {1: sizes.outputs[0]}, "attrs": {"allowzero": 1}}


def quantize(node: Node) -> Turn | None:
    """One scale, or one for each place along an axis."""
    rank, scale = _image(node), rank_of(node.inputs[1])
    if not rank or scale not in (0, 1) or node.attrs["block_size"]:
        return None
    axis = node.attrs["axis"]
    return Turn((0,), attrs={"axis": _moved(axis, rank)} if scale else {})


def tile(node: Node) -> Turn | None:
    rank, repeats = _image(node), _ints(node, 1)
    if not rank or repeats is None:
        return None
    return Turn((0,), inputs={1: int64s([repeats[i] for i in to_last(rank)])})


def norm(node: Node) -> Turn | None:
    """BatchNormalization by constants."""
    is_const = all(v is not None and v.const is not None for v in node.inputs[1:])
    is_used = any(v.is_used for v in node.outputs[1:])
    if not _float32(node) or not is_const or is_used or node.attrs["training_mode"]:
        return None
    return Turn((0,), build=build_norm)


def instance_norm(node: Node) -> Turn | None:
    return Turn((0,), build=build_instance_norm) if _float32(node) else None


def shuffle(node: Node) -> Turn | None:
    """DepthToSpace and SpaceToDepth, where all sizes behind the batch are known."""
    dims = (*node.inputs[0].tensor.dims[1:], *node.outputs[0].tensor.dims[1:])  # type: ignore[union-attr]
    is_known = len(dims) == 6 and all(isinstance(d, int) and d > 0 for d in dims)
    return Turn((0,), build=build_shuffle) if is_known else None


def product(node: Node) -> Turn | None:
    """Conv, FusedConv and ConvTranspose."""
    if not _float32(node) or not can_build(node):
        return None
    slots = (0, 3) if _is_given(node, 3) else (0,)
    return Turn(slots, is_must=True, build=build_conv)


def pool(node: Node) -> Turn | None:
    x = node.inputs[0]
    is_fit = _image(node) and x is not None and x.tensor.dtype in (F32, I8, U8)
    if not is_fit or any(v.is_used for v in node.outputs[1:]):
        return None
    return Turn((0,), is_must=True, op=lookup(INTERNAL, node.op.name))


def dynamic(node: Node) -> Turn | None:
    """DynamicQuantizeLinear, which has one range for all elements."""
    return Turn((0,)) if _image(node) else None


def bytes_product(node: Node) -> Turn | None:
    """QConv."""
    return Turn((0,), is_must=True, attrs={"channels_last": 1}) if _image(node) else None


def bytes_mean(node: Node) -> Turn | None:
    """QMean."""
    return Turn((0,), is_must=True, attrs={"channels_last": 1}) if _image(node) else None


def bytes_sum(node: Node) -> Turn | None:
    """QAdd, whose operands have one shape."""
    return Turn((0, 3)) if _image(node) else None


def _named(
    names: str, turner: Turner, domain: str = ONNX
) -> Iterable[tuple[tuple[str, str], Turner]]:
    return (((domain, name), turner) for name in names.split())


TURNS: Final[dict[tuple[str, str], Turner]] = {
    **{
        key: elementwise
        for module in ("elementwise.arithmetic", "elementwise.activation")
        for key in MODULES[module]
    },
    **dict(_named("Cast Identity", elementwise)),
    **dict(_named("Gelu FastGelu QuickGelu", alone, MICROSOFT)),
    **dict(_named("Softmax LogSoftmax Hardmax LpNormalization Split", along)),
    **dict(
        _named(
            "ReduceSum ReduceMean ReduceMax ReduceMin ReduceProd ReduceL1 ReduceL2 ReduceLogSum "
            "ReduceLogSumExp ReduceSumSquare",
            reduce,
        )
    ),
    **dict(_named("ArgMax ArgMin", arg)),
    **dict(_named("QuantizeLinear DequantizeLinear", quantize)),
    **dict(_named("DepthToSpace SpaceToDepth", shuffle)),
    **dict(_named("Conv ConvTranspose", product)),
    (MICROSOFT, "FusedConv"): product,
    **dict(
        _named(
            "MaxPool AveragePool LpPool GlobalMaxPool GlobalAveragePool GlobalLpPool",
            pool,
        )
    ),
    (INTERNAL, "QAdd"): bytes_sum,
    (INTERNAL, "QConv"): bytes_product,
    (INTERNAL, "QMean"): bytes_mean,
    (ONNX, "Concat"): concat,
    (ONNX, "DynamicQuantizeLinear"): dynamic,
    (ONNX, "Slice"): cut,
    (ONNX, "Pad"): pad,
    (ONNX, "Resize"): resize,
    (ONNX, "Squeeze"): squeeze,
    (ONNX, "Unsqueeze"): unsqueeze,
    (ONNX, "Flatten"): flatten,
    (ONNX, "Reshape"): reshape,
    (ONNX, "Tile"): tile,
    (ONNX, "BatchNormalization"): norm,
    (ONNX, "InstanceNormalization"): instance_norm,
}
del TURNS[ONNX, "SwiGLU"]
