"""One native pass over all parameters of an optimizer: which ones it can update, and the call.

Only addresses and sizes are cached, and revalidated each step: FSDP and others resize storages and
replace `.data`, and autograd makes new gradients.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any, ClassVar, Final, NamedTuple

import numpy as np
import torch
from torch import Tensor

import sardonyx._native as native
from sardonyx.base.log import logger
from sardonyx.errors import Fail, InvalidArgument

Group = dict[str, Any]

N_HYPERPARAMETERS: Final = 8  # of a group, kHyperparameters in native/kernels/optimizer/params.h
_NO_STATES: Final = (0, 0, 0)  # addresses of a record
_N_COLUMNS: Final = 12  # of a record: `Param` in native/kernels/optimizer/params.h
_GRAD: Final = 1  # the column of the gradient's address
_INT64: Final = 7  # element types of ONNX
_FLOAT64: Final = 11
_DTYPES: Final = {torch.float32: 1, torch.float16: 10, torch.bfloat16: 16}
_PLAIN: Final = frozenset((torch.Tensor, torch.nn.Parameter, torch.nn.Buffer))
_NO_CLIPPING: Final = -1.0


class ParameterUpdate(NamedTuple):
    """A parameter with a gradient, and its state; `None` for absent states."""

    param: Tensor
    grad: Tensor
    states: tuple[Tensor | None, ...]
    step: Tensor | None = None


def fallback_reason(entry: ParameterUpdate, *, row_major: bool) -> str | None:
    """Return why torch updates this parameter, or None if the native kernel does.

    The kernel treats tensors as flat arrays, so all must be dense with equal strides; with
    `row_major` they must also be contiguous.
    """
    p, g = entry.param, entry.grad
    if type(p) not in _PLAIN or type(g) not in _PLAIN:
        return f"a tensor of class {type(p if type(p) not in _PLAIN else g).__name__}"
    if not p.is_cpu:
        return f"a parameter on {p.device}"
    dtype = p.dtype
    if dtype not in _DTYPES:
        return f"a parameter of type {str(dtype).removeprefix('torch.')}"
    if g.layout is not torch.strided:
        return "a sparse gradient"
    if g.dtype is not dtype or not g.is_cpu or g.is_neg():
        return "a gradient of another type or device than its parameter"
    is_plain = p.is_contiguous()
    if not is_plain and (row_major or not torch.ops.aten.is_non_overlapping_and_dense(p)):
        return "a parameter that is not contiguous"
    if not (g.is_contiguous() if is_plain else g.stride() == p.stride()):
        return "a gradient with other strides than its parameter"
    return _state_fallback_reason(entry, is_plain)


def _state_fallback_reason(entry: ParameterUpdate, is_plain: bool) -> str | None:
    """Return why the kernel cannot update the state of a parameter; None if it can."""
    p, step = entry.param, entry.step
    for state in entry.states:
        if state is None:
            continue
        if state.dtype is not p.dtype or not state.is_cpu:
            return "state of another type or device than its parameter"
        if not (state.is_contiguous() if is_plain else state.stride() == p.stride()):
            return "state with other strides than its parameter"
    if step is not None and (step.dtype is not torch.float32 or not step.is_cpu):
        return "a step counter that is not float32 on the CPU"
    return None


def _address(tensor: Tensor | None) -> int:
    return 0 if tensor is None else tensor.data_ptr()


def _check_storage(tensor: Tensor) -> None:
    """Raise if a tensor's storage was freed or shrunk, as FSDP does between steps."""
    bounds = (tensor.storage_offset() + tensor.numel()) * tensor.element_size()
    if tensor.untyped_storage().nbytes() < bounds:
        raise InvalidArgument(
            f"a parameter of shape {tuple(tensor.shape)}, or its state, has no memory: its storage "
            f"has {tensor.untyped_storage().nbytes()} of {bounds} bytes",
            hint="call step() while parameters are sharded, or inside `summon_full_params`",
        )


def _overlap(addresses: Any, sizes: Any) -> bool:
    """Return whether any two of these byte ranges overlap."""
    by_address = np.argsort(addresses, kind="stable")
    begins = addresses[by_address]
    ends = begins + sizes[by_address]
    return bool((ends[:-1] > begins[1:]).any())


class ParamTable:
    """The records of the parameters that a kernel updates, reused while they are unchanged."""

    def __init__(self) -> None:
        self._key: list[tuple[int, ...]] = []
        self._records: Any = np.zeros((0, _N_COLUMNS), np.int64)
        self._ranges: list[tuple[int, int]] = []  # address and bytes of each parameter
        self._overlaps = False

    def fill(
        self, entries: Sequence[ParameterUpdate], groups: Sequence[int], firsts: Sequence[bool]
    ) -> None:
        """Read all addresses; `groups` and `firsts` are the group and first step of each entry."""
        key = [
            (p.data_ptr(), 0, *map(_address, states), *_NO_STATES[len(states) :], _address(step),
             p.numel(), _DTYPES[p.dtype], group, first, *(p.shape[-2:] if p.dim() > 1 else (0, 0)))
            for (p, _, states, step), group, first in zip(entries, groups, firsts, strict=True)
        ]  # fmt: skip
        if key != self._key:
            for entry in entries:
                for tensor in (entry.param, *entry.states):
                    if tensor is not None:
                        _check_storage(tensor)
            self._key, self._records = key, np.array(key, np.int64).reshape(-1, _N_COLUMNS)
        self._records[:, _GRAD] = [entry.grad.data_ptr() for entry in entries]

    def overlap(self, entries: Sequence[tuple[int, ParameterUpdate]]) -> bool:
        """Return whether parameters share memory, so that the order of their updates matters."""
        ranges = [(e.param.data_ptr(), e.param.nbytes) for _, e in entries]
        if ranges != self._ranges:
            self._ranges, self._overlaps = ranges, _overlap(*np.array(ranges, np.int64).T)
        return self._overlaps

    def run(self, kernel: str, hyperparameters: Any, floats: list[float]) -> float:
        """Run a step's kernel on torch's number of threads; return the norm of the gradients."""
        norm = np.zeros(1)
        inputs = [
            (self._records.ctypes.data, _INT64, list(self._records.shape), [_N_COLUMNS, 1]),
            (
                hyperparameters.ctypes.data,
                _FLOAT64,
                list(hyperparameters.shape),
                [N_HYPERPARAMETERS, 1],
            ),
        ]
        outputs = [(norm.ctypes.data, _FLOAT64, [1], [1])]
        threads = torch.get_num_threads()
        error = native.call(kernel, inputs, outputs, [], floats, splits=0, threads=threads)
        if error:
            raise Fail(error)
        return float(norm[0])


def number(x: float | Tensor) -> float:
    """Return a hyperparameter, which may be a tensor of one element, as a number."""
    return float(x.item() if isinstance(x, Tensor) else x)


def _sum_of_squares(grads: Sequence[Tensor]) -> float:
    """Return the sum of squares of gradients of any layout, sharded ones (DTensor) included."""
    total = 0.0
    for grad in grads:
        values = grad.coalesce().values() if grad.is_sparse else grad
        norm = torch.linalg.vector_norm(values.detach())
        full = getattr(norm, "full_tensor", None)
        total += float(norm if full is None else full()) ** 2
    return total


class FusedStep(torch.optim.Optimizer):
    """An optimizer that runs `step` as one native pass where it can.

    A subclass names its kernel, and says how to collect a group's entries, a group's
    hyperparameters in the kernel's order, and torch's update of entries.
    """

    kernel: ClassVar[str]
    row_major: ClassVar[bool] = False
    states_on_first_step: ClassVar[bool] = False  # the kernel writes them
    updates_in_place: ClassVar[bool] = True  # a step allocates no memory to speak of

    max_norm: float | None = None
    grad_norm: Tensor | None = None  # of the last step, before clipping; None without max_norm
    fallbacks: Counter[str]  # parameters that torch updated in the last step, by reason
    _table: ParamTable | None = None
    _reported: frozenset[str] = frozenset()

    def __init__(
        self, params: Any, *args: Any, max_norm: float | None = None, **options: Any
    ) -> None:
        if max_norm is not None and not max_norm >= 0:
            raise ValueError(f"max_norm must be at least 0, got {max_norm}")
        super().__init__(params, *args, **options)
        self.max_norm = max_norm
        self.fallbacks = Counter()

    def __getstate__(self) -> dict[str, Any]:
        return super().__getstate__() | {"max_norm": self.max_norm, "fallbacks": self.fallbacks}

    def collect(self, group: Group) -> list[ParameterUpdate]:
        """Return the group's parameters with gradients; creates state as torch's class does."""
        raise NotImplementedError

    def hyperparameters(self, group: Group) -> list[float]:
        """Return the kernel's hyperparameters of a group; the last is -1 for maximize, else 1."""
        raise NotImplementedError

    def update_in_torch(self, group: Group, entries: list[ParameterUpdate]) -> None:
        """Update entries with torch's functions."""
        raise NotImplementedError

    def new_states(self, entry: ParameterUpdate) -> ParameterUpdate:
        """Return the entry with the states that its first step writes."""
        return entry

    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        """Update all parameters; `closure` reevaluates the loss and gradients."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        with torch.set_grad_enabled(bool(self.defaults.get("differentiable", False))):
            self._update()
        return loss

    def _update(self) -> None:
        # Set by torch.amp.GradScaler for the length of a step, if _step_supports_amp_scaling.
        found_inf, scale = getattr(self, "found_inf", None), getattr(self, "grad_scale", None)
        if found_inf is not None and found_inf.item():
            return
        entries, others = self._split()
        if entries:
            self._table = self._table or ParamTable()
            if self._table.overlap(entries):
                for group, entry in entries:
                    others.setdefault(group, []).append((entry, "parameters that share memory"))
                entries = []
            else:
                self._fill(entries)
        self._report(others)
        if scale is not None:
            for kept in others.values():
                for entry, _ in kept:
                    entry.grad.div_(scale)
        clip = self._run(entries, others, 1.0 if scale is None else number(scale))
        for group, kept in others.items():
            self._fall_back(self.param_groups[group], [entry for entry, _ in kept], clip)

    def _split(
        self,
    ) -> tuple[list[tuple[int, ParameterUpdate]], dict[int, list[tuple[ParameterUpdate, str]]]]:
        """Return native entries, and fallback entries with reasons, with their groups."""
        natives: list[tuple[int, ParameterUpdate]] = []
        others: dict[int, list[tuple[ParameterUpdate, str]]] = {}
        for index, group in enumerate(self.param_groups):
            whole = self._group_fallback_reason(group)
            for entry in self.collect(group):
                reason = whole or fallback_reason(entry, row_major=self.row_major)
                if reason is None:
                    natives.append((index, entry))
                else:
                    others.setdefault(index, []).append((entry, reason))
        return natives, others

    def _group_fallback_reason(self, group: Group) -> str | None:
        if torch.compiler.is_compiling():
            return "torch.compile traces the step"
        for option in ("differentiable", "capturable"):
            if group.get(option):
                return f"the option {option}"
        return None

    def _fill(self, entries: list[tuple[int, ParameterUpdate]]) -> None:
        assert self._table is not None
        firsts = [False] * len(entries)
        if self.states_on_first_step:
            for i, (group, entry) in enumerate(entries):
                new = self.new_states(entry)
                firsts[i] = new is not entry
                entries[i] = (group, new)
        self._table.fill([e for _, e in entries], [g for g, _ in entries], firsts)

    def _run(
        self,
        entries: list[tuple[int, ParameterUpdate]],
        others: dict[int, list[tuple[ParameterUpdate, str]]],
        scale: float,
    ) -> float:
        """Run the kernel; return the factor that clips the gradients of the other entries."""
        squares = 0.0
        if self.max_norm is not None and others:
            squares = _sum_of_squares([e.grad for kept in others.values() for e, _ in kept])
        norm = math.sqrt(squares)
        if entries:
            assert self._table is not None
            limit = _NO_CLIPPING if self.max_norm is None else float(self.max_norm)
            groups = np.array([self.hyperparameters(group) for group in self.param_groups])
            norm = self._table.run(self.kernel, groups, [limit, scale, squares])
            # For autograd's check for in-place changes between forward and backward.
            torch.autograd.graph.increment_version([entry.param for _, entry in entries])
        if self.max_norm is None:
            return 1.0
        self.grad_norm = torch.tensor(norm)
        clip = self.max_norm / (norm + 1e-6)
        return 1.0 if clip > 1 else clip

    def _fall_back(self, group: Group, entries: list[ParameterUpdate], clip: float) -> None:
        if clip != 1:
            entries = [entry._replace(grad=entry.grad * clip) for entry in entries]
        self.update_in_torch(group, entries)

    def _report(self, others: dict[int, list[tuple[ParameterUpdate, str]]]) -> None:
        """Count the parameters that torch updates by reason; log each reason once."""
        if torch.compiler.is_compiling():
            return
        self.fallbacks = Counter(reason for kept in others.values() for _, reason in kept)
        for reason in self.fallbacks.keys() - self._reported:
            count = self.fallbacks[reason]
            name = type(self).__name__
            logger.warning("%s: torch updates %d parameter(s): %s", name, count, reason)
            self._reported |= {reason}
