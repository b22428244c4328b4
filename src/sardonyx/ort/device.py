"""OrtDevice: where a value lies: in arrays on the CPU, or in tensors of torch elsewhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from sardonyx.errors import ValueFault
from sardonyx.ort.enums import OrtDeviceVendorId
from sardonyx.place.provider import HOST

if TYPE_CHECKING:
    from types import ModuleType

CPU, GPU, FPGA, NPU, DML = 0, 1, 2, 3, 4
_TYPES: Final = {
    "cpu": CPU, "cuda": GPU, "dml": GPU, "cann": NPU, "webgpu": GPU, "gpu": GPU, "npu": NPU,
    "mps": GPU, "xpu": GPU,
}  # fmt: skip
_APPLE: Final = 0x106B
_VENDORS: Final = {
    "cuda": OrtDeviceVendorId.NVIDIA,
    "dml": OrtDeviceVendorId.MICROSOFT,
    "cann": OrtDeviceVendorId.HUAWEI,
    "xpu": OrtDeviceVendorId.INTEL,
    "mps": _APPLE,
}
# torch's name of GPUs by their vendor; those of AMD go by the name of CUDA there.
_DRIVEN: Final = {
    OrtDeviceVendorId.NONE: "cuda",
    OrtDeviceVendorId.NVIDIA: "cuda",
    OrtDeviceVendorId.AMD: "cuda",
    OrtDeviceVendorId.INTEL: "xpu",
    _APPLE: "mps",
}


class OrtDevice:
    """A device by kind, number, vendor and kind of memory."""

    __slots__ = ("_id", "_memory", "_type", "_vendor")
    _id: int
    _memory: int
    _type: int
    _vendor: int

    def __init__(self, *args: Any) -> None:
        """A copy of another device; or kind, memory, vendor (if it matters) and number."""
        if len(args) == 1 and isinstance(args[0], OrtDevice):
            given = args[0]
            args = (given._type, given._memory, given._vendor, given._id)
        if len(args) == 3:
            args = (args[0], args[1], 0, args[2])
        if len(args) != 4 or not all(isinstance(n, int) for n in args):
            raise TypeError("an OrtDevice is made of another, or of three or four numbers")
        self._type, self._memory, self._vendor, self._id = (int(n) for n in args)

    @staticmethod
    def make(
        ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1
    ) -> OrtDevice:
        """The device of a name (cpu, cuda, dml, cann, webgpu, gpu, npu, mps, xpu) and a number."""
        kind = get_ort_device_type(ort_device_name)
        if vendor_id < 0:
            vendor_id = get_vendor_id_for_device_type(ort_device_name) or OrtDeviceVendorId.NONE
        return OrtDevice(kind, OrtDevice.default_memory(), int(vendor_id), device_id)

    def device_id(self) -> int:
        """Its number among devices of its kind."""
        return self._id

    def device_type(self) -> int:
        """Its kind, as the number that `cpu()`, `gpu()` or `npu()` give."""
        return self._type

    def device_vendor_id(self) -> int:
        """The PCI id of its vendor; 0 where it does not matter."""
        return self._vendor

    def device_mem_type(self) -> int:
        """The kind of its memory."""
        return self._memory

    vendor_id = device_vendor_id
    mem_type = device_mem_type

    def _get_c_device(self) -> OrtDevice:
        return self

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OrtDevice) and self._key() == other._key()

    def __hash__(self) -> int:
        return hash(self._key())

    def _key(self) -> tuple[int, ...]:
        return self._type, self._memory, self._vendor, self._id

    def __repr__(self) -> str:
        return f"OrtDevice{self._key()}"

    @staticmethod
    def cpu() -> int:
        """The kind of CPUs."""
        return CPU

    @staticmethod
    def gpu() -> int:
        """The kind of GPUs, which `cuda` and `webgpu` devices are."""
        return GPU

    cuda = webgpu = gpu

    @staticmethod
    def fpga() -> int:
        """The kind of FPGAs."""
        return FPGA

    @staticmethod
    def npu() -> int:
        """The kind of NPUs, which `cann` devices are."""
        return NPU

    cann = npu

    @staticmethod
    def dml() -> int:
        """The kind of DirectML devices."""
        return DML

    @staticmethod
    def default_memory() -> int:
        """The kind of a device's plain memory."""
        return 0


def get_ort_device_type(device_type: str) -> int:
    """The number of a kind of device, by its name in small letters."""
    if device_type not in _TYPES:
        raise ValueFault(
            f"Unsupported device type: {device_type}", hint=f"there are {', '.join(_TYPES)}"
        )
    return _TYPES[device_type]


def get_vendor_id_for_device_type(device_type: str) -> int | None:
    """The vendor that a kind of device implies; None if it implies none."""
    return _VENDORS.get(device_type)


def check_cpu(device: str | OrtDevice, what: str) -> None:
    """Refuses any device but the CPU."""
    given = OrtDevice.make(device, 0) if isinstance(device, str) else device
    if given.device_type() != CPU:
        name = device if isinstance(device, str) else repr(device)
        raise ValueFault(f"{what} lies on the CPU here, not on {name}", hint='say "cpu"')


def torch_name(device: str | OrtDevice, device_id: int = 0, vendor_id: int = -1) -> str:
    """How torch names a device: HOST, or as in "cuda:0"; an error where torch does not drive it."""
    given = OrtDevice.make(device, device_id, vendor_id) if isinstance(device, str) else device
    if given.device_type() == CPU:
        return HOST
    kind = _DRIVEN.get(given.device_vendor_id()) if given.device_type() == GPU else None
    if kind is None:
        name = device if isinstance(device, str) else repr(device)
        raise ValueFault(
            f"values do not lie on {name} here",
            hint="there are cpu and what torch drives: cuda, mps, xpu",
        )
    return f"{kind}:{given.device_id()}"


def device_values(name: str) -> ModuleType:
    """What handles values on devices other than the host; an error without torch."""
    try:
        from sardonyx.providers.torch import device_tensors as values
    except ImportError as error:
        raise ValueFault(
            f"values on {name} are tensors of torch, which cannot be imported: {error}",
            hint="install torch in a build for that device",
        ) from None
    return values
