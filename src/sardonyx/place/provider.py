"""The protocols of execution providers: claim a node, compile a node or a region."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeGuard

from sardonyx.base.records import frozen
from sardonyx.graph.fact import Fact

if TYPE_CHECKING:
    from sardonyx.graph.graph import Node, Value
    from sardonyx.place.lowered import Lowered
    from sardonyx.weights.loading import DataLoader

# Computes a node: arrays in, arrays out; the second argument is the `program.program.Run`.
StepCall = Callable[[Sequence[Any], Any], Sequence[Any]]
# The programs of control-flow bodies by attribute name: `program.program.Program`s, which this
# layer only passes on.
BodyPrograms = dict["Node", dict[str, Any]]

HOST: Final = "cpu"  # the device whose values are numpy arrays
TORCH_HOST: Final = "torch-cpu"  # torch's own CPU device: the same memory, in tensors


@frozen
class Yes:
    """The provider claims the node."""

    why: str = ""


@frozen
class No:
    """The provider refuses the node; the reason tells the user what to do about it."""

    why: str


@frozen
class Region:
    """Nodes that a provider compiles together, in execution order.

    `inputs` are the values from outside that are not constant, `outputs` the values read outside;
    both are empty if nodes are compiled one by one. `opens` names the sizes that become known
    only when the region has run.
    """

    nodes: tuple[Node, ...]
    inputs: tuple[Value, ...] = ()
    outputs: tuple[Value, ...] = ()
    opens: frozenset[str] = frozenset()


@frozen
class CompiledNode:
    """One compiled node, and the name of its kernel for reports.

    `call` computes it from Python; `lowered` says what it becomes in native code. The call is the
    fallback where native code cannot run: with sizes that are still open, or in a body that Python
    runs.
    """

    node: Node
    call: StepCall
    kernel: str
    lowered: Lowered | None = None


def why_not_ranked(value: Value, max_rank: int) -> str:
    """Return why a value is not a tensor of a known rank up to `max_rank`; empty if it is."""
    fact = value.fact
    if not isinstance(fact, Fact):
        return f"{value} is not a tensor"
    if fact.shape is None:
        return f"the rank of {value} is not known"
    if len(fact.shape) > max_rank:
        return f"{value} has more than {max_rank} dims"
    return ""


class Provider(Protocol):
    """Runs nodes. A provider never edits the graph: graphs are changed by passes only."""

    name: str

    def claims(self, node: Node) -> Yes | No:
        """Whether the provider can run a node; a refusal carries its reason."""
        ...

    def compile(self, region: Region, bodies: BodyPrograms) -> Sequence[CompiledNode]:
        """Compile a region to one step per node, given the programs of the nodes' bodies."""
        ...


class RegionProgram(Protocol):
    """A region compiled by a provider with a device of its own."""

    kernel: str  # its name in reports

    def prepare(self, check: Callable[[], None]) -> None:
        """Load the constants onto the device; `check` is called in between and may raise."""
        ...

    def __call__(self, values: Sequence[Any], run: Any, places: Sequence[Any]) -> Sequence[Any]:
        """Return the region's outputs; `places` holds a preallocated tensor or None for each."""
        ...


class DeviceProvider(Provider, Protocol):
    """A provider whose values live on a device of its own, opaque to everyone else.

    Subclasses inherit defaults for all that most devices do alike.
    """

    device: str  # e.g. "cuda:0"; `Placement.homes` uses the same names
    accepts_fused_ops: bool = False  # whether passes may create Sardonyx's internal ops for it
    kernels: frozenset[tuple[str, str]] | None = None  # ops not to decompose; None: decompose none

    def host_inputs(self, node: Node) -> frozenset[int]:
        """The inputs that a node reads on the host, as arrays: that of a Copy to the device."""
        return frozenset((0,) if node.attrs.get("to") == self.device.encode() else ())

    def host_outputs(self, node: Node) -> frozenset[int]:
        """The outputs that a node produces on the host."""
        return frozenset()

    def to_device(self, array: Any) -> Any:
        """Copy an array to the device."""
        ...

    def to_host(self, value: Any) -> Any:
        """Copy a device value to a numpy array."""
        ...

    def loader(self) -> DataLoader | None:
        """The loader of external data for this device; None: constants go through host memory."""
        return None

    def compile_region(self, region: Region) -> RegionProgram:
        """Compile a region without control flow."""
        ...


def has_device(provider: Provider) -> TypeGuard[DeviceProvider]:
    """Whether a provider's values live on a device of its own."""
    return getattr(provider, "device", HOST) != HOST
