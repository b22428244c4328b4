"""OrtValueVector, a list of OrtValues, and copies between tensors."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from sardonyx.errors import ValueFault
from sardonyx.graph.dtype import BOOL
from sardonyx.ort.device import OrtDevice, device_values, torch_name
from sardonyx.ort.ort_value import OrtValue


class OrtValueVector:
    """A list of OrtValues, with the method names of onnxruntime."""

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
        """Append an OrtValue, or another library's tensor through DLPack."""
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
        """Append tensors at addresses; they keep the objects `tensors` alive."""
        from sardonyx.ort.raw_pointers import tensor_at

        for owner, pointer, kind, shape, device in zip(
            tensors, data_ptrs, element_types, shapes, devices, strict=True
        ):
            where = torch_name(device)
            self._values.append(tensor_at(pointer, kind, shape, owner, where))

    def reserve(self, count: int) -> None:
        """Do nothing: for compatibility. A list grows by itself."""

    def shrink_to_fit(self) -> None:
        """Do nothing: for compatibility."""

    def bool_tensor_indices(self) -> list[int]:
        """Return the indices of bool tensors, which old versions of DLPack do not have."""
        return [i for i, v in enumerate(self._values) if v._dtype is BOOL]

    def element_type_at(self, idx: int) -> int:
        """Return ONNX's number of a tensor's element type."""
        return self._values[idx].element_type()

    def dlpack_at(self, index: int) -> Any:
        """Return a tensor as a DLPack capsule."""
        return self._values[index].__dlpack__()

    def to_dlpacks(self, to_tensor: Callable[[Any], Any] | None) -> list[Any]:
        """Return all tensors as DLPack capsules, converted by `to_tensor` if it is not None."""
        capsules = (value.__dlpack__() for value in self._values)
        return [capsule if to_tensor is None else to_tensor(capsule) for capsule in capsules]


def copy_tensors(src: Sequence[OrtValue], dst: Sequence[OrtValue], stream: Any = None) -> None:
    """Copy each tensor into another of the same type and shape.

    With an OrtSyncStream, copies between devices are enqueued on that stream.
    """
    if len(src) != len(dst):
        raise ValueFault(f"{len(src)} tensors cannot be copied into {len(dst)}")
    for i, (source, target) in enumerate(zip(src, dst, strict=True)):
        if source.data_type() != target.data_type() or source.shape() != target.shape():
            raise ValueFault(
                f"tensor {i} is {source.data_type()} {source.shape()}, "
                f"and cannot be copied into {target.data_type()} {target.shape()}"
            )
        if stream is None:
            target.update_inplace(source)
            continue
        with device_values("a stream").on_stream(stream._stream):
            target.update_inplace(source)
