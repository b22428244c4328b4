"""IOBinding: inputs and outputs in memory that stays the same from run to run."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from sardonyx.base.locks import Lock, NonReentrantLock
from sardonyx.base.records import frozen
from sardonyx.base.torch_tensor import is_tensor
from sardonyx.errors import SardonyxError, ValueFault
from sardonyx.graph.fact import Fact
from sardonyx.ort.device import OrtDevice, device_values, torch_name
from sardonyx.ort.node_arg import type_name
from sardonyx.ort.options import RunOptions
from sardonyx.ort.ort_value import OrtValue, as_ort_value
from sardonyx.ort.ort_value_vector import OrtValueVector
from sardonyx.ort.raw_pointers import tensor_at
from sardonyx.place.provider import HOST, TORCH_HOST
from sardonyx.session.bound_memory import Bound
from sardonyx.session.feeds import as_tensors, check_feed, check_value, on_host

if TYPE_CHECKING:
    from sardonyx.program.program import Input
    from sardonyx.session.inference import InferenceSession

UNFINISHED: Final = "disable_synchronize_execution_providers"


@frozen
class _Target:
    """Where an output goes: into a tensor or, without one, into new memory of a device."""

    value: OrtValue | None
    device: str = HOST


@frozen
class _Ready:
    """What is bound, for runs."""

    bound: Bound
    targets: list[tuple[int, str, _Target]]  # of bound outputs, with their numbers and names


class SessionIOBinding:
    """Inputs and outputs of a session by name, each bound to a value or, for outputs, to a place.

    An output bound to a tensor is written there: by the run itself where it makes the output in one
    piece, else by a copy. An output bound to a device alone is new in each run. A run waits for
    devices to be done, unless its options say otherwise.

    Runs over one binding take turns: two would write to the same memory. A run goes on with what
    was bound when it began, and keeps that memory, whatever other threads bind or clear meanwhile.
    """

    def __init__(self, session: InferenceSession) -> None:
        self._session = session
        self._feed: dict[str, Any] = {}
        self._specs: Mapping[str, Input] | None = None  # that all of the feed was checked against
        self._targets: dict[str, _Target] = {}
        self._results: list[OrtValue] = []
        self._bound: _Ready | None = None  # all of this for runs, once one has worked it out
        self._lock = Lock()  # for what is bound
        self._running = NonReentrantLock("running this binding")

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
            fed = self._on(spec.device, check_value(name, spec.fact, fed, spec.device))
        except SardonyxError as error:
            raise ValueFault(error.what, **error.where) from None
        with self._lock:
            self._feed[name] = fed
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
        self._bind(name, _Target(None, where))

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """A tensor that each run writes the output to."""
        index = self._check_output(name)
        if not isinstance(value, OrtValue):
            raise TypeError(f"an OrtValue is bound, not {type(value).__name__}")
        _check_target(name, self._session._compiled.program.outputs[index].fact, value)
        self._bind(name, _Target(value))

    def _check_output(self, name: str) -> int:
        names = self._session._output_names
        if name not in names:
            raise ValueFault(f"Invalid output name: {name}; the model has {', '.join(names)}")
        return names.index(name)

    def _bind(self, name: str, target: _Target) -> None:
        with self._lock:
            self._targets[name] = target
            self._bound = None

    def run(self, options: RunOptions | None) -> None:
        """One run; afterwards outputs are where they were bound to."""
        with self._running:
            self._results = self._run(self._bound or self._ready(), options)

    def _ready(self) -> _Ready:
        """All that is bound, as runs use it."""
        with self._lock:
            if self._bound is None:
                self._bound = self._collected()
            return self._bound

    def _collected(self) -> _Ready:
        if not self._targets:
            raise ValueFault("no output is bound", hint="call bind_output first")
        session = self._session
        specs, names = session._inputs, session._output_names
        outputs = session._compiled.program.outputs
        feed = self._feed.copy() if specs is self._specs else check_feed(specs, self._feed)
        places: list[Any] = [None] * len(names)
        targets = [(names.index(n), n, target) for n, target in self._targets.items()]
        for index, _, target in targets:
            value = target.value
            if value is not None and value._dtype is not None and value._dtype.bits >= 8:
                is_torch = outputs[index].device == TORCH_HOST
                places[index] = as_tensors([value._value])[0] if is_torch else value._value
        return _Ready(Bound(feed, places, specs), targets)

    def _run(self, ready: _Ready, options: RunOptions | None) -> list[OrtValue]:
        """The values of bound outputs, in the order in which they were bound."""
        for lender in ready.bound.lenders:
            lender.check()
        results, places = self._session._run_into(ready.bound, options), ready.bound.places
        made = []
        for index, name, target in ready.targets:
            result = results[index]
            if target.value is None:
                made.append(as_ort_value(result)._at(target.device))
                continue
            if result is not places[index]:
                _copy(name, result, target.value)
            made.append(target.value)
        if options is None or options._entries.get(UNFINISHED) != "1":
            tensors = [v._value for v in made if is_tensor(v._value)]
            if tensors:
                device_values("a device").finish(tensors)
        return made

    @property
    def _iobinding(self) -> SessionIOBinding:
        return self

    def clear_binding_inputs(self) -> None:
        """Forgets all inputs."""
        with self._lock:
            self._feed, self._bound = {}, None

    def clear_binding_outputs(self) -> None:
        """Forgets all outputs, and what the last run made."""
        with self._lock:
            self._targets, self._results, self._bound = {}, [], None

    def synchronize_inputs(self) -> None:
        """Waits until devices have what is bound as inputs."""
        _synchronize(self._feed.copy().values())

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
        """An input that each run reads from an array, as it is then, and which is kept.

        One that is no plain array of its type without gaps is copied, as it is now.
        """
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
        """An input that is read from an address.

        The caller keeps the memory, all of it, until the binding is gone: an address is checked
        for being aligned and for memory of this process behind it, for nothing more.
        """
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
        """An output that is made anew by each run or, with an address, written there.

        The caller keeps that memory, as in `bind_input`, and may write to it.
        """
        device = OrtDevice.make(device_type, device_id)
        if buffer_ptr is None:
            self._iobinding.bind_output(name, device)
            return
        if element_type is None or shape is None:
            raise ValueError("a buffer comes with its element_type and its shape")
        self._iobinding.bind_output(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """An output that each run writes to a tensor, which no other run may use meanwhile."""
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
