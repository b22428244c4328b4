"""Weight layouts: constants as their kernels read them (prepacked, aligned, or as stored).

A kernel that reads a weight in a layout of its own has a packing kernel, which prepacks the weight
once when a session starts. Sessions of one process share the results; a pack has them in its file.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final
from weakref import WeakSet

import sardonyx._native as native
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import STORE, Array, Store, pages
from sardonyx.errors import RuntimeException
from sardonyx.graph.const import Const, PackedStrings, Recipe, SourceConst
from sardonyx.graph.dtype import F32, STRING

PLAIN: Final = ""  # aligned and contiguous, one element per item
STORED: Final = "stored"  # the bytes of its file, perhaps unaligned, sub-byte types packed
STRINGS: Final = "texts"  # records of a pointer and a length in bytes, then the characters
_U8: Final = 2  # TensorProto.UINT8
_PARALLEL_BYTES: Final = 1 << 20  # below it, waking the thread pool costs more than packing
# Packing kernels with an optional second operand: one factor per output channel.
_SCALED_PACKING: Final = frozenset(("conv_pack",))


@frozen
class WeightLayout:
    """A constant in a layout; equal ones are the same bytes."""

    const: Const
    kind: str = PLAIN  # PLAIN, STORED, STRINGS, or the name of a packing kernel
    size_bytes: int = 0  # of the packed bytes
    ints: tuple[int, ...] = ()  # arguments of the packing kernel

    @property
    def key(self) -> Hashable | None:
        """A key that is equal for equal bytes; None if the constant has no identity."""
        identity = self.const.identity
        return None if identity is None else (identity, self.kind, self.ints)

    @property
    def is_packed(self) -> bool:
        """Whether a packing kernel produces it."""
        return self.kind not in (PLAIN, STORED, STRINGS)

    @property
    def is_readable_in_place(self) -> bool:
        """Whether kernels read the bytes of the mapped file or of the user's buffer, uncopied."""
        const = self.const
        if self.is_packed or not isinstance(const, SourceConst):
            return False
        return self.kind == STORED or const.is_readable_in_place

    @property
    def is_shared(self) -> bool:
        """Whether it is worth sharing between programs: small constants are copied by each."""
        return self.is_packed or not (self.const.is_small or self.is_readable_in_place)

    @property
    def own_bytes(self) -> int:
        """The memory that it occupies in addition to its source."""
        if self.is_packed:
            return self.size_bytes
        if self.is_readable_in_place:
            return 0
        const = self.const
        return const.dtype.packed_bytes(const.count) if self.kind == STORED else const.size_bytes


def default_layout(const: Const) -> WeightLayout:
    """Return the layout of a constant for kernels without a packing kernel."""
    return WeightLayout(const, STRINGS if const.dtype is STRING else PLAIN)


class PrepackedWeightsContainer:
    """Weight layouts that sessions share; they live as long as this object, not as a session.

    Weights in writable buffers are shared too, which the default sharing does not do: the buffers
    must not change while the container is alive.
    """

    def __init__(self) -> None:
        self._store: Store[Array] = Store()
        self._arrays: dict[Hashable, Array] = {}

    @property
    def size_bytes(self) -> int:
        """The memory of all layouts in it."""
        return sum(array.nbytes for array in self._arrays.values())

    def __len__(self) -> int:
        """The number of layouts in it."""
        return len(self._arrays)

    def share(self, layout: WeightLayout, make: Callable[[], Array]) -> Array:
        """Return the array of a layout; `make` is called if it is not here yet. Thread-safe."""
        content_id = layout.const.content_id
        if content_id is None or not layout.is_shared:
            return make()
        key = (content_id.key, layout.kind, layout.ints)
        array = self._arrays[key] = self._store.share(key, make, layout.const)
        return array


def tensor(array: Any, dtype: int) -> tuple[int, int, list[int], list[int]]:
    """Return an array as an argument of `native.call`: address, type, shape, strides."""
    strides = [s // array.itemsize for s in array.strides]
    return (native.address(array), dtype, list(array.shape), strides)


class LayoutCache:
    """The constants of a program in the layouts that its kernels read, made on first use.

    It owns the arrays: addresses that it returns are valid as long as it is alive.
    """

    def __init__(self, find: Callable[[WeightLayout], Array | None] | None = None) -> None:
        """`find` returns packed layouts that need not be computed: those of a pack."""
        self.container: PrepackedWeightsContainer | None = None
        self._arrays: dict[WeightLayout, Array] = {}
        self._find = find
        self._check: Callable[[], None] | None = None
        _ALIVE.add(self)

    def address(self, layout: WeightLayout) -> int:
        """Return the address of the bytes of a layout."""
        return native.address(self.array(layout))

    def array(self, layout: WeightLayout) -> Array:
        """Return the bytes of a layout: cached, from a pack, shared, or made now."""
        array = self._arrays.get(layout)
        if array is None:
            self.check()
            array = self.find_prepacked(layout)
            if array is None and self.container is not None:
                array = self.container.share(layout, lambda: _make(layout))
            elif array is None:
                array = _make(layout)
            self._arrays[layout] = array
        return array

    def check(self) -> None:
        """Raise if loading was cancelled."""
        if self._check is not None:
            self._check()

    @contextlib.contextmanager
    def checking(self, check: Callable[[], None]) -> Iterator[None]:
        """Call `check`, which may raise to cancel, before each layout that is made meanwhile."""
        self._check = check
        try:
            yield
        finally:
            self._check = None

    def find_prepacked(self, layout: WeightLayout) -> Array | None:
        """Return a packed layout from the pack, if it has it."""
        return self._find(layout) if self._find is not None and layout.is_packed else None

    def n_other_users(self, layout: WeightLayout) -> int:
        """Return how many other programs of this process read the same memory."""
        array = self._arrays.get(layout)
        if array is None:
            return 0
        others = (cache for cache in list(_ALIVE) if cache is not self)
        return sum(any(a is array for a in cache._arrays.values()) for cache in others)


_ALIVE: Final[WeakSet[LayoutCache]] = WeakSet()


class LayoutRecorder(LayoutCache):
    """Records the requested layouts and makes none: a pack is written from the list."""

    def __init__(self) -> None:
        super().__init__()
        self.layouts: dict[WeightLayout, None] = {}

    def address(self, layout: WeightLayout) -> int:
        self.layouts[layout] = None
        return 0


def _make(layout: WeightLayout) -> Array:
    const = layout.const
    if layout.kind == PLAIN:
        return const.read()
    if layout.kind == STORED:
        return const.stored()
    if layout.kind == STRINGS:
        if isinstance(const, PackedStrings):
            return const.block
        return native.pack_strings(const.read())
    return STORE.share(layout.key, lambda: prepack(layout), const)


def prepack(layout: WeightLayout) -> Array:
    """Run the packing kernel of a layout; the array owns its memory."""
    const = layout.const
    array = pages(layout.size_bytes)
    if not layout.size_bytes:
        return array  # an empty weight; its other dims may be huge, so it is not read
    sources = _scale_factors(const) if layout.kind in _SCALED_PACKING else (const,)
    for source in sources:
        if isinstance(source, SourceConst):
            source.fetch()
    # Views, not reads: after packing, a session keeps the packed layout alone.
    weights = [source.view() for source in sources]
    operands = [tensor(w, const.dtype.onnx) for w in weights], [tensor(array, _U8)]
    n_splits = 1 if layout.size_bytes < _PARALLEL_BYTES else 0  # 0: as many as the pool has threads
    error = native.call(layout.kind, *operands, list(layout.ints), [], n_splits)
    if error:
        raise RuntimeException(f"packing {const.describe()} failed: {error}")
    return array


def _scale_factors(const: Const) -> tuple[Const, ...]:
    """Return (weights, factors) if a constant is their product, else (constant,).

    Folding BatchNormalization into a Conv leaves such recipes, with one factor per output channel.
    The packing kernel multiplies while it packs, so the product is never materialized.
    """
    if not isinstance(const, Recipe) or const.op.key != ("", "Mul") or const.dtype is not F32:
        return (const,)
    weights, factors = const.inputs
    assert weights is not None
    assert factors is not None
    per_channel = (*const.shape[:1], *(1,) * len(const.shape[1:]))
    if weights.shape != const.shape or factors.shape != per_channel:
        return (const,)
    return weights, factors
