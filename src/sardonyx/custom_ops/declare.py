"""Custom ops: a function of the user's, in numpy or in C, becomes an op that models may hold."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.errors import InvalidArgument, InvalidGraph, RuntimeException, SardonyxError
from sardonyx.graph.dim import Dim, Shape, Size
from sardonyx.graph.dtype import ALL, STRING, DType, by_numpy, by_ort_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Node
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Attr, Op, Slot, required
from sardonyx.ops import forget, register
from sardonyx.ops.inference import broadcast_shapes
from sardonyx.place.lowered import Call
from sardonyx.place.provider import No

Function = Callable[..., Any]  # (*arrays, **attributes) -> an array, or a tuple of them
ShapeRule = str | Callable[..., Any] | None  # (*shapes, **attributes) -> a shape, or a list of them

_KINDS: Final = {int: "int", float: "float", str: "bytes", list[int]: "ints",
                 list[float]: "floats", list[str]: "strings"}  # fmt: skip
_RULES: Final = ("first", "broadcast")
_MOST: Final = 1 << 63  # beyond any size or address


class _Tensor(ctypes.Structure):
    """sardonyx_tensor of include/sardonyx_op.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("dims", ctypes.POINTER(ctypes.c_int64)),
        ("rank", ctypes.c_int32),
        ("type", ctypes.c_int32),
    )


_C_FUNCTION: Final = ctypes.CFUNCTYPE(
    ctypes.c_int,
    ctypes.POINTER(_Tensor),
    ctypes.c_int,
    ctypes.POINTER(_Tensor),
    ctypes.c_int,
    ctypes.POINTER(ctypes.c_double),
    ctypes.c_int,
)


class CustomOp(Op):
    """An op of the user's. Called, it is the function it was made of."""

    __slots__ = ("_function", "_shape")
    is_custom = True

    def __init__(  # noqa: PLR0913 - the parts of a schema, each given by name
        self,
        function: Function,
        domain: str,
        name: str,
        *,
        inputs: str,
        outputs: str,
        attrs: Mapping[str, Any] | None,
        types: Mapping[str, str] | None,
        shape: ShapeRule,
        version: int,
        pure: bool,
    ) -> None:
        if not domain or not name:
            raise InvalidArgument("a custom op has a domain of its own, and a name")
        if isinstance(shape, str) and shape not in _RULES:
            raise InvalidArgument(
                f"shape is a function, None, or one of {', '.join(_RULES)}, not {shape!r}"
            )
        super().__init__(
            name,
            version,
            inputs,
            outputs,
            attrs={k: _declared(v) for k, v in (attrs or {}).items()},
            types=_types(f"{inputs} {outputs}", types or {}),
            domain=domain,
            pure=pure,
            unranked=True,
        )
        self._function: Final = function
        self._shape: Final = shape
        for slot in self.outputs:
            self._bound(slot, None)
        self.infer(self._facts)
        self.reference(self._run)

    def __call__(self, *arrays: Any, **attrs: Any) -> Any:
        return self._function(*arrays, **attrs)

    def _facts(self, g: Scope, *facts: Any, **attrs: Any) -> tuple[Fact, ...]:
        """What infers: types by their letters, shapes by the rule."""
        if not all(f is None or isinstance(f, Fact) for f in facts):
            raise InvalidGraph(f"{self} takes tensors")
        is_open = self._shape is None or any(f is not None and f.shape is None for f in facts)
        shapes: list[Shape | None] = [None] * len(self.outputs)  # known when it has run
        if not is_open:
            shapes = self._shapes(g, [None if f is None else f.dims for f in facts], attrs)
        dtypes = [self._bound(slot, facts) for slot in self.outputs]
        return tuple(Fact(d, s) for d, s in zip(dtypes, shapes, strict=True))

    def _shapes(
        self, g: Scope, shapes: Sequence[Shape | None], attrs: Mapping[str, Any]
    ) -> list[Shape | None]:
        given = [s for s in shapes if s is not None]
        count = len(self.outputs)
        if not callable(self._shape):
            if not given:
                raise InvalidGraph(f"{self} has no input, and takes its shape from one")
            return [given[0] if self._shape == "first" else broadcast_shapes(g, *given)] * count
        try:
            made = self._shape(*shapes, **_shown(attrs))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise InvalidGraph(f"the shape rule of {self} failed: {what}") from error
        found = [made] if count == 1 and not _is_list_of_shapes(made) else made
        if not isinstance(found, (list, tuple)) or len(found) != count:
            what = f"{len(found)} shapes" if isinstance(found, (list, tuple)) else repr(made)
            raise InvalidGraph(f"the shape rule of {self} gives {what}, not {count} shapes")
        return [self._checked(s) for s in found]

    def _checked(self, shape: Any) -> Shape | None:
        """A shape that a rule gave."""
        if shape is None:
            return None
        if not isinstance(shape, (list, tuple)):
            raise InvalidGraph(f"the shape rule of {self} gives {shape!r} for a shape")
        for size in shape:
            if not isinstance(size, Dim) and not (isinstance(size, int) and 0 <= size < _MOST):
                raise InvalidGraph(f"the shape rule of {self} gives {size!r} for a size")
        return tuple(shape)

    def _bound(self, slot: Slot, facts: Sequence[Fact | None] | None) -> DType:
        """The type of an output: its own, or that of the inputs which share its letter."""
        allowed = self.types[slot.type]
        if len(allowed) == 1:
            return next(iter(allowed))
        places = [i for i, s in enumerate(self.inputs) if s.type == slot.type]
        if not places:
            raise InvalidArgument(
                f"the type {slot.type} of the output {slot.name} is that of no input",
                hint="name one type, as in y:float",
            )
        for place in places if facts is not None else ():
            fact = facts[place] if facts is not None and place < len(facts) else None
            if fact is not None:
                return fact.dtype
        if facts is None:
            return next(iter(allowed))
        raise InvalidGraph(f"no input tells the type of the output {slot.name}")

    def _run(self, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
        """What runs: the function, whose results are checked and made their own."""
        given = (None if a is None else _lent(a) for a in arrays)
        try:
            made = self._function(*given, **_shown(attrs))
            results = list(made) if isinstance(made, tuple) else [made]
            del made  # so that only those count who keep a result
            self._check_count(len(results))
            facts = (None if a is None else _fact(a) for a in arrays)
            wanted = self._facts(Scope(), *facts, **attrs)
            return tuple(self._own(results, i, fact) for i, fact in enumerate(wanted))
        except SardonyxError:
            raise
        except Exception as error:  # of the function or its results, and no fault of ours
            raise RuntimeException(f"{self} raised {type(error).__name__}: {error}") from error

    def _check_count(self, n: int) -> None:
        if n != len(self.outputs):
            raise RuntimeException(
                f"{self} returned {n} values, and has {len(self.outputs)} outputs"
            )

    def _own(self, results: list[Any], i: int, fact: Fact) -> Any:
        """A result in memory that nobody else has, once it is known to be what it must be."""
        array = results[i] = np.asarray(results[i])
        if by_numpy(array.dtype) is not fact.dtype:
            raise RuntimeException(
                f"{self} returned {array.dtype}, and declares {fact.dtype.ort_name}",
                hint="return arrays of the declared type: y.astype(...)",
            )
        if fact.shape is not None and fact.shape != array.shape:
            raise RuntimeException(
                f"{self} returned the shape {list(array.shape)}, and its shape rule says {fact}"
            )
        if fact.dtype is STRING:
            return self._texts(array)
        del array
        is_own = _is_fresh(results, i)
        array = results[i]
        plain = array.flags.c_contiguous and array.flags.aligned
        return array if is_own and plain else np.array(array, order="C")

    def _texts(self, array: Any) -> Any:
        """A copy of an array of strings, as objects."""
        texts = np.array(np.char.decode(array) if array.dtype.kind == "S" else array, object)
        at = native.first_non_string(texts)
        if at is not None:
            raise RuntimeException(
                f"{self} returned {texts.reshape(-1)[at]!r:.80} at element {at}, "
                "and declares strings"
            )
        return texts


class _NativeOp(CustomOp):
    """One whose function gets numbers as they lie in memory, which strings have no form for."""

    __slots__ = ()

    def _facts(self, g: Scope, *facts: Any, **attrs: Any) -> tuple[Fact, ...]:
        made = super()._facts(g, *facts, **attrs)
        is_known = all(f is None or f.shape is not None for f in facts)
        if is_known and any(f.shape is None for f in made):
            raise InvalidGraph(
                f"{self} is a native op, and its shape rule leaves a shape open",
                hint="its function writes to memory that is made before it runs",
            )
        if any(f is not None and f.dtype is STRING for f in (*facts, *made)):
            raise InvalidGraph(
                f"{self} is a native op, and here one of strings", hint="declare it with custom_op"
            )
        return made


def custom_op(  # noqa: PLR0913 - as above
    domain: str,
    name: str,
    *,
    inputs: str,
    outputs: str,
    attrs: Mapping[str, Any] | None = None,
    types: Mapping[str, str] | None = None,
    shape: ShapeRule = None,
    version: int = 1,
    pure: bool = False,
) -> Callable[[Function], CustomOp]:
    """Decorator: sessions made from now on run nodes of this op by the function.

    `inputs` and `outputs` are names with types: "x:T bias:T? more:T*" and "y:T". A type is one of
    ONNX ("float", "int64", "string") or a letter, which `types` explains ("float float16") and
    which all inputs of that letter share; it stands for any type if left out there. `?` marks an
    input that may be left out and is then None, `*` any number of them at the end.

    `attrs` are the attributes with their defaults, or int, float, str, list[int], list[float],
    list[str] for one that a node must have; the function gets all by keyword.

    `shape` says the shapes of the outputs from those of the inputs: "first", "broadcast", or a
    function of shapes and attributes, which may compute with sizes that are not known yet
    (+, -, *, // and %). Without it nodes behind this one run only when its result is there.

    `pure`: the same inputs always give the same outputs, so that nodes over constants may run once,
    when the model is compiled.
    """

    def wrap(function: Function) -> CustomOp:
        op = CustomOp(
            function,
            domain,
            name,
            inputs=inputs,
            outputs=outputs,
            attrs=attrs,
            types=types,
            shape=shape,
            version=version,
            pure=pure,
        )
        register(op)
        return op

    return wrap


def native_op(  # noqa: PLR0913 - as above
    function: Any,
    domain: str,
    name: str,
    *,
    inputs: str,
    outputs: str,
    shape: str | Callable[..., Any],
    attrs: Mapping[str, Any] | None = None,
    types: Mapping[str, str] | None = None,
    version: int = 1,
    pure: bool = False,
) -> CustomOp:
    """An op that is a C function of the type `sardonyx_op` (include/sardonyx_op.h): a native step.

    `function` is one of a `ctypes` library, or an address. It is called without Python's lock, with
    tensors as they lie in memory; the rest is as in `custom_op`, and `shape` must be given. Of the
    attributes the function gets those that are ints or floats, in the order they are declared.
    """
    address = _address(function)
    op: CustomOp

    def call(*arrays: Any, **given: Any) -> tuple[Any, ...]:
        return _called(op, address, arrays, given)

    op = _NativeOp(
        call,
        domain,
        name,
        inputs=inputs,
        outputs=outputs,
        attrs=attrs,
        types=types,
        shape=shape,
        version=version,
        pure=pure,
    )
    op.lowering_rule = lambda node: _lowered(op, address, node)
    register(op)
    return op


def unregister_custom_op(domain: str, name: str) -> None:
    """Takes back a custom op; sessions that use it keep it."""
    forget(domain, name)


def _address(function: Any) -> int:
    if isinstance(function, int):
        address: int | None = function
    else:
        is_text = isinstance(function, (str, bytes))  # which ctypes takes for an address too
        try:
            address = None if is_text else ctypes.cast(function, ctypes.c_void_p).value
        except (ctypes.ArgumentError, TypeError):
            address = None
    if not address or not 0 < address < _MOST or not native.is_mapped(address, 1):
        raise InvalidArgument(
            f"a native op is a function of ctypes or an address, not {function!r}"
        )
    return address


def _numbers(op: CustomOp, attrs: Mapping[str, Any]) -> tuple[float, ...]:
    wanted = [n for n, kind in op.attr_kinds.items() if kind in ("int", "float")]
    return tuple(float(attrs[n]) for n in wanted)


def _lowered(op: CustomOp, address: int, node: Node) -> Call | No:
    for value in (*node.inputs, *node.outputs):
        if value is not None and value.tensor.dtype.bits < 8:
            return No(f"{value.tensor.dtype} has no address of its own")
    absent = (None,) * op.n_absent(len(node.inputs))
    return Call("custom", (*node.inputs, *absent), (address,), _numbers(op, node.attrs))


def _called(
    op: CustomOp, address: int, arrays: Sequence[Any], attrs: Mapping[str, Any]
) -> tuple[Any, ...]:
    """The function by way of ctypes, for graphs whose ranks are known only when they run."""
    inputs = [None if a is None else np.ascontiguousarray(a).reshape(a.shape) for a in arrays]
    facts = [None if a is None else _fact(a) for a in inputs]
    made = op._facts(Scope(), *facts, **{k: _stored(v) for k, v in attrs.items()})
    outputs = [np.empty(_known(op, f), f.dtype.np) for f in made]
    numbers = _numbers(op, {**op.defaults, **attrs})
    code = _C_FUNCTION(address)(
        _tensors(inputs),
        len(inputs),
        _tensors(outputs),
        len(outputs),
        (ctypes.c_double * max(1, len(numbers)))(*numbers),
        len(numbers),
    )
    if code:
        raise RuntimeException(f"the function returned the error {code}")
    return tuple(outputs)


def _known(op: CustomOp, fact: Fact) -> tuple[int, ...]:
    """The shape of an output that the function is about to fill."""
    if fact.static is None:
        raise RuntimeException(f"the shape rule of {op} gives {fact} for shapes that are known")
    return fact.static


def _tensors(arrays: Sequence[Any]) -> Any:
    made = (_Tensor * max(1, len(arrays)))()
    for tensor, array in zip(made, arrays, strict=False):
        if array is not None:
            dims = (ctypes.c_int64 * max(1, array.ndim))(*array.shape)
            tensor.data, tensor.dims = array.ctypes.data, dims
            tensor.rank, tensor.type = array.ndim, _fact(array).dtype.onnx
    return made


def _lent(array: Any) -> Any:
    """An array for the function to read: other nodes read the same memory."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _holders(values: list[Any], i: int) -> tuple[int, int]:
    """How many references there are to an array in a list, and to the one that it is a view of."""
    array = values[i]
    return getrefcount(array), getrefcount(array.base)


# Of arrays that only the list holds. They are measured: what a call itself adds differs by version.
_ALONE: Final = _holders([np.empty(2)], 0)[0]
_ALONE_BEHIND: Final = _holders([np.empty(2)[1:]], 0)[1]


def _is_fresh(values: list[Any], i: int) -> bool:
    """Whether an array in a list, and the memory that it shows, has no other owner.

    A function may go on to write to what it keeps, and what it was given belongs to others.
    """
    own, behind = _holders(values, i)
    base = values[i].base
    if own > _ALONE:
        return False
    if base is None:
        return bool(values[i].flags.owndata)
    return isinstance(base, np.ndarray) and base.flags.owndata and behind <= _ALONE_BEHIND


def _fact(array: Any) -> Fact:
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    shape: tuple[Size, ...] = tuple(array.shape)
    return Fact(dtype, shape)


def _declared(default: Any) -> Any:
    """An attribute as ops declare it: strings are bytes in models."""
    kind = next((text for type_, text in _KINDS.items() if type_ == default), None)
    if kind is not None:
        return required(kind)
    if isinstance(default, Attr):
        return default
    if isinstance(default, bool) or not isinstance(default, (int, float, str, tuple, list)):
        raise InvalidArgument(
            f"an attribute is a number, a text, or a list of them, not {default!r}",
            hint="truth values are 0 or 1 in ONNX",
        )
    return _stored(tuple(default) if isinstance(default, list) else default)


def _stored(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(_stored(v) for v in value)
    return value.encode() if isinstance(value, str) else value


def _shown(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Attributes as functions of users get them: texts, and lists of them."""
    return {k: _text(v) for k, v in attrs.items()}


def _text(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_text(v) for v in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def _types(slots: str, given: Mapping[str, str]) -> dict[str, frozenset[DType]]:
    """What each type in a declaration stands for."""
    found: dict[str, frozenset[DType]] = {}
    for word in slots.split():
        letter = word.rstrip("?*").partition(":")[2]
        if not letter:
            raise InvalidArgument(f"{word!r} has no type", hint="write it as x:float or x:T")
        if letter in given:
            found[letter] = frozenset(_type(n) for n in given[letter].split())
        elif len(letter) < 3 and letter.isupper():
            found[letter] = ALL
        else:
            found[letter] = frozenset((_type(letter),))
    return found


def _type(name: str) -> DType:
    dtype = by_ort_name(name)
    if dtype is None:
        raise InvalidArgument(
            f"{name!r} is no element type of ONNX",
            hint=f"as in {', '.join(sorted(d.ort_name for d in ALL if d is not STRING)[:8])}, ...",
        )
    return dtype


def _is_list_of_shapes(made: Any) -> bool:
    is_list = isinstance(made, (tuple, list)) and bool(made)
    return is_list and all(s is None or isinstance(s, (tuple, list)) for s in made)
