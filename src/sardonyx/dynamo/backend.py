"""The TorchDynamo backend: `torch.compile(model, backend="sardonyx")`.

TorchDynamo captures the graph, AOTAutograd makes it functional and derives the backward graph, and
both are lowered to sessions here. torch keeps autograd, random generators, mutation and parameters.
The steps, in order: the `replace_*_calls` functions adjust what TorchDynamo captured, `partition`
chooses what is saved for the backward graph, `lower` makes a model of each graph and records the
calls without a lowering, each with the reason. `split` partitions the graph around those calls,
which run in torch; in a graph that is split, random draws run in torch as well, in their order.
`executor` runs the sessions.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from typing import Any, Final

import torch
from torch import fx
from torch._dynamo.backends.common import aot_autograd
from torch._guards import TracingContext
from torch._subclasses.fake_tensor import unset_fake_temporarily

from sardonyx.base.log import logger
from sardonyx.dynamo.absent_gradients import with_absent_gradients, with_zeros
from sardonyx.dynamo.attention import replace_attention_calls
from sardonyx.dynamo.cache import graph_cache
from sardonyx.dynamo.decompositions import decompositions, without_python_decompositions
from sardonyx.dynamo.executor import with_pages_released
from sardonyx.dynamo.freezing import executor_of
from sardonyx.dynamo.lower import NO_PARAMETERS, FrozenParameters, GraphLowering, gradient_names
from sardonyx.dynamo.options import BackendOptions, read_options
from sardonyx.dynamo.partition import partition
from sardonyx.dynamo.recurrent import keep_lengths_dynamic, replace_recurrent_calls
from sardonyx.dynamo.report import GraphReport, Report
from sardonyx.dynamo.split import SplitGraph, split_graph

_DEFAULTS: Final = BackendOptions()
Compiled = Callable[[list[Any]], Sequence[Any]]
_COMPILERS: Final = {
    "fw_compiler": "forward", "bw_compiler": "backward", "inference_compiler": "inference",
}  # fmt: skip


def sardonyx_backend(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    report: Report | None = None,
    options: Mapping[str, Any] | None = None,
) -> Any:
    """Compile one graph of TorchDynamo; the entry point `torch_dynamo_backends` names this.

    `options` are those of `torch.compile`, fields of `BackendOptions`.
    """
    given = read_options(options or {})
    report = Report() if report is None else report
    _note_graph_break(module, report)
    replace_recurrent_calls(module)
    replace_attention_calls(module)
    compiler = partial(compile_graph, report=report, options=given)
    with without_python_decompositions(), graph_cache(module, report, given) as cacheable:
        backend = aot_autograd(
            **{
                name: cacheable(partial(compiler, kind=kind), kind)
                for name, kind in _COMPILERS.items()
            },
            decompositions=decompositions(),
            partition_fn=partial(partition, memory_budget=given.memory_budget),
        )
        compiled = with_absent_gradients(backend(module, example_inputs), module)
    return compiled if given.memory_budget is None else with_pages_released(compiled)


keep_lengths_dynamic(sardonyx_backend)


def _note_graph_break(module: fx.GraphModule, report: Report) -> None:
    """Record why TorchDynamo ended this graph, unless it is the end of the function."""
    why = getattr(module, "compile_subgraph_reason", None)
    if why is not None and why.graph_break:
        frame = why.user_stack[-1] if why.user_stack else None
        where = f" [{frame.filename}:{frame.lineno}: {frame.line}]" if frame else ""
        report.graph_breaks.append(f"{why.reason.splitlines()[0]}{where}")


def compile_graph(
    module: fx.GraphModule,
    example_inputs: Sequence[Any],
    *,
    kind: str,
    report: Report,
    options: BackendOptions = _DEFAULTS,
) -> Compiled:
    """Compile one ATen graph to a boxed function."""
    if kind == "backward":
        _disable_buffer_donation()
    frozen = _parameters(module) if options.freeze and kind == "inference" else frozenset()
    parameters = FrozenParameters(frozen, relies_on_versions=options.freeze == "versions")
    with unset_fake_temporarily():  # lowerings make constants
        return _compile_graph(module, kind, report, parameters, _n_visible(kind))


def _metadata() -> Any:
    """Return what AOTAutograd knows of the forward graph that it compiles; None outside of it."""
    context = TracingContext.try_get()
    return None if context is None else context.fw_metadata


def _parameters(module: fx.GraphModule) -> frozenset[str]:
    """Return the names of placeholders that are parameters or buffers, and not written by a run."""
    metadata = _metadata()
    if metadata is None:
        return frozenset()
    names = [n.name for n in module.graph.nodes if n.op == "placeholder"]
    written = {i for i, info in enumerate(metadata.input_info) if info.mutates_data}
    static = (i for i in metadata.static_input_indices if i < len(names))
    return frozenset(names[i] for i in static if i not in written)


def _n_visible(kind: str) -> int:
    """Return how many results of a graph, the first ones, the user or AOTAutograd's views see."""
    metadata = _metadata()
    if metadata is None or kind == "backward":
        return 0
    n_mutated = metadata.num_mutated_inp_runtime_indices
    return int(n_mutated + metadata.num_outputs + metadata.num_intermediate_bases)


def _disable_buffer_donation() -> None:
    """Allow backward graphs to run twice (`retain_graph=True`): they never write to saved tensors.

    torch rejects a second run if it donated the buffers of saved tensors to the compiler.
    """
    metadata = _metadata()
    if metadata is not None:
        donated = metadata.bw_donated_idxs
        if donated is not None:
            donated.clear()  # in place: copies of the metadata share this list


def _compile_graph(
    module: fx.GraphModule,
    kind: str,
    report: Report,
    parameters: FrozenParameters,
    n_visible: int,
) -> Compiled:
    begin = time.perf_counter()
    calls = [n for n in module.graph.nodes if n.op == "call_function"]
    entry = GraphReport(kind, len(calls), 0)
    report.graphs.append(entry)
    is_backward = kind == "backward"
    gradients = gradient_names(module.graph) if is_backward else None
    lowering = GraphLowering(module, gradients, parameters, n_visible)
    lowered = lowering.run()
    if lowered is not None:
        entry.n_sessions = 1
        compiled: Any = executor_of(lowered, torch.get_num_threads(), is_backward)
        compiled._boxed_call = True
        entry.executor = compiled
    else:
        entry.fallbacks = list(lowering.fallbacks.values())
        logger.info("%s graph: %d calls run in torch", kind, len(entry.fallbacks))
        whole = split_graph(module, lowering.fallbacks, gradients)
        _compile_parts(whole, entry, parameters, gradients)
        compiled = SplitGraph(whole)
        if is_backward:
            compiled = with_zeros(compiled, module)
    entry.seconds = time.perf_counter() - begin
    return compiled  # type: ignore[no-any-return]


def _compile_parts(
    whole: fx.GraphModule,
    entry: GraphReport,
    parameters: FrozenParameters,
    gradients: Collection[str] | None,
) -> None:
    """Compile Sardonyx's submodules of a split graph."""
    for name, part in list(whole.named_children()):
        if name.startswith("submod_sardonyx"):
            _compile_submodule(whole, name, entry, parameters, gradients)
        else:  # the graphs that higher-order ops call
            for called in dict(part.named_children()):
                _compile_submodule(part, called, entry)


def _compile_submodule(
    parent: torch.nn.Module,
    name: str,
    entry: GraphReport,
    parameters: FrozenParameters = NO_PARAMETERS,
    gradients: Collection[str] | None = None,
) -> None:
    """Replace a submodule by an executor; names of values are those of the unsplit graph."""
    part = getattr(parent, name)
    sub = GraphLowering(_with_tuple_output(part), gradients, parameters)
    lowered = sub.run()
    if lowered is None:  # a call fails only in its submodule: torch runs the whole submodule
        entry.fallbacks.extend(sub.fallbacks.values())
        return
    executor = executor_of(lowered, torch.get_num_threads(), is_backward=gradients is not None)
    setattr(parent, name, _Submodule(executor, _is_single(part)))
    entry.n_sessions += 1


def _is_single(part: Any) -> bool:
    output = next(n for n in part.graph.nodes if n.op == "output")
    return not isinstance(output.args[0], (tuple, list))


def _with_tuple_output(part: Any) -> fx.GraphModule:
    """Return a submodule whose graph returns a tuple, as those of AOTAutograd do."""
    graph = fx.Graph()
    copied: dict[fx.Node, fx.Node] = {}
    for node in part.graph.nodes:
        if node.op == "output":
            result = node.args[0]
            results = result if isinstance(result, (tuple, list)) else (result,)
            graph.output(tuple(copied[r] if isinstance(r, fx.Node) else r for r in results))
        else:
            copied[node] = graph.node_copy(node, copied.__getitem__)
    return fx.GraphModule(part, graph)


class _Submodule(torch.nn.Module):
    """An executor that replaces a submodule of a split graph."""

    def __init__(self, run: Compiled, is_single: bool) -> None:
        super().__init__()
        self._run, self._is_single = run, is_single

    def run(self, args: list[Any]) -> Any:
        """Run with the submodule's arguments, in a list that is emptied."""
        results = self._run(args)
        return results[0] if self._is_single else tuple(results)

    def forward(self, *args: Any) -> Any:
        return self.run(list(args))
