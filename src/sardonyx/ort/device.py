"""OrtDevice, the device of a value: numpy arrays on the CPU, torch tensors elsewhere."""

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
# torch's device type by vendor; ROCm builds of torch call AMD GPUs cuda.
_TORCH_TYPES: Final = {
    OrtDeviceVendorId.NONE: "cuda",
    OrtDeviceVendorId.NVIDIA: "cuda",
    OrtDeviceVendorId.AMD: "cuda",
    OrtDeviceVendorId.INTEL: "xpu",
    _APPLE: "mps",
}


class OrtDevice:
    """A device: type, id, vendor and memory type."""

    __slots__ = ("_id", "_memory", "_type", "_vendor")

    def __init__(self, *args: Any) -> None:
        """Copy another device; or set type, memory type, vendor (optional) and id."""
        if len(args) == 1 and isinstance(args[0], OrtDevice):
            args = args[0]._key()
        # onnxruntime's older form without a vendor.
        if len(args) == 3:
            args = (args[0], args[1], 0, args[2])
        if len(args) != 4 or not all(isinstance(n, int) for n in args):
            raise TypeError(
                "the arguments of OrtDevice must be an OrtDevice, or three or four numbers"
            )
        self._type, self._memory, self._vendor, self._id = (int(n) for n in args)

    @staticmethod
    def make(
        ort_device_name: str, device_id: int, vendor_id: int | OrtDeviceVendorId = -1
    ) -> OrtDevice:
        """Return the device of a name (cpu, cuda, dml, cann, webgpu, gpu, npu, mps, xpu) and id."""
        kind = get_ort_device_type(ort_device_name)
        if vendor_id < 0:
            vendor_id = get_vendor_id_for_device_type(ort_device_name) or OrtDeviceVendorId.NONE
        return OrtDevice(kind, OrtDevice.default_memory(), int(vendor_id), device_id)

    def device_id(self) -> int:
        """Return its id among devices of its type."""
        return self._id

    def device_type(self) -> int:
        """Return its type: the number that `cpu()`, `gpu()` or `npu()` returns."""
        return self._type

    def device_vendor_id(self) -> int:
        """Return the PCI id of its vendor; 0: unspecified."""
        return self._vendor

    def device_mem_type(self) -> int:
        """Return its memory type."""
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
        """Return the type of CPUs."""
        return CPU

    @staticmethod
    def gpu() -> int:
        """Return the type of GPUs, also that of `cuda` and `webgpu` devices."""
        return GPU

    cuda = webgpu = gpu

    @staticmethod
    def fpga() -> int:
        """Return the type of FPGAs."""
        return FPGA

    @staticmethod
    def npu() -> int:
        """Return the type of NPUs, also that of `cann` devices."""
        return NPU

    cann = npu

    @staticmethod
    def dml() -> int:
        """Return the type of DirectML devices."""
        return DML

    @staticmethod
    def default_memory() -> int:
        """Return the type of a device's default memory."""
        return 0


def get_ort_device_type(device_type: str) -> int:
    """Return the number of a device type from its lower-case name."""
    if device_type not in _TYPES:
        raise ValueFault(
            f"Unsupported device type: {device_type}", hint=f"the types are {', '.join(_TYPES)}"
        )
    return _TYPES[device_type]


def get_vendor_id_for_device_type(device_type: str) -> int | None:
    """Return the vendor that a device type implies; None if it implies none."""
    return _VENDORS.get(device_type)


def _as_device(device: str | OrtDevice, device_id: int = 0, vendor_id: int = -1) -> OrtDevice:
    return OrtDevice.make(device, device_id, vendor_id) if isinstance(device, str) else device


def check_cpu(device: str | OrtDevice, what: str) -> None:
    """Raise an error for any device but the CPU."""
    ort_device = _as_device(device)
    if ort_device.device_type() != CPU:
        name = device if isinstance(device, str) else repr(device)
        raise ValueFault(f"{what} is supported on the CPU, not on {name}", hint='use "cpu"')


def torch_name(device: str | OrtDevice, device_id: int = 0, vendor_id: int = -1) -> str:
    """Return torch's name of a device, as in "cuda:0", or HOST; raise an error if it has none."""
    ort_device = _as_device(device, device_id, vendor_id)
    if ort_device.device_type() == CPU:
        return HOST
    is_gpu = ort_device.device_type() == GPU
    kind = _TORCH_TYPES.get(ort_device.device_vendor_id()) if is_gpu else None
    if kind is None:
        name = device if isinstance(device, str) else repr(device)
        raise ValueFault(
            f"values on {name} are not supported",
            hint="the devices are cpu and those of torch: cuda, mps, xpu",
        )
    return f"{kind}:{ort_device.device_id()}"


def device_values(name: str) -> ModuleType:
    """Return the module that handles values on devices; raise an error without torch."""
    try:
        from sardonyx.providers.torch import device_tensors as values
    except ImportError as error:
        raise ValueFault(
            f"values on {name} are torch tensors, and torch cannot be imported: {error}",
            hint="install a build of torch for that device",
        ) from None
    return values
