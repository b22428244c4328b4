"""Records: defined, compared, shown, copied and protected as dataclasses are."""

from __future__ import annotations

import copy
import pickle
import weakref
from typing import Any, ClassVar

import pytest

from sardonyx.base.records import as_dict, as_tuple, field, field_names, frozen, mutable, replace


@frozen
class Point:
    """A point."""

    x: int
    y: int = 2
    tags: list[str] = field(default_factory=list)

    unit: ClassVar[str] = "m"

    @property
    def sum(self) -> int:
        return self.x + self.y


@frozen
class Named(Point):
    name: str = ""


@mutable
class Count:
    n: int
    seen: list[int] = field(default_factory=list)
    twice: int = field(init=False)

    def __post_init__(self) -> None:
        self.twice = 2 * self.n


@frozen(eq=False)
class Alone:
    x: int


@frozen(weakref_slot=True)
class Known:
    x: int


@frozen
class Nothing:
    """No fields."""


def points(count: int) -> list[Point]:
    return [Point(i, tags=["a"]) for i in range(count)]


def test_first_and_later_objects_are_equal() -> None:
    made = points(200)
    assert [p.x for p in made] == list(range(200))
    assert all(p.y == 2 and p.tags == ["a"] and p.sum == p.x + 2 for p in made)
    assert Point(1).tags is not Point(1).tags


@pytest.mark.parametrize("count", [0, 200], ids=["first", "later"])
@pytest.mark.parametrize(
    ("args", "given", "said"),
    [
        ((), {}, "missing 1 required positional argument: 'x'"),
        ((1, 2, [], 4), {}, "takes from 2 to 4 positional arguments but 5 were given"),
        ((1,), {"z": 1}, "unexpected keyword argument 'z'"),
        ((1,), {"x": 1}, "multiple values for argument 'x'"),
    ],
)
def test_wrong_arguments(
    count: int, args: tuple[object, ...], given: dict[str, object], said: str
) -> None:
    @frozen
    class Fresh:
        x: int
        y: int = 2
        tags: list[str] = field(default_factory=list)

    for i in range(count):
        Fresh(i)
    with pytest.raises(TypeError, match=said):
        Fresh(*args, **given)  # type: ignore[arg-type]


def test_equal_by_fields() -> None:
    assert Point(1) == Point(1, 2) != Point(2)
    assert Point(1) != Named(1)
    assert Known(1) in {Known(1)}
    assert Nothing() == Nothing()
    assert hash(Nothing()) == hash(Nothing())
    assert Alone(1) != Alone(1)
    assert len({Alone(1), Alone(1)}) == 2
    assert Count(1) == Count(1) != Count(2)
    with pytest.raises(TypeError, match="unhashable"):
        hash(Count(1))


def test_frozen_and_mutable() -> None:
    point = Point(1)
    with pytest.raises(AttributeError, match=r"Point\.x cannot be changed"):
        point.x = 2  # type: ignore[misc]
    with pytest.raises(AttributeError, match=r"Point\.x cannot be changed or deleted"):
        del point.x  # type: ignore[misc]
    with pytest.raises(AttributeError):
        point.other = 2  # type: ignore[attr-defined]
    count = Count(3)
    assert count.twice == 6
    count.n = 4
    assert count.n == 4
    with pytest.raises(AttributeError):
        count.other = 1  # type: ignore[attr-defined]


def test_repr_fields_match_and_replace() -> None:
    named = Named(1, 3, ["a"], name="n")
    assert repr(named) == "Named(x=1, y=3, tags=['a'], name='n')"
    assert field_names(Named) == ("x", "y", "tags", "name")
    assert as_tuple(named) == (1, 3, ["a"], "n")
    assert as_dict(named) == {"x": 1, "y": 3, "tags": ["a"], "name": "n"}
    assert replace(named, y=5) == Named(1, 5, ["a"], "n")
    assert replace(Count(2), n=7).twice == 14
    match named:
        case Named(x, y):
            assert (x, y) == (1, 3)
    assert Point.unit == "m"
    assert Named.__qualname__ == "Named"


def test_copied_pickled_and_referenced_weakly() -> None:
    named = Named(1, 3, ["a"], "n")
    assert copy.copy(named) == named == copy.deepcopy(named) == pickle.loads(pickle.dumps(named))
    known = Known(1)
    assert weakref.ref(known)() is known


def test_an_overridden_field_counts_once() -> None:
    @frozen
    class Base:
        number: int
        seen: list[int] = field(default_factory=list, init=False)

        def __post_init__(self) -> None:
            object.__setattr__(self, "seen", [self.number])

    @frozen
    class Derived(Base):
        number: int = 5

    assert field_names(Derived) == ("number", "seen")
    assert repr(Derived()).endswith("Derived(number=5, seen=[5])")
    assert Derived() == Derived(5) != Derived(6)


class LazyAnnotations(type):
    """As in Python 3.14: the class dict has no annotations, the attribute computes them."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> LazyAnnotations:
        annotations = body.pop("__annotations__", None) or body.get("__lazy__", {})
        return super().__new__(cls, name, bases, {**body, "__lazy__": annotations})

    @property
    def __annotations__(cls) -> dict[str, Any]:  # type: ignore[override]
        annotations: dict[str, Any] = cls.__dict__["__lazy__"]
        return annotations


def test_annotations_that_are_evaluated_lazily() -> None:
    @frozen
    class Lazy(metaclass=LazyAnnotations):
        x: int
        y: int = 2

        unit: ClassVar[str] = "m"

    assert field_names(Lazy) == ("x", "y")
    assert Lazy(1) == Lazy(1, 2) != Lazy(2)
    assert Lazy.unit == "m"


def test_annotations_of_a_base_are_not_those_of_a_class_without_any() -> None:
    @frozen
    class Same(Point):
        pass

    assert Same.__slots__ == ()
    assert field_names(Same) == field_names(Point)
