"""Classes of named fields, as the standard library's dataclasses are, but made in little time.

A frozen dataclass with slots takes half a millisecond to make, as it compiles half a dozen methods,
and the line from a file to a session has about a hundred of them. Here only `__init__` is compiled,
and only of classes that many objects are made of: a process that starts one small model pays for
what it has.
"""

from __future__ import annotations

from collections.abc import Callable
from operator import attrgetter
from typing import Any, Final, NoReturn, TypeVar, dataclass_transform, overload

_T = TypeVar("_T")
_NONE: Final = object()  # no default
_MANY: Final = 64  # objects of a class; to compile its `__init__` takes as long as to do without


class _Field:
    """How a field comes to its value, where that is not a plain default."""

    __slots__ = ("factory", "init")

    def __init__(self, factory: Callable[[], Any], init: bool) -> None:
        self.factory = factory
        self.init = init


def field(*, default_factory: Callable[[], Any] = object, init: bool = True) -> Any:
    """A field whose default is made anew for each object; or, without `init`, set afterwards."""
    return _Field(default_factory, init)


@overload
def frozen(cls: type[_T], /) -> type[_T]: ...


@overload
def frozen(*, eq: bool = True, weakref_slot: bool = False) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Any] | None = None, /, *, eq: bool = True, weakref_slot: bool = False) -> Any:
    """Makes a class of its annotations, whose objects do not change and are equal by fields.

    With `eq=False` an object equals itself alone.
    """

    def make(given: type[Any]) -> type[Any]:
        return _made(given, True, eq, weakref_slot)

    return make if cls is None else make(cls)


@overload
def mutable(cls: type[_T], /) -> type[_T]: ...


@overload
def mutable(*, eq: bool = True) -> Callable[[type[_T]], type[_T]]: ...


@dataclass_transform(field_specifiers=(field,))
def mutable(cls: type[Any] | None = None, /, *, eq: bool = True) -> Any:
    """Likewise for objects that change, and have no hash unless with `eq=False`."""

    def make(given: type[Any]) -> type[Any]:
        return _made(given, False, eq, False)

    return make if cls is None else make(cls)


def field_names(of: Any) -> tuple[str, ...]:
    """The fields of an object or of its class, in their order."""
    names: tuple[str, ...] = of.__match_args__
    return names


def replace(given: _T, **changes: Any) -> _T:
    """An object with some fields changed."""
    cls: Any = type(given)
    kept = {name: getattr(given, name) for name, _ in cls.__taken__ if name not in changes}
    made: _T = cls(**kept, **changes)
    return made


def as_tuple(given: Any) -> tuple[Any, ...]:
    """The fields of an object in their order."""
    return tuple(getattr(given, name) for name in field_names(given))


def as_dict(given: Any) -> dict[str, Any]:
    """The fields of an object by name; others of its kind in them stay as they are."""
    return {name: getattr(given, name) for name in field_names(given)}


def _made(cls: type[Any], is_frozen: bool, eq: bool, weakref_slot: bool) -> type[Any]:
    body = dict(cls.__dict__)
    own = [
        name
        for name, kind in body.get("__annotations__", {}).items()
        if "ClassVar" not in str(kind)
    ]
    defaults = {name: body.pop(name) for name in own if name in body}
    fields: dict[str, Any] = {}  # the default of each that __init__ takes
    inherited: dict[str, None] = {}
    for base in reversed(cls.__mro__[1:]):
        if "__taken__" in base.__dict__:
            fields.update(base.__dict__["__taken__"])
            inherited.update(dict.fromkeys(base.__dict__["__match_args__"]))
    for name in own:
        default = defaults.get(name, _NONE)
        if not isinstance(default, _Field) or default.init:
            fields[name] = default
    names = tuple(inherited | dict.fromkeys(own))
    body["__slots__"] = (*own, "__weakref__") if weakref_slot else tuple(own)
    body["__taken__"] = tuple(fields.items())
    body["__match_args__"] = names
    body["__key__"] = _key(names)
    for name in ("__dict__", "__weakref__"):
        body.pop(name, None)
    body.setdefault("__repr__", _repr)
    body.setdefault("__init__", _first_init)
    if eq:
        body.setdefault("__eq__", _eq)
        body["__hash__"] = body.get("__hash__") or (_hash if is_frozen else None)
    if is_frozen:
        body["__setattr__"], body["__delattr__"] = _refuse_set, _refuse_delete
        body["__setstate__"] = _set_state
    maker: Any = type(cls)
    made: type[Any] = maker(cls.__name__, cls.__bases__, body)
    made.__qualname__ = cls.__qualname__
    return made


def _key(names: tuple[str, ...]) -> Callable[[Any], Any]:
    return attrgetter(*names) if names else type  # without fields, all are equal


def _first_init(self: Any, *args: Any, **given: Any) -> None:
    """Finds the slots of a class when its first object is made."""
    cls: Any = next(each for each in type(self).__mro__ if "__taken__" in each.__dict__)
    cls.__init__ = _plain_init(cls)
    cls.__init__(self, *args, **given)


def _plain_init(cls: Any) -> Any:
    """`__init__` as it is, for the first objects; arguments that are wrong are for the other."""
    taken = cls.__taken__
    setters = [_slot(cls, name).__set__ for name, _ in taken]
    has_more = hasattr(cls, "__post_init__")
    left = _MANY

    def __init__(self: Any, *args: Any, **given: Any) -> None:  # noqa: N807 - it becomes one
        nonlocal left
        left -= 1
        values = _values(taken, args, given) if given or len(args) != len(taken) else args
        if left < 0 or values is None:
            cls.__init__ = _init_of(cls)
            cls.__init__(self, *args, **given)
            return
        for setter, value in zip(setters, values, strict=True):
            setter(self, value)
        if has_more:
            self.__post_init__()

    return __init__


def _values(
    taken: tuple[tuple[str, Any], ...], args: tuple[Any, ...], given: dict[str, Any]
) -> list[Any] | None:
    """A value for each field; None where the arguments are not those that a class takes."""
    values, used = list(args), 0
    for name, default in taken[len(args) :]:
        if name in given:
            values.append(given[name])
            used += 1
        elif default is _NONE:
            return None
        else:
            values.append(default.factory() if isinstance(default, _Field) else default)
    return values if used == len(given) and len(values) == len(taken) else None


def _init_of(cls: Any) -> Any:
    """`__init__` that fills the slots themselves: frozen classes refuse all other ways."""
    scope: dict[str, Any] = {"none": _NONE}
    heads, lines = ["self"], []
    for i, (name, default) in enumerate(cls.__taken__):
        scope[f"set{i}"] = _slot(cls, name).__set__
        value, head = name, name
        if isinstance(default, _Field):
            scope[f"make{i}"], head = default.factory, f"{name}=none"
            value = f"make{i}() if {name} is none else {name}"
        elif default is not _NONE:
            scope[f"default{i}"], head = default, f"{name}=default{i}"
        heads.append(head)
        lines.append(f"    set{i}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec(f"def __init__({', '.join(heads)}):\n" + "\n".join(lines or ["    pass"]), scope)
    init = scope["__init__"]
    init.__qualname__ = f"{cls.__qualname__}.__init__"
    return init


def _slot(cls: Any, name: str) -> Any:
    return next(each.__dict__[name] for each in cls.__mro__ if name in each.__dict__)


def _repr(self: Any) -> str:
    shown = ", ".join(f"{name}={getattr(self, name)!r}" for name in field_names(self))
    return f"{type(self).__qualname__}({shown})"


def _eq(self: Any, other: Any) -> Any:
    if other.__class__ is not self.__class__:
        return NotImplemented
    return self.__key__(self) == self.__key__(other)


def _hash(self: Any) -> int:
    return hash(self.__key__(self))


def _refuse_set(self: Any, name: str, value: object) -> NoReturn:
    raise AttributeError(f"{type(self).__qualname__}.{name} cannot be changed")


def _refuse_delete(self: Any, name: str) -> NoReturn:
    raise AttributeError(f"{type(self).__qualname__}.{name} cannot be deleted")


def _set_state(self: Any, state: tuple[None, dict[str, Any]]) -> None:
    for name, value in state[1].items():
        _slot(type(self), name).__set__(self, value)
