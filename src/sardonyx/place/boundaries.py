"""Device boundaries: the home device of every value, and Copy nodes where a reader is elsewhere."""

from __future__ import annotations

from sardonyx.graph.fact import Fact
from sardonyx.graph.graph import Graph, Node, Value
from sardonyx.graph.op import INTERNAL
from sardonyx.ops.builder import Builder
from sardonyx.place import Placement
from sardonyx.place.provider import HOST, DeviceProvider, has_device


def insert_copies(placement: Placement) -> None:
    """Assign every value a home device, and insert copies for readers on other devices."""
    _find_homes(placement, placement.graph)
    devices = placement.devices
    for graph in list(placement.graph.family()):
        _Copies(placement, graph, devices).insert()
    for node, provider in placement.where.items():
        if not has_device(provider):
            provider.claims(node)  # again: its inputs may be copies now


def input_device(placement: Placement, node: Node, slot: int) -> str:
    """The device on which a node reads an input."""
    provider = placement.where[node]
    if not has_device(provider) or slot in provider.host_inputs(node):
        return HOST
    return provider.device


def _find_homes(placement: Placement, graph: Graph) -> None:
    """Inputs live on the device of all their readers, other values where they are produced."""
    homes = placement.homes
    for value in graph.inputs:
        if graph.owner is not None:
            home = _body_input(placement, graph, value)
        else:
            devices = {input_device(placement, n, slot) for n, slot in value.uses}
            home = devices.pop() if len(devices) == 1 and not value.n_exits else HOST
        if home != HOST:
            homes[value] = home
    for node in graph.nodes:
        provider = placement.where[node]
        if has_device(provider):
            on_host = provider.host_outputs(node)
            homes.update(
                (v, provider.device) for i, v in enumerate(node.outputs) if i not in on_host
            )
        for _, body in node.subgraphs:
            _find_homes(placement, body)


def _body_input(placement: Placement, graph: Graph, value: Value) -> str:
    """The device that a body gets an input on; counters of a Loop stay on the host."""
    assert graph.owner is not None
    provider = placement.where[graph.owner]
    if not has_device(provider):
        return HOST
    is_counter = graph.owner.op.name == "Loop" and graph.inputs.index(value) < 2
    return HOST if is_counter else provider.device


def _body_output(placement: Placement, graph: Graph, position: int) -> str | None:
    """The device that the owner of a body expects an output on; None for the main graph: any."""
    if graph.owner is None:
        return None
    provider = placement.where[graph.owner]
    is_condition = graph.owner.op.name == "Loop" and position == 0
    return HOST if not has_device(provider) or is_condition else provider.device


class _Copies:
    """Inserts the Copy nodes of one graph, at most one per value and device."""

    def __init__(
        self, placement: Placement, graph: Graph, devices: dict[str, DeviceProvider]
    ) -> None:
        self._placement = placement
        self._devices = devices
        self._graph = graph
        self._builder = Builder(graph, graph.scope)
        self._copies: dict[tuple[Value, str], Value] = {}

    def insert(self) -> None:
        """Insert copies, so that every node reads its inputs on the device that it expects."""
        placement, graph = self._placement, self._graph
        for node in list(graph.nodes):
            for slot, value in enumerate(node.inputs):
                if value is not None:
                    device = input_device(placement, node, slot)
                    # Regions load constants themselves; control flow has no region.
                    copy = self._copy_on_device(value, device, node.op.has_bodies)
                    if copy is not value:
                        graph.set_input(node, slot, copy)
        outputs = list(graph.outputs)
        for position, value in enumerate(outputs):
            expected = _body_output(placement, graph, position)
            if expected is not None:
                outputs[position] = self._copy_on_device(value, expected, copies_constants=True)
        if outputs != list(graph.outputs):
            graph.set_outputs(outputs)

    def _copy_on_device(self, value: Value, device: str, copies_constants: bool = False) -> Value:
        """Return a value on a device: itself, or a copy."""
        home = self._placement.homes.get(value, HOST)
        if value.const is not None and not copies_constants:
            return value
        if home == device or not isinstance(value.fact, Fact):
            return value
        if home != HOST and device != HOST:  # device to device goes through the host
            value = self._copy_on_device(value, HOST)
            home = HOST
        key = (value, device)
        if key not in self._copies:
            self._copies[key] = self._copy(value, home, device)
        return self._copies[key]

    def _copy(self, value: Value, home: str, device: str) -> Value:
        copy: Value = self._builder.Copy(value, domain=INTERNAL, to=device.encode(), like=value)
        copy.name = f"{value.name or 'value'}@{device}"
        node = copy.node
        assert node is not None
        node.name = f"copy {value.name or 'value'} to {device}"
        self._placement.where[node] = self._devices[home if device == HOST else device]
        if device != HOST:
            self._placement.homes[copy] = device
        return copy
