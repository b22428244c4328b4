"""Feeds that are not what a model declares: other shapes, types, elements, or nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import numpy as np

from tests.mutate import array

Feeds = dict[str, Any]
Mutation = Callable[[Random, Feeds, str], Any]  # another value for the input of a name

SIZES = (0, 1, 2, 3, 5, 17)
TYPES: Sequence[Any] = (
    np.float32, np.float64, np.float16, np.int64, np.int32, np.int8, np.uint8, np.bool_, object,
    np.complex64, ">f4", ">i8", "U3", "S3", "M8[s]",
)  # fmt: skip


def mutate_feeds(rng: Random, feeds: Feeds) -> Feeds:
    """The feeds with one or two of them changed, or with one too few or too many."""
    mutated = dict(feeds)
    for _ in range(rng.choice((1, 1, 2))):
        if rng.random() < 0.1:
            mutated[f"none_{len(mutated)}"] = np.zeros(2, np.float32)
        elif mutated:
            name = rng.choice(list(mutated))
            if rng.random() < 0.05:
                del mutated[name]
            else:
                mutated[name] = _changed(rng, mutated, name)
    return mutated


def _changed(rng: Random, feeds: Feeds, name: str) -> Any:
    value = feeds[name]
    if isinstance(value, list):
        return rng.choice(LISTS)(rng, feeds, name)
    if isinstance(value, np.ndarray):
        return rng.choice(ARRAYS)(rng, feeds, name)
    return rng.choice((None, [], {}, np.zeros(2, np.float32), 3, "text"))


def other_size(rng: Random, feeds: Feeds, name: str) -> Any:
    """One dim longer or shorter: fixed ones no longer fit, and equal names no longer agree."""
    x = feeds[name]
    if not x.ndim:
        return other_rank(rng, feeds, name)
    shape = list(x.shape)
    axis = rng.randrange(x.ndim)
    shape[axis] = rng.choice([s for s in (*SIZES, shape[axis] + 1) if s != shape[axis]])
    return array(rng, x.dtype, shape) if np.prod(shape) <= 1 << 16 else x


def other_rank(rng: Random, feeds: Feeds, name: str) -> Any:
    """An axis more or less, or far more than any kernel takes."""
    x = feeds[name]
    kind = rng.randrange(4)
    if kind == 0 and x.ndim:
        return array(rng, x.dtype, x.shape[1:])
    if kind == 1:
        return x.reshape(-1)
    axes = rng.choice((1, 1, 2, 8, 11, 12, 40))
    return x.reshape((1,) * min(axes, 64 - x.ndim) + x.shape)


def other_type(rng: Random, feeds: Feeds, name: str) -> Any:
    x = feeds[name]
    try:
        with np.errstate(all="ignore"):
            return x.astype(rng.choice(TYPES))
    except (ArithmeticError, TypeError, ValueError, RuntimeError):  # dates have no short text
        return np.zeros(x.shape, np.complex128)


def other_layout(rng: Random, feeds: Feeds, name: str) -> Any:
    """No lie: the same numbers with gaps, backwards, broadcast, unaligned, read-only, or a list."""
    x = feeds[name]
    kind = rng.randrange(6)
    if kind == 0 and x.ndim:
        view = np.empty((*x.shape[:-1], 2 * x.shape[-1]), x.dtype)[..., ::2]
        view[...] = x
        return view[::-1][::-1]
    if kind == 1:
        return np.asfortranarray(x)
    if kind == 2 and x.dtype != object:
        held = bytearray(1) + x.tobytes()
        return np.frombuffer(held, np.uint8)[1:].view(x.dtype).reshape(x.shape)
    if kind == 3 and x.ndim and x.shape[0]:
        return np.broadcast_to(x[:1], x.shape)
    if kind == 4 and x.size <= 64 and x.dtype.kind != "V":
        return x.tolist()
    view = x.view()
    view.flags.writeable = False
    return view


def other_kind(rng: Random, feeds: Feeds, name: str) -> Any:
    """No array at all."""
    x = feeds[name]
    return rng.choice((None, [x], [x, x], {}, {"a": x}, 3, 2.5, "text", b"bytes", object(), [[]]))


def of_another(rng: Random, feeds: Feeds, name: str) -> Any:
    """Return the value of a random input."""
    return feeds[rng.choice(list(feeds))]


def other_element(rng: Random, feeds: Feeds, name: str) -> Any:
    """A list with an element that is not as the others."""
    items = list(feeds[name])
    if not items:
        return [np.zeros(rng.choice(SIZES), np.float32)] * rng.choice((1, 2))
    place = rng.randrange(len(items))
    items[place] = _changed(rng, {name: items[place]}, name)
    return items


def other_length(rng: Random, feeds: Feeds, name: str) -> Any:
    items = list(feeds[name])
    return rng.choice(([], items * 2, items[:1], [None, *items], [items]))


def not_a_list(rng: Random, feeds: Feeds, name: str) -> Any:
    return rng.choice((None, tuple(feeds[name]), np.zeros((2, 2), np.float32), {}, "text", 3))


ARRAYS: tuple[Mutation, ...] = (
    other_size, other_size, other_size, other_rank, other_rank, other_type, other_layout,
    other_layout, other_kind, of_another,
)  # fmt: skip
LISTS: tuple[Mutation, ...] = (other_element, other_element, other_length, not_a_list)
