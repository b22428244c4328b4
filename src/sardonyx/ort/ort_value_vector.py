"""Lists of OrtValues, and copies between them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import BOOL
from sardonyx.ort.device import OrtDevice, device_values, torch_name
from sardonyx.ort.ort_value import OrtValue


class OrtValueVector:
    """A list of OrtValues, under the names that programs of onnxruntime use."""

    __slots__ = ("_values",)

    def __init__(self, values: Sequence[OrtValue] = ()) -> None:
        self._values = list(values)

    def __len__(self) -> int:
        return len(self._values)

    def __getitem__(self, index: int) -> OrtValue:
        return self._values[index]

    def __iter__(self) -> Iterator[OrtValue]:
        return iter(self._values)

    def push_back(self, value: Any, is_bool_tensor: bool = False) -> None:
        """Adds an OrtValue, or another library's tensor by DLPack."""
        if not isinstance(value, OrtValue):
            value = OrtValue.from_dlpack(value, is_bool_tensor)
        self._values.append(value)

    def push_back_batch(
        self,
        tensors: Sequence[Any],
        data_ptrs: Sequence[int],
        element_types: Sequence[Any],
        shapes: Sequence[Sequence[int]],
        devices: Sequence[OrtDevice],
    ) -> None:
        """Adds tensors at addresses that `tensors` keep."""
        from sardonyx.ort.raw_pointers import tensor_at

        for owner, pointer, kind, shape, device in zip(
            tensors, data_ptrs, element_types, shapes, devices, strict=True
        ):
            where = torch_name(device)
            self._values.append(tensor_at(pointer, kind, shape, owner, where))

    def reserve(self, count: int) -> None:
        """Kept for programs that call it: a list makes room by itself."""

    def shrink_to_fit(self) -> None:
        """Kept for programs that call it."""

    def bool_tensor_indices(self) -> list[int]:
        """Where tensors of bools are, which DLPack of old did not know."""
        return [i for i, v in enumerate(self._values) if v._dtype is BOOL]

    def element_type_at(self, idx: int) -> int:
        """ONNX's number of a tensor's element type."""
        return self._values[idx].element_type()

    def dlpack_at(self, index: int) -> Any:
        """A tensor as a DLPack capsule."""
        return self._values[index].__dlpack__()

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None) -> list[Any]:
        """All tensors, as capsules or as what a function makes of these."""
        capsules = (value.__dlpack__() for value in self._values)
        return [capsule if to_tensor is None else to_tensor(capsule) for capsule in capsules]


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copies each tensor's elements into another of the same type and shape.

    With an OrtSyncStream, what goes from device to device is done by that stream, later.
    """
    if len(src) != len(dst):
        raise ValueFault(f"{len(src)} tensors are to be copied into {len(dst)}")
    for number, (there, here) in enumerate(zip(src, dst, strict=True)):
        if there.data_type() != here.data_type() or there.shape() != here.shape():
            raise ValueFault(
                f"tensor {number} is {there.data_type()} {there.shape()}, "
                f"and is to be copied into {here.data_type()} {here.shape()}"
            )
        if stream is None:
            here.update_inplace(there)
            continue
        with device_values("a stream").on_stream(stream._stream):
            here.update_inplace(there)
