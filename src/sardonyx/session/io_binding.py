"""IOBinding: inputs and outputs in memory that stays the same from run to run.

Thread-safe. Of `SessionIOBinding`, `_lock` guards what is bound (`_feed`, `_specs`, `_targets`,
`_collected`); `_running` serializes the runs, which write to the same buffers.
"""

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
from sardonyx.session.bound_memory import BoundMemory
from sardonyx.session.c_session import CSession
from sardonyx.session.feeds import check_feed, check_value
from sardonyx.session.results import as_tensors, on_host

if TYPE_CHECKING:
    from sardonyx.program.program import Input
    from sardonyx.session.inference import InferenceSession

NO_SYNCHRONIZE: Final = "disable_synchronize_execution_providers"


@frozen
class _Target:
    """Where an output is written: a tensor or, without one, new memory of a device."""

    value: OrtValue | None
    device: str = HOST


@frozen
class _Bindings:
    """Everything that is bound, as runs use it."""

    memory: BoundMemory
    targets: list[tuple[int, str, _Target]]  # bound outputs: index, name, target


class SessionIOBinding:
    """Inputs and outputs of a session by name, each bound to a value or, for outputs, a device.

    An output bound to a tensor is written there: by the kernels directly if the output is
    contiguous and disjoint from other memory, else by a copy. An output bound to a device is a new
    tensor in each run. A run synchronizes with devices, unless its options disable that.

    Runs over one binding are serialized: two would write to the same memory. A run uses, and keeps
    alive, the memory bound when it began, whatever other threads bind or clear meanwhile.
    """

    def __init__(self, session: InferenceSession | CSession) -> None:
        """`session` may also be `session._sess`, as packages for onnxruntime pass it."""
        self._session = session._session if isinstance(session, CSession) else session
        self._feed: dict[str, Any] = {}
        self._specs: Mapping[str, Input] | None = None  # the whole feed was checked against these
        self._targets: dict[str, _Target] = {}
        self._results: list[OrtValue] = []
        self._collected: _Bindings | None = None  # cache for runs; None after each change
        self._lock = Lock()
        self._running = NonReentrantLock("running this binding")

    def __repr__(self) -> str:
        inputs, outputs = (", ".join(names) or "nothing" for names in (self._feed, self._targets))
        return f"<IOBinding: {inputs} -> {outputs}>"

    def bind_input(self, name: str, value: Any, *raw: Any) -> None:
        """Bind an array, or any value that `run` accepts; or a device, type, shape and address.

        A value that is not on the device that reads the input is copied there, now.
        """
        if raw:
            element_type, shape, pointer = raw
            device = torch_name(value)
            self.bind_ortvalue_input(name, tensor_at(pointer, element_type, shape, device=device))
            return
        if name in self._session._fixed_defaults:
            self._session._unfix_defaults()
        specs = self._session._inputs
        spec = specs.get(name)
        if spec is None:
            known = ", ".join(specs)
            raise ValueFault(f"Failed to find an input named {name}; the model has {known}")
        fed = value._fed() if isinstance(value, OrtValue) else value
        try:
            fed = self._on_device(spec.device, check_value(name, spec.fact, fed, spec.device))
        except SardonyxError as error:
            raise ValueFault(error.what, **error.where) from None
        with self._lock:
            self._feed[name] = fed
            # None if values were checked against different programs: the next run checks all again.
            self._specs = specs if self._specs is specs or len(self._feed) == 1 else None
            self._collected = None

    def _on_device(self, device: str, value: Any) -> Any:
        """Return a bound value on a device, over the same memory where possible."""
        if device == HOST or not isinstance(value, np.ndarray):
            return value
        if device == TORCH_HOST:
            return as_tensors([value])[0]
        copied = self._session._compiled.program.devices[device].to_device(value)
        return copied if is_tensor(copied) else value  # a custom device: each run copies it

    def bind_ortvalue_input(self, name: str, value: OrtValue) -> None:
        """Bind an OrtValue, which each run reads in its own memory."""
        if not isinstance(value, OrtValue):
            raise TypeError(f"the bound value must be an OrtValue, got {type(value).__name__}")
        self.bind_input(name, value)

    def bind_output(self, name: str, device: OrtDevice, *raw: Any) -> None:
        """Bind an output to a device or, with a type, shape and address, to memory there."""
        self._check_output(name)
        where = torch_name(device)
        if raw:
            element_type, shape, pointer = raw
            target = tensor_at(pointer, element_type, shape, device=where)
            self.bind_ortvalue_output(name, target)
            return
        if where != HOST:
            device_values(where).device_of(where)  # raises an error if there is no such device
        self._bind(name, _Target(None, where))

    def bind_ortvalue_output(self, name: str, value: OrtValue) -> None:
        """Bind a tensor that each run writes the output to."""
        index = self._check_output(name)
        if not isinstance(value, OrtValue):
            raise TypeError(f"the bound value must be an OrtValue, got {type(value).__name__}")
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
            self._collected = None

    def run(self, options: RunOptions | None) -> None:
        """Run once; afterwards the outputs are in the memory they are bound to."""
        with self._running:
            self._results = self._run(self._collected or self._collect(), options)

    def _collect(self) -> _Bindings:
        """Return everything that is bound, from the cache if nothing changed."""
        with self._lock:
            if self._collected is None:
                self._collected = self._new_bindings()
            return self._collected

    def _new_bindings(self) -> _Bindings:
        if not self._targets:
            raise ValueFault("no output is bound", hint="call bind_output first")
        session = self._session
        specs, names = session._inputs, session._output_names
        outputs = session._compiled.program.outputs
        feed = self._feed.copy() if specs is self._specs else check_feed(specs, self._feed)
        output_buffers: list[Any] = [None] * len(names)
        targets = [(names.index(n), n, target) for n, target in self._targets.items()]
        for index, _, target in targets:
            value = target.value
            # Runs return sub-byte elements unpacked: `_copy` packs them into the target.
            if value is not None and value._dtype is not None and value._dtype.bits >= 8:
                is_torch = outputs[index].device == TORCH_HOST
                output_buffers[index] = as_tensors([value._value])[0] if is_torch else value._value
        return _Bindings(BoundMemory(feed, output_buffers, specs), targets)

    def _run(self, bindings: _Bindings, options: RunOptions | None) -> list[OrtValue]:
        """Return the values of bound outputs, in the order in which they were bound."""
        memory = bindings.memory
        for borrow in memory.borrows:
            borrow.check()
        results = self._session._run_into(memory, options)
        outputs = []
        for index, name, target in bindings.targets:
            result = results[index]
            if target.value is None:
                outputs.append(as_ort_value(result)._at(target.device))
                continue
            if result is not memory.output_buffers[index]:
                _copy(name, result, target.value)
            outputs.append(target.value)
        if options is None or options._entries.get(NO_SYNCHRONIZE) != "1":
            tensors = [v._value for v in outputs if is_tensor(v._value)]
            if tensors:
                device_values("a device").finish(tensors)
        return outputs

    @property
    def _iobinding(self) -> SessionIOBinding:
        return self

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs."""
        with self._lock:
            self._feed, self._collected = {}, None

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs and drop the results of the last run."""
        with self._lock:
            self._targets, self._results, self._collected = {}, [], None

    def synchronize_inputs(self) -> None:
        """Wait until the copies of bound inputs to devices are complete."""
        _synchronize(self._feed.copy().values())

    def synchronize_outputs(self) -> None:
        """Wait until devices have completed the outputs of the last run."""
        _synchronize(value._value for value in self._results)

    def get_outputs(self) -> OrtValueVector:
        """Return the outputs of the last run, in the order in which they were bound."""
        return OrtValueVector(self._results)

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of the last run's outputs on the host, as `run` returns results."""
        copies = [value._fed() for value in self._results]
        return on_host([c.copy() if isinstance(c, np.ndarray) else c for c in copies])


class IOBinding:
    """onnxruntime's Python interface of SessionIOBinding."""

    def __init__(self, session: InferenceSession) -> None:
        self._iobinding = SessionIOBinding(session)

    def __repr__(self) -> str:
        return repr(self._iobinding)

    def bind_cpu_input(self, name: str, arr_on_cpu: Any) -> None:
        """Bind an input to an array, which is kept alive and read by each run.

        A value that is not a contiguous array of the input's type is converted and copied, now.
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
        """Bind an input to memory at an address.

        The caller keeps the memory valid as long as the binding exists: only the alignment and
        whether the address is mapped in this process are checked.
        """
        device = OrtDevice.make(device_type, device_id)
        self._iobinding.bind_input(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_input(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an input to an OrtValue."""
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
        """Bind an output to a device, on which each run allocates it, or to memory at an address.

        The caller keeps that memory valid, as in `bind_input`, and it must be writable.
        """
        device = OrtDevice.make(device_type, device_id)
        if buffer_ptr is None:
            self._iobinding.bind_output(name, device)
            return
        if element_type is None or shape is None:
            raise ValueError("buffer_ptr requires element_type and shape")
        self._iobinding.bind_output(name, device, element_type, shape, buffer_ptr)

    def bind_ortvalue_output(self, name: str, ortvalue: OrtValue) -> None:
        """Bind an output to a tensor, which no other run may use at the same time."""
        self._iobinding.bind_ortvalue_output(name, ortvalue)

    def synchronize_inputs(self) -> None:
        """Wait until the copies of bound inputs to devices are complete."""
        self._iobinding.synchronize_inputs()

    def synchronize_outputs(self) -> None:
        """Wait until devices have completed the outputs of the last run."""
        self._iobinding.synchronize_outputs()

    def get_outputs(self) -> list[OrtValue]:
        """Return the outputs of the last run, in the order in which they were bound."""
        return list(self._iobinding.get_outputs())

    def get_outputs_as_ortvaluevector(self) -> OrtValueVector:
        """Return `get_outputs` as an OrtValueVector."""
        return self._iobinding.get_outputs()

    def copy_outputs_to_cpu(self) -> list[Any]:
        """Return copies of the last run's outputs on the host, as `run` returns results."""
        return self._iobinding.copy_outputs_to_cpu()

    def clear_binding_inputs(self) -> None:
        """Unbind all inputs."""
        self._iobinding.clear_binding_inputs()

    def clear_binding_outputs(self) -> None:
        """Unbind all outputs and drop the results of the last run."""
        self._iobinding.clear_binding_outputs()


def _synchronize(values: Iterable[Any]) -> None:
    tensors = [v for v in values if is_tensor(v)]
    if tensors:
        device_values("a device").synchronize(tensors)


def _check_target(name: str, fact: Any, value: OrtValue) -> None:
    """Raise an error unless an output of this type and shape can be written to a tensor."""
    if not isinstance(fact, Fact):
        raise ValueFault(f"the output {name} is a {type_name(fact)}, not a tensor")
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
    shape, sizes = value.shape(), [d if isinstance(d, int) else None for d in fact.shape]
    pairs = zip(shape, sizes, strict=False)
    if len(shape) != len(sizes) or any(d is not None and s != d for s, d in pairs):
        raise ValueFault(
            f"the output {name} has the shape {fact}, and is bound to a tensor of shape {shape}"
        )


def _copy(name: str, result: Any, target: OrtValue) -> None:
    """Copy a result to its bound tensor, which must have its type and shape."""
    value = as_ort_value(result)
    if value.data_type() != target.data_type() or value.shape() != target.shape():
        raise ValueFault(
            f"the output {name} is {value.data_type()} {value.shape()} in this run, "
            f"and is bound to {target.data_type()} {target.shape()}",
            hint="bind a tensor of that shape, or the device alone",
        )
    target.update_inplace(value)


__all__ = ["IOBinding", "SessionIOBinding"]
