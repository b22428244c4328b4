"""Compiled graphs on disk, in torch's AOTAutogradCache, so that a script's second start is quick.

torch's key covers the graph of TorchDynamo, types and shapes of its inputs, torch's version and its
settings. `_identity` adds what else a compiled graph depends on. A hit skips AOTAutograd, the
partitioner and the lowering; TorchDynamo captures the graph, and sessions are compiled, each time.

Where torch offers this cache to inductor only, graphs are compiled without it.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from functools import cache
from pathlib import Path
from typing import Any, Final

import torch
import torch._functorch.config as functorch_config
from torch import fx

import sardonyx._native as _native
from sardonyx.base.digest import blake2b
from sardonyx.dynamo.cache_limit import limit_bytes, trim
from sardonyx.dynamo.options import BackendOptions
from sardonyx.dynamo.recurrent import run_layers
from sardonyx.dynamo.report import Report
from sardonyx.dynamo.table import LOWERINGS

try:
    import torch._inductor.config as inductor_config

    # Older torches have a cache that stores inductor's code alone.
    from torch._functorch._aot_autograd.aot_autograd_result import BundledOutputCodeLoadable
    from torch._functorch._aot_autograd.autograd_cache import AOTAutogradCache
    from torch._functorch._aot_autograd.schemas import SerializableAOTDispatchCompiler

    from sardonyx.dynamo.cached_graph import CURRENT_REPORT, CachedGraph
except ImportError:
    _IS_AVAILABLE = False
else:
    _IS_AVAILABLE = BundledOutputCodeLoadable is not None

Compiler = Callable[[fx.GraphModule, Any], Any]
VARIABLE: Final = "SARDONYX_GRAPH_CACHE"
_PACKAGE: Final = Path(__file__).parents[1]
# Forward and backward graphs are stored as one entry, while these settings apply.
_SETTINGS: Final[dict[str, Any]] = {
    "bundled_autograd_cache": True,
    "force_non_lazy_backward_lowering": True,
}
# Namespaces of torch's and Sardonyx's ops: the code of other ops may change between runs.
_KNOWN: Final = frozenset(("aten", "prim", "prims", "sardonyx", "_c10d_functional"))


@contextmanager
def graph_cache(
    module: fx.GraphModule, report: Report, options: BackendOptions
) -> Iterator[Callable[[Compiler, str], Any]]:
    """Store and load what compilers return in this block, if the options and the graph allow it.

    Yields a function that makes a compiler of AOTAutograd, for a kind of graph, cacheable.
    Graphs that were compiled with other options are not loaded.
    """
    if not options.cache or not is_cacheable(module):
        yield lambda compiler, _: compiler
        return
    with ExitStack() as stack:
        stack.enter_context(functorch_config.patch(**_SETTINGS))
        known = {**inductor_config.unsafe_marked_cacheable_functions, _LAYERS: "1"}
        stack.enter_context(inductor_config.patch(unsafe_marked_cacheable_functions=known))
        token = CURRENT_REPORT.set(report)
        stack.callback(CURRENT_REPORT.reset, token)
        # torch's key covers the attributes of the graph module.
        module.__dict__["sardonyx_identity"] = _identity(options)
        n_stored = CachedGraph.n_stored
        yield _cacheable
        if CachedGraph.n_stored > n_stored:
            trim(Path(AOTAutogradCache._get_tmp_dir()), limit_bytes())


_LAYERS: Final = f"{run_layers.__module__}.{run_layers.__name__}"


def _cacheable(compiler: Compiler, kind: str) -> Any:
    def compiled(module: fx.GraphModule, example_inputs: Any) -> CachedGraph:
        n_nodes = sum(n.op == "call_function" for n in module.graph.nodes)
        return CachedGraph(compiler(module, example_inputs), kind, n_nodes)

    return SerializableAOTDispatchCompiler(CachedGraph, compiled)


def is_cacheable(module: fx.GraphModule) -> bool:
    """Whether the result of compiling a graph may be stored and loaded."""
    if os.environ.get(VARIABLE) == "0" or not _IS_AVAILABLE:
        return False
    if not all(hasattr(functorch_config, name) for name in _SETTINGS):
        return False
    if not all(f.__module__.startswith("sardonyx.") for f in LOWERINGS.values()):
        return False
    graphs = [m.graph for m in module.modules() if isinstance(m, fx.GraphModule)]
    return all(_namespace(n.target) in _KNOWN for graph in graphs for n in graph.nodes)


def _namespace(target: Any) -> str:
    """Return the namespace of an op; "aten" for everything else, which torch's own rules judge."""
    if isinstance(target, torch._ops.OpOverload):
        return target.namespace
    if isinstance(target, torch._ops.OpOverloadPacket):
        return target._qualified_op_name.partition("::")[0]
    return "aten"


def _identity(options: BackendOptions) -> str:
    """Return what a compiled graph depends on other than the graph and torch."""
    attention: Any = torch.backends.cuda  # its flags choose the CPU's ops as well
    flags = (
        attention.flash_sdp_enabled(),
        attention.mem_efficient_sdp_enabled(),
        attention.math_sdp_enabled(),
        torch._C._get_mkldnn_enabled(),
        torch.get_default_dtype(),
        torch.get_float32_matmul_precision(),
    )
    return f"{_native.version} {_package_digest()} {options} {flags}"


@cache
def _package_digest() -> str:
    """Return a digest of the package: a lowering or a kernel may change without a new version.

    Of the extension, which is large, it covers the file's size and times. No program can set the
    change time (ctime).
    """
    digest = blake2b(digest_size=20)
    extension = os.stat(_native.__file__)
    digest.update(f"{extension.st_size} {extension.st_mtime_ns} {extension.st_ctime_ns}\0".encode())
    for path in sorted(_PACKAGE.rglob("*.py")):
        digest.update(f"{path.relative_to(_PACKAGE)}\0".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()
