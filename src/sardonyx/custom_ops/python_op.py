"""Custom ops as Python functions over numpy arrays."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from sys import getrefcount
from typing import Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.errors import InvalidArgument, InvalidGraph, RuntimeException, SardonyxError
from sardonyx.graph.dim import Dim, Shape
from sardonyx.graph.dtype import ALL, STRING, DType, by_numpy, by_ort_name
from sardonyx.graph.fact import Fact
from sardonyx.graph.guard import Scope
from sardonyx.graph.op import Attr, Op, Slot, required
from sardonyx.ops import forget, register
from sardonyx.ops.inference import broadcast_shapes

Function = Callable[..., Any]  # (*arrays, **attributes) -> an array, or a tuple of them
ShapeRule = str | Callable[..., Any] | None  # (*shapes, **attributes) -> a shape, or a list of them

_SHAPE_RULES: Final = ("first", "broadcast")
_SIZE_END: Final = 1 << 63  # sizes are int64
_KINDS: Final = {int: "int", float: "float", str: "bytes", list[int]: "ints",
                 list[float]: "floats", list[str]: "strings"}  # fmt: skip


class CustomOp(Op):
    """An op declared by a user. Calling it calls the user's function."""

    __slots__ = ("_function", "_shape")
    is_custom = True

    def __init__(  # noqa: PLR0913 - the parts of a schema, each passed by name
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
            raise InvalidArgument("a custom op must have a name, and a domain of its own")
        if isinstance(shape, str) and shape not in _SHAPE_RULES:
            known = ", ".join(_SHAPE_RULES)
            raise InvalidArgument(
                f"shape must be a function, None, or one of {known}, got {shape!r}"
            )
        super().__init__(
            name,
            version,
            inputs,
            outputs,
            attrs={k: attribute(v) for k, v in (attrs or {}).items()},
            types=type_constraints(f"{inputs} {outputs}", types or {}),
            domain=domain,
            pure=pure,
            unranked=True,
        )
        self._function: Final = function
        self._shape: Final = shape
        for slot in self.outputs:
            self._output_type(slot, None)
        self.infer(self._facts)
        self.reference(self._run)

    def __call__(self, *arrays: Any, **attrs: Any) -> Any:
        return self._function(*arrays, **attrs)

    def _facts(self, g: Scope, *facts: Any, **attrs: Any) -> tuple[Fact, ...]:
        """Infer the outputs: types from the type constraints, shapes from the shape rule."""
        if not all(f is None or isinstance(f, Fact) for f in facts):
            raise InvalidGraph(f"the inputs of {self} are tensors")
        is_open = self._shape is None or any(f is not None and f.shape is None for f in facts)
        shapes: list[Shape | None] = [None] * len(self.outputs)  # known after it has run
        if not is_open:
            shapes = self._shapes(g, [None if f is None else f.dims for f in facts], attrs)
        dtypes = [self._output_type(slot, facts) for slot in self.outputs]
        return tuple(Fact(d, s) for d, s in zip(dtypes, shapes, strict=True))

    def _shapes(
        self, g: Scope, shapes: Sequence[Shape | None], attrs: Mapping[str, Any]
    ) -> list[Shape | None]:
        present = [s for s in shapes if s is not None]
        count = len(self.outputs)
        if not callable(self._shape):
            if not present:
                raise InvalidGraph(f"{self} has no input, and its shape rule needs one")
            shape = present[0] if self._shape == "first" else broadcast_shapes(g, *present)
            return [shape] * count
        try:
            returned = self._shape(*shapes, **decoded(attrs))
        except Exception as error:
            what = f"{type(error).__name__}: {error}"
            raise InvalidGraph(f"the shape rule of {self} failed: {what}") from error
        result = [returned] if count == 1 and not _is_list_of_shapes(returned) else returned
        is_list = isinstance(result, (list, tuple))
        if not is_list or len(result) != count:
            what = f"{len(result)} shapes" if is_list else repr(returned)
            raise InvalidGraph(f"the shape rule of {self} returns {what}, not {count} shapes")
        return [self._checked_shape(s) for s in result]

    def _checked_shape(self, shape: Any) -> Shape | None:
        """Return a shape that the user's rule returned, if it is one."""
        if shape is None:
            return None
        if not isinstance(shape, (list, tuple)):
            raise InvalidGraph(f"the shape rule of {self} returns {shape!r} for a shape")
        for size in shape:
            if not isinstance(size, Dim) and not (isinstance(size, int) and 0 <= size < _SIZE_END):
                raise InvalidGraph(f"the shape rule of {self} returns {size!r} for a size")
        return tuple(shape)

    def _output_type(self, slot: Slot, facts: Sequence[Fact | None] | None) -> DType:
        """Return the type of an output: its only one, or that of inputs with the same type name.

        Without facts only the declaration is checked.
        """
        allowed = self.types[slot.type]
        if len(allowed) == 1:
            return next(iter(allowed))
        positions = [i for i, s in enumerate(self.inputs) if s.type == slot.type]
        if not positions:
            raise InvalidArgument(
                f"the type {slot.type} of the output {slot.name} is that of no input",
                hint="name one type, as in y:float",
            )
        if facts is None:
            return next(iter(allowed))
        for i in positions:
            if i < len(facts) and (fact := facts[i]) is not None:
                return fact.dtype
        raise InvalidGraph(f"no input determines the type of the output {slot.name}")

    def _run(self, *arrays: Any, **attrs: Any) -> tuple[Any, ...]:
        """Call the function and check its results; return arrays that nothing else refers to."""
        views = (None if a is None else _read_only(a) for a in arrays)
        try:
            returned = self._function(*views, **decoded(attrs))
            results = list(returned) if isinstance(returned, tuple) else [returned]
            del returned  # `_is_unreferenced` counts references
            self._check_count(len(results))
            in_facts = (None if a is None else array_fact(a) for a in arrays)
            facts = self._facts(Scope(), *in_facts, **attrs)
            return tuple(self._owned_result(results, i, fact) for i, fact in enumerate(facts))
        except SardonyxError:
            raise
        except Exception as error:  # raised by the function or its results: not a bug of ours
            raise RuntimeException(f"{self} raised {type(error).__name__}: {error}") from error

    def _check_count(self, n: int) -> None:
        if n != len(self.outputs):
            what = f"{n} values, and has {len(self.outputs)} outputs"
            raise RuntimeException(f"{self} returned {what}")

    def _owned_result(self, results: list[Any], i: int, fact: Fact) -> Any:
        """Check a result; return it, or a copy if anything else refers to its memory."""
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
            return self._strings(array)
        del array  # else it would count as a reference
        is_owned = _is_unreferenced(results, i)
        array = results[i]
        is_plain = array.flags.c_contiguous and array.flags.aligned
        return array if is_owned and is_plain else np.array(array, order="C")

    def _strings(self, array: Any) -> Any:
        """Return a copy of a string array as objects."""
        texts = np.array(np.char.decode(array) if array.dtype.kind == "S" else array, object)
        at = native.first_non_string(texts)
        if at is not None:
            raise RuntimeException(
                f"{self} returned {texts.reshape(-1)[at]!r:.80} at element {at}, "
                "and declares strings"
            )
        return texts


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
    """Decorator: sessions created from now on run nodes of this op by the function.

    `inputs` and `outputs` are names with types: "x:T bias:T? more:T*" and "y:T". A type is one of
    ONNX ("float", "int64", "string") or a type variable, which `types` constrains
    ("float float16"; any type if it is not there) and which has one type in each node. `?` marks an
    optional input, None if it is absent, `*` a variadic one at the end.

    `attrs` are the attributes with their defaults, or int, float, str, list[int], list[float],
    list[str] for a required one; the function gets all of them by keyword.

    `shape` returns the shapes of the outputs from those of the inputs: "first", "broadcast", or a
    function of shapes and attributes, which may calculate with symbolic sizes (+, -, *, // and %).
    Without it, shapes after this node are known only when it has run.

    `pure`: equal inputs always give equal outputs, so that nodes over constants may be folded.
    """
    schema: dict[str, Any] = {
        "inputs": inputs, "outputs": outputs, "attrs": attrs, "types": types, "shape": shape,
        "version": version, "pure": pure,
    }  # fmt: skip

    def wrap(function: Function) -> CustomOp:
        op = CustomOp(function, domain, name, **schema)
        register(op)
        return op

    return wrap


def unregister_custom_op(domain: str, name: str) -> None:
    """Remove a custom op; sessions that use it keep it."""
    forget(domain, name)


def array_fact(array: Any) -> Fact:
    """Return the fact of an array of an ONNX type."""
    dtype = by_numpy(array.dtype)
    assert dtype is not None
    return Fact(dtype, tuple(array.shape))


def _read_only(array: Any) -> Any:
    """Return a read-only view for the function: other nodes read the same memory."""
    if not isinstance(array, np.ndarray):
        return array
    view = array.view()
    view.flags.writeable = False
    return view


def _reference_counts(values: list[Any], i: int) -> tuple[int, int]:
    """Return the reference counts of an array in a list, and of the array it is a view of."""
    array = values[i]
    return getrefcount(array), getrefcount(array.base)


# The counts of an array, and of a view's base, that only the list refers to. Measured, not written
# down: how many references a call itself adds differs between versions of Python.
_LIST_ONLY: Final = _reference_counts([np.empty(2)], 0)[0]
_VIEW_ONLY: Final = _reference_counts([np.empty(2)[1:]], 0)[1]


def _is_unreferenced(values: list[Any], i: int) -> bool:
    """Return whether nothing but the list refers to an array, or to the memory of a view.

    A function may keep its result and write to it later, or return one of its inputs.
    """
    references, base_references = _reference_counts(values, i)
    base = values[i].base
    if references > _LIST_ONLY:
        return False
    if base is None:
        return bool(values[i].flags.owndata)
    return isinstance(base, np.ndarray) and base.flags.owndata and base_references <= _VIEW_ONLY


def _is_list_of_shapes(returned: Any) -> bool:
    is_list = isinstance(returned, (tuple, list)) and bool(returned)
    return is_list and all(s is None or isinstance(s, (tuple, list)) for s in returned)


def attribute(default: Any) -> Any:
    """Return an attribute as `Op` declares it: its default, or a required one of a kind."""
    kind = next((text for type_, text in _KINDS.items() if type_ == default), None)
    if kind is not None:
        return required(kind)
    if isinstance(default, Attr):
        return default
    if isinstance(default, bool) or not isinstance(default, (int, float, str, tuple, list)):
        raise InvalidArgument(
            f"an attribute must be a number, a text, or a list of them, got {default!r}",
            hint="bools are 0 or 1 in ONNX",
        )
    return encoded(tuple(default) if isinstance(default, list) else default)


def encoded(value: Any) -> Any:
    """Return an attribute value as models store it: strings are bytes."""
    if isinstance(value, tuple):
        return tuple(encoded(v) for v in value)
    return value.encode() if isinstance(value, str) else value


def decoded(attrs: Mapping[str, Any]) -> dict[str, Any]:
    """Return attributes as user functions get them: strings as str, tuples as lists."""
    return {k: _decoded(v) for k, v in attrs.items()}


def _decoded(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_decoded(v) for v in value]
    return value.decode(errors="replace") if isinstance(value, bytes) else value


def type_constraints(slots: str, explained: Mapping[str, str]) -> dict[str, frozenset[DType]]:
    """Return the element types that each type name in a declaration allows.

    A name of one or two capital letters that `explained` does not have allows any type.
    """
    constraints: dict[str, frozenset[DType]] = {}
    for word in slots.split():
        name = word.rstrip("?*").partition(":")[2]
        if not name:
            raise InvalidArgument(f"{word!r} has no type", hint="write it as x:float or x:T")
        if name in explained:
            constraints[name] = frozenset(_dtype(n) for n in explained[name].split())
        elif len(name) < 3 and name.isupper():
            constraints[name] = ALL
        else:
            constraints[name] = frozenset((_dtype(name),))
    return constraints


def _dtype(name: str) -> DType:
    dtype = by_ort_name(name)
    if dtype is None:
        raise InvalidArgument(
            f"{name!r} is not an element type of ONNX",
            hint=f"as in {', '.join(sorted(d.ort_name for d in ALL if d is not STRING)[:8])}, ...",
        )
    return dtype
