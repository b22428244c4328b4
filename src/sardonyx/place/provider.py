"""Execution providers: who can run a node, and as what."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

from sardonyx.base.records import frozen

if TYPE_CHECKING:
    from sardonyx.graph.graph import Node, Value
    from sardonyx.place.lowered import Lowered
    from sardonyx.weights.loading import DataLoader

# A step on run-time values: arrays in, arrays out, with the run it belongs to.
StepCall = Callable[[Sequence[Any], Any], Sequence[Any]]
# The programs of control-flow bodies by attribute name: `program.program.Program`s, which this
# layer only passes on.
BodyPrograms = dict["Node", dict[str, Any]]

HOST: Final = "cpu"  # the device whose values are numpy arrays
TORCH_HOST: Final = "torch-cpu"  # torch's own CPU device: the same memory, in tensors


@frozen
class Yes:
    """The provider takes the node."""

    why: str = ""


@frozen
class No:
    """The provider does not take the node, for a reason that tells the user what to do."""

    why: str


@frozen
class Region:
    """Nodes that a provider compiles together, in the order they run.

    `inputs` are values from outside that are no constants, `outputs` those that others read. Of
    nodes that are compiled one by one they are left out. `opens` names sizes that nobody knows
    before it has run.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    opens: frozenset[str] = frozenset()


@frozen
class Step:
    """What a provider makes of one node, and the kernel's name for people.

    That is a call in Python, and for native code also what it does there. The call serves where
    native code cannot: beside sizes that are not known yet, and in bodies of Python's.
    """

    node: Node
    call: StepCall
    kernel: str
    lowered: Lowered | None = None


class Provider(Protocol):
    """Runs nodes. Providers never edit the graph."""

    name: str

    def claims(self, node: Node) -> Yes | No:
        """Whether the provider takes a node."""
        ...

    def compile(self, region: Region, bodies: BodyPrograms) -> Sequence[Step]:
        """The steps of a region, one per node; `bodies` are the programs of the nodes' bodies."""
        ...


class RegionProgram(Protocol):
    """What a provider with a device of its own makes of a region."""

    kernel: str  # for people

    def prepare(self, check: Callable[[], None]) -> None:
        """Brings the constants to the device; `check` may raise to end that."""
        ...

    def __call__(self, values: Sequence[Any], run: Any, places: Sequence[Any]) -> Sequence[Any]:
        """The region's outputs for its inputs, each in its place where there is one for it."""
        ...


class DeviceProvider(Provider, Protocol):
    """A provider whose values lie on a device of its own, in a form that nobody else looks into.

    One that is derived from this need not say what is mostly so.
    """

    device: str  # as values' homes name it: "cuda:0"

    def host_inputs(self, node: Node) -> frozenset[int]:
        """The inputs of a node that it reads on the host, as numpy arrays: those of copies."""
        return frozenset((0,) if node.attrs.get("to") == self.device.encode() else ())

    def host_outputs(self, node: Node) -> frozenset[int]:
        """The outputs of a node that it makes on the host."""
        return frozenset()

    def to_device(self, array: Any) -> Any:
        """A copy of an array on the device."""
        ...

    def to_host(self, value: Any) -> Any:
        """A copy of a value of the device as an array."""
        ...

    def loader(self) -> DataLoader | None:
        """What brings constants to the device, if the provider has its own way."""
        return None

    def compile_region(self, region: Region) -> RegionProgram:
        """What runs a region, none of whose nodes has bodies."""
        ...


def has_device(provider: Provider) -> TypeGuard[DeviceProvider]:
    """Whether a provider's values lie on a device of its own."""
    return getattr(provider, "device", HOST) != HOST
