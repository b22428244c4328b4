"""Compiles regions of a graph to functions over tensors."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Final

import torch

from sardonyx.base.locks import Lock
from sardonyx.base.records import frozen, replace
from sardonyx.errors import RuntimeException, SardonyxError
from sardonyx.graph.const import Const
from sardonyx.graph.dim import Shape, evaluate, symbols
from sardonyx.graph.graph import Node, Value
from sardonyx.place.provider import HOST, No, Region
from sardonyx.providers.torch.claim import COPY, NBITS_MATMUL, SHAPE_OPS, SIZES, kernel_of
from sardonyx.providers.torch.codegen import (
    FILE,
    ConstantArg,
    GeneratedCall,
    GeneratedSource,
    PackedConstant,
    SourceWriter,
    WeightKey,
)
from sardonyx.providers.torch.cuda_graphs import GraphCache, GraphRequest, copy_to
from sardonyx.providers.torch.device_tensors import Owner, owner_of
from sardonyx.providers.torch.index import KERNELS
from sardonyx.providers.torch.kernel import (
    ALIGNED_BYTES,
    CHANNELS_LAST,
    COLUMNS,
    Packing,
    TorchKernel,
)
from sardonyx.weights.loading import Conversion, WeightReference

if TYPE_CHECKING:
    from sardonyx.program.program import Run
    from sardonyx.providers.torch import Torch

_VIEWS: Final = frozenset((
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Split", "Identity",
))  # fmt: skip
_BATCH_BYTES: Final = 2 << 30  # constants on the device at a time while they are packed
# LRU cache of specializations: entries, and bytes of all; the latest may exceed them alone.
_MAX_SPECIALIZATIONS: Final = 8
_MAX_SPECIALIZATION_BYTES: Final = 256 << 20


@frozen
class Specialization:
    """A region for one set of sizes: its shapes, and the values that depend on them alone."""

    shapes: tuple[Any, ...]
    fixed: tuple[Any, ...]
    owners: frozenset[Owner]  # of the tensors in `fixed`
    size_bytes: int  # of `fixed`, weights excluded


class TorchRegion:
    """A compiled region; `prepare` loads its weights to the device."""

    def __init__(self, provider: Torch, region: Region) -> None:
        self.kernel = "torch"
        self._provider = provider
        self._calls = _calls(provider, region)
        self.source: GeneratedSource = SourceWriter(region, self._calls).source()
        self._constant_names = _ConstantNames(region)
        self._opens = region.opens
        self._names = sorted(_size_names(self.source, self._calls) - region.opens)
        self._shares = [_as_indices(region, pairs) for pairs in self.source.shared]
        self._lock = Lock()  # guards `_specializations`
        self._preparing = Lock()  # one thread loads the weights, others wait
        self._specializations: OrderedDict[tuple[int, ...], Specialization] = OrderedDict()
        self._owners: frozenset[Owner] = frozenset()  # of the weights
        self._body: Callable[..., Any] | None = None
        self._fixed: Callable[..., Any] | None = None
        self._graphs: GraphCache | None = None
        if provider.recorder is not None and not self._synchronizes():
            self._graphs = GraphCache(provider.recorder)

    def _synchronizes(self) -> bool:
        """Return whether a call synchronizes with the device: then it cannot be captured."""
        return any(_syncs(call) for call in self._calls if not call.is_fixed)

    def prepare(self, check: Callable[[], None]) -> None:
        """Load the weights to the device, once."""
        if self._body is None:
            with self._preparing:
                if self._body is None:
                    self._make_body(check)

    def _make_body(self, check: Callable[[], None]) -> None:
        # The source has no strings of the model, so executing it is safe.
        weights = self._load(self.source.weights, check)
        self._owners = frozenset(map(owner_of, weights))
        packs = self._packs(check)
        namespace: dict[str, Any] = {}
        exec(self.source.code(), namespace)
        self._fixed, self._body = namespace["make"](self.source.objects, weights, packs)

    def _load(self, keys: Sequence[WeightKey], check: Callable[[], None]) -> list[Any]:
        return self._provider.load([self._constant_names.reference(key) for key in keys], check)

    def _packs(self, check: Callable[[], None]) -> list[Any]:
        """Return the packed constants; their sources are loaded in batches, then freed."""
        packed: list[Any] = []
        for packs in _batches(self.source.packs):
            keys = [key for pack in packs for key in pack.keys if key is not None]
            loaded = iter(self._load(keys, check))
            for pack in packs:
                tensors = (None if k is None else next(loaded) for k in pack.keys)
                packed.append(pack.make(*tensors))
        return packed

    def __call__(self, values: Sequence[Any], run: Run, places: Sequence[Any]) -> Sequence[Any]:
        """Return the region's outputs."""
        return self.in_place(values, run, places, {})

    def in_place(
        self, values: Sequence[Any], run: Run, places: Sequence[Any], shared: Mapping[int, int]
    ) -> Sequence[Any]:
        """Return the outputs, where `shared` maps outputs to inputs whose memory they may reuse.

        Functions that support it write in place; other outputs are copied to `places` (buffers
        that the caller provides, or None).
        """
        self.prepare(run.check)
        flags, places = self._flags(values, places, shared)
        with self._provider.running():
            specialized, dims = self.specialized(run.dims), run.dims
            # A negative graph id (run option gpu_graph_id) means a run without a CUDA graph.
            if self._graphs is not None and run.graph_id >= 0:
                shapes = tuple([tuple(v.shape) for v in values])
                key = (run.graph_id, flags, self.key(dims), shapes)
                request = GraphRequest(values, places, key, run.is_bound, specialized)
                outputs = self._graphs.run(
                    request, lambda inputs: self.outputs(inputs, specialized, dims, flags)
                )
                if outputs is not None:
                    return outputs
            return tuple(map(copy_to, self.outputs(values, specialized, dims, flags), places))

    def _flags(
        self, values: Sequence[Any], places: Sequence[Any], shared: Mapping[int, int]
    ) -> tuple[tuple[bool, ...], Sequence[Any]]:
        """Return which calls write in place, and the output buffers with those inputs in them."""
        if not shared or not self._shares:
            return (False,) * len(self._shares), places
        # A call writes in place only if all of its pairs are shared.
        flags, places = [], list(places)
        for pairs in self._shares:
            is_shared = all(shared.get(o) == i for i, o in pairs)
            flags.append(is_shared)
            for i, o in pairs if is_shared else ():
                places[o] = values[i]
        return tuple(flags), places

    def aliases_persistent_memory(self, value: Any) -> bool:
        """Return whether a tensor aliases weights or cached fixed values: it must be copied out."""
        owner = owner_of(value)
        with self._lock:
            return owner in self._owners or any(
                owner in s.owners for s in self._specializations.values()
            )

    def release_graphs(self, graph_id: int) -> None:
        """Release the CUDA graphs of a graph id."""
        if self._graphs is not None:
            self._graphs.release(graph_id)

    def outputs(
        self,
        values: Sequence[Any],
        specialized: Specialization,
        dims: Mapping[str, int],
        flags: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        """Return the outputs of the generated body for a set of sizes."""
        assert self._body is not None
        try:
            outputs: tuple[Any, ...] = self._body(
                values, specialized.shapes, specialized.fixed, dims, flags
            )
        except SardonyxError:
            raise
        except Exception as error:
            raise self._located(error) from error
        return outputs

    def specialized(self, dims: Mapping[str, int]) -> Specialization:
        """Return the specialization for the sizes of a run, cached."""
        key = self.key(dims)
        with self._lock:
            cached = self._specializations.get(key)
            if cached is not None:
                self._specializations.move_to_end(key)
                return cached
        # Outside of the lock: two threads may both compute it, and either result is good.
        new = self._specialize(dims)
        with self._lock:
            self._specializations[key] = new
            total = sum(s.size_bytes for s in self._specializations.values())
            while len(self._specializations) > 1 and (
                len(self._specializations) > _MAX_SPECIALIZATIONS
                or total > _MAX_SPECIALIZATION_BYTES
            ):
                total -= self._specializations.popitem(last=False)[1].size_bytes
        return new

    def key(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """Return the sizes that the region depends on."""
        return tuple([dims[name] for name in self._names])

    def _specialize(self, dims: Mapping[str, int]) -> Specialization:
        assert self._fixed is not None
        shapes = tuple(
            tuple(sizes_of(shape, dims, self._opens) for shape in outputs)
            for outputs in self.source.shapes
        )
        try:
            fixed = self._fixed(shapes, dims)
        except SardonyxError:
            raise
        except Exception as error:
            raise self._located(error) from error
        tensors = [v for v in fixed if isinstance(v, torch.Tensor)]
        sizes = {owner_of(t): t.untyped_storage().nbytes() for t in tensors}
        own = sum(size for owner, size in sizes.items() if owner not in self._owners)
        return Specialization(shapes, fixed, frozenset(sizes), own)

    def _located(self, error: Exception) -> SardonyxError:
        """Return an error that names the node whose generated line failed."""
        node, trace = None, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILE:
                node = self.source.nodes_by_line.get(trace.tb_lineno, node)
            trace = trace.tb_next
        where = {} if node is None else {"node": node}
        if isinstance(error, torch.OutOfMemoryError):
            what = f"{self._provider.device} is out of memory: {_first_line(error)}"
            hint = "feed smaller sizes, or give the device less of the model by gpu_mem_limit"
            return RuntimeException(what, **where, hint=hint)
        return RuntimeException(f"{type(error).__name__}: {_first_line(error)}", **where)


def sizes_of(
    shape: Shape, dims: Mapping[str, int], opens: AbstractSet[str]
) -> tuple[int | None, ...]:
    """Return the sizes of a shape; None for those that depend on data (open names)."""
    return tuple(None if symbols(d) & opens else evaluate(d, dims) for d in shape)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _calls(provider: Torch, region: Region) -> list[GeneratedCall]:
    fixed: set[Node] = set()
    calls = []
    inside = set(region.nodes)
    # Nodes are in topological order: producers come first.
    for node in region.nodes:
        producers = [v.node for v in node.inputs if v is not None and v.const is None]
        # Fixed: computed from constants and sizes alone, so once per specialization.
        is_fixed = node.op.is_pure and all(m in inside and m in fixed for m in producers)
        if is_fixed:
            fixed.add(node)
        call = _call(provider, region, node, is_fixed)
        kernel = KERNELS.get(node.op.key)
        if kernel is not None and kernel.shares and not is_fixed:
            call = replace(call, shares=_aliasing_pairs(region, node, kernel.shares))
        calls.append(call)
    return _with_dependent_launches(calls)


def _with_dependent_launches(calls: list[GeneratedCall]) -> list[GeneratedCall]:
    """Tell each call of our kernels whether the next launch is one of ours, too.

    Only these wait for their predecessor (programmatic dependent launch). Views launch nothing.
    """
    launching = [i for i, call in enumerate(calls) if call.node.op.name not in _VIEWS]
    for i, after in pairwise(launching):
        kernels = [KERNELS.get(calls[j].node.op.key) for j in (i, after)]
        if all(kernel is not None and kernel.dependent_launch for kernel in kernels):
            calls[i] = replace(calls[i], keywords={**calls[i].keywords, "next_waits": True})
    return calls


def _aliasing_pairs(
    region: Region, node: Node, pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[Value, Value], ...]:
    """Return the (input, output) pairs of a node that may alias: only the node reads the input."""
    aliasing = []
    for i, o in pairs:
        past = node.inputs[i] if i < len(node.inputs) else None
        if past is None or o >= len(node.outputs) or past not in region.inputs:
            return ()
        if len(past.uses) != 1 or past.n_exits or node.outputs[o] not in region.outputs:
            return ()
        aliasing.append((past, node.outputs[o]))
    return tuple(aliasing)


def _as_indices(region: Region, pairs: Sequence[tuple[Value, Value]]) -> list[tuple[int, int]]:
    """Return pairs as indices of the region's inputs and outputs."""
    return [(region.inputs.index(i), region.outputs.index(o)) for i, o in pairs]


def _call(provider: Torch, region: Region, node: Node, is_fixed: bool) -> GeneratedCall:
    key = node.op.key
    if key == COPY:
        is_to_host = node.attrs["to"] == HOST.encode()
        function: Callable[..., Any] = provider.to_host if is_to_host else provider.to_device
        operand = _operand(node.inputs[0], on_host=True)
        return GeneratedCall(node, function, (operand,), {}, is_fixed=is_fixed)
    if key == SIZES:
        rule = node.op.reference_rule
        assert rule is not None
        return GeneratedCall(node, rule, (), node.attrs, takes_dims=True, is_fixed=is_fixed)
    if key in SHAPE_OPS:
        return GeneratedCall(
            node, SHAPE_OPS[key], tuple(node.inputs), node.attrs, is_fixed=is_fixed
        )
    kernel = kernel_of(node)
    assert not isinstance(kernel, No)
    operands = [
        _operand(v, kernel.is_array(i, v), _weight_layout(provider, kernel, i, v))
        for i, v in enumerate(node.inputs)
    ]
    # Prepacked constants replace several operands by one object.
    if kernel.packing is not None:
        operands = _pack_operands(kernel.packing, node, operands)
    operands += [None] * node.op.n_absent(len(node.inputs))
    shapes = tuple(v.tensor.dims for v in node.outputs) if kernel.sized else None
    # Kernels without a tensor input learn the device from torch's default device.
    has_no_tensor = all(v is None or i in kernel.host for i, v in enumerate(node.inputs))
    return GeneratedCall(
        node,
        _on_device(provider.torch_device, kernel.function) if has_no_tensor else kernel.function,
        tuple(operands),
        _keywords(region, node, kernel),
        shapes,
        is_fixed=is_fixed,
        returns_one=len(node.op.outputs) == 1 and not node.op.outputs[0].variadic,
    )


def _keywords(region: Region, node: Node, kernel: TorchKernel) -> dict[str, Any]:
    """Return the attributes, and whether results stay in fixed point for n-bit matmuls."""
    keywords = node.attrs
    if kernel.fixed_point and _feeds_nbits_matmuls(region, node):
        keywords = {**keywords, "gives_fixed_point": True}
    # Others would read the floats: the conversion to fixed point would be wasted.
    if node.op.key == NBITS_MATMUL and not _is_read_by_nbits_matmuls(region, node.outputs[0]):
        keywords = {**keywords, "quantizes_output": 0}
    return keywords


def _feeds_nbits_matmuls(region: Region, node: Node) -> bool:
    """Return whether only n-bit matmuls without a norm read a node's first output, as x."""
    out = node.outputs[0]
    return _is_read_by_nbits_matmuls(region, out) and all(
        slot == 0 and n.inputs[4] is None and n.graph is node.graph for n, slot in out.uses
    )


def _is_read_by_nbits_matmuls(region: Region, value: Value) -> bool:
    """Return whether only n-bit matmuls of the region, which accept fixed point, read a value."""
    return value not in region.outputs and all(n.op.key == NBITS_MATMUL for n, _ in value.uses)


def _on_device(device: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function without tensor inputs, which creates its tensors on a device."""

    def run(*arrays: Any, **keywords: Any) -> Any:
        with device:
            return function(*arrays, **keywords)

    return run


def _weight_layout(provider: Torch, kernel: TorchKernel, position: int, value: Value | None) -> str:
    """Return the layout that a kernel prefers for a constant."""
    shape = None if value is None or value.const is None else value.const.shape
    if shape is None or value is None:
        return ""
    if position in kernel.columns and len(shape) == 2:
        # Matmuls of 16-bit floats are many times slower if rows are not 16-byte aligned.
        return COLUMNS if shape[1] * value.tensor.dtype.itemsize % ALIGNED_BYTES else ""
    # cuDNN's convolutions on tensor cores prefer channels-last weights.
    is_image = position in kernel.images and len(shape) == 4
    return CHANNELS_LAST if is_image and provider.options.prefer_nhwc else ""


def _operand(value: Value | None, on_host: bool, layout: str = "") -> Value | ConstantArg | None:
    if value is None or value.const is None:
        return value
    if on_host:
        return ConstantArg(host_object=value.const.read())
    return ConstantArg(key=(value.const, layout))


def _pack_operands(
    packing: Packing, node: Node, operands: list[Value | ConstantArg | None]
) -> list[Value | ConstantArg | None]:
    """Replace operands by one packed object, if all of them are constants."""
    keys: list[WeightKey | None] = []
    for i in packing.inputs:
        operand = operands[i] if i < len(operands) else None
        if isinstance(operand, Value) or (operand is not None and operand.key is None):
            return operands
        keys.append(None if operand is None else operand.key)
    pack = PackedConstant(tuple(keys), partial(packing.make, **node.attrs))
    first, *rest = packing.inputs
    return [
        ConstantArg(pack=pack) if i == first else None if i in rest else operand
        for i, operand in enumerate(operands)
    ]


def _batches(packs: Sequence[PackedConstant]) -> Iterator[list[PackedConstant]]:
    """Yield packs in batches, so that constants and results fit on the device together."""
    batch: list[PackedConstant] = []
    size = 0
    for pack in packs:
        more = sum(const.size_bytes for const, _ in filter(None, pack.keys))
        if batch and size + more > _BATCH_BYTES:
            yield batch
            batch, size = [], 0
        batch.append(pack)
        size += more
    if batch:
        yield batch


class _ConstantNames:
    """The model's names of the constants of a region, for messages."""

    def __init__(self, region: Region) -> None:
        read = (v for node in region.nodes for v in node.inputs if v is not None)
        self._names = {v.const: v.name for v in read if v.const is not None}

    def reference(self, key: WeightKey) -> WeightReference:
        """Return the loader's reference to a constant in a layout."""
        const, layout = key
        name = self._names[const] or const.describe()
        return WeightReference(name, const, conversion=_conversion(const, layout))


def _conversion(const: Const, layout: str) -> Conversion | None:
    if layout not in (CHANNELS_LAST, COLUMNS):
        return None
    # The loader allocates by layout, and copying into that converts: nothing else is to be done.
    return Conversion(layout, const.dtype, const.shape, lambda tensor: tensor)


def _syncs(call: GeneratedCall) -> bool:
    if call.node.op.key == COPY:
        return True
    kernel = kernel_of(call.node) if call.node.op.key not in (SIZES, *SHAPE_OPS) else None
    return kernel is not None and not isinstance(kernel, No) and kernel.syncs


def _size_names(source: GeneratedSource, calls: Sequence[GeneratedCall]) -> set[str]:
    """Return the symbolic sizes that shapes and calls depend on."""
    dims = (d for shapes in source.shapes for shape in shapes for d in shape)
    names = {name for d in dims for name in symbols(d)}
    for call in calls:
        if call.takes_dims:
            fact = call.node.attrs["fact"]
            names.update(n for d in fact.sym or () for n in symbols(d))
    return names
