"""The forms in which kernels read constants: as they lie, aligned, or packed by a kernel row."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable, Iterator
from typing import Any, Final
from weakref import WeakSet

import sardonyx._native as native
from sardonyx.base.records import frozen
from sardonyx.base.shared_store import STORE, Array, Store, pages
from sardonyx.errors import RuntimeException
from sardonyx.graph.const import Const, Recipe, Ref, Words
from sardonyx.graph.dtype import F32, STRING

PLAIN: Final = ""  # aligned, one element after the other
STORED: Final = "stored"  # the bytes of its file, perhaps unaligned, narrow types packed
TEXTS: Final = "texts"  # strings as kernels read them: records, and behind them their bytes
_U8: Final = 2  # ONNX's number of the type
_POOLED: Final = 1 << 20  # bytes from which packing is worth waking threads
_SCALING: Final = frozenset(("conv_pack",))  # rows that also take factors of the first dim


@frozen
class Want:
    """A constant in a form: PLAIN, STORED, TEXTS, or what a packing row makes of it."""

    const: Const
    row: str = PLAIN
    size_bytes: int = 0  # of the packed form
    ints: tuple[int, ...] = ()

    @property
    def key(self) -> Hashable | None:
        """What is equal for equal bytes; None where that cannot be known."""
        identity = self.const.identity
        return None if identity is None else (identity, self.row, self.ints)

    @property
    def is_packed(self) -> bool:
        """Whether a kernel row makes it."""
        return self.row not in (PLAIN, STORED, TEXTS)

    @property
    def lies_ready(self) -> bool:
        """Whether its bytes are read where they lie, in a file or in a user's buffer."""
        const = self.const
        if self.is_packed or not isinstance(const, Ref):
            return False
        return self.row == STORED or const.lies_ready

    @property
    def is_shared(self) -> bool:
        """Whether it is worth sharing: small constants are copied by each program."""
        return self.is_packed or not (self.const.is_small or self.lies_ready)

    @property
    def own_bytes(self) -> int:
        """The memory that it takes beside its source."""
        if self.is_packed:
            return self.size_bytes
        if self.lies_ready:
            return 0
        const = self.const
        return const.dtype.packed_bytes(const.count) if self.row == STORED else const.size_bytes


def read_form(const: Const) -> Want:
    """The form in which kernels read a constant that they want no other form of."""
    return Want(const, TEXTS if const.dtype is STRING else PLAIN)


class PrepackedWeightsContainer:
    """Forms of weights that sessions share, kept as long as this lives, with or without sessions.

    Whoever gives one says that the buffers which weights lie in do not change while it lives: here,
    forms of weights in writable buffers are shared too.
    """

    def __init__(self) -> None:
        self._store: Store[Array] = Store()
        self._arrays: dict[Hashable, Array] = {}

    @property
    def size_bytes(self) -> int:
        """The memory of all forms in it."""
        return sum(array.nbytes for array in self._arrays.values())

    def __len__(self) -> int:
        """The number of forms in it."""
        return len(self._arrays)

    def share(self, want: Want, make: Callable[[], Array]) -> Array:
        """The array of a form, made if it is not here yet."""
        place = want.const.place
        if place is None or not want.is_shared:
            return make()
        key = (place.key, want.row, want.ints)
        array = self._arrays[key] = self._store.share(key, make, want.const)
        return array


def tensor(array: Any, dtype: int) -> tuple[int, int, list[int], list[int]]:
    """An array as a single call of a kernel row takes it."""
    strides = [s // array.itemsize for s in array.strides]
    return (native.address(array), dtype, list(array.shape), strides)


class Forms:
    """The constants of a program in the forms that its kernels read."""

    def __init__(self, find: Callable[[Want], Array | None] | None = None) -> None:
        """`find` gives packed forms that are there already."""
        self.container: PrepackedWeightsContainer | None = None
        self._arrays: dict[Want, Array] = {}
        self._find = find
        self._check: Callable[[], None] | None = None
        _ALIVE.add(self)

    def address(self, want: Want) -> int:
        """Where the bytes lie; they stay there as long as this lives."""
        return native.address(self.array(want))

    def array(self, want: Want) -> Array:
        """The bytes of a form, as long as this lives."""
        array = self._arrays.get(want)
        if array is None:
            self.check()
            array = self.found(want)
            if array is None and self.container is not None:
                array = self.container.share(want, lambda: _make(want))
            elif array is None:
                array = _make(want)
            self._arrays[want] = array
        return array

    def check(self) -> None:
        """Raises if the making of forms is to end."""
        if self._check is not None:
            self._check()

    @contextlib.contextmanager
    def checking(self, check: Callable[[], None]) -> Iterator[None]:
        """Calls `check`, which may raise, before each form that is made meanwhile."""
        self._check = check
        try:
            yield
        finally:
            self._check = None

    def found(self, want: Want) -> Array | None:
        """A packed form that is there already, in a file."""
        return self._find(want) if self._find is not None and want.is_packed else None

    def others(self, want: Want) -> int:
        """How many other programs of this process read the same memory."""
        array = self._arrays.get(want)
        if array is None:
            return 0
        others = (forms for forms in list(_ALIVE) if forms is not self)
        return sum(any(a is array for a in f._arrays.values()) for f in others)


_ALIVE: Final[WeakSet[Forms]] = WeakSet()


class Wanted(Forms):
    """Makes nothing, and remembers what it was asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.wants: dict[Want, None] = {}

    def address(self, want: Want) -> int:
        self.wants[want] = None
        return 0


def _make(want: Want) -> Array:
    if want.row == PLAIN:
        return want.const.read()
    if want.row == STORED:
        return want.const.stored()
    if want.row == TEXTS:
        const = want.const
        return const.block if isinstance(const, Words) else native.pack_strings(const.read())
    return STORE.share(want.key, lambda: packed(want), want.const)


def packed(want: Want) -> Array:
    """A constant as a packing row makes it, in memory of its own."""
    const = want.const
    array = pages(want.size_bytes)
    if not want.size_bytes:
        return array  # of a shape that holds nothing, and may be huge
    parts = _factors(const) if want.row in _SCALING else (const,)
    for part in parts:
        if isinstance(part, Ref):
            part.fetch()
    weights = [part.view() for part in parts]  # a session needs the packed form alone
    operands = [tensor(w, const.dtype.onnx) for w in weights], [tensor(array, _U8)]
    splits = 1 if want.size_bytes < _POOLED else 0  # 0: on the pool
    wrong = native.call(want.row, *operands, list(want.ints), [], splits)
    if wrong:
        raise RuntimeException(f"packing {const.describe()} failed: {wrong}")
    return array


def _factors(const: Const) -> tuple[Const, ...]:
    """A constant, or the weights and the factors of their first dim that a recipe multiplies.

    A normalization behind a convolution leaves such recipes: the product need not lie in memory.
    """
    if not isinstance(const, Recipe) or const.op.key != ("", "Mul") or const.dtype is not F32:
        return (const,)
    weights, row = const.inputs
    assert weights is not None
    assert row is not None
    if weights.shape != const.shape or row.shape != (
        *const.shape[:1],
        *(1,) * len(const.shape[1:]),
    ):
        return (const,)
    return weights, row
