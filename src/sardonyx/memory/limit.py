"""gpu_mem_limit: checks the planned memory of a run against what a provider may use."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from sardonyx.base.records import field, frozen
from sardonyx.errors import RuntimeException
from sardonyx.graph.const import Const
from sardonyx.graph.dim import symbols
from sardonyx.memory import Lifetime, LifetimePlan, live_ranges, peak_live_bytes
from sardonyx.memory.offsets import LiveRange
from sardonyx.place import Placement, has_device

_MAX_CACHED: Final = 256  # combinations of sizes that are remembered to fit
_SHOWN: Final = 3  # values in a message


@frozen(eq=False)
class DeviceLimit:
    """The bytes of a device that weights and the values of a run may take together."""

    device: str
    allowed_bytes: int
    weight_bytes: int
    spans: tuple[Lifetime, ...]  # of the values on the device
    names: tuple[str, ...]  # of the symbolic dims in their sizes
    _fits: dict[tuple[int | None, ...], None] = field(default_factory=dict)

    def check(self, dims: dict[str, int]) -> None:
        """Raise if a run at these sizes exceeds the limit; sizes known only later do not count."""
        key = tuple(map(dims.get, self.names))
        if key in self._fits:
            return
        lives = live_ranges(self.spans, dims)
        needed = self.weight_bytes + peak_live_bytes(lives)
        if needed > self.allowed_bytes:
            raise self._error(needed, lives)
        if len(self._fits) >= _MAX_CACHED:
            self._fits.clear()
        self._fits[key] = None

    def _error(self, needed: int, lives: Iterable[LiveRange]) -> RuntimeException:
        largest = sorted(lives, key=lambda life: -life.size)[:_SHOWN]
        shown = (f"{self.spans[x.value].value.name or 'a value'} {x.size:,}" for x in largest)
        return RuntimeException(
            f"a run with these inputs takes {needed:,} bytes of {self.device}, "
            f"{self.weight_bytes:,} of them for weights, and gpu_mem_limit allows "
            f"{self.allowed_bytes:,}",
            largest=", ".join(shown),
            hint="feed a smaller batch or shorter inputs, raise gpu_mem_limit, or leave more of "
            "the model to the CPU by sardonyx.placement",
        )


def device_limits(placement: Placement, plan: LifetimePlan) -> tuple[DeviceLimit, ...]:
    """The limits of all devices that a graph with this plan runs on."""
    limits = []
    for device, provider in placement.devices.items():
        allowed = getattr(provider, "limit_bytes", 0)
        if not allowed:
            continue
        spans = tuple(s for s in plan.spans if placement.homes.get(s.value) == device)
        sizes = [s.size for s in spans if s.size is not None]
        names = sorted({name for size in sizes for name in symbols(size)})
        weights = sum(c.size_bytes for c in _weights(placement, device))
        limits.append(DeviceLimit(device, allowed, weights, spans, tuple(names)))
    return tuple(limits)


def _weights(placement: Placement, device: str) -> set[Const]:
    return {
        v.const
        for node, provider in placement.where.items()
        if has_device(provider) and provider.device == device
        for v in node.inputs
        if v is not None and v.const is not None
    }
