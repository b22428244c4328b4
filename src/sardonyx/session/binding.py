"""IOBinding: inputs and outputs in memory that stays the same from run to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.device import HOST, TORCH_HOST, OrtDevice, device_values, is_tensor, torch_name
from sardonyx.errors import SardonyxError, ValueFault
from sardonyx.feeds import as_tensors, check_feed, check_value, on_host
from sardonyx.graph.fact import Fact
from sardonyx.nodearg import type_name
from sardonyx.options import RunOptions
from sardonyx.ortvalue import OrtValue, as_ort_value
from sardonyx.ortvalues import OrtValueVector
from sardonyx.session.bound import Bound
from sardonyx.session.pointers import tensor_at

if TYPE_CHECKING:
    from sardonyx.program.program import Input
    from sardonyx.session.inference import InferenceSession

UNFINISHED: Final = "disable_synchronize_execution_providers"


class SessionIOBinding:
    """Inputs and outputs of a session by name, each bound to a value or, for outputs, to a place.

    An output bound to a tensor is written there: by the run itself where it makes the output in one
    piece, else by a copy. An output bound to a device alone is new in each run. A run waits for
    devices to be done, unless its options say otherwise.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._feed: dict[str, Any] = {}
        self._specs: Mapping[str, Input] | None = None  # that all of the feed was checked against
        self._targets: dict[str, OrtValue | None] = {}
        self._results: list[OrtValue] = []
        self._devices: dict[str, str] = {}  # of outputs without a target
        self._places: list[Any] = []  # memory for all outputs of the session, None where unbound
        self._outputs: list[tuple[int, str, OrtValue | None]] = []  # that are bound, by number
        self._bound: Bound | None = None  # all of this for runs, once one has worked it out

    def bind_input(self, name: str, value: Any, *raw: Any) -> None:
        """An array or whatever `run` takes; or a device, a type, a shape and an address.

        What is not where the model reads the input is copied there, now.
        """
        if raw:
            element_type, shape, pointer = raw
            device = torch_name(value)
            self.bind_ortvalue_input(name, tensor_at(pointer, element_type, shape, device=device))
            return
        if name in self._session._fixed:  # a default, which is to be fed now
            self._session._open_defaults()
        specs = self._session._inputs
        spec = specs.get(name)
        if spec is None:
            known = ", ".join(specs)
            raise ValueFault(f"Failed to find an input named {name}; the model has {known}")
        fed = value._fed() if isinstance(value, OrtValue) else value
        try:
            fed = check_value(name, spec.fact, fed, spec.device)
            self._feed[name] = self._on(spec.device, fed)
        except SardonyxError as error:
            raise ValueFault(error.what, **error.where) from None
        self._specs = specs if self._specs is specs or len(self._feed) == 1 else None
        self._bound = None

    def _on(self, device: str, value: Any) -> Any:
        """What is bound in the form that a device has it: over the same memory where it can be."""
        if device == HOST or not isinstance(value, np.ndarray):
            return value
        if device == TORCH_HOST:
            return as_tensors([value])[0]
        made = self._session._compiled.program.devices[device].to_device(value)
        return made if is_tensor(made) else value  # which runs bring to a device like no other

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """An OrtValue, which is read where it lies by each run."""
        if not isinstance(value, OrtValue):
            raise TypeError(f"an OrtValue is bound, not {type(value).__name__}")
        self.bind_input(name, value)

    def bind_output(self, name: str, device: OrtDevice, *raw: Any) -> None:
        """A device to make the output on; with a type, a shape and an address, a place there."""
        self._check_output(name)
        where = torch_name(device)
        if raw:
            element_type, shape, pointer = raw
            target = tensor_at(pointer, element_type, shape, device=where)
            self.bind_ortvalue_output(name, target)
            return
        if where != HOST:
            device_values(where).device_of(where)  # which must be there
        self._devices[name] = where
        self._bind(name, None)

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """A tensor that each run writes the output to."""
        index = self._check_output(name)
        if not isinstance(value, OrtValue):
            raise TypeError(f"an OrtValue is bound, not {type(value).__name__}")
        _check_target(name, self._session._compiled.program.outputs[index].fact, value)
        self._bind(name, value)

    def _check_output(self, name: str) -> int:
        names = self._session._output_names
        if name not in names:
            raise ValueFault(f"Invalid output name: {name}; the model has {', '.join(names)}")
        return names.index(name)

    def _bind(self, name: str, value: OrtValue | None) -> None:
        self._targets[name] = value
        names = self._session._output_names
        self._bound = None
        self._outputs = [(names.index(n), n, target) for n, target in self._targets.items()]
        self._places = [None] * len(names)
        outputs = self._session._compiled.program.outputs
        for index, _, target in self._outputs:
            if target is not None and target._dtype is not None and target._dtype.bits >= 8:
                is_torch = outputs[index].device == TORCH_HOST
                self._places[index] = as_tensors([target._value])[0] if is_torch else target._value

    def run(self, options: RunOptions | None) -> None:
        """One run; afterwards outputs are where they were bound to."""
        if not self._targets:
            raise ValueFault("no output is bound", hint="call bind_output first")
        bound = self._bound
        if bound is None:
            specs = self._session._inputs
            feed = self._feed.copy() if specs is self._specs else check_feed(specs, self._feed)
            bound = self._bound = Bound(feed, self._places, specs)
        results, places = self._session._run_into(bound, options), bound.places
        made = self._results = []
        for index, name, target in self._outputs:
            result = results[index]
            if target is None:
                made.append(as_ort_value(result)._at(self._devices[name]))
                continue
            if result is not places[index]:
                _copy(name, result, target)
            made.append(target)
        if options is None or options._entries.get(UNFINISHED) != "1":
            tensors = [v._value for v in made if is_tensor(v._value)]
            if tensors:
                device_values("a device").finish(tensors)

    @property
    def _iobinding(self) -> SessionIOBinding:
        return self

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        self._feed, self._bound = {}, None

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs, and what the last run made."""
        self._targets, self._results, self._places, self._outputs = {}, [], [], []
        self._devices, self._bound = {}, None

    def synchronize_inputs(self) -> None:
        """Waits until devices have what is bound as inputs."""
        _synchronize(self._feed.values())

    def synchronize_outputs(self) -> None:
        """Waits until devices have made what the last run left to them."""
        _synchronize(value._value for value in self._results)

    def get_outputs(self) -> OrtValueVector:
        """What the last run made, in the order in which outputs were bound."""
        return OrtValueVector(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of what the last run made, as `run` hands results out."""
        copies = [value._fed() for value in self._results]
        return on_host([c.copy() if isinstance(c, np.ndarray) else c for c in copies])


class IOBinding:
    """A session's inputs and outputs, bound to memory, in onnxruntime's interface for Python."""

    def __init__(self, session: InferenceSession) -> None:
        self._iobinding = SessionIOBinding(session)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """An input that each run reads from an array, as it is then."""
        self._iobinding.bind_input(name, arr_on_cpu)

    def bind_input(
        self,
        name: str,
        device_type: str,
        device_id: int,
        element_type: Any,
        shape: Sequence[int],
        buffer_ptr: int,
    ) -> None:
        """An input that is read from an address; the caller keeps the memory."""
        device = OrtDevice.make(device_type, device_id)
        self._iobinding.bind_input(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """An input that is read from an OrtValue."""
        self._iobinding.bind_ortvalue_input(name, ortvalue)

    def bind_output(
        self,
        name: str,
        device_type: str = "cpu",
        device_id: int = 0,
        element_type: Any = None,
        shape: Sequence[int] | None = None,
        buffer_ptr: int | None = None,
    ) -> None:
        """An output that is made anew by each run or, with an address, written there."""
        device = OrtDevice.make(device_type, device_id)
        if buffer_ptr is None:
            self._iobinding.bind_output(name, device)
            return
        if element_type is None or shape is None:
            raise ValueError("a buffer comes with its element_type and its shape")
        self._iobinding.bind_output(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """An output that each run writes to a tensor."""
        self._iobinding.bind_ortvalue_output(name, ortvalue)

    def synchronize_inputs(self) -> None:
        """Waits until devices have what is bound as inputs."""
        self._iobinding.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Waits until devices have made what the last run left to them."""
        self._iobinding.synchronize_outputs()

    def get_outputs(self) -> list[OrtValue]:
        """What the last run made, in the order in which outputs were bound."""
        return list(self._iobinding.get_outputs())

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """`get_outputs` as the list that capi uses."""
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Copies of what the last run made, as `run` hands results out."""
        return self._iobinding.copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        self._iobinding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs, and what the last run made."""
        self._iobinding.clear_binding_outputs()


def _synchronize(values: Iterable[Any]) -> None:
    tensors = [v for v in values if is_tensor(v)]
    if tensors:
        device_values("a device").synchronize(tensors)


def _check_target(name: str, fact: Any, value: OrtValue) -> None:
    """A tensor that an output of this type and shape may be written to."""
    if not isinstance(fact, Fact):
        raise ValueFault(f"the output {name} is a {type_name(fact)}, which lies in no one tensor")
    if value._dtype is not fact.dtype:
        raise ValueFault(
            f"Unexpected output data type. Actual: ({value.data_type()}) , "
            f"expected: ({type_name(fact)})",
            output=name,
        )
    tensor = value._tensor()
    if isinstance(tensor, np.ndarray) and not tensor.flags.writeable:
        raise ValueFault(f"the output {name} is bound to memory that is read-only")
    if fact.shape is None:
        return
    got, fixed = value.shape(), [d if isinstance(d, int) else None for d in fact.shape]
    pairs = zip(got, fixed, strict=False)
    if len(got) != len(fixed) or any(w is not None and g != w for g, w in pairs):
        raise ValueFault(f"the output {name} has the shape {fact}, and a place of {got} is bound")


def _copy(name: str, result: Any, target: OrtValue) -> None:
    """Writes a result to its place, which must be of its type and shape."""
    got = as_ort_value(result)
    if got.data_type() != target.data_type() or got.shape() != target.shape():
        raise ValueFault(
            f"the output {name} is {got.data_type()} {got.shape()} in this run, and is bound to "
            f"{target.data_type()} {target.shape()}",
            hint="bind memory of that shape, or the device alone",
        )
    target.update_inplace(got)


__all__ = ["IOBinding", "SessionIOBinding"]
