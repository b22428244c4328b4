"""Regions of a graph as functions over tensors."""

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
from sardonyx.providers.torch.claim import COPY, FEW, LOOKS, SIZES, row_of
from sardonyx.providers.torch.codegen import FILE, Arg, Key, Line, Pack, Source, Writer
from sardonyx.providers.torch.constant_layouts import ALIGNED_BYTES, CHANNELS_LAST, COLUMNS
from sardonyx.providers.torch.cuda_graphs import Asked, Graphs, put
from sardonyx.providers.torch.device_tensors import Owner, owner_of
from sardonyx.providers.torch.index import KERNELS
from sardonyx.providers.torch.kernel import Packing, TorchKernel
from sardonyx.weights.loading import Conversion, WeightReference

if TYPE_CHECKING:
    from sardonyx.program.program import Run
    from sardonyx.providers.torch import Torch

_VIEWS: Final = frozenset((
    "Reshape", "Flatten", "Squeeze", "Unsqueeze", "Transpose", "Split", "Identity",
))  # fmt: skip
_BATCH_BYTES: Final = 2 << 30  # of constants that are packed together
_KEPT: Final = 8  # sets of sizes whose fixed part is kept, and
_KEPT_BYTES: Final = 256 << 20  # what all of them may take; the last one may take more


@frozen
class Bound:
    """A region for one set of sizes."""

    shapes: tuple[Any, ...]
    fixed: tuple[Any, ...]
    owners: frozenset[Owner]  # of the tensors among these
    size_bytes: int  # of those that are no weights


class TorchRegion:
    """A region, compiled; its weights come to the device when it is prepared."""

    def __init__(self, provider: Torch, region: Region) -> None:
        self.kernel = "torch"
        self._provider = provider
        self._lines = _lines(provider, region)
        self.source: Source = Writer(region, self._lines).source()
        self._named = _Named(region)
        self._opens = region.opens
        self._names = sorted(_names(self.source, self._lines) - region.opens)
        self._shares = [_numbered(region, pairs) for pairs in self.source.shared]
        self._lock = Lock()
        self._bound: OrderedDict[tuple[int, ...], Bound] = OrderedDict()
        self._owners: frozenset[Owner] = frozenset()  # of the weights
        self._body: Callable[..., Any] | None = None
        self._fixed: Callable[..., Any] | None = None
        self._graphs: Graphs | None = None
        if provider.recorder is not None and not self._waits():
            self._graphs = Graphs(provider.recorder)

    def _waits(self) -> bool:
        """Whether something in it waits for the device, so that it cannot be a graph."""
        return any(_syncs(line) for line in self._lines if not line.is_fixed)

    def prepare(self, check: Callable[[], None]) -> None:
        """Brings the weights to the device."""
        if self._body is not None:
            return
        weights = self._load(self.source.weights, check)
        self._owners = frozenset(map(owner_of, weights))
        packs = self._packs(check)
        space: dict[str, Any] = {}
        exec(self.source.code(), space)
        self._fixed, self._body = space["make"](self.source.things, weights, packs)

    def _load(self, keys: Sequence[Key], check: Callable[[], None]) -> list[Any]:
        return self._provider.load([self._named.reference(key) for key in keys], check)

    def _packs(self, check: Callable[[], None]) -> list[Any]:
        """Things made of constants, which are on the device a few at a time."""
        made: list[Any] = []
        for packs in _batches(self.source.packs):
            keys = [key for pack in packs for key in pack.keys if key is not None]
            loaded = iter(self._load(keys, check))
            for pack in packs:
                made += [pack.make(*(None if k is None else next(loaded) for k in pack.keys))]
        return made

    def __call__(self, values: Sequence[Any], run: Run, places: Sequence[Any]) -> Sequence[Any]:
        """The region's outputs."""
        return self.in_place(values, run, places, {})

    def in_place(
        self, values: Sequence[Any], run: Run, places: Sequence[Any], shared: Mapping[int, int]
    ) -> Sequence[Any]:
        """The same where outputs belong into the memory of inputs, both by number.

        Those are written there that functions can write there; others are made elsewhere.
        """
        self.prepare(run.check)
        flags, places = self._flags(values, places, shared)
        with self._provider.running():
            bound, dims = self.bound(run.dims), run.dims
            if self._graphs is not None and run.graph_id >= 0:
                shapes = tuple([tuple(v.shape) for v in values])
                key = (run.graph_id, flags, self.key(dims), shapes)
                asked = Asked(values, places, key, run.is_bound, bound)
                made = self._graphs.run(
                    asked, lambda given: self.outputs(given, bound, dims, flags)
                )
                if made is not None:
                    return made
            return tuple(map(put, self.outputs(values, bound, dims, flags), places))

    def _flags(
        self, values: Sequence[Any], places: Sequence[Any], shared: Mapping[int, int]
    ) -> tuple[tuple[bool, ...], Sequence[Any]]:
        """Which calls write to their inputs, and the places of outputs with these in them."""
        if not shared or not self._shares:
            return (False,) * len(self._shares), places
        flags, places = [], list(places)
        for pairs in self._shares:
            is_shared = all(shared.get(o) == i for i, o in pairs)
            flags.append(is_shared)
            for i, o in pairs if is_shared else ():
                places[o] = values[i]
        return tuple(flags), places

    def keeps(self, value: Any) -> bool:
        """Whether a tensor lies in the memory of weights, or of what depends on sizes alone."""
        owner = owner_of(value)
        with self._lock:
            return owner in self._owners or any(owner in b.owners for b in self._bound.values())

    def release_graphs(self, graph_id: int) -> None:
        """Forgets the CUDA graphs of runs of an id."""
        if self._graphs is not None:
            self._graphs.release(graph_id)

    def outputs(
        self,
        values: Sequence[Any],
        bound: Bound,
        dims: Mapping[str, int],
        flags: tuple[bool, ...],
    ) -> tuple[Any, ...]:
        """What the body makes of values for a set of sizes."""
        assert self._body is not None
        try:
            made: tuple[Any, ...] = self._body(values, bound.shapes, bound.fixed, dims, flags)
        except SardonyxError:
            raise
        except Exception as error:
            raise self._located(error) from error
        return made

    def bound(self, dims: Mapping[str, int]) -> Bound:
        """The region for the sizes of a run, made unless it was."""
        key = self.key(dims)
        with self._lock:
            found = self._bound.get(key)
            if found is not None:
                self._bound.move_to_end(key)
                return found
        made = self._bind(dims)
        with self._lock:
            self._bound[key] = made
            total = sum(b.size_bytes for b in self._bound.values())
            while len(self._bound) > 1 and (len(self._bound) > _KEPT or total > _KEPT_BYTES):
                total -= self._bound.popitem(last=False)[1].size_bytes
        return made

    def key(self, dims: Mapping[str, int]) -> tuple[int, ...]:
        """The sizes that the region depends on."""
        return tuple([dims[name] for name in self._names])

    def _bind(self, dims: Mapping[str, int]) -> Bound:
        assert self._fixed is not None
        shapes = tuple(
            tuple(sizes_of(shape, dims, self._opens) for shape in given)
            for given in self.source.shapes
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
        return Bound(shapes, fixed, frozenset(sizes), own)

    def _located(self, error: Exception) -> SardonyxError:
        """An error that names the node whose line failed."""
        node, trace = None, error.__traceback__
        while trace is not None:
            if trace.tb_frame.f_code.co_filename == FILE:
                node = self.source.lines.get(trace.tb_lineno, node)
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
    """The sizes of a shape; None for those that depend on a name which is open."""
    return tuple(None if symbols(d) & opens else evaluate(d, dims) for d in shape)


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0]


def _lines(provider: Torch, region: Region) -> list[Line]:
    fixed: set[Node] = set()
    lines = []
    inside = set(region.nodes)
    for node in region.nodes:
        makers = [v.node for v in node.inputs if v is not None and v.const is None]
        is_fixed = node.op.is_pure and all(m in inside and m in fixed for m in makers)
        if is_fixed:
            fixed.add(node)
        line = _line(provider, region, node, is_fixed)
        if (row := KERNELS.get(node.op.key)) is not None and row.shares and not is_fixed:
            line = replace(line, shares=_shares(region, node, row.shares))
        lines.append(line)
    return _with_leads(lines)


def _with_leads(lines: list[Line]) -> list[Line]:
    """Lines with kernels of ours are told which of them come right before another such one."""
    launching = [i for i, line in enumerate(lines) if line.node.op.name not in _VIEWS]
    for i, after in pairwise(launching):
        rows = [KERNELS.get(lines[j].node.op.key) for j in (i, after)]
        if all(row is not None and row.dependent_launch for row in rows):
            lines[i] = replace(lines[i], keywords={**lines[i].keywords, "next_waits": True})
    return lines


def _shares(
    region: Region, node: Node, pairs: Sequence[tuple[int, int]]
) -> tuple[tuple[Value, Value], ...]:
    """Inputs and outputs of a node that one memory may hold: nobody else reads the input."""
    found = []
    for i, o in pairs:
        past = node.inputs[i] if i < len(node.inputs) else None
        if past is None or o >= len(node.outputs) or past not in region.inputs:
            return ()
        if len(past.uses) != 1 or past.n_exits or node.outputs[o] not in region.outputs:
            return ()
        found.append((past, node.outputs[o]))
    return tuple(found)


def _numbered(region: Region, pairs: Sequence[tuple[Value, Value]]) -> list[tuple[int, int]]:
    """Pairs by number among inputs and outputs."""
    return [(region.inputs.index(i), region.outputs.index(o)) for i, o in pairs]


def _line(provider: Torch, region: Region, node: Node, is_fixed: bool) -> Line:
    key = node.op.key
    if key == COPY:
        goes_home = node.attrs["to"] == HOST.encode()
        function: Callable[..., Any] = provider.to_host if goes_home else provider.to_device
        copied = _operand(node.inputs[0], on_host=True)
        return Line(node, function, (copied,), {}, is_fixed=is_fixed)
    if key == SIZES:
        rule = node.op.reference_rule
        assert rule is not None
        return Line(node, rule, (), node.attrs, takes_dims=True, is_fixed=is_fixed)
    if key in LOOKS:
        return Line(node, LOOKS[key], tuple(node.inputs), node.attrs, is_fixed=is_fixed)
    row = row_of(node)
    assert not isinstance(row, No)
    operands = [
        _operand(v, row.is_array(i, v), _form(provider, row, i, v))
        for i, v in enumerate(node.inputs)
    ]
    if row.packing is not None:
        operands = _packed(row.packing, node, operands)
    operands += [None] * node.op.n_absent(len(node.inputs))
    shapes = tuple(v.tensor.dims for v in node.outputs) if row.sized else None
    is_made_anew = all(v is None or i in row.host for i, v in enumerate(node.inputs))
    keywords = node.attrs
    if row.fixed_point and _feeds_nbits_matmuls(region, node):
        keywords = {**keywords, "gives_fixed_point": True}
    if key == FEW and not _is_read_by_nbits_matmuls(region, node.outputs[0]):
        keywords = {**keywords, "makes_digits": 0}
    return Line(
        node,
        _made_on(provider.place, row.function) if is_made_anew else row.function,
        tuple(operands),
        keywords,
        shapes,
        is_fixed=is_fixed,
        returns_one=len(node.op.outputs) == 1 and not node.op.outputs[0].variadic,
    )


def _feeds_nbits_matmuls(region: Region, node: Node) -> bool:
    """Whether a node's first output is x of products of few bits without a norm, and no more."""
    out = node.outputs[0]
    return _is_read_by_nbits_matmuls(region, out) and all(
        slot == 0 and n.inputs[4] is None and n.graph is node.graph for n, slot in out.uses
    )


def _is_read_by_nbits_matmuls(region: Region, value: Value) -> bool:
    """Whether all that read a value know digits: products of few bits in its region."""
    return value not in region.outputs and all(n.op.key == FEW for n, _ in value.uses)


def _made_on(place: torch.device, function: Callable[..., Any]) -> Callable[..., Any]:
    """A function that is given no tensor, and so does not know where to make one."""

    def run(*arrays: Any, **keywords: Any) -> Any:
        with place:
            return function(*arrays, **keywords)

    return run


def _form(provider: Torch, row: TorchKernel, position: int, value: Value | None) -> str:
    """The form in which a function wants a constant."""
    shape = None if value is None or value.const is None else value.const.shape
    if shape is None or value is None:
        return ""
    if position in row.columns and len(shape) == 2:
        # Products of halves whose rows are not aligned are many times slower.
        return COLUMNS if shape[1] * value.tensor.dtype.itemsize % ALIGNED_BYTES else ""
    is_image = position in row.images and len(shape) == 4
    return CHANNELS_LAST if is_image and provider.options.prefer_nhwc else ""


def _operand(value: Value | None, on_host: bool, form: str = "") -> Value | Arg | None:
    if value is None or value.const is None:
        return value
    return Arg(thing=value.const.read()) if on_host else Arg(key=(value.const, form))


def _packed(
    packing: Packing, node: Node, operands: list[Value | Arg | None]
) -> list[Value | Arg | None]:
    """The operands with one thing in the place of constants, if they all are constants."""
    keys: list[Key | None] = []
    for i in packing.inputs:
        operand = operands[i] if i < len(operands) else None
        if isinstance(operand, Value) or (operand is not None and operand.key is None):
            return operands
        keys.append(None if operand is None else operand.key)
    pack = Pack(tuple(keys), partial(packing.make, **node.attrs))
    first, *rest = packing.inputs
    return [
        Arg(pack=pack) if i == first else None if i in rest else operand
        for i, operand in enumerate(operands)
    ]


def _batches(packs: Sequence[Pack]) -> Iterator[list[Pack]]:
    """Packs whose constants fit on the device beside what is made of them."""
    batch: list[Pack] = []
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


class _Named:
    """The constants of a region, by the names that the model gives them."""

    def __init__(self, region: Region) -> None:
        read = (v for node in region.nodes for v in node.inputs if v is not None)
        self._names = {v.const: v.name for v in read if v.const is not None}

    def reference(self, key: Key) -> WeightReference:
        """What a loader is told of a constant in a form."""
        const, form = key
        name = self._names[const] or const.describe()
        return WeightReference(name, const, conversion=_conversion(const, form))


def _conversion(const: Const, form: str) -> Conversion | None:
    if form not in (CHANNELS_LAST, COLUMNS):
        return None
    return Conversion(form, const.dtype, const.shape, lambda made: made)


def _syncs(line: Line) -> bool:
    if line.node.op.key == COPY:
        return True
    row = row_of(line.node) if line.node.op.key not in (SIZES, *LOOKS) else None
    return row is not None and not isinstance(row, No) and row.syncs


def _names(source: Source, lines: Sequence[Line]) -> set[str]:
    found = {n for given in source.shapes for shape in given for d in shape for n in symbols(d)}
    for line in lines:
        if line.takes_dims:
            fact = line.node.attrs["fact"]
            found.update(n for d in fact.sym or () for n in symbols(d))
    return found
