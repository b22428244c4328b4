"""Values in and out: checked against the model, not shared with weights, inputs or other runs."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

import sardonyx._native as native
from sardonyx.base.torch_tensor import is_tensor
from sardonyx.errors import InvalidArgument, SardonyxError, ValueFault
from sardonyx.graph.dtype import STRING, by_numpy
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.graph.guard import AssumptionFailed
from sardonyx.ort.device import device_values
from sardonyx.ort.dlpack import checked, is_on_host
from sardonyx.ort.node_arg import type_name
from sardonyx.ort.ort_value import OrtValue
from sardonyx.place.provider import HOST
from sardonyx.program.program import FastPath, Input, Program
from sardonyx.program.run import check_shape

if TYPE_CHECKING:
    from sardonyx.ort.sparse_tensor import SparseTensor


def check_feed(inputs: Mapping[str, Input], feed: Mapping[str, Any]) -> dict[str, Any]:
    """The fed values in the form that steps take them; a wrong name or type is an error."""
    values: dict[str, Any] = {}
    for name, value in feed.items():
        spec = inputs.get(name)
        if spec is None:
            raise InvalidArgument(f"Invalid input name: {name}; the model has {', '.join(inputs)}")
        if value is None and spec.default is not None:
            continue
        values[name] = check_value(name, spec.fact, value, spec.device)
    return values


def check_value(name: str, fact: AnyFact | None, value: Any, device: str = HOST) -> Any:
    """One value in the form that steps take it: an array, or a tensor that is on the device."""
    if isinstance(value, OrtValue):
        value = value._fed()
    if isinstance(fact, OptionalFact):
        return None if value is None else _check_element(name, fact.elem, value, device)
    if isinstance(fact, SequenceFact):
        if not isinstance(value, (list, tuple)):
            raise InvalidArgument(f"input {name} is a {type_name(fact)}: give it a list")
        return [
            _check_element(f"{name}[{i}]", fact.elem, element) for i, element in enumerate(value)
        ]
    if isinstance(fact, MapFact):
        if not isinstance(value, Mapping):
            raise InvalidArgument(f"input {name} is a {type_name(fact)}: give it a dict")
        _check_keys(name, fact, value)
        return {k: _map_value(name, fact, v) for k, v in value.items()}
    if isinstance(fact, SparseFact):
        return _sparse(name, fact, value)
    if not isinstance(fact, Fact):
        return value
    if value is None:
        raise InvalidArgument(f"input {name} is a {type_name(fact)}, and None was given")
    if not isinstance(value, np.ndarray) and (is_tensor(value) or not is_on_host(value)):
        value = _from_tensor(name, fact, value, device)
        if is_tensor(value):
            return value
    return _array(name, fact, value)


def _check_element(name: str, fact: AnyFact | None, value: Any, device: str = HOST) -> Any:
    """A value inside a sequence or an optional, whose shape nothing else compares with its type.

    Sizes that have names may differ between elements; numbers and the rank are what inference and
    kernels rest on.
    """
    value = check_value(name, fact, value, device)
    if isinstance(fact, Fact) and fact.shape is not None:
        check_shape(name, fact, tuple(value.shape))
    return value


def _from_tensor(name: str, fact: Fact, value: Any, device: str) -> Any:
    """A tensor of torch, or one that it can take: as it is where it is wanted, else an array."""
    values = device_values(device)
    try:
        tensor = values.from_dlpack(checked(value))
    except ValueFault as error:
        raise InvalidArgument(f"input {name} cannot be read: {error.what}") from None
    dtype = values.dtype_of(tensor)
    if dtype is not fact.dtype:
        raise InvalidArgument(
            f"Unexpected input data type. Actual: (tensor({dtype.ort_name})) , "
            f"expected: ({type_name(fact)})",
            input=name,
            hint="convert it with tensor.to",
        )
    return tensor if values.is_at(tensor, device) else values.downloaded([tensor])[0]


def _sparse(name: str, fact: SparseFact, value: Any) -> SparseTensor:
    from sardonyx.ort.sparse_tensor import SparseTensor  # few models take one

    if not isinstance(value, SparseTensor) or value._dtype is not fact.dtype:
        kind = value.data_type() if isinstance(value, SparseTensor) else type(value).__name__
        raise InvalidArgument(
            f"Unexpected input data type. Actual: ({kind}) , expected: ({type_name(fact)})",
            input=name,
            hint="make it by SparseTensor.sparse_coo_from_numpy",
        )
    shape, wanted = value.dense_shape(), fact.shape
    if wanted is not None and (
        len(shape) != len(wanted)
        or any(isinstance(w, int) and s != w for s, w in zip(shape, wanted, strict=True))
    ):
        raise InvalidArgument(
            f"input {name} is a sparse tensor of shape {shape}, and the model wants {fact}"
        )
    return value


def _check_keys(name: str, fact: MapFact, value: Mapping[Any, Any]) -> None:
    wanted: Any = str if fact.key is STRING else (int, np.integer)
    for key in value:
        if not isinstance(key, wanted):
            raise InvalidArgument(
                f"input {name} is a {type_name(fact)}, and has the key {key!r:.40} "
                f"({type(key).__name__})"
            )


def _map_value(name: str, fact: MapFact, value: Any) -> Any:
    """A value of the map's own type: a string, a number, or an array of one."""
    elem = fact.value
    if not isinstance(elem, Fact):
        return value
    if isinstance(value, np.ndarray):
        if by_numpy(value.dtype) is elem.dtype and value.size == 1:
            return value
    elif elem.dtype is STRING:
        if isinstance(value, str):
            return value
    elif isinstance(value, (int, np.integer) if elem.dtype.is_integer else (int, float, np.number)):
        with contextlib.suppress(OverflowError, TypeError):
            return elem.dtype.np.type(value)
    raise InvalidArgument(
        f"input {name} is a {type_name(fact)}, and has the value {value!r:.40}, which is no "
        f"{elem.dtype.ort_name}"
    )


def _array(name: str, fact: Fact, value: Any) -> Any:
    array = value if isinstance(value, np.ndarray) else _from_list(name, value, fact)
    dtype = by_numpy(array.dtype)
    if dtype is STRING:
        array = array.astype(object) if array.dtype.kind == "U" else array
        _check_strings(name, array)
        if array.dtype.kind == "S":  # flat: numpy decodes ranks up to 32
            array = np.char.decode(array.reshape(-1), "utf-8").reshape(array.shape)
        array = array.astype(object, copy=False)
    if dtype is not fact.dtype:
        got = f"tensor({dtype.ort_name})" if dtype is not None else str(array.dtype)
        raise InvalidArgument(
            f"Unexpected input data type. Actual: ({got}) , expected: ({type_name(fact)})",
            input=name,
            hint=f"convert it with array.astype({fact.dtype.np.name!r})",
        )
    if native.has_capacity(array):  # a cache of ours, fed back as it is
        return array
    view = np.ascontiguousarray(array).reshape(array.shape).view()
    view.flags.writeable = False
    return view


def _check_strings(name: str, array: Any) -> None:
    """An object array may hold anything; a string tensor holds text that UTF-8 can say."""
    at = native.first_non_string(np.ascontiguousarray(array))
    if at is None:
        return
    odd = array.reshape(-1)[at]
    if array.dtype.kind == "S":
        what = "bytes that are no UTF-8"
    else:
        what = "a lone surrogate" if isinstance(odd, str) else f"a {type(odd).__name__}"
    raise InvalidArgument(f"input {name} is a tensor(string), and has {what} at element {at}")


def _from_list(name: str, value: Any, fact: Fact) -> Any:
    try:
        if fact.dtype is STRING:
            return np.array(value, object)
        if hasattr(value, "__array__"):
            return np.asarray(value)
        if hasattr(value, "__dlpack__"):
            return OrtValue.from_dlpack(value)._fed()
        return np.array(value, fact.dtype.np)
    except (SardonyxError, MemoryError):
        raise
    except Exception as error:  # whatever the methods of a user's object raise
        raise InvalidArgument(
            f"input {name} is a {type_name(fact)}, and cannot be made of what is given: "
            f"{type(error).__name__}: {error}"
        ) from error


def raise_fault(fast: FastPath, outcome: native.Outcome, feed: Mapping[str, Any]) -> None:
    """Raises the error of a run that failed on the fast path.

    It returns where the program rests on an assumption that does not hold for the feed. These are
    checked before anything runs, so that the checked path may begin anew.
    """
    try:
        fast.segment.fail(outcome)
    except AssumptionFailed:
        return
    except InvalidArgument as error:
        raise error.at(fed=describe(feed)) from None


def describe(values: Mapping[str, Any]) -> str:
    """Fed values by name and shape, for errors."""
    return ", ".join(
        f"{name} {list(v.shape)}" if hasattr(v, "shape") else f"{name} ({type(v).__name__})"
        for name, v in values.items()
    )


def is_at(value: Any, device: str) -> bool:
    """Whether an array or a tensor lies on the device of a name."""
    if isinstance(value, np.ndarray):
        return device == HOST
    return bool(device_values(device).is_at(value, device))


def tensors(values: Iterable[Any]) -> Iterator[Any]:
    """Arrays and tensors of torch among values, those in lists included."""
    for value in values:
        if isinstance(value, list):
            yield from tensors(value)
        elif isinstance(value, np.ndarray) or is_tensor(value):
            yield value


def taken(fed: Iterable[Any], places: Iterable[Any] = ()) -> set[Any]:
    """What the memory of inputs and places is known by to `hand_out`.

    Inputs and constants are read-only arrays, and so is every view of them; all but the caches
    among what was fed. Nothing tells whether a tensor of torch is a view.
    """
    found: set[Any] = set()
    for value in tensors(fed):
        if is_tensor(value):
            found.add(device_values("a device").owner_of(value))
        elif native.has_capacity(value):
            found.update((id(value), id(value.base)))
    for place in tensors(places):
        if is_tensor(place):
            found.add(device_values("a device").owner_of(place))
        else:
            found.update((id(place), id(place if place.base is None else place.base)))
    return found


def hand_out(
    results: Sequence[Any], others: Callable[[], set[Any]], places: Sequence[Any] = ()
) -> list[Any]:
    """Results that the caller may keep and change: sharing bytes with nothing else.

    They are contiguous, all but caches and what lies on devices. One that lies in the caller's
    place among `places` is that place; an equal one beside it is not. `others` gives what was
    `taken`.
    """
    own = places or [None] * len(results)
    known: set[Any] | None = None
    made = []
    for result, place in zip(results, own, strict=True):
        if result is place and place is not None:
            made.append(place)
            continue
        if known is None:
            known = others()
        made.append(_give(result, known))
    return made


def _give(value: Any, known: set[Any]) -> Any:
    if isinstance(value, list):
        return [_give(v, known) for v in value]
    if is_tensor(value):
        return _give_tensor(value, known)
    if not isinstance(value, np.ndarray):
        return value.copied() if hasattr(value, "copied") else value
    owner = value if value.base is None else value.base
    if not value.flags.writeable or id(owner) in known:
        return value.copy()
    known.add(id(owner))  # a second output over the same bytes is copied
    if native.has_capacity(value):
        return value
    return np.ascontiguousarray(value).reshape(value.shape)


def _give_tensor(tensor: Any, known: set[Any]) -> Any:
    owner = device_values("a device").owner_of(tensor)
    if owner in known:
        return tensor.clone()
    known.add(owner)
    return tensor


def settle(
    program: Program,
    results: Sequence[Any],
    wanted: Sequence[int],
    stays: bool,
    places: Sequence[Any] = (),
) -> list[Any]:
    """The wanted results as arrays, or as tensors of torch where these lie if they are to stay.

    Arrays of the host are left as they are, and so is what lies in its place. Tensors that stay
    are no memory of the program's.
    """
    if not program.devices:
        return [results[i] for i in wanted]
    made = []
    for i in wanted:
        value = results[i]
        if places and value is places[i]:
            made.append(value)
            continue
        if not is_tensor(value) or not is_at(value, program.outputs[i].device):
            value = program.on_host(i, value)
        elif stays:
            value = value.clone() if program.keeps(value) else value
        elif value.device.type == "cpu":  # `downloaded` would give its memory away
            value = program.on_host(i, value)
        made.append(value)
    return made if stays else on_host(made)


def on_host(results: Sequence[Any]) -> list[Any]:
    """Results with arrays in place of tensors, which one wait brings."""
    found = [r for r in results if is_tensor(r)]
    if not found:
        return list(results)
    arrays = iter(device_values("a device").downloaded(found))
    return [next(arrays) if is_tensor(r) else r for r in results]


def as_tensors(results: Sequence[Any]) -> list[Any]:
    """Results with tensors of torch in place of arrays, where it has their type."""
    made: list[Any] = device_values("a device").as_tensors(results)
    return made
