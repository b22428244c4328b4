"""Fed values on the checked path: validated against the model and converted for its steps.

`InferenceSession.run` first tries the fast path, one native call that validates plain arrays
itself. Values that it does not accept (lists, torch tensors, OrtValues, strings, sequences, maps,
sparse tensors) and invalid ones are handled here. An accepted array becomes a read-only,
contiguous view; it is copied only if it has gaps. Thread-safe: functions without state.
"""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Iterable, Iterator, Mapping
from itertools import islice
from typing import TYPE_CHECKING, Any, Final

import numpy as np

import sardonyx._native as native
from sardonyx.base.torch_tensor import is_tensor
from sardonyx.errors import InvalidArgument, SardonyxError, ValueFault
from sardonyx.graph.dtype import STRING, by_numpy
from sardonyx.graph.fact import AnyFact, Fact, MapFact, OptionalFact, SequenceFact, SparseFact
from sardonyx.ort.device import device_values
from sardonyx.ort.dlpack import is_on_host, validating
from sardonyx.ort.node_arg import type_name
from sardonyx.ort.ort_value import OrtValue
from sardonyx.place.provider import HOST
from sardonyx.program.program import Input
from sardonyx.program.run import check_shape

_DESCRIBED: Final = 8  # inputs in an error message
_PLAIN = (int, float, np.number, np.bool_, type(None))  # their text is the same in every program

if TYPE_CHECKING:
    from sardonyx.ort.sparse_tensor import SparseTensor


def check_feed(inputs: Mapping[str, Input], feed: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fed values as steps read them; raise an error for a wrong name or type."""
    values: dict[str, Any] = {}
    for name, value in feed.items():
        spec = inputs.get(name)
        if spec is None:
            raise InvalidArgument(f"Invalid input name: {name}; the model has {', '.join(inputs)}")
        # None stands for the default.
        if value is None and spec.default is not None:
            continue
        checked = check_value(name, spec.fact, value, spec.device)
        values[name] = _updatable(name, spec.fact, value) if spec.is_updated else checked
    return values


def _updatable(name: str, fact: AnyFact | None, value: Any) -> Any:
    """Return a valid array, or a list of them, that nodes write to; raise if they cannot."""
    array = value._fed() if isinstance(value, OrtValue) else value
    if isinstance(fact, SequenceFact):
        return [_updatable(f"{name}[{i}]", fact.elem, each) for i, each in enumerate(array)]
    if not isinstance(array, np.ndarray) or not (
        array.flags.c_contiguous and array.flags.aligned and array.flags.writeable
    ):
        raise InvalidArgument(
            f"input {name} is updated in place, and needs a writable, contiguous numpy array",
            hint="keep the array, np.array(value), and feed it in every run",
        )
    return array


def check_value(name: str, fact: AnyFact | None, value: Any, device: str = HOST) -> Any:
    """Return one value as steps read it: an array, or a tensor that is on `device`."""
    if isinstance(value, OrtValue):
        value = value._fed()
    if isinstance(fact, OptionalFact):
        return None if value is None else _check_element(name, fact.elem, value, device)
    if isinstance(fact, SequenceFact):
        if not isinstance(value, (list, tuple)):
            raise InvalidArgument(f"input {name} is a {type_name(fact)}: feed a list")
        return [_check_element(f"{name}[{i}]", fact.elem, v) for i, v in enumerate(value)]
    if isinstance(fact, MapFact):
        if not isinstance(value, Mapping):
            raise InvalidArgument(f"input {name} is a {type_name(fact)}: feed a dict")
        _check_keys(name, fact, value)
        return {k: _map_value(name, fact, v) for k, v in value.items()}
    if isinstance(fact, SparseFact):
        return _check_sparse(name, fact, value)
    if not isinstance(fact, Fact):
        return value
    if value is None:
        raise InvalidArgument(f"input {name} is a {type_name(fact)}, not None")
    # Other objects of the host, lists included, are converted by numpy in `_array`.
    if not isinstance(value, np.ndarray) and (is_tensor(value) or not is_on_host(value)):
        value = _from_dlpack(name, fact, value, device)
        if is_tensor(value):
            return value
    return _as_scalar(name, fact, _array(name, fact, value))


def _as_scalar(name: str, fact: Fact, array: Any) -> Any:
    """Return an array of one element as a scalar if the model declares one; warn about it."""
    if fact.shape is None or fact.dims or array.ndim == 0 or array.size != 1:
        return array
    warnings.warn(
        f"input {name} has shape {list(array.shape)}, and the model declares a scalar; "
        "it is run as a scalar",
        stacklevel=2,
    )
    return array.reshape(())


def _check_element(name: str, fact: AnyFact | None, value: Any, device: str = HOST) -> Any:
    """Return an element of a sequence or optional; its shape is checked here and nowhere later.

    Named sizes may differ between elements; inference and kernels rely on the rank and on sizes
    that are numbers.
    """
    value = check_value(name, fact, value, device)
    if isinstance(fact, Fact) and fact.shape is not None:
        check_shape(name, fact, tuple(value.shape))
    return value


def _from_dlpack(name: str, fact: Fact, value: Any, device: str) -> Any:
    """Return a torch or DLPack tensor as a torch tensor if it is on `device`, else as an array."""
    values = device_values(device)
    try:
        tensor = values.from_dlpack(validating(value))
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
    return tensor if values.is_at(tensor, device) else values.to_arrays([tensor])[0]


def _check_sparse(name: str, fact: SparseFact, value: Any) -> SparseTensor:
    from sardonyx.ort.sparse_tensor import SparseTensor  # few models have sparse inputs

    if not isinstance(value, SparseTensor) or value._dtype is not fact.dtype:
        kind = value.data_type() if isinstance(value, SparseTensor) else type(value).__name__
        raise InvalidArgument(
            f"Unexpected input data type. Actual: ({kind}) , expected: ({type_name(fact)})",
            input=name,
            hint="create it with SparseTensor.sparse_coo_from_numpy",
        )
    shape, declared = value.dense_shape(), fact.shape
    if declared is not None and (
        len(shape) != len(declared)
        or any(isinstance(d, int) and s != d for s, d in zip(shape, declared, strict=True))
    ):
        raise InvalidArgument(
            f"input {name} is a sparse tensor of shape {shape}, and the model declares {fact}"
        )
    return value


def _check_keys(name: str, fact: MapFact, value: Mapping[Any, Any]) -> None:
    key_type: Any = str if fact.key is STRING else (int, np.integer)
    for key in value:
        if not isinstance(key, key_type):
            c_type = "std::string" if fact.key is STRING else "int64_t"
            raise ValueFault(
                f"Unexpected key type  {type(key)}, it cannot be linked to C type {c_type}: "
                f"input {name} is a {type_name(fact)}, and has the key {key!r:.40}"
            )


def _map_value(name: str, fact: MapFact, value: Any) -> Any:
    """Return a value of the map's value type: a string, a number, or an array of one element."""
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
        f"input {name} is a {type_name(fact)}, and has the value {value!r:.40}, which is not "
        f"of type {elem.dtype.ort_name}"
    )


def _array(name: str, fact: Fact, value: Any) -> Any:
    """Return a tensor input as a read-only contiguous array; string arrays become objects."""
    array = value if isinstance(value, np.ndarray) else _from_list(name, value, fact)
    if fact.dtype is STRING and array.dtype.type is np.void and array.dtype.fields is None:
        array = _as_texts(name, array)
    dtype = by_numpy(array.dtype)
    if dtype is STRING:
        array = array.astype(object) if array.dtype.kind == "U" else array
        array = _check_strings(name, array)
        if array.dtype.kind == "S":  # flat: numpy decodes at most 32 dims
            array = np.char.decode(array.reshape(-1), "utf-8").reshape(array.shape)
        array = array.astype(object, copy=False)
    if dtype is not fact.dtype:
        got = f"tensor({dtype.ort_name})" if dtype is not None else str(array.dtype)
        raise InvalidArgument(
            f"Unexpected input data type. Actual: ({got}) , expected: ({type_name(fact)})",
            input=name,
            hint=f"convert it with array.astype({fact.dtype.np.name!r})",
        )
    if native.has_capacity(array):  # a cache with reserved rows, fed back: stays writable
        return array
    # reshape: ascontiguousarray turns a scalar into a vector. The view is read-only, so that
    # neither a custom op nor a result that aliases it can write to the caller's array.
    view = np.ascontiguousarray(array).reshape(array.shape).view()
    view.flags.writeable = False
    return view


def _as_texts(name: str, array: Any) -> Any:
    """Return an array of np.void, whose elements are text in UTF-8, as strings.

    Unlike those of numpy's own strings, zeros at the end of an element belong to it.
    """
    texts = np.empty(array.size, object)
    try:
        texts[:] = [bytes(element).decode() for element in array.reshape(-1)]
    except UnicodeDecodeError as error:
        raise InvalidArgument(f"input {name} has bytes that are not UTF-8: {error}") from None
    return texts.reshape(array.shape)


def _check_strings(name: str, array: Any) -> Any:
    """Return an array of text; raise an error for elements that are not encodable as UTF-8.

    Numbers and missing values (NaN, None) among the text become text, with a warning.
    """
    at = native.first_non_string(np.ascontiguousarray(array))
    if at is not None and isinstance(array.reshape(-1)[at], _PLAIN):
        warnings.warn(
            f"input {name} is a tensor(string), and has numbers or None; "
            "they are fed as text, by str",
            stacklevel=2,
        )
        array = _plain_as_text(array)
        at = native.first_non_string(np.ascontiguousarray(array))
    if at is None:
        return array
    odd = array.reshape(-1)[at]
    if array.dtype.kind == "S":
        what = "bytes that are not UTF-8"
    else:
        what = "a lone surrogate" if isinstance(odd, str) else f"a {type(odd).__name__}"
    raise InvalidArgument(f"input {name} is a tensor(string), and has {what} at element {at}")


def _plain_as_text(array: Any) -> Any:
    texts = np.empty(array.size, object)
    texts[:] = [str(each) if isinstance(each, _PLAIN) else each for each in array.reshape(-1)]
    return texts.reshape(array.shape)


def _from_list(name: str, value: Any, fact: Fact) -> Any:
    """Return an array from a list, a number, or an object with __array__ or __dlpack__."""
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
    except Exception as error:  # raised by the methods of a user's object
        raise InvalidArgument(
            f"input {name} is a {type_name(fact)}, and the fed value cannot be converted: "
            f"{type(error).__name__}: {error}"
        ) from error


def describe(values: Mapping[str, Any]) -> str:
    """Return the names and shapes of fed values, for error messages: of many, the first ones."""
    shown = [
        f"{name} {list(v.shape)}" if hasattr(v, "shape") else f"{name} ({type(v).__name__})"
        for name, v in islice(values.items(), _DESCRIBED)
    ]
    if len(values) > _DESCRIBED:
        shown.append(f"and {len(values) - _DESCRIBED} more")
    return ", ".join(shown)


def is_at(value: Any, device: str) -> bool:
    """Return whether an array or a tensor is on the device of this name."""
    if isinstance(value, np.ndarray):
        return device == HOST
    return bool(device_values(device).is_at(value, device))


def tensors(values: Iterable[Any]) -> Iterator[Any]:
    """Yield the arrays and torch tensors among values, including those in lists."""
    for value in values:
        if isinstance(value, list):
            yield from tensors(value)
        elif isinstance(value, np.ndarray) or is_tensor(value):
            yield value
