"""`wrap`: run a torch module with Sardonyx, in training and in inference."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Literal
from weakref import WeakKeyDictionary

from sardonyx.base.records import as_dict
from sardonyx.errors import InvalidArgument

if TYPE_CHECKING:
    import torch

    from sardonyx.dynamo.report import Report

Compiler = Callable[[Callable[..., Any]], Callable[..., Any]]
_REPORTS: Final[WeakKeyDictionary[Any, Report]] = WeakKeyDictionary()


def wrap(
    module: torch.nn.Module,
    *,
    memory_budget: float | None = None,
    dynamic: bool | None = None,
    cache: bool = True,
    freeze: bool | Literal["versions"] = True,
) -> torch.nn.Module:
    """Compile a module's calls with Sardonyx, in place, and return it.

    The module stays what it is: its class, parameters, `state_dict`, hooks and checkpoints do not
    change; optimizers, DistributedDataParallel, FSDP2, Trainer and Accelerate accept it as before.

    `memory_budget` is the fraction of the activations' bytes, from 0 to 1, that may be saved for
    the backward pass, or a number of bytes, at least 1024; the rest is recomputed there, as far as
    that lowers the peak. `dynamic` is that of `torch.compile`. With `cache`, compiled graphs are
    stored in torch's cache folder, and loaded by later processes. With `freeze`, parameters are
    constants in inference, until they change: each call compares their bytes, or, with "versions",
    only `Tensor._version`, which is faster and does not notice writes through `p.data`.

    With FSDP2, call `fully_shard` first: its innermost modules are compiled one by one, between the
    hooks that gather their parameters.
    """
    import torch

    from sardonyx.dynamo.backend import sardonyx_backend
    from sardonyx.dynamo.capture import skip_warnings_once
    from sardonyx.dynamo.options import BackendOptions
    from sardonyx.dynamo.report import Report

    if not isinstance(module, torch.nn.Module):
        raise InvalidArgument(f"wrap takes a torch.nn.Module, not {type(module).__name__}")
    options = BackendOptions(memory_budget, cache, freeze)
    skip_warnings_once()
    _REPORTS[module] = kept = Report()
    backend = partial(sardonyx_backend, report=kept, options=as_dict(options))
    compiler = partial(torch.compile, backend=backend, dynamic=dynamic, **_isolated())
    units = _sharded_units(module)
    for unit in units:
        unit._compiled_call_impl = _with_compiled_forward(unit, compiler)
    if units:
        kept.notes.append(f"{len(units)} FSDP modules are compiled; torch runs what is around them")
    else:
        module._compiled_call_impl = _compiled_call(module, compiler)
    return module


def _isolated() -> dict[str, bool]:
    """Give each module its own count of recompilations, where torch can.

    Otherwise modules of one class share it, and one of them may use up the limit of all.
    """
    import torch

    name = "isolate_recompiles"
    return {name: True} if name in inspect.signature(torch.compile).parameters else {}


def _compiled_call(module: torch.nn.Module, compiler: Compiler) -> Callable[..., Any]:
    """Return what `Module.compile` sets; deep copies and pickles of the module leave it out."""
    import torch._dynamo

    call = module._call_impl
    if torch._dynamo.trace_rules.check(module.forward):
        # A class of torch.nn itself: TorchDynamo does not trace its frames unless it inlines them.
        call = torch._dynamo.external_utils.wrap_inline(call)
    return compiler(call)


def _sharded_units(module: torch.nn.Module) -> list[torch.nn.Module]:
    """Return the innermost modules that FSDP2 shards: their parameters are gathered by hooks."""
    import torch.distributed

    if not torch.distributed.is_available():
        return []
    from torch.distributed.fsdp import FSDPModule

    sharded = [m for m in module.modules() if isinstance(m, FSDPModule)]
    return [m for m in sharded if not any(o is not m and o in sharded for o in m.modules())]


def _with_compiled_forward(unit: torch.nn.Module, compiler: Compiler) -> Callable[..., Any]:
    """Return a call that runs the hooks of FSDP eagerly, and the forward between them compiled."""
    import torch._dynamo

    forward = unit.forward
    if torch._dynamo.trace_rules.check(forward):
        forward = torch._dynamo.external_utils.wrap_inline(forward)
    compiled = compiler(forward)

    def call(*args: Any, **kwargs: Any) -> Any:
        unit.__dict__["forward"] = compiled
        try:
            return unit._call_impl(*args, **kwargs)  # type: ignore[no-untyped-call]
        finally:
            del unit.__dict__["forward"]

    return call


def report(module: torch.nn.Module) -> Report:
    """Return what a wrapped module was compiled to, and which calls run in torch, and why."""
    try:
        return _REPORTS[module]
    except (KeyError, TypeError):
        raise InvalidArgument(
            "this module is not wrapped", hint="call sardonyx.train.wrap(module) first"
        ) from None
