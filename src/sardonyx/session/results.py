"""Results of a run on the checked path: brought to the host and made the caller's own memory.

`requested_results` selects the requested outputs and copies them from devices; `unshared` copies
those that share memory with weights, inputs or each other, so that the caller may keep and modify
what `run` returns. (The fast path does the same in native code.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np

import sardonyx._native as native
from sardonyx.base.torch_tensor import is_tensor
from sardonyx.ort.device import device_values
from sardonyx.program.program import Program
from sardonyx.session.feeds import is_at, tensors


def memory_owners(fed: Iterable[Any], buffers: Iterable[Any] = ()) -> set[Any]:
    """Return keys of the memory of fed values and bound buffers, for `unshared`.

    Fed arrays need none, except caches with reserved rows: inputs and constants are read-only, and
    so is every view of them. A torch tensor does not tell whether it is a view.
    """
    owners: set[Any] = set()
    for value in tensors(fed):
        if is_tensor(value):
            owners.add(device_values("a device").owner_of(value))
        elif native.has_capacity(value):
            owners.update((id(value), id(value.base)))
    for buffer in tensors(buffers):
        if is_tensor(buffer):
            owners.add(device_values("a device").owner_of(buffer))
        else:
            owners.update((id(buffer), id(buffer if buffer.base is None else buffer.base)))
    return owners


def unshared(
    results: Sequence[Any], in_use: Callable[[], set[Any]], buffers: Sequence[Any] = ()
) -> list[Any]:
    """Return results that share memory with nothing else, copied where necessary.

    They are contiguous, except caches with reserved rows and tensors on devices. A result that is
    its own bound buffer among `buffers` is returned as it is. `in_use` returns the
    `memory_owners` of the run; it is called only if some result has no buffer.
    """
    own_buffers = buffers or [None] * len(results)
    owners: set[Any] | None = None
    returned = []
    for result, buffer in zip(results, own_buffers, strict=True):
        if result is buffer and buffer is not None:
            returned.append(buffer)
            continue
        if owners is None:
            owners = in_use()
        returned.append(_unshared(result, owners))
    return returned


def _unshared(value: Any, owners: set[Any]) -> Any:
    """Return a value, or a copy if its memory is in `owners`, and add its memory there."""
    if isinstance(value, list):
        return [_unshared(v, owners) for v in value]
    if is_tensor(value):
        return _unshared_tensor(value, owners)
    if not isinstance(value, np.ndarray):
        return value.copied() if hasattr(value, "copied") else value
    # numpy collapses chains of views: `base` is the owner of the memory itself.
    owner = value if value.base is None else value.base
    if not value.flags.writeable or id(owner) in owners:
        return value.copy()
    owners.add(id(owner))  # a second output over the same bytes is copied
    if native.has_capacity(value):
        return value
    return np.ascontiguousarray(value).reshape(value.shape)


def _unshared_tensor(tensor: Any, owners: set[Any]) -> Any:
    owner = device_values("a device").owner_of(tensor)
    if owner in owners:
        return tensor.clone()
    owners.add(owner)
    return tensor


def requested_results(
    program: Program,
    results: Sequence[Any],
    indices: Sequence[int],
    on_device: bool,
    buffers: Sequence[Any] = (),
) -> list[Any]:
    """Return the results of these indices as arrays or, if `on_device`, as tensors where they are.

    A result in its own bound buffer is left there. A tensor returned on its device is a copy if the
    program owns its memory.
    """
    if not program.devices:
        return [results[i] for i in indices]
    found = []
    for i in indices:
        value = results[i]
        if buffers and value is buffers[i]:
            found.append(value)
            continue
        if not is_tensor(value) or not is_at(value, program.outputs[i].device):
            value = program.on_host(i, value)
        elif on_device:
            value = value.clone() if program.aliases_persistent_memory(value) else value
        elif value.device.type == "cpu":  # `downloaded` would return its memory without a copy
            value = program.on_host(i, value)
        found.append(value)
    return found if on_device else on_host(found)


def on_host(results: Sequence[Any]) -> list[Any]:
    """Return results with arrays for device tensors; one synchronization downloads them all."""
    on_devices = [r for r in results if is_tensor(r)]
    if not on_devices:
        return list(results)
    arrays = iter(device_values("a device").to_arrays(on_devices))
    return [next(arrays) if is_tensor(r) else r for r in results]


def as_tensors(results: Sequence[Any]) -> list[Any]:
    """Return results with torch tensors for arrays, where torch has their type."""
    converted: list[Any] = device_values("a device").as_tensors(results)
    return converted
