"""Decorators for classes with named fields: dataclasses that are cheap to define.

`import sardonyx` defines more than 100 of them. A frozen dataclass with slots generates and
compiles six methods, which takes 0.5 ms; here all classes share their methods, which takes 0.02 ms,
and only `__init__` is compiled, for classes with many objects. `python bench/import_time.py` prints
how long both take.

Not supported, as no class here needs it: keyword-only fields, ordering, InitVar.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Any, Final, NoReturn, TypeVar, dataclass_transform

_T = TypeVar("_T")
_REQUIRED: Final = object()  # stands for the default of a field that has none
_COMPILE_AFTER: Final = 64  # objects: compiling an `__init__` takes as long as 64 slow calls lose


class _Field:
    """A field with a default factory, or one that `__init__` does not set."""

    __slots__ = ("factory", "init")

    def __init__(self, factory: Callable[[], Any], init: bool) -> None:
        self.factory = factory
        self.init = init


def field(*, default_factory: Callable[[], Any] = object, init: bool = True) -> Any:
    """Declare a field with a default factory or, with `init=False`, one that is not an argument."""
    return _Field(default_factory, init)


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def frozen(cls: type[Any] | None = None, /, *, eq: bool = True, weakref_slot: bool = False) -> Any:
    """Define an immutable, hashable class with slots; `eq=False`: objects compare by identity."""
    define = partial(_define, is_frozen=True, eq=eq, weakref_slot=weakref_slot)
    return define if cls is None else define(cls)


@dataclass_transform(field_specifiers=(field,))
def mutable(cls: type[Any] | None = None, /, *, eq: bool = True) -> Any:
    """Define a class with slots; `eq=False`: objects compare by identity and are hashable."""
    define = partial(_define, is_frozen=False, eq=eq)
    return define if cls is None else define(cls)


def field_names(record: Any) -> tuple[str, ...]:
    """Return the names of the fields of a record or of its class, in order of definition."""
    names: tuple[str, ...] = record.__match_args__
    return names


def replace(record: _T, **changes: Any) -> _T:
    """Return a copy with some fields changed."""
    cls: Any = type(record)
    unchanged = {n: getattr(record, n) for n, _ in cls.__init_fields__ if n not in changes}
    copy: _T = cls(**unchanged, **changes)
    return copy


def as_tuple(record: Any) -> tuple[Any, ...]:
    """Return the values of all fields in order of definition."""
    return tuple(getattr(record, name) for name in field_names(record))


def as_dict(record: Any) -> dict[str, Any]:
    """Return the fields by name; records among the values are not converted."""
    return {name: getattr(record, name) for name in field_names(record)}


def _define(cls: type[Any], is_frozen: bool, eq: bool, weakref_slot: bool = False) -> type[Any]:
    """Return a new class with slots and the shared methods: slots cannot be added to a class."""
    # By the attribute: since Python 3.14 the class dict has no annotations until they are read.
    own = [name for name, kind in cls.__annotations__.items() if "ClassVar" not in str(kind)]
    body = {k: v for k, v in cls.__dict__.items() if k not in ("__dict__", "__weakref__")}
    names: dict[str, None] = {}  # an ordered set
    init_fields: dict[str, Any] = {}  # the arguments of `__init__`, with their defaults
    for base in reversed(cls.__mro__[1:]):
        if "__init_fields__" in base.__dict__:
            init_fields.update(base.__dict__["__init_fields__"])
            names.update(dict.fromkeys(base.__dict__["__match_args__"]))
    for name in own:
        names[name] = None
        default = body.pop(name, _REQUIRED)  # a slot and a class attribute exclude each other
        if not isinstance(default, _Field) or default.init:
            init_fields[name] = default
    # Slots of base classes are inherited; only new fields get one.
    body["__slots__"] = (*own, "__weakref__") if weakref_slot else tuple(own)
    body["__init_fields__"] = tuple(init_fields.items())
    body["__match_args__"] = tuple(names)
    body["__key__"] = attrgetter(*names) if names else type  # without fields all are equal
    body.setdefault("__repr__", _repr)
    body.setdefault("__init__", _first_init)
    if eq:
        body.setdefault("__eq__", _eq)
        body["__hash__"] = body.get("__hash__") or (_hash if is_frozen else None)
    if is_frozen:
        body["__setattr__"] = body["__delattr__"] = _refuse
        body["__setstate__"] = _set_state
    # Not always `type`: abstract classes and protocols have another metaclass.
    metaclass: Any = type(cls)
    record: type[Any] = metaclass(cls.__name__, cls.__bases__, body)
    record.__qualname__ = cls.__qualname__
    return record


def _first_init(self: Any, *args: Any, **kwargs: Any) -> None:
    """Replace itself by the `__init__` of the class, for which many classes never have a use."""
    cls: Any = next(each for each in type(self).__mro__ if "__init_fields__" in each.__dict__)
    cls.__init__ = _interpreted_init(cls)
    cls.__init__(self, *args, **kwargs)


def _interpreted_init(cls: Any) -> Any:
    """Return an `__init__` that needs no compilation, and replaces itself by one that does.

    That one also raises the TypeError for wrong arguments, in Python's own words.
    """
    fields = cls.__init_fields__
    has_post_init = hasattr(cls, "__post_init__")
    calls_left, store = _COMPILE_AFTER, object.__setattr__

    def __init__(self: Any, *args: Any, **kwargs: Any) -> None:  # noqa: N807 - it becomes one
        nonlocal calls_left
        calls_left -= 1
        values = _bind(fields, args, kwargs) if kwargs or len(args) != len(fields) else args
        if calls_left < 0 or values is None:
            cls.__init__ = _compiled_init(cls)
            cls.__init__(self, *args, **kwargs)
            return
        for (name, _), value in zip(fields, values, strict=True):
            store(self, name, value)
        if has_post_init:
            self.__post_init__()

    return __init__


def _bind(
    fields: tuple[tuple[str, Any], ...], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> list[Any] | None:
    """Return a value for each field; None if the arguments do not match the fields."""
    values, n_used = list(args), 0
    for name, default in fields[len(args) :]:
        if name in kwargs:
            values.append(kwargs[name])
            n_used += 1
        elif default is _REQUIRED:
            return None
        else:
            values.append(default.factory() if isinstance(default, _Field) else default)
    return values if n_used == len(kwargs) and len(values) == len(fields) else None


def _compiled_init(cls: Any) -> Any:
    """Return an `__init__` compiled for this class; it sets the slots, as `setattr` is refused."""
    scope: dict[str, Any] = {"unset": _REQUIRED}
    parameters, lines = ["self"], []
    for i, (name, default) in enumerate(cls.__init_fields__):
        scope[f"set{i}"] = _slot(cls, name).__set__
        value, parameter = name, name
        if isinstance(default, _Field):
            scope[f"factory{i}"], parameter = default.factory, f"{name}=unset"
            value = f"factory{i}() if {name} is unset else {name}"
        elif default is not _REQUIRED:
            scope[f"default{i}"], parameter = default, f"{name}=default{i}"
        parameters.append(parameter)
        lines.append(f"    set{i}(self, {value})")
    if hasattr(cls, "__post_init__"):
        lines.append("    self.__post_init__()")
    exec(f"def __init__({', '.join(parameters)}):\n" + "\n".join(lines or ["    pass"]), scope)
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


def _refuse(self: Any, name: str, *_: object) -> NoReturn:
    raise AttributeError(f"{type(self).__qualname__}.{name} cannot be changed or deleted")


def _set_state(self: Any, state: tuple[None, dict[str, Any]]) -> None:
    """Restore a copied or unpickled object."""
    for name, value in state[1].items():
        _slot(type(self), name).__set__(self, value)
